"""Lab 01, communicators: its exercises and their checks."""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable
from typing import Any

from ...launch import JobFailed
from ..exercises import Deadlock, WrongAnswer, close, exercise, trial

_LATE = 0.05  # seconds by which a rank comes late, to see who waits for it


# ── local_gpu ────────────────────────────────────────────────────────────────────────────────


@exercise(
    "local_gpu",
    lab="01",
    hints=(
        "A GPU's index counts the GPUs of one node. Which variable counts the ranks of one node?",
        "On the second node of two with four GPUs each, the ranks are 4 to 7, and their GPUs are "
        "0 to 3. Look at the table of variables: one row reads 0 to 3 on both nodes.",
        "Take LOCAL_RANK from env and turn it into an int: variables are strings. Nothing has to "
        "be computed, because torchrun has done it.",
    ),
)
def local_gpu(answer: Any, draw: random.Random) -> None:
    """`local_gpu(env)`: the index of the GPU that a rank should use, from torchrun's variables."""
    nproc = draw.choice((3, 5, 6))  # not a number that somebody would write by habit
    nnodes = draw.choice((6, 7))  # more than 16 ranks: then rank % 8 is not the rank
    ranks = [(node, local) for node in range(nnodes) for local in range(nproc)]
    given = [answer(torchrun_variables(node, local, nnodes, nproc)) for node, local in ranks]
    right = [local for _, local in ranks]
    if given == right:
        return
    where = f"on {nnodes} nodes with {nproc} GPUs each"
    if any(isinstance(value, str) for value in given):
        raise WrongAnswer(
            "string",
            f"it returned the string {given[0]!r}. Environment variables are strings: int().",
        )
    if given == list(range(len(ranks))):
        raise WrongAnswer(
            "global-rank",
            f"{where}, rank {nproc} is the first of the second node and was sent to GPU {nproc}, "
            "which is not there. RANK counts over all nodes.",
        )
    if given == [node for node, _ in ranks]:
        raise WrongAnswer(
            "node-number",
            "all ranks of a node were sent to the same GPU. GROUP_RANK is the number of the node.",
        )
    if any(given == [rank % k for rank in range(len(ranks))] for k in (2, 4, 8, 16)):
        raise WrongAnswer(
            "fixed-number",
            f"{where}, rank {nproc} should use GPU 0 and was sent to GPU {given[nproc]}: the "
            "number of GPUs of a node is written into your code.",
        )
    raise WrongAnswer("wrong", f"{where} it gave {given}, where it should have been {right}.")


def torchrun_variables(node: int, local_rank: int, nnodes: int, nproc: int) -> dict[str, str]:
    """The variables that torchrun gives a rank: `nproc` ranks on each of `nnodes` nodes."""
    rank, world_size = node * nproc + local_rank, nnodes * nproc
    values = {
        "RANK": rank,
        "LOCAL_RANK": local_rank,
        "GROUP_RANK": node,
        "ROLE_RANK": rank,
        "WORLD_SIZE": world_size,
        "LOCAL_WORLD_SIZE": nproc,
        "GROUP_WORLD_SIZE": nnodes,
        "ROLE_WORLD_SIZE": world_size,
        "MASTER_ADDR": "node0",
        "MASTER_PORT": 29500,
    }
    return {name: str(value) for name, value in values.items()}


# ── meet, store_barrier ──────────────────────────────────────────────────────────────────────


def _store() -> Any:
    """The store of a job that makes its own groups: rank 0 serves it on loopback."""
    import torch.distributed as dist

    return dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)


def _world() -> tuple[int, int]:
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def _meet_on_rank(meet: Any, addresses: list[str]) -> Any:
    rank, world_size = _world()
    store = _store()
    time.sleep(_LATE * (world_size - 1 - rank))  # the last rank comes first
    return meet(store, rank, world_size, addresses[rank])


@exercise(
    "meet",
    lab="01",
    hints=(
        "Nobody can read what nobody has written. What does each rank have to write, and under "
        "which key, so that the others can find it?",
        "One key for each rank, with its number in it. get waits until a key is there, so nobody "
        "has to ask whether the others have come.",
        "Each rank sets the key f'address/{rank}' to its own address. Then it gets the keys of "
        "all ranks from 0 to world_size - 1, in that order, and decodes the bytes of each.",
    ),
)
def meet(answer: Any, draw: random.Random) -> None:
    """`meet(store, rank, world_size, address)`: everybody's address, in the order of ranks."""
    nproc = draw.choice((3, 4))
    addresses = [
        f"10.0.{draw.randint(0, 255)}.{rank}:{draw.randint(2000, 9000)}" for rank in range(nproc)
    ]
    job = trial(_meet_on_rank, answer, addresses, nproc=nproc, init=False)
    for rank, got in enumerate(job.results):
        if got == addresses:
            continue
        if not isinstance(got, list):
            raise WrongAnswer("wrong", f"rank {rank} returned {got!r}, not a list of {nproc}.")
        if any(isinstance(one, bytes) for one in got):
            raise WrongAnswer(
                "bytes", f"rank {rank} returned {got[0]!r}: a store keeps bytes. Decode them."
            )
        if len(got) == nproc and len(set(got)) == 1:
            raise WrongAnswer(
                "one-key",
                f"rank {rank} has the same address {nproc} times. All ranks wrote under the same "
                "key, so the last one won: a key for each rank.",
            )
        if sorted(got) == sorted(addresses):
            raise WrongAnswer(
                "order-of-arrival",
                "the addresses are there, but in the order in which the ranks came, and that is "
                "another one in each run. The list must be in the order of ranks.",
            )
        if set(got) < set(addresses):
            missing = [r for r, address in enumerate(addresses) if address not in got]
            raise WrongAnswer(
                "does-not-wait",
                f"rank {rank} went on without the address of rank {missing[0]}. Ranks come at any "
                "time: get waits for a key, check does not.",
            )
        raise WrongAnswer("wrong", f"rank {rank} returned {got}, not {addresses}.")


class _CountedStore:
    """A store that counts what is asked of it."""

    def __init__(self, store: Any):
        self._store, self.asked = store, 0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._store, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.asked += 1
            return method(*args, **kwargs)

        return counted


def _barrier_on_rank(barrier: Any, late: list[int]) -> list[tuple[float, float, int]]:
    """For each of several barriers: when this rank came, when it left, what it asked."""
    rank, world_size = _world()
    times = []
    for number, late_rank in enumerate(late):
        store = _CountedStore(_store())
        if rank == late_rank:
            time.sleep(_LATE)
        came = time.perf_counter()
        barrier(store, f"step-{number}", world_size)
        times.append((came, time.perf_counter(), store.asked))
    return times


@exercise(
    "store_barrier",
    lab="01",
    hints=(
        "A rank must learn two things from the store: how many have come, and that it may go on. "
        "Which of the store's calls counts, and which one waits?",
        "add(key, 1) adds one and returns the new number, on one rank after another. Exactly one "
        "rank sees the number world_size; it is the last, and can tell the others.",
        "Add one to a counter whose key has the barrier's name in it. Whoever gets world_size back "
        "sets a second key, again with the name in it. Then everybody waits for that second key.",
    ),
)
def store_barrier(answer: Any, draw: random.Random) -> None:
    """`store_barrier(store, name, world_size)`: returns when world_size ranks have called it."""
    nproc = draw.choice((3, 4))
    late = draw.sample(range(nproc), 2)
    job = trial(_barrier_on_rank, answer, late, nproc=nproc, init=False)
    for number, late_rank in enumerate(late):
        times = [rank[number] for rank in job.results]
        last_came = max(came for came, _, _ in times)
        early = [rank for rank, (_, left, _) in enumerate(times) if left < last_came]
        if early and number == 0:
            raise WrongAnswer(
                "does-not-hold",
                f"rank {early[0]} left the barrier before rank {late_rank} had come. Counting is "
                "not waiting: nobody may go on before the last one says so.",
            )
        if early:
            raise WrongAnswer(
                "works-once",
                f"the first barrier held, the second did not: rank {early[0]} left before rank "
                f"{late_rank} had come. The keys of the first were still there: put the name "
                "into the key.",
            )
        asked = max(count for _, _, count in times)
        if asked > 10:
            raise WrongAnswer(
                "busy",
                f"it holds, but one rank asked the store {asked:,} times. On 1,000 ranks that "
                "would keep the store's process from everything else. wait() asks once.",
            )


# ── axis_groups, make_groups ─────────────────────────────────────────────────────────────────


@exercise(
    "axis_groups",
    lab="01",
    hints=(
        "Lay the numbers 0 to n - 1 out in the grid, the last axis fastest. Which ranks have all "
        "coordinates but one in common?",
        "np.arange(n).reshape(sizes of all axes) is the grid. A group along an axis is a line of "
        "that array in the direction of the axis. np.moveaxis brings the axis to the end.",
        "Make the grid with arange and reshape, with the sizes in the order of the dict. Move the "
        "wanted axis to the last place with np.moveaxis, reshape to (-1, size of the axis), and "
        "each row is a group: tolist().",
    ),
)
def axis_groups(answer: Any, draw: random.Random) -> None:
    """`axis_groups(sizes, axis)`: the ranks of every group along one axis of the grid."""
    shape = draw.sample((2, 3, 4), 3)
    sizes = dict(zip(("dp", "pp", "tp"), shape, strict=True))
    for axis in reversed(sizes):
        given = trial(_call, answer, (sizes, axis), nproc=1)[0]
        if given is None:
            raise WrongAnswer("wrong", "it returned None, not a list of lists of ranks.")
        groups = [[int(rank) for rank in group] for group in given]
        right = _lines(sizes, axis)
        if sorted(map(sorted, groups)) == sorted(right):
            if groups != right and any(group != sorted(group) for group in groups):
                raise WrongAnswer(
                    "unsorted", "the groups are right; within a group, ranks go from low to high."
                )
            continue
        size, grid = sizes[axis], " × ".join(f"{n} {name}" for name, n in sizes.items())
        n = shape[0] * shape[1] * shape[2]
        chunks = [list(range(start, start + size)) for start in range(0, n, size)]
        backwards = _lines(dict(reversed(sizes.items())), axis)
        if set(map(tuple, groups)) < set(map(tuple, right)):
            raise WrongAnswer(
                "one-group",
                f"there are {n // size} groups along {axis} in a grid of {grid}, and it returned "
                f"{len(groups)}. Every rank must know all of them, because new_group is called "
                "for all of them.",
            )
        if sorted(groups) == chunks:
            raise WrongAnswer(
                "always-neighbours",
                f"in a grid of {grid} the group of rank 0 along {axis} is {right[0]}, not "
                f"{groups[0]}. Only the last axis has neighbouring ranks.",
            )
        if sorted(groups) == sorted(backwards):
            raise WrongAnswer(
                "first-axis-fastest",
                f"that is the grid with the first axis running fastest. Here the last one does: "
                f"rank 1 is rank 0's neighbour along {list(sizes)[-1]}.",
            )
        if len(groups) == size:
            raise WrongAnswer(
                "other-axes",
                f"these are {len(groups)} groups of {len(groups[0])}: ranks with the same place "
                f"along {axis}. A group along {axis} holds the ranks whose places along {axis} "
                f"differ and whose others are the same: {n // size} groups of {size}.",
            )
        raise WrongAnswer("wrong", f"along {axis} of {grid} it returned {groups}, not {right}.")


def _call(function: Any, args: tuple[Any, ...]) -> Any:
    return function(*args)


def _lines(sizes: dict[str, int], axis: str) -> list[list[int]]:
    """Groups along an axis, in the order of their first ranks: plain arithmetic, no arrays."""
    names = list(sizes)
    stride, n = 1, 1
    for name in reversed(names):
        if name == axis:
            stride = n
        n *= sizes[name]
    starts = [rank for rank in range(n) if rank // stride % sizes[axis] == 0]
    return [[start + i * stride for i in range(sizes[axis])] for start in starts]


def _groups_on_rank(make_groups: Any, groups: list[list[int]]) -> Any:
    """What was asked of new_group, if not the same on all ranks; else the sum over the group."""
    import torch
    import torch.distributed as dist

    asked: list[Any] = []
    new_group = dist.new_group

    def note(ranks: Any = None, *_: Any, **__: Any) -> Any:
        asked.append(ranks)
        return dist.group.WORLD

    dist.new_group = note  # first only listen: ranks that disagree would hang
    make_groups(groups)
    dist.new_group = new_group
    everybody: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, asked)
    if any(ranks not in groups for ranks in asked) or any(each != asked for each in everybody):
        return asked
    group = make_groups(groups)
    if not isinstance(group, dist.ProcessGroup):
        return type(group).__name__
    x = torch.tensor([10.0 ** dist.get_rank()], dtype=torch.float64)
    dist.all_reduce(x, group=group)
    return x.item()


def _partition(draw: random.Random, nproc: int) -> list[list[int]]:
    """Groups of ranks, rank 0 not always in the first: at least one of them without rank 0."""
    ranks = list(range(nproc))
    draw.shuffle(ranks)
    cut = draw.randint(2, nproc - 2)
    groups = [sorted(ranks[:cut]), sorted(ranks[cut:])]
    return groups


@exercise(
    "make_groups",
    lab="01",
    hints=(
        "Every rank must call new_group for every group, its own and the others', in the same "
        "order. Which one of all those does the rank keep?",
        "A loop over groups, the same on every rank, and within it one new_group. Keep the result "
        "when dist.get_rank() is in the list of ranks.",
        "Start with mine = None. For each list of ranks call dist.new_group(ranks); if this rank's "
        "number is in the list, mine is that group. Return mine after the loop, not inside of it.",
    ),
)
def make_groups(answer: Any, draw: random.Random) -> None:
    """`make_groups(groups)`: make all groups, on every rank; return the one this rank is in."""
    nproc = draw.choice((4, 5))
    groups = _partition(draw, nproc)
    job = trial(_groups_on_rank, answer, groups, nproc=nproc)
    for rank, got in enumerate(job.results):
        mine = next(group for group in groups if rank in group)
        total = sum(10.0**member for member in mine)
        if isinstance(got, list):
            _blame_the_order(job.results)
        elif got == "list":
            raise WrongAnswer("list", "it returned a list of groups: return this rank's own.")
        elif isinstance(got, str) or got == 10.0**rank:
            raise WrongAnswer(
                "last-one",
                f"on rank {rank} it returned what new_group gives to those who are not in the "
                "group. Keep the group that the rank is in; the last one made is another.",
            )
        elif got != total:
            raise WrongAnswer(
                "wrong",
                f"a sum over the group of rank {rank} gave {got}, over {mine} it is {total}.",
            )


def _blame_the_order(asked: list[list[Any]]) -> None:
    """Raise WrongAnswer for ranks that did not ask for the same groups in the same order."""

    def say(rank: int) -> str:
        return f"rank {rank} made {', '.join(map(str, asked[rank])) or 'none'}"

    if any(ranks is None for each in asked for ranks in each):
        raise WrongAnswer(
            "everybody",
            "it called new_group() without a list of ranks. That is one more group of the whole "
            "world, whatever the list says.",
        )
    other = next((rank for rank, each in enumerate(asked) if each != asked[0]), 0)
    if sorted(asked[other]) == sorted(asked[0]) and other:
        raise WrongAnswer(
            "own-first",
            f"{say(0)}; {say(other)}. The same groups in another order: PyTorch names a group by "
            "how many came before it, so the ranks look for each other under different names.",
        )
    if other:
        raise WrongAnswer(
            "only-own",
            f"{say(0)}; {say(other)}. Every rank must make every group, those of the others too: "
            "that is how they agree on names.",
        )
    raise WrongAnswer("wrong", f"{say(0)}: not the groups that it was given.")


# ── from_first ───────────────────────────────────────────────────────────────────────────────


def _first_on_rank(from_first: Any, groups: list[list[int]], values: list[list[float]]) -> Any:
    import torch
    import torch.distributed as dist

    made = {tuple(ranks): dist.new_group(ranks) for ranks in groups}
    rank = dist.get_rank()
    mine = next(ranks for ranks in groups if rank in ranks)
    x = torch.tensor(values[rank])
    returned = from_first(x, made[tuple(mine)])
    return (returned if isinstance(returned, torch.Tensor) else x).tolist()


@exercise(
    "from_first",
    lab="01",
    hints=(
        "The sender of a broadcast is named by its global rank. How do you get from 'number 0 of "
        "this group' to a global rank?",
        "dist.get_global_rank(group, 0) is the global rank of the group's first member. The "
        "broadcast must run in that group, not in the world.",
        "One call: dist.broadcast of x, with src the global rank of the group's member 0, and "
        "with group=group. broadcast changes x in place; return it.",
    ),
)
def from_first(answer: Any, draw: random.Random) -> None:
    """`from_first(x, group)`: x of the group's first member, on every member, by one broadcast."""
    nproc = draw.choice((4, 5))
    groups = _partition(draw, nproc)
    values = [[rank + 1.0, draw.random(), -float(rank)] for rank in range(nproc)]
    blamed = next(group for group in groups if 0 not in group)
    zero = WrongAnswer(
        "group-rank-as-global",
        f"in the group of ranks {blamed} it asked rank 0, which is no member, for the data. src "
        "counts in the whole world: number 0 of a group is another rank in each group.",
    )
    everyone = WrongAnswer(
        "everybody-sends",
        "every rank named itself as the sender, so nobody listens. All members must name the same "
        "one.",
    )
    try:
        job = trial(_first_on_rank, answer, groups, values, nproc=nproc)
    except Deadlock as stuck:
        roots = {call.peer for calls in stuck.job.calls for call in calls}
        raise everyone if len(roots) == nproc else stuck from None
    except JobFailed as failed:
        if "not part of group" in str(failed) or "not in group" in str(failed):
            raise zero from None
        raise
    for rank, got in enumerate(job.results):
        group = next(ranks for ranks in groups if rank in ranks)
        calls = job.calls[rank]
        if not calls:
            raise WrongAnswer("nothing-sent", f"rank {rank} has called nothing: nothing was sent.")
        if any(set(call.group.ranks) != set(group) for call in calls):
            raise WrongAnswer(
                "whole-world",
                f"rank {rank} sent in {calls[0].group}, and its group is {group}: without group= a "
                "call goes to everybody.",
            )
        if len(calls) > 1 and len({call.peer for call in calls}) > 1:
            raise WrongAnswer(
                "too-much",
                f"{len(calls)} calls on rank {rank} ({calls[0]}, {calls[1]}, …): one broadcast is "
                "enough.",
            )
        if close(got, values[group[0]]):
            if [call.operation for call in calls] != ["broadcast"]:
                done = ", ".join(call.operation for call in calls)
                raise WrongAnswer(
                    "too-much",
                    f"the values are right, but it took {done}: all members' data travelled, and "
                    "only the first one's was wanted. One broadcast is enough.",
                )
            continue
        roots = {call.peer for member in group for call in job.calls[member]}
        if len(roots) > 1:
            raise everyone
        raise WrongAnswer(
            "wrong-sender",
            f"rank {rank} of group {group} has {got}; the first member's x is {values[group[0]]}.",
        )


# ── shrink ───────────────────────────────────────────────────────────────────────────────────


def _shrink_on_rank(shrink: Any, survivors: list[list[int]]) -> list[tuple[int, int, float]] | None:
    """For each generation this rank lives through: its rank, the world size, the sum of 2**rank."""
    import torch
    import torch.distributed as dist

    me, world_size = _world()
    store = _store()
    init = dist.init_process_group

    def asked(*args: Any, **kwargs: Any) -> None:
        """init_process_group, but it first says what it was asked for: it may hang."""
        visitors = kwargs["store"].add("lockstep/visitors", 1) if "store" in kwargs else 0
        print("asked for", kwargs.get("rank"), kwargs.get("world_size"), visitors, flush=True)
        init(*args, **kwargs)

    dist.init_process_group = asked
    asked("gloo", store=store, rank=me, world_size=world_size)
    known = []
    for generation, alive in enumerate(survivors, 1):
        if me not in alive:
            return None
        shrink(store, me, alive, generation)
        x = torch.tensor([2.0**me])
        dist.all_reduce(x)
        known.append((dist.get_rank(), dist.get_world_size(), x.item()))
    return known


@exercise(
    "shrink",
    lab="01",
    hints=(
        "A process group's members cannot change. What can you do instead, and what does "
        "init_process_group have to be told?",
        "First the old group has to go. A rank's new number is its place in the list of those "
        "alive. And the keys of the old rendezvous are still in the store.",
        "Call dist.destroy_process_group(). Make a PrefixStore whose prefix has the generation in "
        "it. Then dist.init_process_group with that store, with rank = alive.index(me), and with "
        "world_size = len(alive).",
    ),
)
def shrink(answer: Any, draw: random.Random) -> None:
    """`shrink(store, me, alive, generation)`: a new default group of those who are alive."""
    nproc = 4
    dead = draw.sample(range(nproc), 2)
    if dead[0] == nproc - 1:  # otherwise everybody's number would stay what it was
        dead.reverse()
    first = [rank for rank in range(nproc) if rank != dead[0]]
    survivors = [first, [rank for rank in first if rank != dead[1]]]
    try:
        job = trial(_shrink_on_rank, answer, survivors, nproc=nproc, init=False)
    except Deadlock as stuck:
        _blame_the_world(stuck.job, survivors)
        raise
    except JobFailed as failed:
        said = str(failed)
        if "twice" in said:
            raise WrongAnswer(
                "still-there",
                "the old default group is still there, and a process has only one. Destroy it "
                "first.",
            ) from None
        _blame_the_world(failed.job, survivors)
        raise
    _blame_the_world(job, survivors)
    for me, known in enumerate(job.results):
        for alive, (_, size, total) in zip(survivors, known or [], strict=False):
            if size != len(alive) or total != sum(2.0**member for member in alive):
                raise WrongAnswer(
                    "wrong",
                    f"afterwards rank {me} is in a world of {size}, whose sum is {total}; alive "
                    f"are {alive}.",
                )


def _blame_the_world(job: Any, survivors: list[list[int]]) -> None:
    """Raise WrongAnswer for what the survivors asked of init_process_group."""
    for me in survivors[0]:
        asked = re.findall(r"^asked for (\d+) (\d+) (\d+)$", job.output(me), re.MULTILINE)
        if len(asked) < 2:
            raise WrongAnswer(
                "old-world",
                f"the rank that was {me} still has the old default group, with those who are gone "
                "in it. A group of the others beside it is not a new world: init_process_group.",
            )
        for alive, (rank, size, visitors) in zip(survivors, asked[1:], strict=False):
            if int(size) != len(alive):
                raise WrongAnswer(
                    "waits-for-the-dead",
                    f"it asked for a world of {size} ranks, and {len(alive)} are alive: "
                    "init_process_group waits for ranks that never come.",
                )
            if int(rank) != alive.index(me):
                raise WrongAnswer(
                    "old-number",
                    f"the rank that was {me} asked to be rank {rank} of {len(alive)} again. In "
                    f"the new world ranks go from 0 to {len(alive) - 1} without a gap.",
                )
            if int(visitors) > len(alive):
                raise WrongAnswer(
                    "old-keys",
                    "number and size are right, but the ranks met where an earlier world had "
                    "left its keys: some read the addresses of then. It works by luck or hangs. "
                    "Give each generation keys of its own: a PrefixStore.",
                )


# ── StoreGroup ───────────────────────────────────────────────────────────────────────────────


def _store_group_on_rank(group_class: Any, values: list[list[float]]) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    rank, world_size = _world()

    def make(store: Any, rank: int, size: int, timeout: Any) -> Any:
        return group_class(store, rank, size)

    dist.Backend.register_backend("checked", make, devices=["cpu"])
    meeting = _store()
    store = dist.PrefixStore("checked", meeting)
    dist.init_process_group("checked", store=store, rank=rank, world_size=world_size)
    answers: dict[str, Any] = {}
    x = torch.tensor(values[rank])
    work = dist.all_reduce(x, async_op=True)
    if not isinstance(work, dist.Work):
        return {"work": type(work).__name__}
    work.wait()
    answers["completed"] = bool(work.is_completed())
    answers["sum"] = x.tolist()
    # Nobody runs ahead, and then one is late: keys of the first call would be read again.
    if meeting.add("lockstep/first", 1) == world_size:
        meeting.set("lockstep/second", "")
    meeting.wait(["lockstep/second"])
    if rank == world_size - 1:
        time.sleep(_LATE)
    y = torch.tensor(values[rank]) * 10
    dist.all_reduce(y)
    answers["again"] = y.tolist()
    z = torch.tensor(values[rank])
    dist.all_reduce(z, op=dist.ReduceOp.MAX)
    answers["max"] = z.tolist()
    return answers


@exercise(
    "StoreGroup",
    lab="01",
    hints=(
        "You have done the first half already: in meet, everybody published something and read "
        "what the others had published. Then every rank computes for itself.",
        "Three things are easily forgotten: a second call must not find the keys of the first; "
        "the result belongs into the tensor that was passed in; the caller wants a Work.",
        "Count the calls and put that number, with the rank's, into the key. Set your tensor's "
        "bytes, get everybody's, stack them. Sum or, where opts.reduceOp is dist.ReduceOp.MAX, "
        "amax over dimension 0. copy_ it into tensors[0] and return a DoneWork().",
    ),
)
def store_group(answer: Any, draw: random.Random) -> None:
    """`StoreGroup`: a process group whose allreduce goes through the store."""
    nproc = draw.choice((2, 3))
    length = draw.randint(2, 5)
    values = [
        [rank * 10 + float(draw.randint(1, 9)) for _ in range(length)] for rank in range(nproc)
    ]
    job = trial(_store_group_on_rank, answer, values, nproc=nproc, init=False)
    total = [sum(column) for column in zip(*values, strict=True)]
    most = [max(column) for column in zip(*values, strict=True)]
    for rank, got in enumerate(job.results):
        if "work" in got:
            raise WrongAnswer(
                "no-work",
                f"allreduce returned {got['work']}: async_op=True gives that to the caller, who "
                "then has nothing to wait for. Return a Work.",
            )
        if close(got["sum"], values[rank]):
            raise WrongAnswer(
                "not-in-place",
                f"after all_reduce the tensor of rank {rank} holds what it held before. The result "
                "has to be written into the tensor that was passed in: copy_.",
            )
        if not close(got["sum"], total):
            raise WrongAnswer(
                "wrong", f"rank {rank} got {got['sum']} as the sum of {values}; it is {total}."
            )
        if not got["completed"]:
            raise WrongAnswer(
                "never-complete", "after wait() its Work still says that it is not complete."
            )
        if not close(got["again"], [10 * value for value in total]):
            raise WrongAnswer(
                "old-keys",
                f"the first all_reduce was right, the second on rank {rank} was not: it read keys "
                "that the first had left. Each call needs keys of its own.",
            )
        if close(got["max"], total):
            raise WrongAnswer(
                "always-sums",
                "all_reduce with op=MAX gave the sum. Which reduction is wanted is in "
                "opts.reduceOp.",
            )
        if not close(got["max"], most):
            raise WrongAnswer(
                "wrong", f"rank {rank} got {got['max']} as the maximum of {values}; it is {most}."
            )
