import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from lockstep import __version__
from lockstep.base.machine import Compiler, Gpu, Machine, Torch
from lockstep.course import doctor as doctor_module
from lockstep.course.doctor import diagnose, held_in_reserve, runs_live
from lockstep.course.syllabus import LABS, Lab

GIB = 2**30

CPU_TORCH = Torch("2.13.0+cpu", "cpu", ("gloo",), None, None)
LAPTOP = Machine(
    system="Linux",
    platform="Linux 6.12.48 x86_64",
    python="3.11.9",
    cores=8,
    memory_total=16 * GIB,
    memory_available=12 * GIB,
    shm=8 * GIB,
    driver=None,
    visible_devices=None,
    gpus=(),
    gpu_error=None,
    links=None,
    compiler=Compiler("/usr/bin/g++", "g++ (Debian 12.2.0-14) 12.2.0"),
    python_headers=True,
    torch=CPU_TORCH,
    packages=(("jupyterlab", "4.6.6"), ("ipykernel", "7.4.0"), ("ipywidgets", "8.1.9")),
)
H200 = Gpu("NVIDIA H200", 150109880320, 132, (9, 0))
CUDA_TORCH = Torch("2.11.0+cu130", "cu130", ("gloo", "nccl"), "2.28.9", "3.6.0")
ONE_GPU = replace(LAPTOP, driver="580.95", gpus=(H200,), links=(("X",),), torch=CUDA_TORCH)
TWO_GPUS = replace(ONE_GPU, gpus=(H200, H200), links=(("X", "NV18"), ("NV18", "X")), cores=32)
BINDER = replace(LAPTOP, cores=1, memory_total=GIB, memory_available=GIB * 3 // 5)

CPU_LAB = Lab("00", "start_here", "Start here", "15", "cpu")
GPU_LAB = Lab("06", "compile", "Compile <it>", "60–90", "1 gpu")
NCCL_LAB = Lab("07", "overlap", "Overlap", "90", "2 gpus")


def unusual(machine: Machine) -> list[tuple[str, str, str]]:
    """All that is not ok about a machine."""
    findings = diagnose(machine).findings
    return [(f.level, f.what, f.remedy) for f in findings if f.level != "ok"]


def only(machine: Machine, usual: Machine) -> tuple[str, str, str]:
    """The one thing that is not ok about a machine and was ok about the usual one."""
    new = [finding for finding in unusual(machine) if finding not in unusual(usual)]
    assert len(new) == 1, new
    return new[0]


def test_gpu_machines_with_everything_have_nothing_unusual():
    assert unusual(TWO_GPUS) == []
    assert unusual(ONE_GPU) == []
    assert diagnose(TWO_GPUS).exit_code == 0


def test_a_laptop_without_gpu_has_one_note():
    [(level, what, _)] = unusual(LAPTOP)
    assert level == "note"
    assert "No GPU" in what
    assert diagnose(LAPTOP).exit_code == 0


def test_binder_with_one_gibibyte_and_one_core():
    assert [level for level, _, _ in unusual(BINDER)] == ["note"] * 3
    text = str(diagnose(BINDER))
    assert "4 ranks take turns on 1 core " in text
    assert "614 MiB of 1.0 GiB memory available" in text
    assert diagnose(BINDER).exit_code == 0


def test_memory_is_judged_by_what_is_available():
    half = GIB // 2
    assert only(replace(LAPTOP, memory_available=3 * half - 1), LAPTOP)[0] == "note"
    assert unusual(replace(LAPTOP, memory_available=3 * half)) == unusual(LAPTOP)
    # macOS does not say what is available.
    assert unusual(replace(LAPTOP, memory_available=None)) == unusual(LAPTOP)
    assert only(replace(LAPTOP, memory_total=GIB, memory_available=None), LAPTOP)[0] == "note"
    level, what, _ = only(replace(LAPTOP, memory_total=None, memory_available=None), LAPTOP)
    assert (level, "could not be read" in what) == ("note", True)


@pytest.mark.parametrize("version, old", [("3.10.14", True), ("3.11.0", False), ("3.14.0", False)])
def test_python(version, old):
    machine = replace(LAPTOP, python=version)
    if old:
        level, what, remedy = only(machine, LAPTOP)
        assert level == "problem"
        assert version in what
        assert "3.11" in remedy
    assert diagnose(machine).exit_code == int(old)


@pytest.mark.parametrize(
    "version, old", [("2.9.1+cpu", True), ("2.11.0a0+git1", False), ("3.0.0", False)]
)
def test_torch(version, old):
    machine = replace(LAPTOP, torch=replace(CPU_TORCH, version=version))
    if old:
        level, what, remedy = only(machine, LAPTOP)
        assert level == "problem"
        assert version in what
        assert "--upgrade" in remedy and "torch>=2.11" in remedy
    assert diagnose(machine).exit_code == int(old)


@pytest.mark.parametrize("usual", [LAPTOP, TWO_GPUS, replace(LAPTOP, driver="580.95")])
def test_no_torch_at_all(usual):
    machine = replace(usual, torch=None, gpus=(), links=None)
    problems = [finding for finding in unusual(machine) if finding[0] == "problem"]
    assert [what for _, what, _ in problems] == ["PyTorch cannot be imported"]
    assert not runs_live(CPU_LAB, machine)


def test_torch_is_fetched_without_cuda_where_there_is_linux_and_no_gpu():
    def advice(machine: Machine) -> str:
        findings = unusual(replace(machine, torch=None))
        (remedy,) = [r for _, what, r in findings if what == "PyTorch cannot be imported"]
        return remedy

    alone = 'pip install "torch>=2.11"'
    assert advice(LAPTOP) == f"{alone} --index-url https://download.pytorch.org/whl/cpu"
    assert advice(replace(LAPTOP, driver="580.95")) == alone
    assert advice(replace(LAPTOP, system="Darwin", platform="Darwin 25.1.0 arm64")) == alone
    old = replace(LAPTOP, torch=replace(CPU_TORCH, version="2.9.1"))
    assert only(old, LAPTOP)[2].endswith("--index-url https://download.pytorch.org/whl/cpu")


def test_torch_without_gloo():
    machine = replace(LAPTOP, torch=replace(CPU_TORCH, backends=()))
    assert only(machine, LAPTOP)[0] == "problem"
    assert not runs_live(CPU_LAB, machine)


def test_a_gpu_with_a_torch_for_cpu():
    level, what, remedy = only(replace(LAPTOP, driver="580.95"), LAPTOP)
    assert level == "problem"
    assert "580.95" in what
    assert "pytorch.org" in remedy


def test_a_gpu_that_torch_cannot_use():
    machine = replace(ONE_GPU, gpus=(), links=None, gpu_error="The NVIDIA driver is too old")
    level, what, _ = only(machine, ONE_GPU)
    assert level == "problem"
    assert "The NVIDIA driver is too old" in what
    # Slurm always sets this: it does not excuse the driver.
    assert only(replace(machine, visible_devices="0"), ONE_GPU)[0] == "problem"


@pytest.mark.parametrize("value", ["", "-1"])
def test_hidden_gpus_are_no_problem(value):
    machine = replace(ONE_GPU, gpus=(), links=None, visible_devices=value, gpu_error="No GPUs")
    level, what, remedy = only(machine, ONE_GPU)
    assert level == "note"
    assert f'CUDA_VISIBLE_DEVICES="{value}"' in what
    assert remedy == "unset CUDA_VISIBLE_DEVICES"


def test_two_gpus_without_nccl():
    machine = replace(TWO_GPUS, torch=replace(CUDA_TORCH, backends=("gloo",), nccl=None))
    assert only(machine, TWO_GPUS)[0] == "problem"
    assert not runs_live(NCCL_LAB, machine)


def test_small_shared_memory_matters_to_gpus():
    docker = 64 * 2**20
    level, what, remedy = only(replace(TWO_GPUS, shm=docker), TWO_GPUS)
    assert level == "problem"
    assert "64 MiB" in what
    assert "--shm-size" in remedy
    assert only(replace(ONE_GPU, shm=docker), ONE_GPU)[0] == "note"
    assert unusual(replace(LAPTOP, shm=docker)) == unusual(LAPTOP)


def test_gpu_links():
    pcie = replace(TWO_GPUS, links=(("X", "SYS"), ("SYS", "X")))
    level, what, _ = only(pcie, TWO_GPUS)
    assert (level, what) == ("note", "GPUs are not joined by NVLink")
    bridged = (("X", "NV4", "SYS"), ("NV4", "X", "SYS"), ("SYS", "SYS", "X"))
    three = replace(TWO_GPUS, gpus=(H200,) * 3, links=bridged)
    assert "Some GPUs" in only(three, TWO_GPUS)[1]
    assert "unknown" in only(replace(TWO_GPUS, links=None), TWO_GPUS)[1]


def test_more_gpus_than_cores():
    assert "2 ranks take turns on 1 core" in only(replace(TWO_GPUS, cores=1), TWO_GPUS)[1]


def test_what_torch_compile_lacks():
    level, what, remedy = only(replace(LAPTOP, compiler=None), LAPTOP)
    assert level == "note"
    assert "aot_eager" in what
    assert "g++" in remedy
    level, _, remedy = only(replace(LAPTOP, python_headers=False), LAPTOP)
    assert (level, "python3-dev" in remedy) == ("note", True)
    no_triton = replace(ONE_GPU, torch=replace(CUDA_TORCH, triton=None))
    assert "Triton" in only(no_triton, ONE_GPU)[1]


def test_missing_notebook_packages():
    without: tuple[tuple[str, str | None], ...]
    without = (("jupyterlab", "4.6.6"), ("ipykernel", "7.4.0"), ("ipywidgets", None))
    level, _, remedy = only(replace(LAPTOP, packages=without), LAPTOP)
    assert (level, remedy) == ("problem", "pip install ipywidgets")
    # JupyterLab may well run in another environment than the kernel.
    without = (("jupyterlab", None), ("ipykernel", "7.4.0"), ("ipywidgets", "8.1.9"))
    assert only(replace(LAPTOP, packages=without), LAPTOP)[0] == "note"


def test_systems():
    macos = replace(LAPTOP, system="Darwin", platform="Darwin 25.1.0 arm64", shm=None)
    level, _, remedy = only(macos, LAPTOP)
    assert (level, "GLOO_SOCKET_IFNAME" in remedy) == ("note", True)
    assert "xcode-select" in only(replace(macos, compiler=None), macos)[2]
    assert only(replace(LAPTOP, system="Windows"), LAPTOP)[0] == "problem"


@pytest.mark.parametrize(
    "machine, live", [(LAPTOP, "live,rec,rec"), (ONE_GPU, "live,live,rec"), (TWO_GPUS, "live")]
)
def test_each_lab_runs_live_or_shows_recordings(machine, live):
    diagnosis = diagnose(machine, [CPU_LAB, GPU_LAB, NCCL_LAB])
    wanted = (live.split(",") * 3)[:3]
    rows = [line for line in str(diagnosis).splitlines() if re.match(r"\d\d  ", line)]
    assert [row.split(" min")[1].split()[0][:4].removesuffix("o") for row in rows] == wanted
    html_rows = re.findall(r"<tr.*?</tr>", diagnosis._repr_mimebundle_()["text/html"])[-3:]
    assert ["rec" if "recordings" in row else "live" for row in html_rows] == wanted


def test_the_text_is_an_aligned_table():
    machine = replace(BINDER, compiler=None, python="3.10.1")
    lines = str(diagnose(machine)).splitlines()
    assert lines[0] == "Lockstep on CPU, 1 core"
    rows = lines[2 : lines.index("Labs") - 1]
    assert {row[:7].strip() for row in rows} == {"ok", "note", "problem", ""}
    remedies = [row for row in rows if len(row) > 58]
    assert remedies
    for row in rows:
        assert len(row) <= 100
        assert row[7:9] == "  "
        assert row[57:59].strip() == ""
    for row in remedies:
        assert row[59] != " "


def test_html_escapes_what_the_machine_says():
    hostile = replace(H200, name="<script>alert('x')</script>&\"")
    machine = replace(
        TWO_GPUS,
        gpus=(hostile, hostile),
        platform="<b>Linux</b>",
        compiler=Compiler("/c++", "<i>g++</i>"),
    )
    diagnosis = diagnose(machine, [GPU_LAB])
    html = diagnosis._repr_mimebundle_()["text/html"]
    for tag in ("<script", "<b>", "<i>", "<it>", "'x'"):
        assert tag not in html
    # Twice in what is read, once in the table's label.
    assert html.count("&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;&amp;&quot;") == 3
    assert diagnosis._repr_mimebundle_()["text/plain"] == str(diagnosis)


def test_html_says_the_levels_in_words_and_takes_the_theme_s_colours():
    html = diagnose(replace(BINDER, python="3.10.1"))._repr_mimebundle_()["text/html"]
    for level in ("ok", "note", "problem"):
        assert f">{level}</th>" in html
    assert "color" not in html.replace("var(--jp-layout-color0)", "")  # the theme's own paper
    assert re.search(r"#[0-9a-f]{3,6}\b", html) is None


def lockstep(*arguments: str) -> subprocess.CompletedProcess[str]:
    library = str(Path(doctor_module.__file__).parents[2])
    return subprocess.run(
        [sys.executable, "-m", "lockstep", *arguments],
        env={**os.environ, "PYTHONPATH": library},
        capture_output=True,
        text=True,
    )


def test_the_command_s_exit_code_says_whether_there_is_a_problem():
    done = lockstep("doctor", "--json")
    report = json.loads(done.stdout)
    levels = [finding["level"] for finding in report["findings"]]
    assert done.returncode == int("problem" in levels)
    assert report["machine"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert [lab["name"] for lab in report["labs"]] == [lab.name for lab in LABS]
    assert report["labs"][0]["live"] is True
    assert done.stderr == ""


def test_the_command_fails_on_a_problem(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart is missing')\n")
    library = str(Path(doctor_module.__file__).parents[2])
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from lockstep.__main__ import main; sys.exit(main(['doctor']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": library},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert re.search(r"^problem  PyTorch cannot be imported", done.stdout, re.MULTILINE)
    assert done.stderr == ""


def test_the_command_prints_a_table():
    done = lockstep("doctor")
    assert done.stdout.startswith("Lockstep on ")
    assert "\x1b" not in done.stdout
    assert re.search(r"^00  Start here +35 min +live$", done.stdout, re.MULTILINE)


def test_the_command_knows_its_version_and_its_subcommands():
    assert lockstep("--version").stdout == f"lockstep {__version__}\n"
    assert lockstep("nonsense").returncode == 2


def test_what_ranks_in_reserve_hold_is_said_where_it_is_known():
    assert "in reserve" not in str(diagnose(TWO_GPUS, [GPU_LAB]))
    said = " ".join(str(diagnose(TWO_GPUS, [GPU_LAB], reserved=700 * 2**20)).split())
    assert "Ranks in reserve hold 700 MiB of each" in said
    assert "LOCKSTEP_RESERVE=off turns this off" in said
    assert held_in_reserve(replace(TWO_GPUS, gpus=())) is None
