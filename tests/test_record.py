"""The record of calls: what is read of it while it is written, and when it is full."""

import mmap
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import lockstep
import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from lockstep.calls.record import HEADER, Group, Reader
from lockstep.launch.worker import recorder
from test_launch import launch


def small_record(size: int = 1 << 14) -> tuple[recorder.Recorder, Reader]:
    memory = mmap.mmap(-1, HEADER.size + 2 * size)
    return recorder.Recorder(memory), Reader(memory, 3)


def test_a_full_record_keeps_the_newest_calls_and_all_counts():
    own, reader = small_record()
    group, _ = own.group("key", lambda: Group("default 0", (0, 1, 2, 3)))
    pair, _ = own.group("pair", lambda: Group("1", (2, 3)))
    own.end(own.begin("barrier", pair))
    for number in range(2000):
        place = own.begin("all_reduce", group, ((4,),), "float32", 16)
        own.end(place)
        assert reader.calls()[-1].number == number if number % 97 == 0 else True
    calls = reader.calls()
    numbers = [call.number for call in calls]
    assert numbers == list(range(numbers[0], 2000)) and 0 < numbers[0] < 2000
    assert reader.dropped == 2001 - len(calls)
    assert all(call.end is not None and call.end >= call.start for call in calls)
    by_group = {line[0].name: count for line, count in reader.reached().items()}
    assert by_group == {"default 0": 2000, "1": 1}
    copy = reader.copy()
    own.begin("all_reduce", group)
    assert [call.number for call in copy.calls()] == numbers


def test_the_end_of_a_call_that_is_no_longer_held_changes_nothing():
    memory = mmap.mmap(-1, HEADER.size + (1 << 15))
    own, reader = recorder.Recorder(memory), Reader(memory, 3)
    group, _ = own.group("key", lambda: Group("default 0", (0, 1)))
    places = []
    while reader.dropped < 1000:  # their memory has been taken again, and filled
        places.append(own.begin("all_reduce", group))
    held = set(reader.log())
    before = bytes(memory)
    for place in places:
        if place not in held:
            own.end(place)
    assert bytes(memory) == before
    assert {call.end for call in reader.calls()} == {None}


def test_a_new_job_begins_an_empty_record_but_counts_on():
    own, reader = small_record()
    group, _ = own.group("key", lambda: Group("default 0", (0, 1)))
    before = own.begin("all_reduce", group)
    own.reset()
    assert reader.calls() == []
    own.end(before)  # work that went on behind the job before
    own.begin("all_reduce", group)
    (call,) = reader.calls()
    assert (call.number, call.end) == (1, None)


def test_a_call_of_very_many_tensors_is_kept_without_their_shapes():
    own, reader = small_record(1 << 12)
    group, _ = own.group("key", lambda: Group("default 0", (0, 1)))
    own.begin("all_gather", group, tuple((n,) for n in range(1000)), "float32", 99)
    (call,) = reader.calls()
    assert (call.bytes, call.shapes) == (99, ())


# ── Works that go on behind the program ──────────────────────────────────────────────────────


def test_async_work_has_its_own_end_while_the_program_does_something_else():
    def overlaps():
        import time

        x = torch.ones(4)
        work = dist.all_reduce(x, async_op=True)
        until = time.perf_counter() + 5
        while not work.is_completed() and time.perf_counter() < until:
            time.sleep(0.001)
        time.sleep(0.3)  # the program's own time, which is not the work's
        return time.perf_counter()

    job = launch(overlaps)
    for calls, after in zip(job.calls, job.results, strict=True):
        assert calls[0].end is not None and calls[0].end < after - 0.2


def test_works_that_end_in_another_order_have_each_its_own_end(tmp_path):
    def out_of_order():
        import time

        rank = dist.get_rank()
        slow, fast = dist.new_group([0, 1]), dist.new_group([0, 1])
        if rank == 0:
            first = dist.all_reduce(torch.ones(1), group=slow, async_op=True)
        second = dist.all_reduce(torch.ones(1), group=fast, async_op=True)
        second.wait()
        if rank == 0:
            return time.perf_counter(), first.wait()
        time.sleep(0.3)
        dist.all_reduce(torch.ones(1), group=slow)
        return None

    job = launch(out_of_order)
    after_second = job.results[0][0]
    first, second = job.calls[0]
    assert second.end is not None and second.end <= after_second
    assert first.end is not None and first.end >= after_second + 0.2


def test_a_message_whose_handle_nobody_kept_is_given_up_and_said_so():
    def drops_the_handle():
        if dist.get_rank() == 0:
            dist.isend(torch.ones(4), 1)
            dist.barrier()
        else:
            dist.barrier()  # a receiver that is there already would get it
            dist.recv(torch.ones(4), 0)

    job = launch(drops_the_handle, may_fail=True)
    assert "rank 0 had begun its side of that message with isend()" in job.verdict
    assert "Keep the handle, and call its wait()" in job.verdict


def test_a_message_whose_handle_is_kept_arrives():
    def keeps_the_handle():
        x = torch.ones(4) * dist.get_rank()
        if dist.get_rank() == 0:
            work = dist.isend(x, 1)
            work.wait()
        else:
            works = dist.batch_isend_irecv([dist.P2POp(dist.irecv, x, 0)])
            for work in works:
                work.wait()
        return x.tolist(), work.is_completed()

    job = launch(keeps_the_handle)
    assert job.results == [([0.0] * 4, True)] * 2
    assert [[call.operation for call in calls] for calls in job.calls] == [["send"], ["recv"]]
    assert all(call.end is not None and not call.forsaken for calls in job.calls for call in calls)


def test_what_cannot_be_a_record_is_read_as_far_as_it_can():
    import ctypes

    begins = HEADER.size

    def scribbles():
        dist.all_reduce(torch.ones(1))
        with open("/proc/self/maps") as file:
            maps = file.readlines()
        for line in maps:
            if "memfd:lockstep-calls" in line:
                start = int(line.split("-")[0], 16)
                ctypes.memset(start + begins + 1, 0xC1, 200_000)
        dist.all_reduce(torch.ones(1))

    job = launch(scribbles)
    assert job.ok and job.calls == [[], []]


def _wait_or_not():
    x, y, rank = torch.ones(2), torch.ones(2), dist.get_rank()
    dist.all_reduce(x)
    dist.all_reduce(x, async_op=True)  # nobody waits for it
    dist.all_reduce(x, async_op=True).wait()
    work = dist.all_reduce(y, async_op=True)
    while not work.is_completed():
        pass
    everybody: Any = dist.group.WORLD
    functional.all_reduce(x, "sum", everybody).sum()
    forgotten = dist.isend(x, 1 - rank)
    dist.recv(y, 1 - rank)
    dist.barrier()  # the message has come: who drops it before gives it up
    return forgotten.source_rank if rank > 1 else None


def test_the_record_says_who_was_waited_for():
    job = lockstep.torchrun(_wait_or_not, nproc_per_node=2, backend="gloo", show=False)
    for calls in job.calls:
        assert [call.waited for call in calls] == [True, False, True, True, True, False, True, True]


def _keep_the_handle():
    everybody: Any = dist.group.WORLD
    options = dist.AllreduceOptions()
    options.asyncOp = False
    never, later = (everybody.allreduce([torch.ones(1)], options) for _ in range(2))
    dist.barrier()
    later.wait()
    return never.is_success()


def test_who_calls_a_group_by_itself_may_leave_the_handle_of_a_synchronous_call():
    job = lockstep.torchrun(_keep_the_handle, nproc_per_node=2, backend="gloo", show=False)
    for calls in job.calls:
        assert [call.waited for call in calls] == [False, True, True]


def _batch_or_not():
    x, other = torch.zeros(2), 1 - dist.get_rank()
    both = [dist.P2POp(dist.isend, x[:1], other), dist.P2POp(dist.irecv, x[1:], other)]
    for begun in dist.batch_isend_irecv(both):
        begun.wait()
    work = dist.isend(x[:1], other)
    dist.recv(x[1:], other)
    work.wait()


def test_the_record_says_what_a_batch_began():
    job = lockstep.torchrun(_batch_or_not, nproc_per_node=2, backend="gloo", show=False)
    for calls in job.calls:
        assert [call.batched for call in calls] == [True, True, False, False]


def _ask_for_nobody():
    if dist.get_rank() == 0:
        dist.recv(torch.ones(1), -1)


def test_a_wait_for_a_rank_that_is_not_there_is_a_certain_deadlock():
    job = lockstep.torchrun(
        _ask_for_nobody, nproc_per_node=2, backend="gloo", may_fail=True, show=False
    )
    assert job.failures[0].kind == "stuck"
    assert job.verdict.startswith(
        "Rank 0 is in recv #0 from a rank below 0 of float32[1] on the default group, which has "
        "ranks 0, 1 only."
    )


def _ask_for_what_cannot_be():
    dist.all_reduce(torch.ones(1))
    with pytest.raises((RuntimeError, ValueError)):
        dist.all_gather([torch.ones(2), torch.ones(3)], torch.ones(2))
    dist.all_reduce(torch.ones(1))


def test_a_call_that_pytorch_refuses_is_over():
    job = lockstep.torchrun(_ask_for_what_cannot_be, nproc_per_node=2, backend="gloo", show=False)
    for calls in job.calls:
        assert [call.operation for call in calls] == ["all_reduce", "all_gather", "all_reduce"]
        assert all(call.end for call in calls)


def _call_itself(name):
    alone = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]
    x = torch.ones(1)

    def endless():
        dist.barrier(alone) if name == "barrier" else dist.all_reduce(x, group=alone)
        endless()

    with pytest.raises(RecursionError):
        endless()
    dist.all_reduce(x)
    return x.item()


@pytest.mark.parametrize("name", ["barrier", "all_reduce"])
def test_a_program_that_is_as_deep_as_python_lets_it_be_is_told_so_and_goes_on(name):
    job = lockstep.torchrun(_call_itself, name, nproc_per_node=2, backend="gloo", show=False)
    assert job.results == [2.0, 2.0]


def _part():
    dist.all_reduce(x := torch.ones(1))
    dist.all_reduce(x) if dist.get_rank() == 0 else dist.recv(x, 0)


def test_a_rank_that_stands_before_its_call_is_made_is_seen_in_it(monkeypatch):
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")  # PyTorch compares each call first
    job = lockstep.torchrun(
        _part, nproc_per_node=2, backend="gloo", may_fail=True, show=False, timeout=30
    )
    assert job.verdict.startswith("Rank 0 waits in all_reduce #1 of float32[1] on the default ")


def _scatter_with_a_handle():
    part = torch.empty(1)
    dist.reduce_scatter(part, list(torch.ones(2).chunk(2)), async_op=True).wait()
    return part.item()


def test_a_work_without_a_future_is_recorded_and_does_not_fail():
    job = lockstep.torchrun(_scatter_with_a_handle, nproc_per_node=2, backend="gloo", show=False)
    assert job.results == [2.0, 2.0]
    assert all(call.waited and call.end for calls in job.calls for call in calls)


def test_the_rank_that_a_program_asks_to_be(tmp_path):
    def joins():
        import os

        rank = int(os.environ["RANK"])
        store = dist.FileStore(os.environ["MEET"], 2)
        dist.init_process_group("gloo", store=store, rank=1 - rank, world_size=2)
        dist.barrier()  # else one may leave while the other still connects
        dist.destroy_process_group()
        dist.init_process_group("gloo", None, None, 2, rank, dist.PrefixStore("again", store))

    job = launch(joins, nproc_per_node=2, init=False, env={"MEET": str(tmp_path / "store")})
    for rank in range(2):
        asked = [call for call in job.setup[rank] if call.operation.startswith("init")]
        assert [call.peer for call in asked] == [1 - rank, rank]


# ── Calls that C++ makes, or that are made in another way than PyTorch's own ─────────────────────


def _reduced_by_ddp(x: torch.Tensor) -> None:
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1), init_sync=False)
    model(x).sum().backward()


def group() -> Any:
    return dist.group.WORLD


WAYS: dict[str, tuple[Callable[[torch.Tensor], Any], str]] = {
    "a tensor, not a list": (lambda x: group().allreduce(x).wait(), "all_reduce"),
    "no options": (lambda x: group().broadcast([x]).wait(), "broadcast"),
    "a tuple": (
        lambda x: group().allreduce((x,), dist.AllreduceOptions()).wait(),
        "all_reduce",
    ),
    "options by name": (
        lambda x: group().broadcast(tensors=[x], opts=dist.BroadcastOptions()).wait(),
        "broadcast",
    ),
    "a root by name": (lambda x: group().broadcast(x, root=1).wait(), "broadcast"),
    "a time limit only": (lambda x: group().barrier(timedelta(30)).wait(), "barrier"),
    "a monitored barrier": (lambda _: dist.monitored_barrier(), "monitored_barrier"),
    "an operation of c10d": (
        lambda x: torch.ops.c10d.broadcast_([x], group().boxed(), 1, 0, True, -1),
        "broadcast",
    ),
    "a functional collective": (
        lambda x: functional.all_reduce(x, "sum", group()).sum(),
        "all_reduce",
    ),
    "many at once, in C++": (
        lambda x: dist._broadcast_coalesced(group(), [x], 1 << 20, 0),
        "broadcast",
    ),
    "other shards of a DTensor": (
        lambda x: torch.ops._dtensor.shard_dim_alltoall(x.reshape(2, 2), 0, 1, group().group_name),
        "all_to_all_single",
    ),
    "DDP's reducer": (_reduced_by_ddp, "all_reduce"),
}


@pytest.mark.parametrize("name", WAYS)
def test_a_call_is_recorded_however_it_is_made(name):
    way, operation = WAYS[name]

    def ranks() -> None:
        dist.all_reduce(torch.ones(1))
        way(torch.ones(4))
        dist.all_reduce(torch.ones(1))

    for calls in launch(ranks).calls:
        first, *between, last = (call.operation for call in calls)
        assert (first, last) == ("all_reduce", "all_reduce") and between[-1] == operation
        counted = [call.number for call in calls if call.group == calls[0].group]
        assert counted == list(range(len(counted)))
