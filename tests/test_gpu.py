"""What only a machine with GPUs can show; fails on any other: `make test-gpu`."""

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import standing_still
from between_groups import PROGRAMS
from ending_programs import FAMILIES, Program
from endings import Expected, Lane
from experiments import course
from experiments.command import DATA, find, record
from lockstep import gpu_count, reserve, torchrun
from lockstep.launch import live
from lockstep.launch.reserve import kept as kept_now
from rank_state import CHANGES, CUDA, PROBE
from sharing import on_one_gpu
from test_stall_detector import told

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(1800)]

LANES = 8  # programs at a time: torchrun takes about fifteen seconds for each, on one core


@pytest.fixture(scope="module")
def gpus() -> int:
    count = gpu_count()
    assert count, "this machine has no GPU that PyTorch can use, and these tests are about GPUs"
    return count


def test_the_course_runs_here_and_its_table_is_written(gpus):
    (done,) = record(find(["course"]), None, None, "make test-gpu")
    print(course.table(DATA))
    course.PAGE.write_text(course.quote(course.PAGE.read_text(), course.table(DATA)))
    (result,) = done.results
    assert {row["notebook"]: row["problems"] for row in result.content if row["problems"]} == {}
    solutions = [row for row in result.content if row["notebook"].startswith("solutions/")]
    assert solutions and all(row["passed"] == row["checks"] > 0 for row in solutions)


def differences(programs: dict[str, Program]) -> dict[str, list[str]]:
    """What differs from torchrun beside it, by program and form."""
    found = {}
    with Lane(gpus=True) as lane:
        for name, program in programs.items():
            expected = Expected.common([lane.run(program, "script", "torchrun", 120)])
            for form in program.forms:
                ours = lane.run(program, form, "warm", 120)
                if differs := [*expected.differences(ours), *ours.left]:
                    found[f"{name} · {form}"] = [*differs, ours.said[-1000:]]
    return found


def test_ordinary_programs_do_on_gpus_what_they_do_under_torchrun(gpus):
    """DDP, FSDP2 and the like by NCCL, on as many ranks as there are GPUs for; and DDP by gloo, in
    which threads without Python's frames call, too, on a GPU that two ranks share."""
    _, _, rest = FAMILIES["ordinary"]["DDP trains a small model"].source.partition("rank = ")
    begin = "import torch\nimport torch.distributed as dist\ndevice = torch.device('cuda', 0)\n"
    shared = f"{begin}dist.init_process_group('gloo')\nrank = {rest}"
    programs = {"two ranks share a GPU": Program(shared, forms=("script",))}
    for name, program in FAMILIES["ordinary"].items():
        programs[name] = replace(program, ranks=min(program.ranks, gpus))
    lanes = [dict(list(programs.items())[lane::LANES]) for lane in range(LANES)]
    with ThreadPoolExecutor(LANES) as pool:
        found = {what: why for lane in pool.map(differences, lanes) for what, why in lane.items()}
    print(f"{len(programs)} programs, {len(found)} of their runs differ: {found}")
    assert not found


def reduced(size: int) -> list[float]:
    import torch
    import torch.distributed as dist

    x = torch.ones(size, device=f"cuda:{dist.get_rank()}")
    dist.all_reduce(x)
    return x.tolist()


def on(gpus: int, what, *args, show: bool = False):
    return torchrun(what, *args, nproc_per_node=gpus, backend="nccl", show=show)


def test_more_ranks_than_gpus_compute_on_the_cpu_whatever_pytorch_prefers(gpus):
    """The mesh that fully_shard makes by itself, and PowerSGD's hook, take a GPU that they see."""

    def sharded_and_compressed():
        import torch
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power
        from torch.distributed.fsdp import fully_shard
        from torch.nn.parallel import DistributedDataParallel

        x, model = torch.ones(4, 64), torch.nn.Linear(64, 64)
        fully_shard(model)
        model(x).sum().backward()
        ddp = DistributedDataParallel(torch.nn.Linear(64, 64))
        state = power.PowerSGDState(None, 1, start_powerSGD_iter=2)
        ddp.register_comm_hook(state, power.powerSGD_hook)
        for _ in range(4):
            ddp(x).sum().backward()
        return model.weight.grad.device.type, ddp.module.weight.grad.device.type

    job = torchrun(sharded_and_compressed, nproc_per_node=gpus + 1, show=False)
    assert job.results == [("cpu", "cpu")] * (gpus + 1)


def test_a_traced_job_that_only_uses_the_cpu_says_so(gpus):
    """PyTorch's profiler makes a context on a GPU that is there; nothing was computed on it."""
    job = torchrun(lambda: 1, nproc_per_node=2, backend="gloo", trace=True, show=False)
    assert str(job.stamp) == "live · 2 ranks · gloo · CPU"


def backward_after(virtual_first: bool) -> list[float]:
    import lockstep
    import torch

    if virtual_first:
        with lockstep.virtual.device():
            torch.ones(3, device="cuda")
    x = torch.ones(3, device="cuda", requires_grad=True)
    (2 * x).sum().backward()
    return x.grad.tolist()


def test_a_backward_pass_after_a_virtual_gpu_says_why_it_fails(gpus):
    alone = torchrun(backward_after, False, nproc_per_node=1, init=False, show=False)
    assert alone[0] == [2, 2, 2]
    late = torchrun(backward_after, True, nproc_per_node=1, init=False, show=False, may_fail=True)
    assert not late.ok and "has had a virtual GPU" in late.report


@pytest.fixture
def kept(gpus, monkeypatch):
    """Jobs that are shown, and which nobody sees, leave a reserve."""
    monkeypatch.setattr(live.Lines, "__call__", lambda *_: None)
    yield lambda what, *args: on(gpus, what, *args, show=True)
    reserve("off")
    reserve()


def come_up(gpus: int) -> None:
    """Until the reserve that is starting is there: a job with it, and it is replaced."""
    until = time.monotonic() + 60
    while not kept_now.is_ready and time.monotonic() < until:
        time.sleep(0.05)


def test_nothing_of_a_job_is_there_in_the_next_one(gpus, kept):
    names: dict[str, object] = {"__name__": "__main__"}
    exec(PROBE + CUDA, names)
    probe = names["cuda_state"]
    reserve("off")
    fresh = on(gpus, probe).results
    reserve("between")

    def change():
        import sys

        import torch
        import torch.distributed as dist

        exec(CHANGES, {"os": __import__("os"), "dist": dist, "sys": sys})
        torch.cuda.manual_seed(1)
        torch.ones(1 << 28, device="cuda")

    kept(change)
    come_up(gpus)
    for one, other in zip(fresh, on(gpus, probe).results, strict=True):
        assert {k: (one[k], other[k]) for k in one if one[k] != other[k]} == {}


def test_what_ranks_say_while_they_meet_is_said_in_the_job(gpus, kept):
    def lines() -> int:
        job = torchrun(
            reduced, 4, nproc_per_node=gpus, backend="nccl", env={"NCCL_DEBUG": "INFO"}, show=True
        )
        return sum(job.output(rank).count("NCCL INFO") for rank in range(gpus))

    reserve("off")
    fresh = lines()
    reserve("between")
    lines()
    come_up(gpus)
    assert lines() > 0.8 * fresh > 0


def by_nccl(ranks: Callable[[], Any], nproc: int, gpus: int) -> dict[str, Any]:
    """How to launch: a rank a GPU, or, where these are too few, all on one."""
    if nproc > gpus:
        return {"what": on_one_gpu(ranks), "init": False}
    return {"what": ranks, "backend": "nccl"}


@pytest.mark.parametrize("name", PROGRAMS)
def test_queued_calls_of_groups_in_another_order_are_found_within_seconds(gpus, name):
    program = PROGRAMS[name]
    began = time.perf_counter()
    job = torchrun(
        **by_nccl(program.ranks, program.nproc, gpus), nproc_per_node=program.nproc, show=False,
        may_fail=True, timeout=20,
    )  # fmt: skip
    headline = job.report.split("\n\n")[0]
    print(f"{name}: {time.perf_counter() - began:.1f} s, {job.state}: {headline}")
    assert job.state == "failed" and "time limit" not in headline
    assert "in the same order, over all these groups together" in headline
    for group in program.groups:
        assert f"on group {group} (" in headline
    calls = max(call.start for calls in job.calls for call in calls)
    assert max(end.at for end in job.ends) - calls < 5


@pytest.mark.parametrize(
    "name", [name for name, one in standing_still.PROGRAMS.items() if one.on_gpu]
)
def test_what_gpus_wait_for_is_named_within_seconds(gpus, name):
    program = standing_still.PROGRAMS[name]
    headline = told(name, by_nccl(program.ranks, program.nproc, gpus))
    assert "rank 0 called" in headline or "waits" in headline.lower()


def test_a_fresh_cell_comes_sooner_with_a_reserve(gpus, kept):
    """The measure is data/launch's; here only that the way is taken at all."""

    def median(pause) -> float:
        seconds = []
        for _ in range(3):
            pause(gpus)
            began = time.perf_counter()
            assert kept(reduced, 4).results[0] == [gpus] * 4
            seconds.append(time.perf_counter() - began)
        return statistics.median(seconds)

    reserve("off")
    without = median(lambda _: None)
    reserve("between")
    kept(reduced, 4)
    assert median(come_up) < without
