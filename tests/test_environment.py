"""One set of versions, said in five places, and the choice of torch that setup makes."""

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
import setup_venv
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
EXTRAS = PROJECT["optional-dependencies"]
CONDA = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
CUDA = re.compile(r"nvidia|cuda|triton")


def pins(path: Path) -> dict[str, Requirement]:
    """The requirements of a file by name; every one has to be pinned, and once."""
    found: dict[str, Requirement] = {}
    for line in path.read_text().splitlines():
        if line.startswith(("#", "--extra-index-url ")):
            continue
        requirement = Requirement(line)
        assert re.fullmatch(r"==[^*,]+", str(requirement.specifier)), f"{path.name}: {line}"
        assert requirement.name not in found, f"{path.name} has {requirement.name} twice"
        found[requirement.name] = requirement
    return found


def version(requirement: Requirement) -> str:
    return str(requirement.specifier).removeprefix("==")


LOCK = pins(ROOT / "requirements.lock")
BINDER = pins(ROOT / "binder" / "requirements.txt")


def test_lock_holds_everything_pyproject_asks_for() -> None:
    asked = [*PROJECT["dependencies"], *PYPROJECT["build-system"]["requires"]]
    asked += [line for extra in EXTRAS.values() for line in extra]
    asked += PYPROJECT["tool"]["uv"]["constraint-dependencies"]
    for line in asked:
        requirement = Requirement(line)
        assert requirement.name in LOCK, f"run make lock: {line} is not in requirements.lock"
        assert version(LOCK[requirement.name]) in requirement.specifier, f"run make lock: {line}"


def test_lock_fits_every_machine() -> None:
    assert "torch==2.13.0" in (ROOT / "requirements.lock").read_text().splitlines()
    assert not [name for name in LOCK if CUDA.match(name)]
    for path in ROOT / "requirements.lock", ROOT / "binder" / "requirements.txt":
        text = path.read_text().replace(setup_venv.PYTORCH_CPU_INDEX, "")
        assert not re.search(r"://|file:|@|^-", text.removeprefix("--extra-index-url"), re.M)


def test_binder_has_the_locked_versions_of_the_labs_and_nothing_else() -> None:
    for name, requirement in BINDER.items():
        assert name in LOCK, f"run make lock: binder/ has {name}, requirements.lock has not"
        assert version(requirement).removesuffix("+cpu") == version(LOCK[name]), name
    assert version(BINDER["torch"]).endswith("+cpu"), "Binder has no room for CUDA"
    names = {Requirement(line).name for line in [*PROJECT["dependencies"], *EXTRAS["labs"]]}
    assert names <= set(BINDER)
    tools = {Requirement(line).name for line in [*EXTRAS["test"], *EXTRAS["bench"]]}
    assert tools & set(BINDER) <= {"psutil"}, "Binder needs no test tools"  # ipykernel wants psutil


def test_conda_installs_the_lock() -> None:
    pip = next(entry["pip"] for entry in CONDA if isinstance(entry, dict))
    index = f"--extra-index-url {setup_venv.PYTORCH_CPU_INDEX}"
    # Nothing but the lock: a version named here would be a second truth.
    assert pip == [index, "-r requirements.lock", "-e ."]
    assert (ROOT / "binder" / "requirements.txt").read_text().startswith(index + "\n")


def test_one_python_version_for_conda_and_binder() -> None:
    (conda,) = [e for e in CONDA if isinstance(e, str) and e.startswith("python=")]
    number = conda.removeprefix("python=")
    assert (ROOT / "binder" / "runtime.txt").read_text() == f"python-{number}\n"
    assert f"Programming Language :: Python :: {number}" in PROJECT["classifiers"]
    oldest = ".".join(map(str, setup_venv.OLDEST_PYTHON))
    assert PROJECT["requires-python"] == f">={oldest}"
    torch = ".".join(map(str, setup_venv.OLDEST_TORCH))
    assert f"torch>={torch}" in PROJECT["dependencies"]


@pytest.mark.skipif(Path(sys.prefix) != ROOT / ".venv", reason="not run from .venv")
def test_this_environment_is_the_locked_one() -> None:
    for name, requirement in LOCK.items():
        if name == "torch" or (requirement.marker and not requirement.marker.evaluate()):
            continue  # torch is chosen for each machine
        assert metadata.version(name) == version(requirement), f"run make setup: {name}"
    found = {canonicalize_name(d.name) for d in metadata.distributions()}
    assert "lockstep" in found
    if "+cpu" in metadata.version("torch"):
        assert not [name for name in found if CUDA.match(name)]
        check = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True)
        assert check.returncode == 0, check.stdout.decode()


# What setup chooses


@pytest.mark.parametrize(
    ("override", "base_torch", "has_gpu", "platform", "build"),
    [
        ("", "", False, "linux", "cpu"),
        ("", "", True, "linux", "normal"),
        ("", "", False, "darwin", "normal"),
        ("", "2.11.0+cu130", True, "linux", "system"),
        ("", "2.13.0", False, "darwin", "system"),
        ("", "3.0.0", False, "linux", "system"),
        ("", "2.9.1+cu128", True, "linux", "normal"),  # too old: as if it were not there
        ("", "2.9.1", False, "linux", "cpu"),
        ("cpu", "2.13.0", True, "linux", "cpu"),
        ("cuda", "2.13.0", False, "linux", "normal"),
        ("torch==2.12.0", "2.13.0", True, "linux", "given"),
        ("/wheels/torch.whl", "", False, "darwin", "given"),
    ],
)
def test_choose(override: str, base_torch: str, has_gpu: bool, platform: str, build: str) -> None:
    choice = setup_venv.choose(override, base_torch, has_gpu, platform)
    assert choice.build == build
    assert choice.why


def test_cpu_builds_are_told_by_local_version_or_by_what_they_need() -> None:
    needs_cuda = ["jinja2", 'nvidia-nccl-cu13==2.29.7; platform_system == "Linux"']
    assert setup_venv.is_cpu_build({"version": "2.13.0+cpu"})
    assert setup_venv.is_cpu_build({"version": "2.13.0", "requires_dist": ["jinja2"]})
    assert not setup_venv.is_cpu_build({"version": "2.13.0", "requires_dist": needs_cuda})
    assert not setup_venv.is_cpu_build({"version": "2.13.0", "requires_dist": ["triton==3.7.1"]})
    assert not setup_venv.is_cpu_build({"version": "2.13.0+cu130"})


def offer(index: Path, version: str, *needs: str) -> str:
    """Put an empty torch of that version in a package index; gives the index's address."""
    folder = index / "torch"
    folder.mkdir(parents=True)
    wheel = folder / f"torch-{version}-py3-none-any.whl"
    info = f"torch-{version}.dist-info"
    lines = ["Metadata-Version: 2.1", "Name: torch", f"Version: {version}"]
    lines += [f"Requires-Dist: {need}" for need in needs]
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{info}/METADATA", "\n".join(lines) + "\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    link = wheel.name.replace("+", "%2B")
    (folder / "index.html").write_text(f'<a href="{link}">{wheel.name}</a>')
    return index.as_uri()


@pytest.fixture
def pip_asks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Real pip, with these two addresses as its configured index and PyTorch's."""

    def ask(configured: str, pytorch: str) -> list[str]:
        for name in "PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX":
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
        monkeypatch.setenv("PIP_INDEX_URL", configured)
        monkeypatch.setattr(setup_venv, "PYTORCH_CPU_INDEX", pytorch)
        return setup_venv.find_cpu_build(sys.executable, "2.13.0")

    return ask


def test_cpu_build_where_pip_is_configured_to_look(pip_asks, tmp_path: Path) -> None:
    assert pip_asks(offer(tmp_path / "a", "2.13.0+cpu"), "unused") == ["torch==2.13.0+cpu"]
    assert pip_asks(offer(tmp_path / "b", "2.13.0"), "unused") == ["torch==2.13.0"]


def test_cpu_build_from_pytorch_where_pip_would_bring_cuda(pip_asks, tmp_path: Path) -> None:
    cuda = offer(tmp_path / "cuda", "2.13.0", "nvidia-nccl-cu13==2.29.7")
    cpu = offer(tmp_path / "cpu", "2.13.0+cpu")
    assert pip_asks(cuda, cpu) == ["torch==2.13.0+cpu", "--index-url", cpu]


def test_no_cpu_build_anywhere_stops_and_says_what_to_do(pip_asks, tmp_path: Path) -> None:
    cuda = offer(tmp_path / "cuda", "2.13.0", "triton==3.7.1")
    nothing = (tmp_path / "nothing").as_uri()
    with pytest.raises(SystemExit) as stopped:
        pip_asks(cuda, nothing)
    message = str(stopped.value)
    assert "torch 2.13.0 is a CUDA build" in message
    assert f"{nothing}: no answer" in message
    assert "TORCH=" in message


# How setup fails


def test_an_old_python_can_read_the_setup_script() -> None:
    ast.parse((ROOT / "lib" / "setup_venv.py").read_text(), feature_version=(3, 7))


def test_too_old_a_python_gives_way_to_one_on_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def gone_to(path: str, arguments: list[str]) -> None:
        raise InterruptedError(path)  # execv never returns

    monkeypatch.setattr(setup_venv, "OLDEST_PYTHON", (4, 0))
    monkeypatch.setattr(setup_venv.os, "execv", gone_to)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match=r"needs 3\.11, 3\.12 or 3\.13(.|\n)*PYTHON="):
        setup_venv.use_a_fit_python()
    for name, status in ("python3.13", 127), ("python3.12", 0):
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {status}\n")
        (tmp_path / name).chmod(0o755)
    with pytest.raises(InterruptedError, match=r"python3\.12$"):
        setup_venv.use_a_fit_python()


def test_a_failed_run_says_what_to_do_and_is_taken_up_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in "pyproject.toml", "requirements.lock", "lib/setup_venv.py":
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")  # as if there were no network
    monkeypatch.setenv("TORCH", "no-such-package")
    command = [sys.executable, str(tmp_path / "lib" / "setup_venv.py")]
    first, second = (subprocess.run(command, capture_output=True, text=True) for _ in "12")
    for run in first, second:
        assert run.returncode == 1
        assert "No matching distribution found" in run.stderr  # pip's own words
        assert "check network and proxy. Then run the same command again" in run.stderr
    assert "making .venv" in first.stdout
    assert "making .venv" not in second.stdout
    assert not (tmp_path / ".venv" / "complete.txt").exists()
