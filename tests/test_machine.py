import json
import os
import pickle
import subprocess
import sys
from dataclasses import FrozenInstanceError, asdict, replace
from pathlib import Path

import pytest
from lockstep.base import machine as machine_module
from lockstep.base.machine import Gpu, link_kind, parse_topology, probe, summary

GIB = 2**30

# As nvidia-smi writes it to a pipe: tabs, an underlined header, empty cells.
H200_NVSWITCH = (
    "\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tGPU4\tGPU5\tGPU6\tGPU7\tNIC0\tNIC1\t"
    "CPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV18\tNV18\tNV18\tNV18\tNV18\tNV18\tNV18\tPIX\tSYS\t0-47,96-143\t0\t\tN/A\n"
    "GPU1\tNV18\t X \tNV18\tNV18\tNV18\tNV18\tNV18\tNV18\tNODE\tSYS\t0-47,96-143\t0\t\tN/A\n"
    "GPU2\tNV18\tNV18\t X \tNV18\tNV18\tNV18\tNV18\tNV18\tNODE\tSYS\t0-47,96-143\t0\t\tN/A\n"
    "GPU3\tNV18\tNV18\tNV18\t X \tNV18\tNV18\tNV18\tNV18\tNODE\tSYS\t0-47,96-143\t0\t\tN/A\n"
    "GPU4\tNV18\tNV18\tNV18\tNV18\t X \tNV18\tNV18\tNV18\tSYS\tPIX\t48-95,144-191\t1\t\tN/A\n"
    "GPU5\tNV18\tNV18\tNV18\tNV18\tNV18\t X \tNV18\tNV18\tSYS\tNODE\t48-95,144-191\t1\t\tN/A\n"
    "GPU6\tNV18\tNV18\tNV18\tNV18\tNV18\tNV18\t X \tNV18\tSYS\tNODE\t48-95,144-191\t1\t\tN/A\n"
    "GPU7\tNV18\tNV18\tNV18\tNV18\tNV18\tNV18\tNV18\t X \tSYS\tNODE\t48-95,144-191\t1\t\tN/A\n"
    "NIC0\tPIX\tNODE\tNODE\tNODE\tSYS\tSYS\tSYS\tSYS\t X \tSYS\t\t\t\t\n"
    "NIC1\tSYS\tSYS\tSYS\tSYS\tPIX\tNODE\tNODE\tNODE\tSYS\t X \t\t\t\t\n"
    "\n"
    "Legend:\n"
    "\n"
    "  X    = Self\n"
    "  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes "
    "(e.g., QPI/UPI)\n"
    "  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges "
    "within a NUMA node\n"
    "  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)\n"
    "  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host "
    "Bridge)\n"
    "  PIX  = Connection traversing at most a single PCIe bridge\n"
    "  NV#  = Connection traversing a bonded set of # NVLinks\n"
    "\n"
    "NIC Legend:\n"
    "\n"
    "  NIC0: mlx5_0\n"
    "  NIC1: mlx5_1\n"
)

# As older drivers write it, copied from a terminal: spaces, no third affinity column.
PCIE_BOX = """\
        GPU0    GPU1    GPU2    GPU3    mlx5_0  CPU Affinity    NUMA Affinity
GPU0     X      PIX     SYS     SYS     NODE    0-15,32-47      0
GPU1    PIX      X      SYS     SYS     NODE    0-15,32-47      0
GPU2    SYS     SYS      X      PIX     SYS     16-31,48-63     1
GPU3    SYS     SYS     PIX      X      SYS     16-31,48-63     1
mlx5_0  NODE    NODE    SYS     SYS      X

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (QPI/UPI)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""

# One GPU: the header line and the row begin with the same word.
ONE_GPU = "\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-15\t0\n\nLegend:\n\n  X    = Self\n"

H200 = Gpu("NVIDIA H200", 150109880320, 132, (9, 0))


@pytest.fixture(scope="module")
def here():
    return probe()


def fake_root(tmp_path: Path, files: dict[str, str]) -> Path:
    """A root with 16 GiB of memory, 8 GiB available, and these files."""
    meminfo = f"MemTotal: {16 * 2**20} kB\nMemFree: 1000 kB\nMemAvailable: {8 * 2**20} kB\n"
    for name, text in {"proc/meminfo": meminfo, **files}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_probe_agrees_with_the_kernel(here):
    with open("/proc/meminfo") as meminfo:
        total_kb = int(meminfo.readline().split()[1])
    assert 0 < here.memory_total <= total_kb * 1024
    assert 0 < here.memory_available <= here.memory_total
    assert 1 <= here.cores <= len(os.sched_getaffinity(0))
    shm = os.statvfs("/dev/shm")
    assert here.shm == shm.f_blocks * shm.f_frsize
    assert here.system == "Linux"
    assert os.uname().release in here.platform
    assert here.python == ".".join(map(str, sys.version_info[:3]))


def test_probe_agrees_with_torch(here):
    import torch

    assert here.torch.version == torch.__version__
    assert (here.torch.build == "cpu") == (torch.version.cuda is None and torch.version.hip is None)
    assert ("gloo" in here.torch.backends) == torch.distributed.is_gloo_available()
    assert ("nccl" in here.torch.backends) == torch.distributed.is_nccl_available()
    assert (here.torch.nccl is None) == ("nccl" not in here.torch.backends)


def test_the_compiler_found_compiles_with_the_python_headers(here, tmp_path):
    if here.compiler is None:
        pytest.skip("no C++ compiler")
    include = subprocess.check_output(
        [sys.executable, "-c", "import sysconfig; print(sysconfig.get_path('include'))"], text=True
    ).strip()
    source = tmp_path / "a.cpp"
    source.write_text("#include <Python.h>\n")
    command = [here.compiler.path, "-fsyntax-only", f"-I{include}", str(source)]
    assert (subprocess.run(command, capture_output=True).returncode == 0) == here.python_headers


def test_a_machine_is_plain_values_and_cannot_change(here):
    assert pickle.loads(pickle.dumps(here)) == here
    again = json.loads(json.dumps(asdict(here)))
    assert again["cores"] == here.cores
    # A subclass of str from torch could not be unpickled where torch is missing.
    assert type(here.torch.version) is str
    with pytest.raises(FrozenInstanceError):
        here.cores = 1


def test_importing_the_module_does_not_import_torch():
    code = "import sys, lockstep.base.machine, lockstep.course.doctor as _; "
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=environment()).returncode == 0


def test_without_limits_the_host_counts(tmp_path):
    machine = probe(fake_root(tmp_path, {}))
    assert machine.memory_total == 16 * GIB
    assert machine.memory_available == 8 * GIB
    assert machine.cores == len(os.sched_getaffinity(0))
    assert machine.shm is None


def test_cgroup_v2_limits(tmp_path):
    machine = probe(
        fake_root(
            tmp_path,
            {
                "proc/self/cgroup": "0::/kubepods/pod1\n",
                "sys/fs/cgroup/kubepods/pod1/cpu.max": "max 100000\n",
                "sys/fs/cgroup/kubepods/cpu.max": "50000 100000\n",
                "sys/fs/cgroup/kubepods/pod1/memory.max": f"{2 * GIB}\n",
                "sys/fs/cgroup/kubepods/pod1/memory.current": f"{GIB}\n",
                "sys/fs/cgroup/kubepods/pod1/memory.stat": f"file 9\ninactive_file {GIB // 4}\n",
                "sys/fs/cgroup/kubepods/memory.max": "max\n",
            },
        )
    )
    assert machine.memory_total == 2 * GIB
    assert machine.memory_available == GIB + GIB // 4
    assert machine.cores == 1


def test_cgroup_v1_limits_in_a_container_that_sees_the_path_of_its_host(tmp_path):
    machine = probe(
        fake_root(
            tmp_path,
            {
                "proc/self/cgroup": "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{GIB}\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GIB // 2}\n",
                "sys/fs/cgroup/memory/memory.stat": (
                    f"inactive_file 0\ntotal_inactive_file {GIB // 8}\n"
                ),
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "90000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
        )
    )
    assert machine.memory_total == GIB
    assert machine.memory_available == GIB // 2 + GIB // 8
    assert machine.cores == 1


def test_cgroup_v1_without_limits(tmp_path):
    machine = probe(
        fake_root(
            tmp_path,
            {
                "proc/self/cgroup": "5:memory:/\n4:cpu,cpuacct:/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
        )
    )
    assert machine.memory_total == 16 * GIB
    assert machine.cores == len(os.sched_getaffinity(0))


def test_affinity_limits_the_cores():
    first = min(os.sched_getaffinity(0))
    code = (
        f"import os; os.sched_setaffinity(0, [{first}])\n"
        "from lockstep.base.machine import probe; print(probe().cores)"
    )
    printed = subprocess.check_output([sys.executable, "-c", code], env=environment(), text=True)
    assert printed == "1\n"


@pytest.mark.parametrize(
    "script, driver",
    [
        ("echo '570.1, 0, GPU-aa'; echo '570.1, 1, GPU-bb'", "570.1"),
        ("echo 'NVIDIA-SMI has failed'; exit 9", None),
        ("printf '\\377garbage\\n'", None),
    ],
)
def test_the_driver_is_what_nvidia_smi_says_or_none(script, driver, tmp_path, monkeypatch):
    command = tmp_path / "nvidia-smi"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert probe().driver == driver


def test_no_compiler_on_the_path(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    machine = probe()
    assert machine.compiler is None
    assert machine.driver is None


def test_a_cxx_that_fails_is_no_compiler(monkeypatch):
    monkeypatch.setenv("CXX", "false")
    assert probe().compiler is None


def test_the_question_about_gpus_is_answered_in_a_process_of_its_own(here):
    answer = subprocess.check_output([sys.executable, "-P", machine_module.__file__], text=True)
    reply = json.loads(answer)
    assert len(reply["gpus"]) == len(here.gpus)
    assert (reply["error"] is None) == (len(here.gpus) > 0)


STAND_IN_TORCH = """
import sys
from types import SimpleNamespace as Space

# What lies beside machine.py must not hide modules of the same name, such as trace.
assert not any(entry.endswith("/lockstep") for entry in sys.path)

__version__ = "2.11.0+cu130"
version = Space(cuda="13.0", hip=None)
distributed = Space(
    is_available=lambda: True,
    is_gloo_available=lambda: True,
    is_nccl_available=lambda: True,
    is_mpi_available=lambda: False,
    is_ucc_available=lambda: False,
)
gpus = [
    Space(name=f"GPU {u}", total_memory=5, multi_processor_count=4, major=8, minor=6, uuid=u)
    for u in ("cc", "aa", "bb")
]
cuda = Space(
    current_device=lambda: 0,
    device_count=lambda: len(gpus),
    get_device_properties=gpus.__getitem__,
    nccl=Space(version=lambda: (2, 28, 9)),
)
"""


def test_links_follow_the_order_in_which_torch_sees_the_gpus(tmp_path):
    (tmp_path / "torch.py").write_text(STAND_IN_TORCH)
    (tmp_path / "topology").write_text(PCIE_BOX)
    command = tmp_path / "nvidia-smi"
    command.write_text(
        f"#!/bin/sh\nif [ $1 = topo ]; then cat {tmp_path}/topology; else\n"
        "for gpu in '0, GPU-aa' '1, GPU-bb' '2, GPU-cc' '3, GPU-dd'; do echo 570.1, $gpu; done\n"
        "fi\n"
    )
    command.chmod(0o755)
    code = (
        "import dataclasses, json; from lockstep.base.machine import probe\n"
        "print(json.dumps(dataclasses.asdict(probe())))"
    )
    env = environment()
    env["PYTHONPATH"] = os.pathsep.join([str(tmp_path), env["PYTHONPATH"]])
    env["PATH"] = os.pathsep.join([str(tmp_path), env["PATH"]])
    machine = json.loads(subprocess.check_output([sys.executable, "-c", code], env=env))
    assert machine["gpu_error"] is None
    assert [gpu["name"] for gpu in machine["gpus"]] == ["GPU cc", "GPU aa", "GPU bb"]
    assert machine["gpus"][0] == {"name": "GPU cc", "memory": 5, "sms": 4, "capability": [8, 6]}
    assert machine["links"] == [["X", "SYS", "SYS"], ["SYS", "X", "PIX"], ["SYS", "PIX", "X"]]
    assert machine["torch"]["build"] == "cu130"
    assert machine["torch"]["nccl"] == "2.28.9"


def test_topology_of_eight_gpus_behind_nvswitch():
    links = parse_topology(H200_NVSWITCH)
    assert links is not None and len(links) == 8
    for i, row in enumerate(links):
        assert row == tuple("X" if i == j else "NV18" for j in range(8))
    assert link_kind(links) == "NVLink"


def test_topology_of_a_pcie_box():
    links = parse_topology(PCIE_BOX)
    assert links == (
        ("X", "PIX", "SYS", "SYS"),
        ("PIX", "X", "SYS", "SYS"),
        ("SYS", "SYS", "X", "PIX"),
        ("SYS", "SYS", "PIX", "X"),
    )
    assert link_kind(links) == "PCIe"


def test_topology_of_one_gpu():
    assert parse_topology(ONE_GPU) == (("X",),)
    assert link_kind((("X",),)) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Failed to initialize NVML: Driver/library version mismatch\n",
        PCIE_BOX[:200],
        ONE_GPU.splitlines()[0],
    ],
)
def test_no_topology_in_other_text(text):
    assert parse_topology(text) is None


def test_summary(here):
    cpu = replace(here, gpus=(), links=None, cores=2)
    assert summary(cpu) == "CPU, 2 cores"
    assert summary(replace(cpu, cores=1)) == "CPU, 1 core"
    eight = replace(here, gpus=(H200,) * 8, links=parse_topology(H200_NVSWITCH))
    assert summary(eight) == "8× NVIDIA H200, NVLink"
    assert summary(replace(eight, links=None)) == "8× NVIDIA H200"
    assert summary(replace(here, gpus=(H200,), links=(("X",),))) == "NVIDIA H200"
    bridged = (("X", "NV4", "SYS"), ("NV4", "X", "SYS"), ("SYS", "SYS", "X"))
    other = replace(H200, name="NVIDIA A40")
    mixed = replace(here, gpus=(H200, H200, other), links=bridged)
    assert summary(mixed) == "2× NVIDIA H200, 1× NVIDIA A40, partly NVLink"


def environment() -> dict[str, str]:
    """This environment, in which a fresh Python finds the same lockstep."""
    library = str(Path(machine_module.__file__).parents[2])
    return {**os.environ, "PYTHONPATH": library}
