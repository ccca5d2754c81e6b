"""Ranks on this machine's GPUs, which a Slurm of two nodes gives: `make test-slurm`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import lockstep
import pytest
import slurm
import torch
import torch.distributed as dist
from kernel import Kernel
from lockstep import Slurm
from lockstep.launch.cluster import profile, queue
from test_slurm import TRAIN, goes_on

ROOT = Path(__file__).parents[1]
GPUS = slurm.real_gpus()
FIRST = (len(GPUS) + 1) // 2  # how many n1 has
BOTH = len(GPUS) // 2  # how many n1 and n2 have
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slurm,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not GPUS, reason="there is no NVIDIA GPU here"),
    pytest.mark.skipif(bool(slurm.why_not()), reason=slurm.why_not()),
]
on_both = pytest.mark.skipif(len(GPUS) < 2, reason="each of the two nodes needs a GPU")
ON_N1 = Slurm(nodes=1, gpus_per_node=FIRST)
ON_BOTH = Slurm(nodes=2, gpus_per_node=BOTH)  # where there is one GPU, without any


@pytest.fixture(scope="module")
def cluster() -> Iterator[slurm.Cluster]:
    with slurm.Cluster(GPUS) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def settings(monkeypatch, tmp_path: Path) -> Path:
    """Where profiles are, of commands and of this process."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def run(cluster: slurm.Cluster, settings: Path) -> Iterator[Callable[[str], str]]:
    """Runs cells in a kernel, none of which may fail; returns what is shown."""
    kernel = Kernel()

    def execute(code: str) -> str:
        reply = kernel.execute(code, 120)
        print(code, reply.shown, reply.error, sep="\n")
        assert not reply.error
        return reply.shown

    yield execute
    kernel.close()


def command(*words: str) -> subprocess.CompletedProcess[str]:
    """As `said` of a terminal, which the test shows where it fails."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=280, check=False)
    print(*words, done.stdout, done.stderr, sep="\n")
    return done


def lockstep_command(*words: str) -> subprocess.CompletedProcess[str]:
    return command(sys.executable, "-m", "lockstep", *words)


def reduced() -> tuple[str, str, list[float]]:
    x = torch.ones(3, device=lockstep.device())
    dist.all_reduce(x)
    return os.environ["CUDA_VISIBLE_DEVICES"], f"{x.device} by {dist.get_backend()}", x.tolist()


def given(gpus: int) -> str:
    return ",".join(map(str, range(gpus)))


# ── In class ─────────────────────────────────────────────────────────────────────────────────


def test_a_profile_is_tried_on_gpus_and_a_cell_uses_those_that_it_is_given(run):
    done = lockstep_command("cluster", "init", "--nodes", "1", "--gpus-per-node", str(FIRST))
    assert done.returncode == 0
    assert f"hello from n1, {FIRST} GPU" in done.stdout
    *_, last = done.stdout.splitlines()
    assert last.startswith(f"all is well: live · {FIRST} rank") and "nccl" in last
    run("import os, lockstep, torch, torch.distributed as dist")
    shown = run(
        "%%torchrun -n gpu --nnodes 1 --on slurm --into job\n"
        "x = torch.ones(3, device=lockstep.device())\n"
        "dist.all_reduce(x)\n"
        "os.environ['CUDA_VISIBLE_DEVICES'], dist.get_backend(), x.tolist()"
    )
    assert str((given(FIRST), "nccl", [float(FIRST)] * 3)) in shown
    assert "all_reduce #0 of float32[3]" in run("print(job.calls[0][0])")
    assert "nccl" in run("print(job.stamp)")


def test_a_world_keeps_gpus_and_what_is_on_them_over_cells(cluster, run):
    run("import lockstep, os, torch")
    run(f"world = lockstep.World('gpu', on=lockstep.Slurm(nodes=1, gpus_per_node={FIRST}))")
    job = run(
        "%%torchrun --world world\n"
        "x = torch.ones(1 << 20, device=lockstep.device())\n"
        "os.environ['SLURM_JOB_ID']"
    )
    again = run("%%torchrun --world world\nx.sum().item(), os.environ['SLURM_JOB_ID']")
    (number,) = cluster.jobs()
    assert f"'{number}'" in job and f"(1048576.0, '{number}')" in again
    assert "nccl" in run("world")
    run("world.close()")
    slurm.wait(lambda: not cluster.jobs())


def test_the_section_of_lab_03_on_nodes_is_live(run):
    """The lab's own cells; bytes are counted by gloo, with GPUs or without."""
    profile.write(ON_BOTH)
    lab, further = (
        json.loads((ROOT / "solutions" / name).read_text("utf-8"))["cells"]
        for name in ("03_collectives.ipynb", "03_collectives_further.ipynb")
    )
    (exercise,) = (cell for cell in lab if cell["id"] == "ring_all_reduce")
    section = [cell for cell in further if cell["id"].startswith("nodes-")]
    shown = {
        cell["id"]: run("".join(cell["source"]))
        for cell in [*further[:3], exercise, *section]
        if cell["cell_type"] == "code"
    }
    assert "n1" in shown["nodes-where"] and "n2" in shown["nodes-where"]
    assert "4 ranks on 2 nodes" in shown["nodes-flat-count"]
    assert "the sum is everywhere: True" in shown["nodes-levels-count"]
    assert "measured and computed · depends" in shown["nodes-claim"]


@pytest.mark.parametrize(
    ("lab", "on"), [("03", ON_BOTH), ("06", ON_N1)], ids=["two nodes", "one GPU"]
)
def test_preflight_on_slurm_runs_a_lab(cluster, lab, on):
    profile.write(on)
    done = lockstep_command("preflight", lab, "--on", "slurm")
    assert done.returncode == 0
    assert "executed on n1, by Slurm" in done.stdout
    if lab == "03":  # other nodes, ranks and ways of counting are no differences
        assert "in cell" not in done.stdout


def test_a_demo_is_prepared_on_a_node_with_gpus(cluster, tmp_path):
    """`lockstep demo 03`, up to JupyterLab, started by srun."""
    prepare = "from lockstep.teach import demo; print(demo.prepare({!r}, False, demo.Path({!r})))"
    words = [sys.executable, "-c", prepare.format("03", str(tmp_path))]
    step = ["srun", "--nodes=1", "--ntasks=1", "--cpus-per-task=4", "--cpu-bind=none"]
    done = command(*step, f"--gpus-per-node={FIRST}", *words)
    assert done.returncode == 0
    assert "on this machine*" in Path(done.stdout.split()[-1]).read_text(encoding="utf-8")


# ── Which GPUs ───────────────────────────────────────────────────────────────────────────────


@on_both
def test_ranks_on_two_nodes_meet_by_nccl(cluster):
    job = lockstep.torchrun(reduced, nproc_per_node="gpu", on=ON_BOTH)
    assert [result[2] for result in job.results] == [[2.0 * BOTH] * 3] * 2 * BOTH
    assert all("by nccl" in result[1] for result in job.results)


def test_more_ranks_than_gpus_are_refused_before_the_queue_or_use_gloo(cluster):
    ranks = FIRST + 1
    few = rf"gpus_per_node= each node has {FIRST} GPUs?, and NCCL needs one for each of the {ranks}"
    with pytest.raises(lockstep.LaunchError, match=few):
        lockstep.torchrun(reduced, nproc_per_node=ranks, backend="nccl", on=ON_N1)
    job = lockstep.torchrun(dist.get_backend, nproc_per_node=ranks, on=ON_N1)
    assert job.results == ["gloo"] * ranks
    assert f"fewer than the {ranks} ranks: they use gloo on the CPU" in job.note


def test_more_gpus_than_a_node_has_are_refused_with_those_that_there_are(cluster):
    there = {f"gpu:{FIRST} on 1 node", *[f"gpu:{BOTH} on 1 node"] * bool(BOTH)}
    if BOTH == FIRST:
        there = {f"gpu:{FIRST} on 2 nodes"}
    refused = f"rejected the job.*There are: {', '.join(sorted(there))}\n"
    for asked in (Slurm(nodes=1, gpus_per_node=FIRST + 1), Slurm(nodes=2, gpus_per_node=BOTH + 1)):
        with pytest.raises(lockstep.LaunchError, match=refused):
            lockstep.torchrun(reduced, nproc_per_node=1, on=asked)


_INSIDE = """
import os, sys, lockstep, torch, torch.distributed as dist
from lockstep.launch.cluster.allocation import find
def reduced():
    x = torch.ones(3, device=lockstep.device())
    dist.all_reduce(x)
    return os.environ["CUDA_VISIBLE_DEVICES"], dist.get_backend(), x.tolist()
ranks = int(sys.argv[1])
for asked in {"nproc_per_node": "gpu"}, {"nproc_per_node": ranks, "backend": "nccl"}:
    try:
        print(lockstep.torchrun(reduced, on=find("slurm", 1), **asked).results)
    except lockstep.LaunchError as error:
        print(error)
"""


def test_inside_of_a_job_its_gpus_are_used_and_too_few_are_named(cluster, tmp_path):
    (tmp_path / "inside.py").write_text(_INSIDE)
    shell = ["salloc", "--nodes=1", "--ntasks-per-node=1", f"--gpus-per-node={FIRST}"]
    done = command(*shell, sys.executable, str(tmp_path / "inside.py"), str(FIRST + 1))
    assert str([(given(FIRST), "nccl", [float(FIRST)] * 3)] * FIRST) in done.stdout
    there = f"one of this Slurm job's nodes has {FIRST} GPU"
    assert there in done.stdout and f"each of the {FIRST + 1} ranks" in done.stdout


def test_a_node_without_a_gpu_says_so(cluster):
    """Of the two nodes of a job one may have none, where no GPU was asked for."""
    if BOTH:
        pytest.skip("each of the two nodes has a GPU")
    nodes = Slurm(nodes=1, options=("--nodelist=n2",))
    job = lockstep.torchrun(torch.cuda.device_count, nproc_per_node=1, on=nodes)
    assert job.results == [0]
    none = "by gpus_per_node= each node has no GPU, as none is asked for"
    with pytest.raises(lockstep.LaunchError, match=none):
        lockstep.torchrun(reduced, nproc_per_node=1, backend="nccl", on=nodes)


def touch(device: str) -> float:
    return torch.ones(3, device=device).sum().item()


def test_a_gpu_that_slurm_did_not_give_cannot_be_touched(cluster):
    job = lockstep.torchrun(
        touch, f"cuda:{FIRST}", nproc_per_node=1, on=ON_N1, may_fail=True, timeout=60
    )
    assert not job.ok
    print(job.report)
    assert "invalid device ordinal" in job.report and "device=device" in job.report


@pytest.mark.skipif(bool(slurm.why_no_fences()), reason=slurm.why_no_fences())
def test_without_a_gpu_asked_for_there_is_none(cluster):
    nodes = Slurm(nodes=1, options=("--nodelist=n1",))
    assert lockstep.torchrun(torch.cuda.device_count, nproc_per_node=1, on=nodes).results == [0]
    job = lockstep.torchrun(touch, "cuda", nproc_per_node=1, on=nodes, may_fail=True, timeout=60)
    print(job.report)
    assert not job.ok and "device=device" in job.report


# ── The queue ────────────────────────────────────────────────────────────────────────────────


@contextmanager
def taken(cluster: slurm.Cluster) -> Iterator[None]:
    """All GPUs are somebody else's, but not the cores."""
    jobs = []
    for node, gpus in cluster.gpus.items():
        if gpus:
            where = [f"--nodelist={node}", f"--gpus-per-node={len(gpus)}", "--output=/dev/null"]
            jobs.append(slurm.said("sbatch", "--parsable", *where, "--wrap", "sleep 1000"))
    slurm.wait(lambda: all(queue.job_status(job).state == "RUNNING" for job in jobs))
    try:
        yield
    finally:
        subprocess.run(["scancel", *jobs], check=True)


def test_where_others_have_the_gpus_the_job_waits_and_says_so(cluster, capfd):
    with taken(cluster):
        with pytest.raises(lockstep.LaunchError, match="did not start within 3 s"):
            lockstep.torchrun(
                reduced, nproc_per_node="gpu", on=Slurm(nodes=1, gpus_per_node=FIRST, patience=3)
            )
        said = capfd.readouterr().out
        assert "waits: the resources that it asks for are not free (Resources)" in said
        beside = Slurm(nodes=1, options=("--nodelist=n1",))  # which needs none
        assert lockstep.torchrun(abs, -1, nproc_per_node=1, on=beside).results == [1]
    assert lockstep.torchrun(reduced, nproc_per_node="gpu", on=ON_N1)[0][2] == [FIRST] * 3


def requeued() -> str:
    import subprocess

    job = os.environ["SLURM_JOB_ID"]
    done = subprocess.run(["scontrol", "requeue", job], capture_output=True, text=True, check=False)
    return f"{done.returncode}: {done.stderr}"


def test_a_cell_is_not_put_into_the_queue_again(cluster):
    """The notebook would not know what to do with a second one."""
    job = lockstep.torchrun(requeued, nproc_per_node=1, on=ON_N1)
    assert job[0].startswith("1: ") and "disabled" in job[0], job[0]


def test_the_batch_script_of_lab_13_goes_on_with_its_gpus(cluster, tmp_path):
    """On one node, and by NCCL."""
    train = TRAIN.replace('"gloo"', '"nccl"').replace("(warned)]", "(warned)], device='cuda'")
    assert train.count("nccl") == train.count("cuda") == 1
    goes_on(tmp_path, train, "--nodes=1", "--gpus-per-node=1")
