"""Collectives between the virtual GPUs of ranks: real values, one clock, NCCL's streams."""

from __future__ import annotations

from typing import Any

import lockstep
import torch
import torch.distributed as dist
from lockstep import torchrun, virtual
from lockstep.virtual.passes import between, table

N = 4


def every_collective(on_gpu: bool) -> list[torch.Tensor]:
    """The same calls on the CPU and on the virtual GPU."""
    if on_gpu:
        lockstep.cuda(virtual=True)
    device = lockstep.device()
    rank, n = dist.get_rank(), dist.get_world_size()
    x = (torch.arange(6.0) + 10 * rank).to(device)
    results = []

    def keep(tensor: torch.Tensor) -> None:
        results.append(tensor.cpu().clone())  # on the CPU, .cpu() is the tensor itself

    for call in (dist.all_reduce, lambda t: dist.broadcast(t, 1), lambda t: dist.reduce(t, 0)):
        y = x.clone()
        call(y)
        if call is dist.all_reduce or rank == 0:
            keep(y)
    parts = [torch.empty_like(x) for _ in range(n)]
    dist.all_gather(parts, x)
    keep(torch.stack(parts))
    whole = torch.empty(6 * n, device=device)
    dist.all_gather_into_tensor(whole, x)
    keep(whole)
    mine = torch.empty(6, device=device)
    dist.reduce_scatter_tensor(mine, whole + rank)
    keep(mine)
    swapped = torch.empty_like(whole)
    dist.all_to_all_single(swapped, whole * (rank + 1))
    keep(swapped)
    if rank == 0:
        dist.send(x, 1, tag=3)
    elif rank == 1:
        dist.recv(x, 0, tag=3)
    keep(x)
    handle = dist.all_reduce(x, op=dist.ReduceOp.MAX, async_op=True)
    assert handle is not None
    handle.wait()
    keep(x * 2)
    dist.barrier()
    if on_gpu:
        assert list(virtual.races()) == []
    return results


def test_values_are_those_of_plain_collectives() -> None:
    plain = torchrun(every_collective, False, nproc_per_node=N, backend="gloo", show=False)
    ours = torchrun(every_collective, True, nproc_per_node=N, backend="gloo", show=False)
    for one, other in zip(plain.results, ours.results, strict=True):
        assert len(one) == len(other)
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def overlapping(wait: bool) -> Any:
    cuda = lockstep.cuda(virtual=True)
    x = torch.ones(1 << 20, device="cuda")
    y = torch.ones(1 << 20, device="cuda")
    if dist.get_rank() == 1:
        cuda._sleep(2_000_000)
    before = virtual.perf_counter()
    handle = dist.all_reduce(x, async_op=True)
    assert handle is not None
    for _ in range(20):
        y.mul_(2)
    if wait:
        handle.wait()
    launched = virtual.perf_counter() - before
    mean = x.mean().item()
    handle.wait()
    dist.barrier()
    races = [(one.kind, one.lines[1].text, one.repair) for one in virtual.races() if one.lines[1]]
    return mean, races, launched, virtual.perf_counter(), virtual.trace()


def test_a_handle_makes_the_stream_wait_and_not_the_host() -> None:
    results = torchrun(overlapping, True, nproc_per_node=2, backend="gloo", show=False).results
    assert [one[0] for one in results] == [2.0, 2.0]
    assert [one[1] for one in results] == [[], []]
    assert all(one[2] < 0.4e-3 for one in results)  # the other rank comes after a millisecond
    assert results[0][3] == results[1][3]  # one clock
    trace = virtual.joined([one[4] for one in results])
    assert str(trace.stamp) == "simulated · virtual H200"
    (found,) = [one for one in trace.collectives() if one.operation == "all_reduce"]
    assert found.last == 1
    ends = [one.end for one in trace if one.name == "nccl all_reduce"]
    assert ends[0] == ends[1]
    assert trace.breakdown().of(0).overlapped > 0


def test_without_the_wait_it_is_a_race_and_a_wrong_number() -> None:
    results = torchrun(overlapping, False, nproc_per_node=2, backend="gloo", show=False).results
    for mean, races, *_ in results:
        assert mean == 1.0
        ((kind, line, repair),) = races
        assert (kind, line) == ("read after write", "mean = x.mean().item()")
        assert "call wait() on the handle" in repair


def in_a_graph() -> Any:
    cuda = lockstep.cuda(virtual=True)
    x = torch.ones(64, device="cuda")
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        dist.all_reduce(x)
        y = x + 1
    seen = []
    for _ in range(2):
        graph.replay()
        seen.append(y.mean().item())
    launches = [one.name for one in virtual.trace() if one.name == "cudaGraphLaunch"]
    return seen, len(launches), list(virtual.races())


def test_a_collective_can_be_captured() -> None:
    for seen, launches, races in torchrun(
        in_a_graph, nproc_per_node=2, backend="gloo", show=False
    ).results:
        assert seen == [3.0, 5.0]
        assert (launches, races) == (2, [])


def crossing_groups() -> float:
    """Ranks come to the collectives of two groups in different orders of virtual time.

    Not further apart than a collective takes at least.
    """
    cuda = lockstep.cuda(virtual=True)
    groups = [dist.new_group([0, 1]) for _ in range(2)]
    x, y = (torch.ones(8, device="cuda") for _ in range(2))
    one, two = cuda.Stream(), cuda.Stream()
    cuda.synchronize()
    for number, (stream, tensor, group) in enumerate(((one, x, groups[0]), (two, y, groups[1]))):
        with cuda.stream(stream):
            if number == dist.get_rank():
                cuda._sleep(10_000)
            dist.all_reduce(tensor, group=group)
    cuda.synchronize()
    return x.mean().item() + y.mean().item()


def test_groups_that_ranks_come_to_in_different_orders() -> None:
    done = torchrun(crossing_groups, nproc_per_node=2, backend="gloo", show=False, timeout=60)
    assert list(done.results) == [4.0, 4.0]


def never_waited_for() -> None:
    lockstep.cuda(virtual=True)
    x = torch.ones(8, device="cuda")
    dist.all_reduce(x)
    if dist.get_rank() == 0:
        x.sum().item()  # the other rank launches only, and ends


def test_a_rank_that_only_launches_lets_the_others_end() -> None:
    torchrun(never_waited_for, nproc_per_node=2, backend="gloo", show=False, timeout=60)


def other_sizes() -> None:
    cuda = lockstep.cuda(virtual=True)
    x = torch.ones(8, 64, device="cuda")
    for rows in (8, 4 + 4 * dist.get_rank()):
        dist.all_reduce(x[:rows])
    cuda.synchronize()


def test_a_rank_that_has_lost_another_one_says_so_once() -> None:
    job = torchrun(
        other_sizes, nproc_per_node=2, backend="gloo", show=False, may_fail=True, timeout=60
    )
    assert "The ranks disagree about all_reduce" in str(job)
    assert "atexit" not in str(job)


def futures() -> str:
    lockstep.cuda(virtual=True)
    handle = dist.all_reduce(torch.ones(3, device="cuda"), async_op=True)
    assert handle is not None
    try:
        handle.get_future()
    except NotImplementedError as error:
        handle.wait()
        return str(error)
    return ""


def test_what_ddp_needs_is_refused_by_name() -> None:
    (said,) = torchrun(futures, nproc_per_node=1, backend="gloo", show=False).results
    assert "get_future" in said


def ring(on_gpu: bool) -> Any:
    """Each rank's numbers, after each round of a ring; the receive is given before the send."""
    if on_gpu:
        lockstep.cuda(virtual=True)
    rank, n = dist.get_rank(), dist.get_world_size()
    x, seen = torch.arange(3.0).add(10 * rank).to(lockstep.device()), []
    for _ in range(n - 1):
        coming = torch.empty_like(x)
        both = [
            dist.P2POp(dist.irecv, coming, (rank - 1) % n),
            dist.P2POp(dist.isend, x, (rank + 1) % n),
        ]
        for work in dist.batch_isend_irecv(both):
            work.wait()
        x = coming
        seen.append(x.tolist())
    races = [str(one) for one in virtual.races()] if on_gpu else []
    return seen, races


def test_messages_of_a_batch_go_round() -> None:
    for n in (2, 3):
        plain = torchrun(ring, False, nproc_per_node=n, backend="gloo", show=False)
        ours = torchrun(ring, True, nproc_per_node=n, backend="gloo", show=False)
        assert ours.results == plain.results
        called = [[call.operation for call in calls] for calls in ours.calls]
        assert all({*one} == {"send", "recv"} for one in called)  # and nothing of how clocks meet


def exchange_of(sizes: dict[tuple[int, int], int], late: int, values: bool) -> Any:
    """One batch with a message of so many bytes for each pair; when it begins and ends here."""
    with virtual.device("H200", values=values) as cuda:
        rank, both = dist.get_rank(), []
        for (source, target), size in sizes.items():
            if rank in (source, target):
                x = torch.ones(size, dtype=torch.uint8, device="cuda")
                way, peer = (dist.isend, target) if rank == source else (dist.irecv, source)
                both.append(dist.P2POp(way, x, peer))
        cuda.synchronize()
        dist.barrier()
        if rank == late:
            cuda._sleep(1_000_000)
        for work in dist.batch_isend_irecv(both):
            work.wait()
        trace = virtual.trace()
    (kernel,) = [one for one in trace if one.name.startswith("nccl ")]
    return kernel.name, kernel.start, kernel.end


def test_a_batch_ends_with_the_last_of_its_messages() -> None:
    h200, size = virtual.MACHINES["H200"], 64_000_000
    once, twice = (between(table("send")["2"], each) for each in (size, 2 * size))
    sizes = {(0, 1): size, (1, 2): size, (1, 0): 2 * size}
    for late, values in ((-1, True), (-1, False), (0, False)):
        jobs = torchrun(
            exchange_of, sizes, late, values, nproc_per_node=3, backend="gloo", show=False
        )
        (zero, one, two) = jobs.results
        assert [zero[0], one[0], two[0]] == ["nccl send and recv"] * 2 + ["nccl recv"]
        # Rank 1 sends three parts, one of them to rank 2, which receives nothing else.
        least = once + twice - h200.collective
        assert abs(zero[2] - max(zero[1], one[1]) - least) < 2
        assert abs(one[2] - zero[2]) < 2  # both are at the ends of the same messages
        assert abs(two[2] - max(one[1], two[1]) - least) < 2
        assert (zero[1] - two[1] > 400_000) is (late == 0)
        assert (zero[2] - two[2] > 400_000) is (late == 0)  # rank 2 does not wait for rank 0


def behind_a_product(wait: bool) -> Any:
    cuda = lockstep.cuda(virtual=True)
    rank = dist.get_rank()
    x, coming = (torch.ones(1 << 18, device="cuda") for _ in range(2))
    y = torch.ones(512, 512, device="cuda")
    both = [
        dist.P2POp(dist.isend, x * (rank + 2), 1 - rank),
        dist.P2POp(dist.irecv, coming, 1 - rank),
    ]
    handles = dist.batch_isend_irecv(both)
    z = y @ y
    if wait:
        handles[0].wait()
    mean = coming.mean().item()
    handles[0].wait()
    cuda.synchronize()
    races = [(one.kind, one.lines[1].text) for one in virtual.races() if one.lines[1]]
    hidden = virtual.trace().breakdown().of(rank).overlapped
    return len(handles), mean, z.mean().item(), races, hidden


def test_a_batch_hides_behind_kernels_and_has_one_handle() -> None:
    results = torchrun(behind_a_product, True, nproc_per_node=2, backend="gloo", show=False).results
    assert [one[:4] for one in results] == [(1, 3.0, 512.0, []), (1, 2.0, 512.0, [])]
    assert results[0][4] > 0


def test_a_batch_that_nobody_waited_for_is_a_race() -> None:
    job = torchrun(behind_a_product, False, nproc_per_node=2, backend="gloo", show=False)
    for _, mean, _, races, _ in job.results:
        assert mean == 1.0
        assert races == [("read after write", "mean = coming.mean().item()")]


def ring_without_one(values: bool) -> None:
    with virtual.device("H200", values=values) as cuda:
        rank, n = dist.get_rank(), dist.get_world_size()
        x, y = (torch.ones(8, device="cuda") for _ in range(2))
        both = [
            dist.P2POp(dist.isend, x, (rank + 1) % n),
            dist.P2POp(dist.irecv, y, (rank - 1) % n),
        ]
        dist.batch_isend_irecv(both[: 1 if rank == 1 else 2])  # rank 1 receives nothing
        cuda.synchronize()


def test_a_message_that_nobody_receives_is_named() -> None:
    for values in (True, False):
        job = torchrun(
            ring_without_one, values, nproc_per_node=3, backend="gloo", show=False, may_fail=True,
            timeout=60,
        )  # fmt: skip
        said = str(job.report)
        assert "Rank 0 waits in send" in said and "to rank 1" in said, said
        assert "which already left without that call" in said
        assert ("float32[8]" in said) is values  # else the times are seen, with a tag of their own


def sizes_that_differ() -> None:
    lockstep.cuda(virtual=True)
    rank, x = dist.get_rank(), torch.ones(8, device="cuda")
    way = dist.irecv if rank else dist.isend
    for work in dist.batch_isend_irecv([dist.P2POp(way, x[: 8 - 4 * rank], 1 - rank)]):
        work.wait()
    x.sum().item()


def test_a_message_of_another_size_is_named() -> None:
    job = torchrun(
        sizes_that_differ, nproc_per_node=2, backend="gloo", show=False, may_fail=True, timeout=60
    )
    said = str(job.report)
    assert "sends float32[8] to rank 1, which receives into float32[4]" in said, said


def batch_in_a_graph() -> Any:
    cuda = lockstep.cuda(virtual=True)
    rank, n = dist.get_rank(), dist.get_world_size()
    x, coming = torch.full((4,), float(rank), device="cuda"), torch.zeros(4, device="cuda")
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        both = [
            dist.P2POp(dist.isend, x, (rank + 1) % n),
            dist.P2POp(dist.irecv, coming, (rank - 1) % n),
        ]
        for work in dist.batch_isend_irecv(both):
            work.wait()
        x.copy_(coming)
    seen = []
    for _ in range(n):
        graph.replay()
        seen.append(x.mean().item())
    return seen, list(virtual.races())


def test_a_batch_can_be_captured() -> None:
    job = torchrun(batch_in_a_graph, nproc_per_node=3, backend="gloo", show=False, timeout=60)
    assert [one for one, _ in job.results] == [[2, 1, 0], [0, 2, 1], [1, 0, 2]]
    assert [races for _, races in job.results] == [[], [], []]
