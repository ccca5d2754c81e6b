"""Lab 01, communicators: the trials of its exercises, and the signs of what goes wrong in them."""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ...calls.record import Call
from ..judging import Run, Tensor, Trial, judged
from ..judging.stores import MANY, watched
from ..judging.values import kind, make, see, show

# ── local_gpu ────────────────────────────────────────────────────────────────────────────────


@judged("local_gpu", lab="01", silent=True)
def local_gpu(draw: random.Random) -> Iterator[Trial]:
    """`local_gpu(env)`: the index of the GPU that a rank should use, from torchrun's variables."""
    size = draw.choice((3, 5, 6))  # not a number that somebody would write by habit
    uneven = [*draw.sample(range(1, 8), 4), draw.randint(9, 17)]
    for nodes in ([size] * draw.choice((3, 4)), draw.sample(uneven, 5)):
        places = [(node, local) for node, size in enumerate(nodes) for local in range(size)]
        for rank, (node, local) in enumerate(places):
            yield Trial(
                0,
                given=[(torchrun_variables(nodes, node, local),)],
                right=[local],
                facts={"nodes": nodes, "number": rank, "node": node, "local": local},
            )


def torchrun_variables(nodes: Sequence[int], node: int, local_rank: int) -> dict[str, str]:
    """The variables that torchrun gives a rank: `nodes` says how many are on each node."""
    rank, world_size = sum(nodes[:node]) + local_rank, sum(nodes)
    values = {
        "RANK": rank,
        "LOCAL_RANK": local_rank,
        "GROUP_RANK": node,
        "ROLE_RANK": rank,
        "WORLD_SIZE": world_size,
        "LOCAL_WORLD_SIZE": nodes[node],
        "GROUP_WORLD_SIZE": len(nodes),
        "ROLE_WORLD_SIZE": world_size,
        "MASTER_ADDR": "node0",
        "MASTER_PORT": 29500,
    }
    return {name: str(value) for name, value in values.items()}


# ── meet ─────────────────────────────────────────────────────────────────────────────────────


def _one_by_one(answer: Any, addresses: list[str], order: list[int]) -> Any:
    """Each rank comes when those before it wait for others, or have gone on without them."""
    store, watch = watched()
    watch.start()
    watch.meet(watch.world_size)
    watch.come_after(order[: order.index(watch.rank)])
    returned = answer(store, watch.rank, watch.world_size, addresses[watch.rank])
    watch.leave()
    return returned


@judged("meet", lab="01", play=_one_by_one, silent=True)
def meet(draw: random.Random) -> Iterator[Trial]:
    """`meet(store, rank, world_size, address)`: everybody's address, in the order of ranks."""
    for nproc in draw.sample((2, 3), 2):  # one by one takes time, if the answer sleeps
        order = draw.sample(range(nproc), nproc)
        if order == sorted(order):
            order.reverse()
        numbers = sorted(draw.sample(range(256), nproc), reverse=True)
        addresses = [f"node-{one},10:{draw.randint(2000, 9000)}" for one in numbers]  # a string
        yield Trial(
            nproc,
            given=[(addresses, order)] * nproc,
            right=[addresses] * nproc,
            facts={"addresses": addresses, "order": order, "first": order[0], "late": order[-1]},
            init=False,
        )


def _same_for_all(run: Run, rank: int) -> bool:
    """Whether a rank has one address, as often as there are ranks."""
    got = run.got(rank)
    return len(set(got)) == 1 and got[0] in run.trial.addresses


def _other_order(run: Run, rank: int) -> bool:
    return sorted(run.got(rank)) == sorted(run.right(rank))


def _went_on(*absent: Any) -> Callable[[Trial], list[Any]]:
    """A guess: each rank has the addresses of those who came before it, and its own; for the
    others there is nothing, or this."""

    def with_those_before(trial: Trial, rank: int) -> list[Any]:
        here = trial.order[: trial.order.index(rank) + 1]
        found = [[one] if at in here else absent for at, one in enumerate(trial.addresses)]
        return [one for part in found for one in part]

    return lambda trial: [with_those_before(trial, rank) for rank in range(trial.nproc)]


meet.gives("does-not-wait", _went_on(), _went_on(None), _went_on(""))
meet.shows("one-key", _same_for_all)
meet.shows("order-of-arrival", _other_order)


# ── store_barrier ────────────────────────────────────────────────────────────────────────────


def _barriers(answer: Any, names: list[str], late: list[int]) -> Any:
    """For each barrier what this rank asked, and which keys it waited for that were there.

    Who comes last does not come at all where all others have left: the first barrier that does
    not hold is the last one.
    """
    store, watch = watched()
    seen = []
    for name, last in zip(names, late, strict=True):
        watch.start()
        watch.meet(watch.world_size)
        if watch.rank == last and not watch.come_last():
            watch.give_up()
        else:
            answer(store, name, watch.world_size)
            watch.leave()
        seen.append([watch.asked, list(watch.there)])
        watch.meet(watch.world_size)
        if watch.is_over():
            break
    return seen


@judged("store_barrier", lab="01", play=_barriers, silent=True)
def store_barrier(draw: random.Random) -> Iterator[Trial]:
    """`store_barrier(store, name, world_size)`: returns when world_size ranks have called it."""
    for nproc in (draw.choice((2, 3, 5)), 1, 9):
        name = draw.choice(("load", "train", "save"))  # keys of one must not be another's
        names = draw.sample((name, f"{name}1", f"{name[0]}2"), 3)
        late = [draw.randrange(nproc) for _ in names]
        yield Trial(
            nproc,
            given=[(names, late)] * nproc,
            right=[...] * nproc,
            facts={"names": names, "late": late},
            init=False,
        )


def _left_early(run: Run, rank: int) -> Any:
    """Whether this rank left a barrier before another one came."""
    for at, (step, last) in enumerate(zip(run.steps[rank], run.trial.late, strict=False)):
        late = run.steps[last]
        if len(late) <= at or step.ended < late[at].began:
            _, there = run.got(rank)[at]
            return {
                "number": at + 1,
                "name": run.trial.names[at],
                "first": run.trial.names[0],
                "late": last,
                "key": there[0] if there else "",
            }
    return False


def _first_early(run: Run, rank: int) -> Any:
    early = _left_early(run, rank)
    return bool(early) and early["number"] == 1 and early


def _key_was_there(run: Run, rank: int) -> Any:
    early = _first_early(run, rank)
    return bool(early) and bool(early["key"]) and early


def _busy(run: Run, rank: int) -> Any:
    asked = max(asked for asked, _ in run.got(rank))
    return asked > MANY and {"asked": f"{asked:,}"}


store_barrier.demands("key-is-there", _key_was_there)
store_barrier.demands("does-not-hold", _first_early)
store_barrier.demands("works-once", _left_early)
store_barrier.demands("busy", _busy)


# ── axis_groups ──────────────────────────────────────────────────────────────────────────────

Groups = list[list[int]]


def _in_any_order(answer: Any, sizes: dict[str, int], axis: str) -> Any:
    """Return what was returned, with the groups in the order of their first ranks."""
    returned = answer(sizes, axis)
    seen = see(returned)
    return sorted(seen, key=sorted) if _is_groups(seen) else returned


def _is_groups(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(
        isinstance(group, list | tuple) and all(type(rank) is int for rank in group)
        for group in value
    )


@judged("axis_groups", lab="01", play=_in_any_order, silent=True)
def axis_groups(draw: random.Random) -> Iterator[Trial]:
    """`axis_groups(sizes, axis)`: the ranks of every group along one axis of the grid."""
    names = draw.sample(("dp", "pp", "tp", "cp", "ep"), 5)
    if names == sorted(names):
        names.reverse()
    for lengths in (
        draw.sample((2, 3, 4), 3),
        draw.sample((2, 3, 5, 7), 2),
        [2, draw.choice((3, 5)), 2, 3],
        draw.sample((1, 2, 4), 3),
    ):
        sizes = dict(zip(names, lengths, strict=False))
        for axis in sizes:
            right = _lines(sizes, axis)
            yield Trial(
                0,
                given=[(sizes, axis)],
                right=[right],
                facts={
                    "sizes": sizes,
                    "axis": axis,
                    "grid": " × ".join(f"{size} {name}" for name, size in sizes.items()),
                    "last": list(sizes)[-1],
                    "groups": right,
                },
            )


def _lines(sizes: dict[str, int], axis: str) -> Groups:
    """Groups along an axis, in the order of their first ranks: plain arithmetic, no arrays."""
    stride, n = 1, 1
    for name in reversed(sizes):
        if name == axis:
            stride = n
        n *= sizes[name]
    starts = [rank for rank in range(n) if rank // stride % sizes[axis] == 0]
    return [[start + i * stride for i in range(sizes[axis])] for start in starts]


def _unsorted(run: Run, rank: int) -> bool:
    got = run.got(rank)
    return _is_groups(got) and sorted(map(sorted, got)) == run.right(rank)


axis_groups.shows("unsorted", _unsorted)


# ── make_groups ──────────────────────────────────────────────────────────────────────────────


def _in_use(answer: Any, alone: Groups, groups: Groups) -> Any:
    """The ranks of the group that was returned, if it works; else what was returned.

    Ranks that disagree hang sooner or later. In groups of one they do not: what the answer makes
    can be read off those in full.
    """
    import torch
    import torch.distributed as dist

    answer(alone)
    group = answer(groups)
    rank = dist.get_rank()
    ranks = None
    if isinstance(group, dist.ProcessGroup):
        with contextlib.suppress(KeyError):  # a group that was destroyed has no ranks
            ranks = sorted(dist.get_process_group_ranks(group))
    everybody: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, ranks)
    if ranks is None:
        return (group,)
    if rank in ranks and all(everybody[other] == ranks for other in ranks):
        x = torch.tensor([2**rank])
        dist.all_reduce(x, group=group)
        if x.item() != sum(2**other for other in ranks):
            return ({"ranks": f"{ranks}, which adds up to {x.item()}"},)
    return ({"ranks": str(ranks)},)


@judged("make_groups", lab="01", play=_in_use, called="the group", silent=True)
def make_groups(draw: random.Random) -> Iterator[Trial]:
    """`make_groups(groups)`: make all groups, on every rank; return the one this rank is in."""
    for nproc, count, fewest in ((draw.choice((4, 5)), 2, 1), (6, 3, 2)):
        alone, groups = _partition(draw, nproc, nproc, 1), _partition(draw, nproc, count, fewest)
        mine = [next(ranks for ranks in groups if rank in ranks) for rank in range(nproc)]
        yield Trial(
            nproc,
            given=[(alone, groups)] * nproc,
            right=[({"ranks": str(sorted(ranks))},) for ranks in mine],
            facts={"alone": alone, "groups": groups, "mine": mine},
        )


def _partition(draw: random.Random, nproc: int, count: int, fewest: int) -> Groups:
    """So many groups of ranks, not sorted, the smallest of so many members; rank 0 is not in the
    first, nor the last rank in the last."""
    while True:
        ranks = draw.sample(range(nproc), nproc)
        cuts = [0, *sorted(draw.sample(range(1, nproc), count - 1)), nproc]
        groups = [ranks[start:end] for start, end in itertools.pairwise(cuts)]
        uneven = 0 not in groups[0] and nproc - 1 not in groups[-1]
        if uneven and min(map(len, groups)) == fewest:
            return groups


def _made(run: Run, rank: int) -> list[str]:
    """The groups of one that a rank made: of `new_group([0])` what is in brackets; and those of
    all ranks, without a list."""
    calls = [call.operation for call in run.job.setup[rank]]
    made = [one[len("new_group(") : -1] for one in calls if one.startswith("new_group(")]
    return [one for one in made if one.count(",") == 0]


def _not_alike(run: Run, rank: int) -> Any:
    """Whether another rank made other groups than this one, or in another order."""
    own = _made(run, rank)
    for other in run.ranks:
        theirs = _made(run, other)
        both = min(len(own), len(theirs))
        ended = run.failure in ("", "stuck")  # else a rank may not have come to the others
        if own != theirs and (own[:both] != theirs[:both] or ended):
            said = {"own": _say_made(own), "other": other, "theirs": _say_made(theirs)}
            # One may have gone on to the second partition when the job was stopped.
            first = len(run.trial.alone)
            alike = sorted(own[:first]) == sorted(theirs[:first])
            return {"alone": run.trial.alone, "alike": alike, **said}
    return False


def _say_made(made: list[str]) -> str:
    return "made " + (", ".join(one or "a group of all" for one in made) or "none")


def _own_first(run: Run, rank: int) -> Any:
    """Whether another rank made the same groups as this one, in another order."""
    found = _not_alike(run, rank)
    return bool(found) and found["alike"] and found


def _other_members(run: Run, rank: int) -> Any:
    (got,), (right,) = run.got(rank), run.right(rank)
    return isinstance(got, dict) and {"has": got.get("ranks"), "mine": right["ranks"]}


for _declare in (make_groups.fails, make_groups.shows, make_groups.demands):
    _declare("own-first", _own_first)
    _declare("only-own", _not_alike)
make_groups.shows("other-members", _other_members)


# ── from_first ───────────────────────────────────────────────────────────────────────────────


def _from_the_first(answer: Any, x: Tensor, groups: Groups) -> Any:
    import torch
    import torch.distributed as dist

    made = [dist.new_group(ranks) for ranks in groups]
    mine = next(at for at, ranks in enumerate(groups) if dist.get_rank() in ranks)
    given = make(x)
    returned = answer(given, made[mine])
    return returned if isinstance(returned, torch.Tensor) else given


@judged("from_first", lab="01", play=_from_the_first, may_change=(0,), called="x")
def from_first(draw: random.Random) -> Iterator[Trial]:
    """`from_first(x, group)`: x of the group's first member, on every member, by one broadcast."""
    nprocs = (draw.choice((4, 5)), draw.choice((5, 6)))
    for nproc, count, dtype in zip(nprocs, (2, 3), ("float32", "int64"), strict=True):
        smallest = min(2, nproc // count)
        groups = [sorted(ranks) for ranks in _partition(draw, nproc, count, smallest)]
        mine = [next(ranks for ranks in groups if rank in ranks) for rank in range(nproc)]
        shape = draw.choice(((), (3,), (2, 3)))
        values = [
            [draw.randint(1, 9) + 10 * (rank - 2) for _ in range(math.prod(shape))]
            for rank in range(nproc)
        ]
        yield Trial(
            nproc,
            given=[(Tensor.of(one, dtype, shape), groups) for one in values],
            right=[Tensor.of(values[ranks[0]], dtype, shape) for ranks in mine],
            facts={"groups": groups, "mine": mine, "values": values},
        )


def _no_member(run: Run, rank: int) -> Any:
    """Whether this rank raised because it named one that is not in its group."""
    for failure in run.job.failures:
        asked = re.search(r"rank (\d+) is not (part of|in) group", failure.message)
        if failure.rank == rank and asked:
            return {"mine": run.trial.mine[rank], "asked": asked[1]}
    return False


def _broadcasts(run: Run, rank: int) -> list[Call]:
    return [call for call in run.calls(rank) if call.operation == "broadcast"]


def _roots_differ(run: Run, rank: int) -> Any:
    """Whether the members of a group did not name the same sender."""
    roots = {
        other: calls[0].peer for other in run.trial.mine[rank] if (calls := _broadcasts(run, other))
    }
    return len(set(roots.values())) > 1 and {
        "mine": run.trial.mine[rank],
        "roots": ", ".join(f"rank {other} named rank {root}" for other, root in roots.items()),
    }


def _other_group(run: Run, rank: int) -> Any:
    mine = run.trial.mine[rank]
    other = next((call for call in run.calls(rank) if set(call.group.ranks) != set(mine)), None)
    return other is not None and {"call": other, "mine": mine}


def _wrong_sender(run: Run, rank: int) -> Any:
    mine = run.trial.mine[rank]
    root = next((call.peer for call in _broadcasts(run, rank)), None)
    return root not in (None, mine[0]) and {"mine": mine, "root": root, "first": mine[0]}


def _global_rank_as_place(run: Run, rank: int) -> Any:
    """Whether the first member's number in the world was taken for its place in the group: it
    raised, or at that place is another member."""
    mine = run.trial.mine[rank]
    first = mine[0]
    raised = any(
        failure.rank == rank and f"invalid root rank: {first}" in failure.message
        for failure in run.job.failures
    )
    root = next((call.peer for call in _broadcasts(run, rank)), None)
    another = 0 < first < len(mine) and root == mine[first]
    return (raised or another) and {"mine": mine, "first": first}


def _too_much(run: Run, rank: int) -> Any:
    called = run.operations(rank)
    return called != ["broadcast"] and {"called": ", ".join(called) or "nothing"}


from_first.fails("group-rank-as-global", _no_member)
for _declare in (from_first.fails, from_first.shows):
    _declare("everybody-sends", _roots_differ)
    _declare("whole-world", _other_group)
    _declare("global-rank-as-place", _global_rank_as_place)
from_first.shows("wrong-sender", _wrong_sender)
from_first.demands("too-much", _too_much)
from_first.demands("whole-world", _other_group)


# ── shrink ───────────────────────────────────────────────────────────────────────────────────


class NoWorld(RuntimeError):
    """After the answer there is no default process group."""


def _worlds(answer: Any, lives: list[list[int]], late: list[int]) -> Any:
    """For each world this rank lives through: its rank, the size, the sum of 2 ** number."""
    import torch
    import torch.distributed as dist

    store, watch = watched(of_worlds=True)
    me = watch.rank
    dist.init_process_group("gloo", store=store, rank=me, world_size=watch.world_size)
    dist.all_reduce(torch.zeros(1))
    watch.start()
    watch.meet(watch.world_size)
    known = []
    for generation, (alive, last) in enumerate(zip(lives, late, strict=True), 1):
        if me not in alive:
            break
        if me == last:
            watch.come_last()
        answer(store, me, list(alive), generation)
        watch.leave()
        if not dist.is_initialized():
            raise NoWorld
        x = torch.tensor([2.0**me])
        dist.all_reduce(x)
        known.append([dist.get_rank(), dist.get_world_size(), x.item()])
        watch.meet(len(alive))  # or a fast rank ends the group before another has its sum
        watch.start()
        watch.meet(len(alive))
    watch.leave()
    return known


@judged(
    "shrink",
    lab="01",
    play=_worlds,
    called="what is known of the new worlds",
    silent=True,
    further=True,
)
def shrink(draw: random.Random) -> Iterator[Trial]:
    """`shrink(store, me, alive, generation)`: a new default group of those who are alive."""
    for nproc, deaths in ((draw.choice((4, 5)), (1, 1)), (6, draw.choice(((2, 1, 1), (1, 2, 1))))):
        alive: list[int] = list(range(nproc))
        lives: list[list[int]] = []
        for number in deaths:
            dead = draw.sample(alive, number)
            if not lives and nproc - 1 in dead:  # everybody's number might stay what it was
                dead[dead.index(nproc - 1)] = next(r for r in alive if r not in dead)
            alive = [rank for rank in alive if rank not in dead]
            if nproc == 6:
                while alive == sorted(alive):
                    draw.shuffle(alive)
            lives.append(list(alive))
        yield Trial(
            nproc,
            given=[(lives, [draw.choice(alive) for alive in lives])] * nproc,
            right=[
                [
                    [alive.index(me), len(alive), sum(2.0**other for other in alive)]
                    for alive in lives
                    if me in alive
                ]
                for me in range(nproc)
            ],
            facts={"lives": lives},
            init=False,
        )


def _joined(run: Run, me: int) -> list[tuple[list[int], Call]]:
    """For each new world that this rank asked for: who is alive, and the call."""
    calls = [c for c in run.job.setup[me] if c.operation.startswith("init_process_group")]
    lives = [alive for alive in run.trial.lives if me in alive]
    return list(zip(lives, calls[1:], strict=False))


def _other_size(run: Run, me: int) -> Any:
    for alive, call in _joined(run, me):
        size = re.search(r"world_size=(\d+)", call.operation)
        if size and int(size[1]) != len(alive):
            return {"me": me, "size": size[1], "alive": alive, "count": len(alive)}
    return False


def _other_number(run: Run, me: int) -> Any:
    for alive, call in _joined(run, me):
        if call.peer is not None and call.peer != alive.index(me):
            return {
                "me": me,
                "asked": call.peer,
                "alive": alive,
                "number": alive.index(me),
                "count": len(alive),
            }
    return False


def _old_number(run: Run, me: int) -> Any:
    other = _other_number(run, me)
    return bool(other) and other["asked"] == me and other


def _raised(name: str, text: str = "") -> Callable[[Run, int], Any]:
    """A sign: a rank raised an exception of this name, with this text in it."""

    def sign(run: Run, rank: int) -> Any:
        for one in run.job.failures:
            if one.type_name.endswith(name) and text in one.message:
                return {"message": one.message.partition(": ")[2]}
        return False

    return sign


def _without_numbers(run: Run, me: int) -> Any:
    """Whether it was left to the variables which rank this is, and how many there are."""
    calls = [call for _, call in _joined(run, me)]
    return any(c.peer is None and "world_size" not in c.operation for c in calls) and {"me": me}


def _still_joining(run: Run, me: int) -> Any:
    """Whether this rank was found in init_process_group when time was over."""
    waits = [one.call for one in run.job.failures if one.rank == me and "init_process" in one.call]
    return run.failure == "endless" and bool(waits) and {"message": waits[0]}


def _old_world(run: Run, me: int) -> Any:
    """Whether no rank has asked for a new world."""
    asked = any(_joined(run, one) for one in run.ranks)
    return not asked and me in run.trial.lives[0] and {"me": me}


shrink.fails("still-there", _raised("", "default process group twice"))
shrink.fails("no-new-world", _raised("NoWorld"))
for _declare in (shrink.fails, shrink.shows):
    _declare("waits-for-the-dead", _other_size)
    _declare("old-number", _old_number)
    _declare("other-number", _other_number)
shrink.fails("goes-by-variables", _without_numbers)
shrink.fails("old-keys", _raised("UsedBefore"))
shrink.fails("do-not-meet", lambda run, me: _raised("NeverMet")(run, me) or _still_joining(run, me))
for _declare in (shrink.fails, shrink.shows):
    _declare("old-world", _old_world)


# ── StoreGroup ───────────────────────────────────────────────────────────────────────────────


_COMBINE: dict[str, Callable[[Any], Any]] = {"SUM": sum, "MAX": max}


class NoWork(RuntimeError):
    """`allreduce` returned something that nobody can wait for."""


def _all_reduces(group_class: Any, given: list[tuple[Tensor, str]], late: int) -> Any:
    """Note what the tensors hold after each call, which handles are done, any use of the store."""
    import torch.distributed as dist

    store, watch = watched()
    real = dist.PrefixStore("checked", watch.real)

    def build(_: Any, rank: int, size: int, timeout: Any) -> Any:
        return group_class(store, rank, size)

    dist.Backend.register_backend("checked", build, devices=["cpu"])
    dist.init_process_group("checked", store=real, rank=watch.rank, world_size=watch.world_size)
    tensors, done, wrote = [], [], True
    for value, operation in given:
        x = make(value)
        watch.start()
        watch.meet(watch.world_size)
        if watch.rank == late:
            watch.come_last()
        same_memory = x.view(x.shape)  # as where somebody reduces a part of a tensor
        work = dist.all_reduce(same_memory, op=getattr(dist.ReduceOp, operation), async_op=True)
        if not isinstance(work, dist.Work):
            raise NoWork(kind(see(work)))
        work.wait()
        watch.leave()
        tensors.append(x)
        done.append(bool(work.is_completed()))
        wrote = wrote and watch.written > 0
        watch.meet(watch.world_size)
    return tensors, done, wrote


@judged(
    "StoreGroup",
    lab="01",
    play=_all_reduces,
    called="what all_reduce left",
    silent=True,
    further=True,
)
def store_group(draw: random.Random) -> Iterator[Trial]:
    """`StoreGroup`: a process group whose allreduce goes through the store."""
    kinds = [((2, 2), "int64"), ((), "bfloat16")]
    for nproc, (shape, dtype) in zip(draw.sample((2, 3, 4), 2), kinds, strict=True):
        operations = ["SUM", *draw.sample(("SUM", "MAX", "SUM", "MAX"), 4)]
        calls = [_call(draw, nproc, operation, dtype, shape) for operation in operations]
        own = [[given[rank] for given, _ in calls] for rank in range(nproc)]
        late = draw.randrange(nproc)
        right = [one for _, one in calls]
        yield Trial(
            nproc,
            given=[(list(zip(mine, operations, strict=True)), late) for mine in own],
            right=[(right, [True] * len(calls), True)] * nproc,
            facts={"own": own, "operations": operations, "results": right},
            init=False,
        )


def _call(
    draw: random.Random, nproc: int, operation: str, dtype: str, shape: tuple[int, ...]
) -> tuple[list[Tensor], Tensor]:
    """Draw what ranks give to an all_reduce, and what it leaves; first elements are below 0."""
    signs = (-1, 1, *(draw.choice((-1, 1)) for _ in range(3)))
    # More digits than a type that is narrower has. Twelfths of them are whole, as means need.
    unit, most = (12, 12) if dtype == "bfloat16" else (12 * (2**24 + 1), 900)
    columns = [
        [sign * one * unit for one in draw.sample(range(1, most), nproc)]
        for sign in signs[: math.prod(shape)]
    ]
    combine = _COMBINE[operation]
    own = [Tensor.of(mine, dtype, shape) for mine in zip(*columns, strict=True)]
    return own, Tensor.of(map(combine, columns), dtype, shape)


def _not_made_of(run: Run, rank: int, *, earlier_too: bool) -> list[int]:
    """The calls whose result on this rank is not made of what ranks gave to this call; or to
    earlier ones, too."""
    return [
        at
        for at, tensor in enumerate(run.got(rank)[0])
        if tensor.numbers[0] not in _sums_of(run.trial, at, 0 if earlier_too else at)
    ]


def _old_keys(run: Run, rank: int) -> Any:
    """Whether all that is wrong is made of what ranks gave to this call and to earlier ones, and
    on some rank not of this call's alone."""
    old = [
        {"who": one, "number": at + 1}
        for one in run.wrong
        for at in _not_made_of(run, one, earlier_too=False)
    ]
    return bool(old) and not _not_made_of(run, rank, earlier_too=True) and old[0]


def _sums_of(trial: Trial, number: int, since: int) -> set[float]:
    """Return what a call can leave that takes from each rank what it gave to one of these calls."""
    given = [[call.numbers[0] for call in own[since : number + 1]] for own in trial.own]
    return {combine(one) for one in itertools.product(*given) for combine in (sum, max)}


def _a_call_is_wrong(run: Run, rank: int) -> Any:
    trial, got = run.trial, run.got(rank)
    for number, (tensor, right) in enumerate(zip(got[0], trial.results, strict=True)):
        if tensor.numbers != right.numbers:
            return {
                "number": number + 1,
                "operation": trial.operations[number],
                "values": ", ".join(show(list(own[number].numbers)) for own in trial.own),
                "left": show(list(tensor.numbers)),
                "wanted": show(list(right.numbers)),
            }
    return False


store_group.fails("no-work", _raised("NoWork"))
store_group.shows("old-keys", _old_keys)
store_group.shows("wrong-result", _a_call_is_wrong)
store_group.shows("past-the-store", lambda run, rank: not run.got(rank)[2])
