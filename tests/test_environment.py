"""One set of versions, said in six places, and the choice of torch that setup makes."""

import ast
import os
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
LOCKS = ("requirements.lock", "labs.lock", "torch.lock", "tests/hub.lock")
CUDA = re.compile(r"nvidia|cuda|triton")


def pins(path: Path) -> dict[str, Requirement]:
    """The requirements of a file by name; every one has to be pinned, with hashes, and once."""
    found: dict[str, Requirement] = {}
    heading, _, text = path.read_text().partition("\n\n")
    assert heading.splitlines()[2:] == ["--only-binary :all:"], f"{path.name}: {heading}"
    for line in text.replace("\\\n", "").splitlines():
        wanted, *hashes = re.split(r" +--hash=", line)
        assert hashes, f"{path.name}: {wanted} has no hash"
        assert all(re.fullmatch("sha256:[0-9a-f]{64}", one) for one in hashes), (
            f"{path.name}: {line}"
        )
        requirement = Requirement(wanted)
        assert re.fullmatch(r"==[^*,]+", str(requirement.specifier)), f"{path.name}: {wanted}"
        assert requirement.name not in found, f"{path.name} has {requirement.name} twice"
        found[requirement.name] = requirement
    return found


def version(requirement: Requirement) -> str:
    return str(requirement.specifier).removeprefix("==")


LOCK = pins(ROOT / "requirements.lock")
LABS = pins(ROOT / "labs.lock")
TORCH = pins(ROOT / "torch.lock")
HUB = pins(ROOT / "tests/hub.lock")
BINDER = pins(ROOT / "binder" / "requirements.txt")


def test_locks_hold_everything_pyproject_asks_for() -> None:
    asked = [*PROJECT["dependencies"], *PYPROJECT["build-system"]["requires"]]
    asked += [line for extra in EXTRAS.values() for line in extra]
    asked += PYPROJECT["tool"]["uv"]["constraint-dependencies"]
    for line in asked:
        requirement = Requirement(line)
        lock = TORCH if requirement.name == "torch" else LOCK
        assert requirement.name in lock, f"run make lock: {line} is in no lock"
        assert version(lock[requirement.name]) in requirement.specifier, f"run make lock: {line}"


def test_torch_is_locked_apart_and_cuda_comes_with_it_alone() -> None:
    assert version(TORCH["torch"]) == setup_venv.locked_torch() == "2.13.0"
    assert "torch" not in LOCK and not [name for name in LOCK if CUDA.match(name)]
    cuda = [requirement for name, requirement in TORCH.items() if CUDA.match(name)]
    assert any(requirement.name.startswith("nvidia-nccl") for requirement in cuda)
    for requirement in cuda:  # macOS takes torch.lock, too
        assert requirement.marker and not requirement.marker.evaluate({"sys_platform": "darwin"})
    for name, requirement in TORCH.items():
        if name != "torch" and requirement not in cuda:
            assert version(requirement) == version(LOCK[name]), f"run make lock: {name}"


def test_a_hub_changes_no_version_of_the_course() -> None:
    for line in PYPROJECT["dependency-groups"]["hub"]:
        requirement = Requirement(line)
        assert version(HUB[requirement.name]) in requirement.specifier, f"run make lock: {line}"
        assert requirement.name not in LOCK
    for name in HUB.keys() & LOCK.keys():
        assert version(HUB[name]) == version(LOCK[name]), f"run make lock: {name}"


def test_learners_get_the_locked_versions_of_the_labs_and_nothing_else() -> None:
    for name, requirement in LABS.items():
        assert name in LOCK, f"run make lock: labs.lock has {name}, requirements.lock has not"
        assert str(requirement) == str(LOCK[name]), name
    names = {Requirement(line).name for line in [*PROJECT["dependencies"], *EXTRAS["labs"]]}
    assert names - {"torch"} <= set(LABS)
    assert {*PYPROJECT["build-system"]["requires"]} == {
        "setuptools>=77"
    }  # with torch, from its lock
    tools = {Requirement(line).name for line in [*EXTRAS["test"], *EXTRAS["bench"]]}
    assert tools & set(LABS) == set()


def test_binder_has_the_locked_versions_of_the_labs_and_nothing_else() -> None:
    for name, requirement in BINDER.items():
        assert name in LOCK, f"run make lock: binder/ has {name}, requirements.lock has not"
        assert version(requirement) == version(LOCK[name]), name
    names = {Requirement(line).name for line in [*PROJECT["dependencies"], *EXTRAS["labs"]]}
    assert names - {"torch"} <= set(BINDER)
    tools = {Requirement(line).name for line in [*EXTRAS["test"], *EXTRAS["bench"]]}
    assert tools & set(BINDER) <= {"psutil"}, "Binder needs no test tools"  # ipykernel wants psutil


def test_binder_takes_torch_alone_from_pytorchs_index(tmp_path: Path) -> None:
    """By what it asks a stand-in of pip for."""
    asked = tmp_path / "asked"
    (tmp_path / "python").write_text(f'#!/bin/sh\necho "$@" >> {asked}\necho {tmp_path}\n')
    (tmp_path / "python").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run([ROOT / "binder" / "postBuild"], cwd=ROOT, env=environment, check=True)
    torch, package, prefix = asked.read_text().splitlines()
    python = CONDA[0].removeprefix("python=").replace(".", "")
    wheel = (
        f"torch-{setup_venv.locked_torch()}%2Bcpu-cp{python}-cp{python}-manylinux_2_28_x86_64.whl"
    )
    assert re.fullmatch(
        r"-m pip install --no-deps --no-index --no-cache-dir torch @ "
        rf"{re.escape(setup_venv.PYTORCH_CPU_INDEX)}/{re.escape(wheel)}#sha256=[0-9a-f]{{64}}",
        torch,
    ), "another torch is another wheel with another hash: see binder/postBuild"
    settings = "etc/jupyter/labconfig/default_setting_overrides.json"
    assert "sys.prefix" in prefix and "fetchNews" in (tmp_path / settings).read_text()
    assert "--no-deps" in package and "index" not in package and package.endswith("--editable .")


def test_no_file_names_a_second_index() -> None:
    """Where pip has two, whoever owns a free name in one of them is taken at their word."""
    for name in *LOCKS, "binder/requirements.txt", "binder/postBuild":
        assert "extra-index" not in (ROOT / name).read_text(), name
    for name in "environment.yml", "lib/setup_venv.py", "Makefile", ".ci/run":
        assert "extra-index" not in (ROOT / name).read_text(), name


def test_conda_brings_what_make_needs() -> None:
    assert [re.split("[=<>]", entry)[0] for entry in CONDA] == ["python", "make"]


def test_one_python_version_for_conda_and_binder() -> None:
    (conda,) = [entry for entry in CONDA if entry.startswith("python=")]
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
        if requirement.marker and not requirement.marker.evaluate():
            continue
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


def offer(index: Path, version: str, *needs: str, name: str = "torch") -> str:
    """Put an empty package of that version in a package index; gives the index's address."""
    folder = index / name
    folder.mkdir(parents=True)
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
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


# What setup shows


def test_progress_is_what_pip_is_at() -> None:
    said = """\
Looking in links: /wheels
Collecting torch==2.13.0+cpu (from -r torch.lock (line 5))
  Downloading torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl (190.4 MB)
Progress 0 of 190400000
Progress 95200000 of 190400000
Collecting anyio==4.16.0 (from -r labs.lock (line 5))
  Downloading anyio-4.16.0-py3-none-any.whl (114 kB)
Progress 114000 of 114000
Processing /wheels/tqdm-4.70.1-py3-none-any.whl
Installing collected packages: torch, anyio, tqdm
Successfully installed anyio-4.16.0"""
    assert list(setup_venv.progress(said.splitlines())) == [
        "1: torch==2.13.0+cpu",
        "1: torch==2.13.0+cpu, 0 of 190 MB",
        "1: torch==2.13.0+cpu, 95 of 190 MB",
        "2: anyio==4.16.0",
        "3: tqdm",
        "installing 3 packages",
    ]


# How setup fails


def test_an_old_python_can_read_the_setup_script() -> None:
    ast.parse((ROOT / "lib" / "setup_venv.py").read_text(), feature_version=(3, 7))


def test_too_old_a_python_gives_way_to_one_on_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def gone_to(path: str, arguments: list[str]) -> None:
        raise InterruptedError(path)  # execv never returns

    monkeypatch.setattr(setup_venv, "OLDEST_PYTHON", (4, 0))
    monkeypatch.setattr(os, "execv", gone_to)
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
    """Real pip, in a new environment: first what it finds is not what was locked, then nothing."""
    for name in "pyproject.toml", *LOCKS, "lib/setup_venv.py":
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    for name in "PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX":
        monkeypatch.delenv(name, raising=False)
    locked = setup_venv.PIP.partition(" ")[0].removeprefix("pip==")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", offer(tmp_path / "index", locked, name="pip"))
    command = [sys.executable, str(tmp_path / "lib" / "setup_venv.py")]
    other = subprocess.run(command, capture_output=True, text=True)
    monkeypatch.setenv("PIP_NO_INDEX", "1")  # as if there were no network
    nothing = subprocess.run(command, capture_output=True, text=True)
    for run, said in (other, "DO NOT MATCH THE HASHES"), (nothing, "No matching distribution"):
        assert run.returncode == 1
        assert said in run.stderr  # pip's own words
        assert "finds no versions, check network and proxy" in run.stderr
        assert "what came is not what was locked: do not install it" in run.stderr
        assert "Then run the same command again" in run.stderr
    assert "making .venv" in other.stdout
    assert "making .venv" not in nothing.stdout
    assert not list(tmp_path.glob(f".venv/lib/*/site-packages/pip-{locked}*"))
    assert not (tmp_path / ".venv" / "complete.txt").exists()
