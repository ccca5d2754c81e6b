"""A job that is recorded: its profiles, its call record, and what the magic makes of it."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from kernel import Kernel
from lockstep import LaunchError, World, torchrun
from lockstep.trace import Kind, Trace, TraceError

RANKS: dict[str, Any] = {"nproc_per_node": 2, "backend": "gloo", "show": False}


def train():
    import torch
    import torch.distributed as dist

    x = torch.ones(64, 64)
    for _ in range(3):
        y = x @ x
        dist.all_reduce(y)
    dist.barrier()
    if dist.get_rank() == 0:
        dist.send(x, 1)
    else:
        dist.recv(x, 0)


def communications(trace, rank):
    rows = trace.where(Kind.COMMUNICATION, rank=rank)
    slices = sorted((trace[row] for row in rows), key=lambda one: one.start)
    return [(one.collective.operation, one.collective.bytes_in) for one in slices]


def test_profiles_know_operators_and_from_the_call_record_the_sizes_and_groups():
    job = torchrun(train, trace=True, **RANKS)
    trace = Trace.of(job)
    assert trace.ranks == (0, 1)
    for rank, last in (0, "send"), (1, "recv"):
        size = 64 * 64 * 4
        calls = [*[("all_reduce", size)] * 3, ("barrier", 0), (last, size)]
        assert sorted(communications(trace, rank)) == sorted(calls)
    names = [trace.names[trace.name[row]] for row in trace.where(Kind.OPERATOR, rank=0)]
    assert names.count("aten::mm") == 3
    rows = trace.where(Kind.COMMUNICATION)
    said = {trace[row].collective.ranks for row in rows}
    assert said == {(0, 1)}
    assert str(trace.stamp) == "live · 2 ranks · gloo · CPU"
    assert job.output(0) == ""  # Kineto's own words are not the ranks'


def test_ranks_of_one_host_have_one_clock_though_their_profiles_name_no_host():
    """PyTorch 2.11 writes none down where no GPU was at work."""
    job = torchrun(train, trace=True, **RANKS)
    assert isinstance(job.profiles, Path)
    for file in job.profiles.iterdir():
        says = json.loads(gzip.decompress(file.read_bytes()))
        says.pop("host_name", None)
        file.write_bytes(gzip.compress(json.dumps(says).encode()))
    certificate = Trace.of(job).align().certificate
    assert certificate is not None and "same host clock" in str(certificate)


def test_without_profiles_a_trace_is_the_call_record():
    job = torchrun(train, **RANKS)
    trace = Trace.of(job)
    assert [lane.label for lane in trace.lanes] == ["calls", "calls"]
    for rank in (0, 1):
        calls = job.calls[rank]
        rows = trace.where(rank=rank)
        assert [trace[row].name for row in rows] == [call.operation for call in calls]
        for row, call in zip(rows, calls, strict=True):
            assert trace.start[row] == round(call.start * 1e9)
            assert call.end is not None and trace.end[row] == round(call.end * 1e9)


def test_a_call_that_never_ended_lasts_until_the_end():
    def leaves_one_out():
        import torch
        import torch.distributed as dist

        x = torch.ones(4)
        dist.barrier()
        if dist.get_rank() == 0:
            dist.all_reduce(x)
        else:
            dist.recv(x, 0)

    job = torchrun(leaves_one_out, may_fail=True, trace=True, **RANKS)
    trace = Trace.of(job)  # profiles of a failed job end in the middle, so it is the calls
    assert trace.notes == ("2 calls never ended: drawn until the last event",)
    hung = [one for one in trace if one.name in ("all_reduce", "recv")]
    assert len(hung) == 2 and hung[0].start != hung[1].start
    assert {one.end for one in hung} == {max(one.end for one in trace)}


def test_nothing_to_see_is_said():
    with pytest.raises(TraceError, match="neither profiles nor calls: run it with --trace"):
        Trace.of(torchrun(int, **RANKS))


def test_profiles_are_kept_where_they_are_wanted_and_nowhere_else(tmp_path):
    kept = tmp_path / "new" / "folder"
    job = torchrun(train, trace=kept, **RANKS)
    files = sorted(kept.iterdir())
    assert [file.name for file in files] == ["rank0.json.gz", "rank1.json.gz"]
    content = json.loads(gzip.decompress(files[1].read_bytes()))
    assert content["distributedInfo"]["rank"] == 1
    with pytest.raises(LaunchError, match="already holds traces; name another folder"):
        torchrun(train, trace=kept, **RANKS)
    assert sorted(kept.iterdir()) == files
    passing = torchrun(train, trace=True, **RANKS)
    folder = passing.profiles
    assert len(list(folder.iterdir())) == 2
    del passing
    assert not folder.exists()
    assert job.profiles == kept


def test_ranks_that_stay_are_recorded_job_by_job():
    with World(2, backend="gloo") as world:
        first = Trace.of(world.run(train, trace=True))
        plain = world.run(train)
        second = Trace.of(world.run(train, trace=True))
    assert plain.profiles is None
    assert communications(first, 0) == communications(second, 0) != []
    assert first.span[1] < second.span[0]


def test_the_magic_records_keeps_and_draws():
    kernel = Kernel()
    try:
        cell = "import torch, torch.distributed as dist\nx = torch.ones(8)\ndist.all_reduce(x)"
        reply = kernel.execute(f"%%torchrun -n 2 --trace mine --into job\n{cell}")
        assert not reply.error
        assert (kernel.work / "mine" / "rank1.json.gz").is_file()
        job, widget, picture = reply.displays.values()
        assert job["text/plain"].endswith("live · 2 ranks · gloo · CPU · ok")
        assert widget["text/plain"] == (
            "timeline: 2 ranks, 1 all_reduce on each rank\nlive · 2 ranks · gloo · CPU"
        )
        assert "application/vnd.jupyter.widget-view+json" in widget
        assert {"image/png", "text/html"} <= picture.keys()
        again = kernel.execute(f"%%torchrun -n 2 --trace mine\n{cell}")
        assert "already holds traces" in again.error
    finally:
        kernel.close()


def swap():
    """Give memory to a model that was sharded without any, as programs with FSDP2 do."""
    import torch
    from torch.distributed.fsdp import fully_shard

    with torch.device("meta"):
        model = torch.nn.Linear(8, 8)
    fully_shard(model)
    model.to_empty(device="cpu")


def test_what_only_the_profiler_makes_impossible_is_said():
    assert torchrun(swap, **RANKS).ok
    job = torchrun(swap, trace=True, may_fail=True, **RANKS)
    assert not job.ok, "PyTorch swaps them by now: the note in worker/profiling.py can go"
    assert "without --trace (or trace=) the same program can" in job.report
