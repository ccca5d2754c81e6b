"""Make or refresh .venv, with what the labs need, or with what tests and benchmarks need, too.

    python3 lib/setup_venv.py        (`make labs` runs it first)
    python3 lib/setup_venv.py --all  (the developers' targets do)

The one hard choice is which PyTorch to install: see `choose`. TORCH=... in the
environment decides it by hand: `cpu`, `cuda`, or anything `pip install` takes (a
requirement, a URL or path of a wheel, with pip's options behind it if need be).

Standard library only, and no syntax newer than Python 3.7: an old Python must be
able to read this file far enough to say that it is too old.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import util
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LABS_LOCK = ROOT / "labs.lock"  # what the labs need, all but torch
LOCK = ROOT / "requirements.lock"  # that, and what tests and benchmarks need
TORCH_LOCK = ROOT / "torch.lock"  # torch as PyPI has it, and all that it needs
# Older ones download a wheel whole to read its metadata.
PIP = "pip==26.3 --hash=sha256:f3b60b20ffaadd4415ed7957212a38ac63fa4c5fa375bd0f4a797777940fad13"
WHEELS = ["--only-binary", ":all:"]  # nothing that is installed runs a build of its own
PYTORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
OLDEST_PYTHON = (3, 11)
OLDEST_TORCH = (2, 11)

# build: "given" (pip arguments in TORCH), "system" (already there), "normal", "cpu"
Choice = namedtuple("Choice", "build why")


def stop(message: str) -> NoReturn:
    sys.exit("setup: " + message)


def choose(override: str, base_torch: str, has_gpu: bool, platform: str) -> Choice:
    """Return which build of torch this machine gets, and why. The first rule that fits wins."""
    if override == "cpu":
        return Choice("cpu", "TORCH=cpu")
    if override == "cuda":
        return Choice("normal", "TORCH=cuda")
    if override:
        return Choice("given", "TORCH is set")
    if version_tuple(base_torch) >= OLDEST_TORCH:
        return Choice("system", f"this Python has torch {base_torch} already")
    if platform.startswith("linux") and has_gpu:
        return Choice("normal", "there is an NVIDIA GPU")
    if platform == "darwin":
        return Choice("normal", "macOS has one build only")
    return Choice("cpu", "there is no NVIDIA GPU")


def version_tuple(version: str) -> tuple[int, ...]:
    """Return (2, 13) for "2.13.0+cpu"; () for ""."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def is_cpu_build(metadata: dict[str, Any]) -> bool:
    """Return whether the torch wheel with this metadata (of pip's report) comes without CUDA."""
    local = metadata["version"].partition("+")[2]
    if local:
        return local.startswith("cpu")
    needs = metadata.get("requires_dist", [])
    return not any(re.match(r"(nvidia|cuda|triton)", need) for need in needs)


def find_cpu_build(python: str | Path, version: str) -> list[str]:
    """Return the pip arguments that install the CPU build of torch `version`.

    On Linux `pip install torch` may mean 5 GB of CUDA. So ask pip what it would
    take, here and from PyTorch's own index, and read that wheel's metadata first.
    """
    tried = []
    for options in [], ["--index-url", PYTORCH_CPU_INDEX]:
        command = [python, "-m", "pip", "install", "--dry-run", "--no-deps", "--quiet"]
        command += ["--ignore-installed", "--report", "-", *WHEELS, "torch==" + version, *options]
        answer = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE)
        place = options[-1] if options else "pip's configured places"
        if answer.returncode:
            tried.append(f"{place}: no answer (pip's message is above)")
            continue
        metadata = json.loads(answer.stdout.decode())["install"][0]["metadata"]
        if is_cpu_build(metadata):
            return ["torch==" + metadata["version"], *options]
        tried.append(f"{place}: torch {metadata['version']} is a CUDA build")
    places = "\n  tried ".join(tried)
    stop(
        f"found no CPU build of torch {version}.\n  tried {places}\n"
        "What to do: check the network, or name the build yourself, one of\n"
        f"  make ... TORCH=/path/of/torch-{version}+cpu-....whl\n"
        "  make ... TORCH=cuda    (the normal build: 5 GB on Linux, runs without a GPU too)"
    )


def locked_torch() -> str:
    """Return the version of torch in the lock."""
    found = re.search(r"^torch==([^ ]+)", TORCH_LOCK.read_text(), re.MULTILINE)
    assert found, "torch.lock pins torch"
    return found.group(1)


def base_torch_version() -> str:
    """Return the version of this Python's torch, "" if none; importing it would take seconds."""
    from importlib import metadata  # Python 3.8

    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""


def use_a_fit_python() -> None:
    """Go on in the Python to build .venv from: new enough, and outside any venv."""
    number = ".".join(map(str, sys.version_info[:2]))
    if sys.version_info < OLDEST_PYTHON:
        for name in "python3.13", "python3.12", "python3.11":
            found = shutil.which(name)
            # It may be a version manager's stand-in that runs nothing: try it.
            if found and not subprocess.call([found, "-c", ""], stderr=subprocess.DEVNULL):
                os.execv(found, [found, *sys.argv])
        stop(
            f"this is Python {number}, Lockstep needs 3.11, 3.12 or 3.13, and none of them is on "
            "PATH.\nInstall one, or say where it is: make ... PYTHON=/path/of/python3.12"
        )
    if sys.prefix != sys.base_prefix:  # a venv of a venv cannot see its packages
        own: str = vars(sys)["_base_executable"]
        os.execv(own, [own, *sys.argv])
    if not util.find_spec("venv") or not util.find_spec("ensurepip"):
        stop(
            f"{sys.executable} cannot make virtual environments. On Debian and Ubuntu:\n"
            f"  sudo apt-get install python{number}-venv"
        )


def progress(lines: Iterable[str]) -> Iterator[str]:
    """Yield what pip is at, by what it says with --progress-bar raw: so a long download is seen."""
    number, package = 0, ""
    for line in lines:
        first, *rest = line.split(" ")
        if first in ("Collecting", "Processing"):
            number += 1
            package = f"{number}: {rest[0].split('/')[-1].split('-')[0]}"
            yield package
        elif first == "Progress" and int(rest[2]) > 5e6:
            yield f"{package}, {int(rest[0]) / 1e6:.0f} of {int(rest[2]) / 1e6:.0f} MB"
        elif first == "Installing":
            yield f"installing {'1 package' if number == 1 else f'{number} packages'}"


def call_pip(command: Sequence[str]) -> int:
    """Run pip, with one line that says what it is at; returns its exit status."""
    terminal = sys.stdout.isatty()
    environment = dict(os.environ, PYTHONUNBUFFERED="1")  # each line when it is said
    pip = subprocess.Popen(
        [*command, "--progress-bar", "raw"],
        stdout=subprocess.PIPE,
        env=environment,
        universal_newlines=True,
    )
    assert pip.stdout is not None
    for said in progress(line.rstrip("\n") for line in pip.stdout):
        if terminal:
            print(f"\r\x1b[K  {said}", end="", flush=True)
        elif said.startswith("installing"):
            print(f"  {said}", flush=True)
    if terminal:
        print("\r\x1b[K", end="", flush=True)
    return pip.wait()


def run(*parts: str | Path, call: Callable[[list[str]], int] = subprocess.call) -> None:
    command = [str(part) for part in parts]
    if call(command):
        cause = "If it speaks of connections or finds no versions, check network and proxy.\n"
        cause += "If it speaks of hashes, what came is not what was locked: do not install it.\n"
        if shutil.disk_usage(str(ROOT)).free < 2e9:
            cause = "The disk is nearly full: make room (.venv takes 2 GB, with CUDA 7 GB).\n"
        stop(
            "this step failed, its message is above:\n"
            f"  {' '.join(map(shlex.quote, command))}\n"
            f"{cause}Then run the same command again: it goes on from here."
        )


def main() -> None:
    use_a_fit_python()
    everything = "--all" in sys.argv[1:]
    override = os.environ.get("TORCH", "").strip()
    has_gpu = bool(os.path.exists("/proc/driver/nvidia/version") or shutil.which("nvidia-smi"))
    choice = choose(override, base_torch_version(), has_gpu, sys.platform)

    # Two stamps: another Python, torch or place needs a new .venv, another lock
    # only a refresh. The second is written last, so a failed run is taken up again.
    # Where there is everything, there is what the labs need.
    base = "\n".join([str(VENV), sys.base_prefix, sys.version, override, *choice])
    made_for = VENV / "made-for.txt"
    files = [LABS_LOCK, LOCK, TORCH_LOCK, ROOT / "pyproject.toml"]
    contents = base.encode() + PIP.encode() + b"".join(file.read_bytes() for file in files)
    digest = hashlib.sha256(contents).hexdigest()
    stamp, complete = VENV / "complete.txt", "{} {}".format("all" if everything else "labs", digest)
    same_base = PYTHON.exists() and made_for.exists() and made_for.read_text() == base
    if same_base and stamp.exists() and stamp.read_text() in (complete, "all " + digest):
        return
    if stamp.exists():
        stamp.unlink()
    if not same_base:
        print("setup: making .venv with Python", sys.version.split()[0], flush=True)
        options = ["--system-site-packages"] if choice.build == "system" else []
        options += ["--clear"] if made_for.exists() else []  # never empty what is not ours
        run(sys.executable, "-m", "venv", *options, VENV)
        made_for.write_text(base)

    pip = [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check"]
    locked = ["--no-deps", *WHEELS, "--require-hashes", "-r"]
    own = VENV / "pip.txt"
    own.write_text(PIP + "\n")
    run(*pip, "--quiet", *locked, own)  # the one that came with Python may not know --progress-bar
    if choice.build == "given":
        torch = shlex.split(override)
    elif choice.build == "normal":
        torch = [*locked, str(TORCH_LOCK)]
    elif choice.build == "cpu":
        # No hash: PyTorch's own index has builds that PyPI has not. It needs nothing but what is
        # in the lock, and nothing else is taken from that index.
        torch = ["--no-deps", *WHEELS, *find_cpu_build(PYTHON, locked_torch())]
    else:
        torch = []
    what = " ".join(map(str, torch)) or "as it is"
    print(f"setup: torch: {what}, because {choice.why}", flush=True)
    if torch:
        run(*pip, *torch, call=call_pip)
    lock = LOCK if everything else LABS_LOCK
    print(f"setup: {lock.name} (a minute or so)", flush=True)
    run(*pip, *locked, lock, call=call_pip)
    run(*pip, "--quiet", "--no-deps", "--no-build-isolation", "--editable", ROOT)
    stamp.write_text(complete)
    print("setup: .venv is ready")


if __name__ == "__main__":
    main()
