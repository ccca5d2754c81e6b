"""Lab 01, communicators: the trials of its exercises, and the signs of what goes wrong in them."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from typing import Any

from ...calls.record import Call
from ..judging import Noted, Run, Tensor, Trial, judged
from ..judging.stores import ASKED, MANY, watched
from ..judging.values import kind, make, see, show

# ── local_gpu ────────────────────────────────────────────────────────────────────────────────


def _of_each_rank(answer: Any, nodes: list[list[dict[str, str]]]) -> list[list[Any]]:
    return [[answer(env) for env in node] for node in nodes]


@judged("local_gpu", lab="01", play=_of_each_rank, silent=True)
def local_gpu(draw: random.Random) -> Iterator[Trial]:
    """`local_gpu(env)`: the index of the GPU that a rank should use, from torchrun's variables."""
    size = draw.choice((3, 5, 6))  # not a number that somebody would write by habit
    uneven = [draw.randint(17, 20), *draw.sample(range(2, 6), 3)]
    while all(sum(uneven[:at]) % one == 0 for at, one in enumerate(uneven)):  # as if all were alike
        draw.shuffle(uneven)
    for sizes in ([size] * 3, uneven):
        nodes = [
            [torchrun_variables(sizes, node, local) for local in range(size)]
            for node, size in enumerate(sizes)
        ]
        yield Trial(
            0,
            given=[(nodes,)],
            right=[[list(range(size)) for size in sizes]],
            facts={"nodes": sizes},
            like=f"nodes of {', '.join(map(str, sizes))} GPUs",
        )


local_gpu.shows("other-gpus", lambda run, rank: True)


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


def _arriving(answer: Any, addresses: list[str], order: list[int]) -> Any:
    """In this order each rank comes when those before it wait for others, or have gone on without
    them; where there is no order, all come at once."""
    store, watch = watched()
    watch.start()
    watch.hesitates = not order
    watch.meet(watch.world_size)
    if order:
        watch.come_after(order[: order.index(watch.rank)])
    returned = answer(store, watch.rank, watch.world_size, addresses[watch.rank])
    watch.leave()
    return returned


@judged("meet", lab="01", play=_arriving, silent=True)
def meet(draw: random.Random) -> Iterator[Trial]:
    """`meet(store, rank, world_size, address)`: everybody's address, in the order of ranks."""
    for nproc in (draw.choice((3, 4)), 12):  # "10" comes before "2", and "1" + "11" is "11" + "1"
        order = draw.sample(range(nproc), nproc) if nproc < 12 else []
        if order == sorted(order):
            order.reverse()
        numbers = sorted(draw.sample(range(256), nproc), reverse=True)
        addresses = [f"node-{one},10:{draw.randint(2000, 9000)}" for one in numbers]  # a string
        yield Trial(
            nproc,
            given=[(addresses, order)] * nproc,
            right=[addresses] * nproc,
            facts={"addresses": addresses, "order": order},
            init=False,
            patience=5.0 if order else 3.0,
        )


def _same_for_all(run: Run, rank: int) -> bool:
    """Whether a rank has one address, as often as there are ranks; or some of them several times,
    where all came at once."""
    got = set(run.got(rank))
    return got <= set(run.trial.addresses) and (len(got) == 1 or not run.trial.order)


def _some_twice(run: Run, rank: int) -> bool:
    """Whether it went wrong only where all came at once, and every address is somebody's."""
    return not run.trial.order and set(run.got(rank)) <= set(run.trial.addresses)


def _other_order(run: Run, rank: int) -> bool:
    return sorted(run.got(rank)) == sorted(run.right(rank))


def _went_on(*absent: Any) -> Callable[[Trial], list[Any]]:
    """A guess: each rank has the addresses of those who came before it, and its own; for the
    others there is nothing, or this. Where all come at once, anything."""

    def with_those_before(trial: Trial, rank: int) -> Any:
        if not trial.order:
            return ...
        here = trial.order[: trial.order.index(rank) + 1]
        found = [[one] if at in here else absent for at, one in enumerate(trial.addresses)]
        return [one for part in found for one in part]

    return lambda trial: [with_those_before(trial, rank) for rank in range(trial.nproc)]


def _never_ends(run: Run) -> bool:
    return run.failure in ("stuck", "endless")


meet.fails("overwritten-list", lambda run, rank: _never_ends(run) and not run.trial.order)
meet.gives("does-not-wait", _went_on(), _went_on(None), _went_on(""))
meet.shows("keys-run-together", _some_twice)
meet.shows("one-key", _same_for_all)
meet.shows("order-of-arrival", _other_order)


# ── store_barrier ────────────────────────────────────────────────────────────────────────────


def _barriers(answer: Any, sizes: dict[str, int], late: list[int]) -> Noted:
    """Which barrier this rank left first, as a number, before which other rank came; (0, 0) where
    it left none early. Notes how often it asked, and for what that was there it waited.

    A barrier is for the ranks below its size. Of each the rank in `late` comes last; it does not
    come at all where all others have left, and that barrier ends the trial. Where nobody is late,
    barriers follow each other at once, and rank 0 leaves the first when the others wait again; of a
    single one it makes the first request, and the next when nothing happens without it.
    """
    store, watch = watched()
    times, asked, there = {}, [], {}
    watch.start()
    watch.meet(watch.world_size)
    alone, slow = len(sizes) == 1, not late and watch.rank == 0
    watch.lags, watch.stalls = slow and not alone, slow and alone
    if not late and alone and watch.rank > 0:
        watch.come_after([0], ASKED)
    elif not late and watch.rank == watch.world_size - 1:
        watch.come_last()
    for number, (name, size) in enumerate(sizes.items()):
        if watch.rank >= size:
            continue
        watch.start()
        if late:
            watch.meet(watch.world_size)
        if late and watch.rank == late[number] and not watch.come_last():
            times[number] = math.inf, math.inf
            watch.give_up()
        else:
            began = time.perf_counter()
            answer(store, name, size)
            times[number] = began, time.perf_counter()
        asked.append(watch.asked)
        there[number] = list(watch.there)
        if late:
            watch.leave()
            watch.meet(watch.world_size)
            if watch.is_over():
                break
    watch.leave()
    everybody = watch.exchange(times)
    early = [
        (number, other)
        for number, (_, ended) in times.items()
        for other, theirs in enumerate(everybody)
        if number in theirs and ended < theirs[number][0]
    ]
    number, other = early[0] if early else (-1, 0)
    return Noted((number + 1, other), (max(asked), there.get(number)))


@judged("store_barrier", lab="01", play=_barriers, silent=True)
def store_barrier(draw: random.Random) -> Iterator[Trial]:
    """`store_barrier(store, name, world_size)`: returns when world_size ranks have called it."""
    worlds = [[nproc] * 3 for nproc in (draw.choice((2, 3, 5)), 9)] + [[4], [3, 2, 3], [1] * 3]
    for sizes in worlds:
        name = draw.choice(("load", "train", "save"))  # keys of one must not be another's
        names = draw.sample((name, f"{name}1", f"{name[0]}2"), len(sizes))
        late = [draw.randrange(size) for size in sizes] if sizes.count(sizes[0]) == 3 else []
        yield Trial(
            sizes[0],
            given=[(dict(zip(names, sizes, strict=True)), late)] * sizes[0],
            right=[(0, 0)] * sizes[0],
            facts={"names": names, "late": late},
            init=False,
            patience=2.5 if sizes[0] == 1 else 5.0,
        )


def _left_early(run: Run, rank: int) -> dict[str, Any]:
    (number, late), (_, there) = run.got(rank), run.noted[rank]
    names = run.trial.names
    said = {"number": number, "name": names[number - 1], "first": names[0], "late": late}
    return {**said, "key": there[0] if there else ""}


def _first_held(run: Run) -> bool:
    return all(run.got(rank)[0] != 1 for rank in run.ranks)


def _key_was_there(run: Run, rank: int) -> Any:
    early = _left_early(run, rank)
    return not _first_held(run) and bool(early["key"]) and early


def _later_early(run: Run, rank: int) -> Any:
    return _first_held(run) and _left_early(run, rank)


def _busy(run: Run, rank: int) -> Any:
    asked, _ = run.noted[rank]
    return asked > MANY and {"asked": f"{asked:,}"}


store_barrier.fails("alone", lambda run, rank: _never_ends(run) and run.nproc == 1)
store_barrier.fails(
    "one-after-the-other",
    lambda run, rank: _never_ends(run) and not run.trial.late and len(run.trial.names) > 1,
)
store_barrier.fails(
    "deleted-early", lambda run, rank: _never_ends(run) and len(run.trial.names) == 1
)
store_barrier.shows("key-is-there", _key_was_there)
store_barrier.shows("works-once", _later_early)
store_barrier.shows("does-not-hold", _left_early)
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
    while names[:3] == sorted(names[:3]):  # or sorting them would change nothing
        draw.shuffle(names)
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
                given=[(dict(sizes), axis)],
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
axis_groups.shows("other-groups", lambda run, rank: True)


# ── make_groups ──────────────────────────────────────────────────────────────────────────────


def _in_use(answer: Any, alone: Groups, others: Groups, groups: Groups) -> Any:
    """The ranks of the group that was returned, if it works; else what was returned.

    Ranks that disagree hang sooner or later. In groups of one they do not: what the answer makes
    can be read off those in full. Then it makes other groups, as many as in the end.
    """
    import torch
    import torch.distributed as dist

    rank = dist.get_rank()
    os.environ["LOCAL_RANK"] = str(rank % 3)  # as on nodes of three ranks
    answer(alone)
    answer(others)
    group = answer(groups)
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
        others = [[(rank + 1) % nproc for rank in ranks] for ranks in groups]
        mine = [next(ranks for ranks in groups if rank in ranks) for rank in range(nproc)]
        yield Trial(
            nproc,
            given=[(alone, others, groups)] * nproc,
            right=[({"ranks": str(sorted(ranks))},) for ranks in mine],
            facts={"alone": alone, "groups": groups, "mine": mine},
        )


def _partition(draw: random.Random, nproc: int, count: int, fewest: int) -> Groups:
    """So many groups of ranks, not sorted, the smallest of so many members, and none larger than
    the first; rank 0 is not in the first, nor the last rank in the last."""
    while True:
        ranks = draw.sample(range(nproc), nproc)
        cuts = [0, *sorted(draw.sample(range(1, nproc), count - 1)), nproc]
        groups = [ranks[start:end] for start, end in itertools.pairwise(cuts)]
        uneven = 0 not in groups[0] and nproc - 1 not in groups[-1]
        sizes = [len(ranks) for ranks in groups]
        if uneven and min(sizes) == fewest and max(sizes) == sizes[0]:
            return groups


def _made(run: Run, rank: int) -> list[str]:
    """The groups of one that a rank made before any larger one: of `new_group([0])` what is in
    brackets; and those of all ranks, without a list."""
    calls = [call.operation for call in run.job.setup[rank]]
    made = [one[len("new_group(") : -1] for one in calls if one.startswith("new_group(")]
    return list(itertools.takewhile(lambda one: "," not in one, made))


def _not_alike(run: Run, rank: int) -> Any:
    """Whether another rank made other groups than this one, or in another order."""
    own = _made(run, rank)
    for other in run.ranks:
        theirs = _made(run, other)
        both = min(len(own), len(theirs))
        ended = run.failure in ("", "stuck")  # else a rank may not have come to the others
        if own != theirs and (own[:both] != theirs[:both] or ended):
            # One may have gone on to the second partition when the job was stopped.
            first = len(run.trial.alone)
            own, theirs = own[:first], theirs[:first]
            said = {"own": _say_made(own), "other": other, "theirs": _say_made(theirs)}
            alike = sorted(own) == sorted(theirs)
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


# Of new_group: an older PyTorch has no sort_ranks=False.
_ALWAYS_SORTS = tuple(map(int, version("torch").split(".")[:2])) < (2, 13)


def _from_the_first(answer: Any, x: Tensor, groups: Groups) -> Any:
    import torch
    import torch.distributed as dist

    as_given: dict[str, Any] = {} if _ALWAYS_SORTS else {"sort_ranks": False}
    made = [dist.new_group(ranks, **as_given) for ranks in groups]
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
        groups = _partition(draw, nproc, count, smallest)
        if count == 2 or _ALWAYS_SORTS:  # as new_group has them, unless it is told not to sort
            groups = [sorted(ranks) for ranks in groups]
        elif all(min(ranks) == ranks[0] for ranks in groups):
            groups = [ranks[::-1] for ranks in groups]
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
    called, alone = run.operations(rank), len(run.trial.mine[rank]) == 1
    needless = called != ["broadcast"] and not (alone and not called)
    return needless and {"called": ", ".join(called) or "nothing"}


def _some_do_not_call(run: Run, rank: int) -> Any:
    mine = run.trial.mine[rank]
    called = [other for other in mine if run.calls(other)]
    silent = [other for other in mine if not run.calls(other)]
    return run.failure == "stuck" and called and silent and {
        "mine": mine, "called": called, "silent": silent,
    }  # fmt: skip


from_first.fails("group-rank-as-global", _no_member)
for _declare in (from_first.fails, from_first.shows):
    _declare("everybody-sends", _roots_differ)
    _declare("whole-world", _other_group)
    _declare("global-rank-as-place", _global_rank_as_place)
from_first.fails("some-do-not-call", _some_do_not_call)
from_first.shows("wrong-sender", _wrong_sender)
from_first.demands("too-much", _too_much)
from_first.demands("whole-world", _other_group)


# ── shrink ───────────────────────────────────────────────────────────────────────────────────


_BACKEND = "renamed"  # of the worlds that get smaller


class NoWorld(RuntimeError):
    """After the answer there is no default process group."""


def _worlds(answer: Any, lives: list[list[int]], late: list[int]) -> Noted:
    """For each world this rank lives through: its rank, the size, the sum of 2 ** number. Notes
    the backends; the first is gloo under another name."""
    import torch
    import torch.distributed as dist

    store, watch = watched(of_worlds=True)
    me = watch.rank
    dist.Backend.register_backend(_BACKEND, dist.ProcessGroupGloo, devices=["cpu"])
    dist.init_process_group(_BACKEND, store=store, rank=me, world_size=watch.world_size)
    dist.all_reduce(torch.zeros(1))
    watch.start()
    watch.meet(watch.world_size)
    known, backends = [], []
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
        backends.append(dist.get_backend())
        watch.meet(len(alive))  # or a fast rank ends the group before another has its sum
        watch.start()
        watch.meet(len(alive))
    watch.leave()
    return Noted(known, backends)


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
    few = draw.choice((4, 5))
    for nproc, deaths in ((few, (1, 1, few - 3)), (6, draw.choice(((2, 1, 1), (1, 2, 1))))):
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
            patience=2.5,
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


def _other_backend(run: Run, me: int) -> Any:
    other = next((name for name in run.noted[me] if name != _BACKEND), None)
    return other is not None and {"backend": other, "old": _BACKEND}


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
    asked = run.failure == "raised" or any(_joined(run, one) for one in run.ranks)
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
shrink.demands("other-backend", _other_backend)


# ── StoreGroup ───────────────────────────────────────────────────────────────────────────────


class NoWork(RuntimeError):
    """`allreduce` returned something that nobody can wait for."""


def _all_reduces(group_class: Any, given: list[tuple[Tensor, str, int | None]]) -> Noted:
    """What the tensors hold after each call, in which one rank may come last. Notes whether all
    handles are done, and whether this rank wrote at least half of each tensor's bytes."""
    import torch.distributed as dist

    store, watch = watched()
    real = dist.PrefixStore("checked", watch.real)

    def build(_: Any, rank: int, size: int, timeout: Any) -> Any:
        return group_class(store, rank, size)

    dist.Backend.register_backend("checked", build, devices=["cpu"])
    dist.init_process_group("checked", store=real, rank=watch.rank, world_size=watch.world_size)
    tensors, done, wrote = [], True, True
    for value, operation, late in given:
        x = make(value)
        watch.start()
        if late is not None:
            watch.meet(watch.world_size)
        if watch.rank == late:
            watch.come_last()
        same_memory = x.view(x.shape)  # as where somebody reduces a part of a tensor
        work = dist.all_reduce(same_memory, op=getattr(dist.ReduceOp, operation), async_op=True)
        if not isinstance(work, dist.Work):
            raise NoWork(kind(see(work)))
        work.wait()
        tensors.append(x)
        done = done and work.is_completed()
        wrote = wrote and 2 * watch.written >= x.nbytes
        if late is not None:
            watch.leave()
            watch.meet(watch.world_size)
    watch.leave()
    return Noted(tensors, (done, wrote))


_MANY_RANKS = 11  # from here on "1" and "10", written one after the other, are also "11" and "0"


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
    few = draw.sample((2, 3, 4), 2)
    kinds = [((4, 5), "int64"), ((), "bfloat16"), ((3,), "float32")]
    for nproc, (shape, dtype) in zip([*few, _MANY_RANKS], kinds, strict=True):
        operations = ["SUM", *draw.sample(("SUM", "MAX", "SUM", "MAX"), 4)]
        late: list[int | None] = [draw.randrange(nproc)] * len(operations)
        if nproc == _MANY_RANKS:  # in the call in which keys may be those of the first
            operations, late = ["SUM"] * nproc, [None] * (nproc - 1) + [0]
        calls = [_call(draw, nproc, operation, dtype, shape) for operation in operations]
        own = [[given[rank] for given, _ in calls] for rank in range(nproc)]
        right = [one for _, one in calls]
        yield Trial(
            nproc,
            given=[(list(zip(mine, operations, late, strict=True)),) for mine in own],
            right=[right] * nproc,
            facts={"own": own, "operations": operations, "results": right},
            init=False,
        )


def _call(
    draw: random.Random, nproc: int, operation: str, dtype: str, shape: tuple[int, ...]
) -> tuple[list[Tensor], Tensor]:
    """Draw what ranks give to an all_reduce, and what it leaves; first elements are below 0."""
    count = math.prod(shape)
    signs = (-1, 1, *(draw.choice((-1, 1)) for _ in range(count)))
    # More digits than any other type has.
    unit, most = (2**53 + 1, 80) if dtype == "int64" else (12, 12)
    columns = [
        [sign * one * unit for one in draw.sample(range(1, most), nproc)] for sign in signs[:count]
    ]
    combine: Any = {"SUM": sum, "MAX": max}[operation]
    own = [Tensor.of(mine, dtype, shape) for mine in zip(*columns, strict=True)]
    return own, Tensor.of(map(combine, columns), dtype, shape)


def _only_of_many(trial: Trial) -> list[Any]:
    """A guess: few ranks get what is right, and of many it is open."""
    return [...] * trial.nproc if trial.nproc == _MANY_RANKS else list(trial.right)


def _not_made_of(run: Run, rank: int, *, earlier_too: bool) -> list[int]:
    """The calls whose result on this rank is not made of what ranks gave to this call; or to
    earlier ones, too."""
    return [
        at
        for at, tensor in enumerate(run.got(rank))
        if tensor.numbers[0] not in _sums_of(run.trial, at, 0 if earlier_too else at)
    ]


def _old_keys(run: Run, rank: int) -> Any:
    """Whether all that is wrong is made of what ranks gave to this call and to earlier ones, and
    on some rank not of this call's alone. (Of many ranks there are too many ways to look.)"""
    if run.nproc == _MANY_RANKS:
        return True
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
    for number, (tensor, right) in enumerate(zip(got, trial.results, strict=True)):
        if tensor.numbers != right.numbers:
            at = next(at for at, one in enumerate(tensor.numbers) if one != right.numbers[at])
            return {
                "number": number + 1,
                "operation": trial.operations[number],
                "values": ", ".join(show(own[number].numbers[at]) for own in trial.own),
                "left": show(tensor.numbers[at]),
                "wanted": show(right.numbers[at]),
                "element": at,
            }
    return False


store_group.fails("no-work", _raised("NoWork"))
store_group.gives("keys-run-together", _only_of_many)
store_group.shows("old-keys", _old_keys)
store_group.shows("wrong-result", _a_call_is_wrong)
store_group.demands("never-complete", lambda run, rank: not run.noted[rank][0])
store_group.demands("past-the-store", lambda run, rank: not run.noted[rank][1])
