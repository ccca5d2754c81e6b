"""Find out what works on this machine, what works differently, and what to do about it.

In a notebook, `diagnose(probe())` shows itself as a table; in a terminal, `lockstep doctor`
prints the same one.
"""

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal

from ..base.machine import Machine, gpu_memory_in_use, link_kind, summary
from ..figures.table import Table
from .syllabus import LABS, Lab

MIN_PYTHON = (3, 11)
MIN_TORCH = (2, 11)
CPU_RANKS = 4  # that most labs start where there are fewer than two GPUs
LOW_MEMORY = 3 * 2**29  # bytes: 1.5 GiB
# Docker gives a container 64 MiB, which NCCL and a few data loader workers soon fill.
LOW_SHM = 2**28  # bytes

Level = Literal["ok", "note", "problem"]


@dataclass(frozen=True)
class Finding:
    """One thing looked at. A "note" changes what you will see; a "problem" must be mended."""

    level: Level
    what: str
    remedy: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """A machine, what was found about it, and the labs. `str()` gives the table as text."""

    machine: Machine
    findings: tuple[Finding, ...]
    labs: tuple[Lab, ...]

    @property
    def exit_code(self) -> int:
        """1 if there is a problem, else 0."""
        return int(any(finding.level == "problem" for finding in self.findings))

    def __str__(self) -> str:
        findings, labs = self._tables()
        return "\n".join(
            [
                findings.caption,
                "",
                *_wrapped(findings, widths=(7, 48, 41)),
                "",
                labs.caption,
                "",
                *_wrapped(labs, widths=(45, 12, 39)),
            ]
        )

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        html = "".join(table._repr_mimebundle_()["text/html"] for table in self._tables())
        return {"text/plain": str(self), "text/html": html}

    def _tables(self) -> tuple[Table, Table]:
        findings = [(finding.level, finding.what, finding.remedy) for finding in self.findings]
        labs = [
            (f"{lab.number}  {lab.title}", f"{lab.minutes} min", _how(lab, self.machine))
            for lab in self.labs
        ]
        title = f"Lockstep on {summary(self.machine)}"
        return (
            Table(title, ("level", "found", "what to do"), findings, stamp=None),
            Table("Labs", ("lab", "time", "here"), labs, stamp=None),
        )


def held_in_reserve(machine: Machine) -> int | None:
    """Return the most bytes of its GPU that a rank in reserve holds; None where that is unknown.

    Ranks make their contexts and their group, and the driver is asked before and meanwhile. Where
    it then says no more than before, others have given back what they held: that is unknown, too.
    """
    from ..launch import JobFailed, LaunchError, torchrun

    before = gpu_memory_in_use()
    if not before or len(machine.gpus) != len(before):
        return None
    gpus = len(before)
    try:
        job = torchrun(_in_use_beside, nproc_per_node=gpus, backend="nccl", show=False, timeout=60)
        found = job.results[0]
    except (JobFailed, LaunchError):
        return None
    most = max(after - then for after, then in zip(found, before, strict=True))
    return most if most > 0 else None


def _in_use_beside() -> list[int]:
    import torch.distributed as dist

    found = gpu_memory_in_use() if dist.get_rank() == 0 else []
    dist.barrier()  # the others' contexts and groups stay until then
    return found


def diagnose(
    machine: Machine, labs: Sequence[Lab] = LABS, reserved: int | None = None
) -> Diagnosis:
    """Judge a machine by the arguments alone.

    reserved: see `held_in_reserve`.
    """
    findings = (
        _system(machine),
        _python(machine),
        _torch(machine),
        _gpus(machine),
        _reserve(reserved),
        _links(machine),
        _shm(machine),
        _cores(machine),
        _memory(machine),
        _compiler(machine),
        _packages(machine),
    )
    return Diagnosis(machine, tuple(one for one in findings if one is not None), tuple(labs))


def runs_live(lab: Lab, machine: Machine) -> bool:
    """Return whether the lab can run on this machine; if not, it shows recordings."""
    if machine.torch is None or "gloo" not in machine.torch.backends:
        return False
    if lab.needs == "2 gpus":
        return len(machine.gpus) >= 2 and "nccl" in machine.torch.backends
    return lab.needs == "cpu" or len(machine.gpus) >= 1


def _how(lab: Lab, machine: Machine) -> str:
    if runs_live(lab, machine):
        return "live"
    needs = {"cpu": "PyTorch", "1 gpu": "1 GPU", "2 gpus": "2 GPUs and NCCL"}[lab.needs]
    return f"recordings (live with {needs})"


def _system(machine: Machine) -> Finding:
    if machine.system == "Linux":
        return Finding("ok", machine.platform)
    if machine.system == "Darwin":
        return Finding(
            "note",
            f"{machine.platform}: macOS runs the labs on CPU ranks (gloo), without NCCL",
            "If ranks cannot reach each other: export GLOO_SOCKET_IFNAME=lo0",
        )
    return Finding(
        "problem", f"{machine.platform} is not supported", "Use Linux; on Windows, WSL 2."
    )


def _python(machine: Machine) -> Finding:
    what = f"Python {machine.python}"
    if _release(machine.python) >= MIN_PYTHON:
        return Finding("ok", what)
    return Finding("problem", f"{what} is too old", "Install Python 3.11 or later.")


def _torch(machine: Machine) -> Finding:
    torch = machine.torch
    if torch is None:
        return Finding("problem", "PyTorch cannot be imported", _install_torch(machine))
    what = f"PyTorch {torch.version}, built for {torch.build}"
    if _release(torch.version) < MIN_TORCH:
        return Finding("problem", f"{what}, is too old", _install_torch(machine, "--upgrade "))
    if "gloo" not in torch.backends:
        return Finding(
            "problem", f"{what}, has no gloo", "Install PyTorch from pytorch.org or PyPI."
        )
    return Finding("ok", f"{what}, with {', '.join(torch.backends)}")


def _install_torch(machine: Machine, option: str = "") -> str:
    """Return the command that installs torch.

    On Linux PyPI's build brings 5 GB of CUDA, which nobody needs without a GPU.
    """
    command = f'pip install {option}"torch>=2.11"'
    if machine.system == "Linux" and machine.driver is None and not machine.gpus:
        command += " --index-url https://download.pytorch.org/whl/cpu"
    return command


def _gpus(machine: Machine) -> Finding:
    torch = machine.torch
    if machine.gpus:
        memory = min(gpu.memory for gpu in machine.gpus) / 2**30
        what = f"{summary(machine)}, {memory:.0f} GiB" + (" each" if len(machine.gpus) > 1 else "")
        if len(machine.gpus) > 1 and torch is not None and "nccl" not in torch.backends:
            return Finding(
                "problem", f"{what}; PyTorch has no nccl", "Install a CUDA build of PyTorch."
            )
        return Finding("ok", what)
    if machine.driver is None:
        return Finding("note", "No GPU: ranks run on the CPU, and GPU labs show recordings")
    if torch is None:
        return Finding("ok", f"NVIDIA driver {machine.driver}")
    if torch.build == "cpu":
        return Finding(
            "problem",
            f"There is an NVIDIA GPU (driver {machine.driver}), but PyTorch is built for CPU only",
            "Choose a CUDA build at https://pytorch.org/get-started",
        )
    if machine.visible_devices in ("", "-1", "NoDevFiles"):  # the last is Slurm's
        return Finding(
            "note",
            f'CUDA_VISIBLE_DEVICES="{machine.visible_devices}" hides the GPUs',
            "unset CUDA_VISIBLE_DEVICES",
        )
    return Finding(
        "problem",
        f"PyTorch cannot use the GPU (driver {machine.driver}): {machine.gpu_error}",
        "Update the driver, or install a PyTorch built for an older CUDA.",
    )


def _reserve(reserved: int | None) -> Finding | None:
    if reserved is None:
        return None
    return Finding(
        "ok",
        f"Ranks in reserve hold {_gib(reserved)} of each GPU between cells",
        "LOCKSTEP_RESERVE=off turns this off; unused, they end after ten minutes",
    )


def _links(machine: Machine) -> Finding | None:
    if len(machine.gpus) < 2:
        return None
    kind = link_kind(machine.links)
    if kind == "NVLink":
        return None
    if kind is None:
        return Finding("note", "It is unknown how the GPUs are linked", "nvidia-smi topo -m")
    joined = "Some GPUs are" if kind == "partly NVLink" else "GPUs are not"
    return Finding(
        "note",
        f"{joined} joined by NVLink" + (", others by PCIe" if kind == "partly NVLink" else ""),
        "Expect collectives to be several times slower than in the recordings.",
    )


def _shm(machine: Machine) -> Finding | None:
    if not machine.gpus or machine.shm is None:
        return None
    what = f"/dev/shm {_gib(machine.shm)}"
    if machine.shm >= LOW_SHM:
        return Finding("ok", what)
    return Finding(
        "problem" if len(machine.gpus) > 1 else "note",
        f"{what}: too small for NCCL between GPUs and for data loader workers",
        "Start the container with docker run --shm-size=1g (or --ipc=host).",
    )


def _cores(machine: Machine) -> Finding:
    ranks = len(machine.gpus) if len(machine.gpus) > 1 else CPU_RANKS
    if machine.cores >= ranks:
        return Finding("ok", f"{machine.cores} cores")
    cores = "1 core" if machine.cores == 1 else f"{machine.cores} cores"
    return Finding(
        "note",
        f"{ranks} ranks take turns on {cores}",
        "Results stay right; compare times with the recordings, not between ranks.",
    )


def _memory(machine: Machine) -> Finding:
    total, available = machine.memory_total, machine.memory_available
    if total is None:
        return Finding("note", "How much memory there is could not be read")
    what = f"{_gib(total)} memory"
    if available is not None:
        what = f"{_gib(available)} of {what} available"
    if (total if available is None else available) >= LOW_MEMORY:
        return Finding("ok", what)
    return Finding(
        "note", f"Only {what}", "Shut down other notebooks' kernels; start 2 ranks, not 4."
    )


def _compiler(machine: Machine) -> Finding:
    without = "torch.compile labs use aot_eager or recordings"
    if machine.compiler is None:
        return Finding(
            "note",
            f"No C++ compiler: {without}",
            "xcode-select --install"
            if machine.system == "Darwin"
            else "apt-get install g++ (conda: gxx from conda-forge)",
        )
    if not machine.python_headers:
        return Finding(
            "note", f"No Python.h: {without}", "apt-get install python3-dev (Fedora: python3-devel)"
        )
    if machine.gpus and machine.torch is not None and machine.torch.triton is None:
        return Finding("note", f"No Triton: on the GPU {without}", "pip install triton")
    return Finding("ok", machine.compiler.version)


def _packages(machine: Machine) -> Finding:
    missing = [name for name, version in machine.packages if version is None]
    if not missing:
        return Finding("ok", ", ".join(f"{name} {version}" for name, version in machine.packages))
    # JupyterLab itself may be installed elsewhere than the kernel; the kernel needs the others.
    return Finding(
        "note" if missing == ["jupyterlab"] else "problem",
        f"Missing in this Python: {', '.join(missing)}",
        f"pip install {' '.join(missing)}",
    )


def _release(version: str) -> tuple[int, ...]:
    """Return (2, 13) for "2.13.0+cpu"."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def _wrapped(table: Table, widths: tuple[int, int, int]) -> list[str]:
    """Return the rows as aligned lines; a cell wider than its column continues below."""
    rows: list[tuple[str, ...]] = []
    for row in table.rows:
        cells = [
            textwrap.wrap(cell, width, break_on_hyphens=False)
            for cell, width in zip(row, widths, strict=True)
        ]
        rows += zip_longest(*cells, fillvalue="")
    heads = ["." * width for width in widths]  # not shown; they keep the columns' widths
    return Table(table.caption, heads, rows, stamp=None).lines()[1:]
