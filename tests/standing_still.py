"""Programs that stand still over messages, several groups and asynchronous calls; gloo and NCCL.

In none of them is it enough to look at the calls of one group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Program:
    """says: what a report of it must have. on_gpu: where GPUs stand still, too."""

    ranks: Callable[[], Any]
    nproc: int
    says: tuple[str, ...]
    on_gpu: bool = True


def _setting(*_members: list[int]) -> tuple[Any, int, Any, list[Any]]:
    """torch.distributed, this rank, a tensor, and groups."""
    import torch
    import torch.distributed as dist

    rank = dist.get_rank()
    on_gpu = dist.get_backend() == "nccl"
    x = torch.ones(1 << 10, device="cuda" if on_gpu else "cpu")
    return dist, rank, x, [dist.new_group(ranks) for ranks in _members]


def _meet(dist: Any, x: Any, *_groups: Any) -> None:
    """NCCL connects a group at its first call, and a pair at its first message, and the host waits
    for that: it is not what is tested. A name that begins with _ is no group's."""
    for group in _groups:
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.all_reduce(x, group=group)
            ranks = dist.get_process_group_ranks(group)
            for source in ranks:
                for target in ranks:
                    if source != target and dist.get_rank() == source:
                        dist.send(x, target, group=group)
                    elif source != target and dist.get_rank() == target:
                        dist.recv(x, source, group=group)
    if x.is_cuda:
        x.sum().item()


def messages_crosswise() -> None:
    dist, rank, x, (left, right) = _setting([0, 1], [0, 1])
    _meet(dist, x, left, right)
    first, second = (left, right) if rank == 0 else (right, left)
    dist.recv(x, 1 - rank, group=first)
    dist.send(x, 1 - rank, group=second)


def three_groups_in_a_ring() -> None:
    pairs = [[0, 1], [1, 2], [0, 2]]
    dist, rank, x, groups = _setting(*pairs)
    _meet(dist, x, *groups)
    before, after = groups[rank - 1], groups[rank]  # to the next rank by that of one's own number
    dist.recv(x, (rank - 1) % 3, group=before)
    dist.send(x, (rank + 1) % 3, group=after)


def waited_for_crosswise() -> None:
    dist, rank, x, (weights, metrics) = _setting([0, 1], [0, 1])
    _meet(dist, x, weights, metrics)
    first, second = (weights, metrics) if rank == 0 else (metrics, weights)
    dist.all_reduce(x, group=first, async_op=True).wait()
    dist.all_reduce(x, group=second, async_op=True).wait()


def waited_for_in_another_order() -> None:
    """Rank 1 waits for a message before it makes a call that rank 0 waits for before it sends."""
    dist, rank, x, (data, stages) = _setting([0, 1], [0, 1])
    _meet(dist, x, data, stages)
    if rank == 0:
        handle = dist.all_reduce(x, group=data, async_op=True)
        handle.wait()
        dist.isend(x, 1, group=stages).wait()
    else:
        dist.irecv(x, 0, group=stages).wait()
        dist.all_reduce(x, group=data, async_op=True).wait()


def never_called() -> None:
    """Rank 1 never makes the call that rank 0 waits for, and waits for rank 0 in another group."""
    dist, rank, x, (data, control) = _setting([0, 1], [0, 1])
    _meet(dist, x, data, control)
    if rank == 0:
        handle = dist.all_reduce(x, group=data, async_op=True)
        handle.wait()
        dist.broadcast(x, 0, group=control)
        dist.all_reduce(x, group=data)
    else:
        dist.broadcast(x, 0, group=control)
        dist.all_reduce(x, group=data)


def by_a_future() -> None:
    dist, rank, x, (data, control) = _setting([0, 1], [0, 1])
    _meet(dist, x, data, control)
    first, second = (data, control) if rank == 0 else (control, data)
    dist.all_reduce(x, group=first, async_op=True).get_future().wait()
    x.sum().item()
    dist.all_reduce(x, group=second)


def sent_and_never_waited_for() -> None:
    dist, rank, x, (stages, data) = _setting([0, 1], [0, 1])
    _meet(dist, x, stages, data)
    if rank == 0:
        kept = dist.isend(x, 1, group=stages, tag=1)
        dist.all_reduce(x, group=data)
        kept.wait()
    else:
        dist.recv(x, 0, group=stages, tag=2)
        dist.all_reduce(x, group=data)


def around_by_waits() -> None:
    pairs = [[0, 1], [1, 2], [0, 2]]
    dist, rank, x, groups = _setting(*pairs)
    _meet(dist, x, *groups)
    mine = [groups[rank], groups[rank - 1]]
    for group in mine:
        dist.all_reduce(x, group=group, async_op=True).wait()


def several_waits() -> None:
    """Both begin two calls and wait for both, in the same order over groups but for the last."""
    dist, rank, x, (a, b) = _setting([0, 1], [0, 1])
    _meet(dist, x, a, b)
    for step in range(4):
        turned = rank == 1 and step == 3
        for group in (b, a) if turned else (a, b):
            handle = dist.all_reduce(x, group=group, async_op=True)
            handle.wait()


def never_sent() -> None:
    dist, rank, x, (stages,) = _setting([0, 1])
    _meet(dist, x, stages)
    if rank == 1:
        dist.recv(x, 0, group=stages)


_ORDER = "in the same order, over all these groups together"
PROGRAMS = {
    "messages crosswise": Program(messages_crosswise, 2, ("recv",)),
    "three groups in a ring": Program(three_groups_in_a_ring, 3, ("recv",)),
    "waited for crosswise": Program(waited_for_crosswise, 2, (_ORDER, "weights", "metrics")),
    "a message and a call": Program(waited_for_in_another_order, 2, (_ORDER, "recv", "stages")),
    "never called": Program(never_called, 2, (_ORDER, "broadcast", "control")),
    "by a future": Program(by_a_future, 2, (_ORDER,)),
    "never waited for": Program(
        sent_and_never_waited_for, 2, ("with tag 2", "the tags differ"), on_gpu=False
    ),
    "around by waits": Program(around_by_waits, 3, (_ORDER,)),
    "the last of several": Program(several_waits, 2, (_ORDER,)),
    "never sent": Program(never_sent, 2, ("recv #1 from rank 0 of float32[1024] on group stages",)),
}
