"""Programs whose ranks use several groups in different orders; for gloo and for NCCL."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any


@dataclass(frozen=True)
class Program:
    """groups: names that must be said of those in which the ranks stand."""

    ranks: Callable[[], Any]
    nproc: int
    groups: tuple[str, ...]


def _setting() -> tuple[Any, Any, int, Any]:
    import torch
    import torch.distributed as dist

    rank = dist.get_rank()
    on_gpu = dist.get_backend() == "nccl"
    x = torch.ones(1 << 10, device="cuda" if on_gpu else "cpu")
    if on_gpu:
        dist.all_reduce(x)
        torch.cuda.synchronize()
    return torch, dist, rank, x


def _warm(dist: Any, x: Any, *_groups: Any) -> None:
    """NCCL connects at the first call of a group, and waits for all of it: not what is tested.

    A group's name is the one of its first call: here it must be the program's.
    """
    if dist.get_backend() == "nccl":
        for group in _groups:
            dist.all_reduce(x, group=group)


def two_groups_of_the_same_ranks() -> None:
    _, dist, rank, x = _setting()
    gradients, metrics = dist.new_group([0, 1]), dist.new_group([0, 1])
    _warm(dist, x, gradients, metrics)
    first, second = (gradients, metrics) if rank == 0 else (metrics, gradients)
    dist.all_reduce(x, group=first)
    dist.all_reduce(x, group=second)


def a_grid() -> None:
    _, dist, rank, x = _setting()
    rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    columns = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    row, column = rows[rank // 2], columns[rank % 2]
    _warm(dist, x, row, column)
    for step in range(3):
        turned = rank in (0, 3) and step == 2
        for group in (column, row) if turned else (row, column):
            dist.all_reduce(x, group=group)


def around() -> None:
    _, dist, rank, x = _setting()
    pairs = {name: dist.new_group(ranks) for name, ranks in PAIRS.items()}
    mine = {0: ("left", "right"), 1: ("middle", "left"), 2: ("right", "middle")}[rank]
    for name in sorted(mine):
        _warm(dist, x, pairs[name])
    for name in mine:
        dist.all_reduce(x, group=pairs[name])


PAIRS = {"left": [0, 1], "middle": [1, 2], "right": [0, 2]}


def a_mesh() -> None:
    from torch.distributed.device_mesh import init_device_mesh

    _, dist, rank, x = _setting()
    mesh = init_device_mesh(x.device.type, (2, 2), mesh_dim_names=("dp", "tp"))
    _warm(dist, x, mesh.get_group("dp"), mesh.get_group("tp"))
    for name in ("tp", "dp") if rank in (0, 3) else ("dp", "tp"):
        dist.all_reduce(x, group=mesh.get_group(name))


def described() -> None:
    _, dist, rank, x = _setting()
    made = [dist.new_group([0, 1], group_desc=name) for name in ("weights", "statistics")]
    kept = [SimpleNamespace(inner=(group,)) for group in made]  # where no name is looked for
    del made
    _warm(dist, x, *(one.inner[0] for one in kept))
    for one in kept if rank == 0 else kept[::-1]:
        dist.all_reduce(x, group=one.inner[0])


def several_operations() -> None:
    torch, dist, rank, x = _setting()
    shards, whole = dist.new_group([0, 1]), dist.new_group([0, 1])
    _warm(dist, x, shards, whole)
    gathered = torch.empty(2 * len(x), device=x.device)
    if rank == 0:
        dist.all_gather_into_tensor(gathered, x, group=shards)
        dist.broadcast(x, src=0, group=whole)
    else:
        dist.broadcast(x, src=0, group=whole)
        dist.all_gather_into_tensor(gathered, x, group=shards)


def a_message_and_a_collective() -> None:
    _, dist, rank, x = _setting()
    stages, data = dist.new_group([0, 1]), dist.new_group([0, 1])
    if rank == 0:
        dist.all_reduce(x, group=data)
        dist.send(x, 1, group=stages)
    else:
        dist.recv(x, 0, group=stages)
        dist.all_reduce(x, group=data)


PROGRAMS = {
    "two groups of the same ranks": Program(
        two_groups_of_the_same_ranks, 2, ("gradients", "metrics")
    ),
    "a grid": Program(a_grid, 4, ("row", "column")),
    "around": Program(around, 3, ("pairs['left']", "pairs['middle']", "pairs['right']")),
    "a mesh": Program(a_mesh, 4, ("mesh_dp", "mesh_tp")),
    "described": Program(described, 2, ("weights", "statistics")),
    "several operations": Program(several_operations, 2, ("shards", "whole")),
    "a message and a collective": Program(a_message_and_a_collective, 2, ("stages", "data")),
}
