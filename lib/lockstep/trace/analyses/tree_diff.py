"""The difference of two trees of operators: what is new, gone, slower, or the same."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

import numpy as np

from ...base.formatting import counted, milliseconds, ranks_text
from ...base.provenance import Provenance
from ...figures.table import Table, table
from ..joins import launch_of, on_device
from ..slices import NONE, Column, Kind, Slices, TraceError
from ..steps import Step, steps_by_rank
from .wording import Answer, shortened

_KINDS = (Kind.OPERATOR, Kind.ANNOTATION, Kind.COMMUNICATION)
_MODULE = "nn.Module: "
# What differs from run to run, or where one module more stands before: hashes and numbers.
_HASH, _NUMBER = re.compile(r"(?<=CompiledFxGraph )\w+|#\d+$"), re.compile(r"_\d+$")
_TOP = 20


class Side(NamedTuple):
    """One of the trees: how often in a step, and nanoseconds of its thread and of its kernels."""

    calls: int = 0
    cpu: float = 0.0
    gpu: float = 0.0


@dataclass(frozen=True, slots=True)
class TreeChange:
    """Operators of one name in one place; those in both trees count alone, without what is inside
    of them, new and gone ones with it.

    path: the names around, the outermost first. A side without it is `Side()`.
    """

    path: tuple[str, ...]
    name: str
    before: Side
    after: Side

    @property
    def what(self) -> str:
        """ "new", "gone" or "both"."""
        if self.before.calls and self.after.calls:
            return "both"
        return "new" if self.after.calls else "gone"


@dataclass(frozen=True)
class TreeDiff(Answer):
    """The changes, those of the most GPU time first, or of CPU time where nothing ran on a GPU.

    rank: whose trees they are. nodes: (before, after) of a step. same: how many are in both trees.
    steps: (before, after), so many like the compared one are averaged.
    """

    rank: int
    changes: tuple[TreeChange, ...]
    nodes: tuple[int, int]
    same: int
    steps: tuple[int, int]
    on_gpu: bool
    stamps: tuple[Provenance, ...]

    @property
    def new(self) -> tuple[TreeChange, ...]:
        return tuple(one for one in self.changes if one.what == "new")

    @property
    def gone(self) -> tuple[TreeChange, ...]:
        return tuple(one for one in self.changes if one.what == "gone")

    def _tables(self) -> list[Table]:
        changed = [one for one in self.changes if one.before != one.after]
        rows = [
            [
                *(one.what, shortened(one.name, 40), _end(" / ".join(one.path))),
                *(f"{side.calls:,}" for side in (one.before, one.after)),
                *(milliseconds(side.cpu) for side in (one.before, one.after)),
                *(milliseconds(side.gpu) for side in (one.before, one.after)),
            ]
            for one in changed[:_TOP]
        ]
        title = f"operators of rank {self.rank} in a step, {len(rows)} of {len(changed)} · ms"
        columns = ["in", "operator", "inside of", *("calls", "→"), *("CPU", "→"), *("GPU", "→")]
        return [table(title, columns, rows, stamp=self.stamps, right=True)]

    def _notes(self) -> list[str]:
        before, after = self.nodes
        return [
            f"{counted(self.same, 'operator')} of {before:,} before and {after:,} after "
            f"{'is' if self.same == 1 else 'are'} in both trees; new and gone ones count with all "
            "inside of them, others alone"
        ]


def _end(path: str) -> str:
    return path if len(path) <= 48 else f"…{path[-47:]}"


def tree_diff(
    before: Slices,
    after: Slices,
    *,
    rank: int | None = None,
    steps: tuple[int, int] | None = None,
) -> TreeDiff:
    """Compare what one rank's threads called in a step, as trees of operators and annotations.

    before, after: two traces, or one trace twice with `steps`, the numbers of two of its steps.
    Without them the tree is compared that most steps of a rank have, with mean times of all of
    these. rank: the first that both have, if not given. Each thread is compared with that one
    which has most names in common with it.

    Siblings are matched in their order: equal subtrees first, then, between those, equal names,
    whose insides are compared in turn. So a layer more is new, and what follows is as it was. What
    has changed its place among its siblings is gone here and new there.

    Raises TraceError for a rank or step that is not in both, and where neither has operators.
    """
    ranks = [one for one in before.ranks if one in after.ranks]
    if not ranks or rank not in (None, *ranks):
        which = "no rank" if rank is None else f"rank {rank}"
        raise TraceError(f"{which} is in both traces; in both are: {ranks_text(ranks)}")
    rank = ranks[0] if rank is None else rank
    numbers = steps or (None, None)
    old, new = (_tree(one, rank, at) for one, at in zip((before, after), numbers, strict=True))
    if not old.size and not new.size:
        raise TraceError(f"rank {rank} has no operators in either trace")
    changes, same = _changes(old, new)
    on_gpu = any(one.before.gpu or one.after.gpu for one in changes)

    def most(one: TreeChange) -> tuple[float, float, str]:
        cpu, gpu = (abs(a - b) for a, b in zip(one.after[1:], one.before[1:], strict=True))
        return (-gpu if on_gpu else 0.0, -cpu, one.name)

    return TreeDiff(
        rank,
        tuple(sorted(changes, key=most)),
        (old.size, new.size),
        same,
        (old.steps, new.steps),
        on_gpu,
        tuple(dict.fromkeys((before.provenance, after.provenance))),
    )


# ── Trees ────────────────────────────────────────────────────────────────────────────────────


@dataclass(eq=False)
class _Node:
    """cpu: nanoseconds of its own and of what is inside. gpu: of what it launched itself.

    signature: of its name and those of all inside, after `sign`.
    """

    name: str
    cpu: float = 0.0
    gpu: float = 0.0
    children: list[_Node] = field(default_factory=list)
    signature: int = 0

    def all(self) -> Iterator[_Node]:
        left = [self]
        while left:
            node = left.pop()
            yield node
            left += reversed(node.children)

    def sign(self) -> int:
        for node in reversed(list(self.all())):  # what is inside comes first
            node.signature = hash((node.name, *(child.signature for child in node.children)))
        return self.signature

    @property
    def alone(self) -> Side:
        return Side(1, self.cpu - sum(child.cpu for child in self.children), self.gpu)

    @property
    def whole(self) -> Side:
        return Side(1, self.cpu, sum(node.gpu for node in self.all()))


class _Tree(NamedTuple):
    """The threads of a step, as nodes without a name. steps: whose mean it is."""

    threads: list[_Node]
    steps: int

    @property
    def size(self) -> int:
        return sum(1 for thread in self.threads for _ in thread.all()) - len(self.threads)


def _tree(trace: Slices, rank: int, number: int | None) -> _Tree:
    """The step of this number, or what most steps are like."""
    own = steps_by_rank(trace).get(rank, [])
    if number is not None:
        own = [step for step in own if step.number == number]
        if not own:
            raise TraceError(f"rank {rank} has no step {number}")
    names = [(_NUMBER if one.startswith(_MODULE) else _HASH).sub("", one) for one in trace.names]
    launched = np.zeros(len(trace), np.int64)  # nanoseconds, by the call's row
    rows = on_device(trace)
    calls = launch_of(trace, rows)
    np.add.at(launched, calls[calls != NONE], trace.duration[rows[calls != NONE]])
    alike: dict[tuple[int, ...], list[list[_Node]]] = defaultdict(list)
    for step in own:
        threads = list(_threads(trace, step, names, launched))
        alike[tuple(thread.sign() for thread in threads)].append(threads)
    most: list[list[_Node]] = max(alike.values(), key=len, default=[[]])
    every = ((node for thread in threads for node in thread.all()) for threads in most)
    for nodes in zip(*every, strict=True):
        nodes[0].cpu = sum(node.cpu for node in nodes) / len(nodes)
        nodes[0].gpu = sum(node.gpu for node in nodes) / len(nodes)
    return _Tree(most[0], len(most))


def _threads(
    trace: Slices, step: Step, names: Sequence[str], launched: np.ndarray
) -> Iterator[_Node]:
    """The operators of a step on each of the rank's threads that has any."""
    modules = np.array([name.startswith(_MODULE) for name in trace.names], bool)
    for lane, here in enumerate(trace.lanes):
        if here.rank != step.rank or here.on_device:
            continue
        rows = trace.rows_of(lane)
        start, kind = trace.start[rows], trace.kind[rows]
        wanted = np.isin(kind, _KINDS) | modules[trace.name[rows]]
        calls = (kind == Kind.LAUNCH) & (launched[rows] > 0)
        inside = (start >= step.start) & (start < step.end)
        chosen = rows.start + np.flatnonzero(inside & (wanted | calls))
        root = _grown(trace, chosen, names, launched)
        if root.children:
            yield root


def _grown(trace: Slices, rows: np.ndarray, names: Sequence[str], launched: np.ndarray) -> _Node:
    """Slices of one thread, nested: what begins inside of another one is a child of it."""
    root = _Node("")
    around: list[tuple[float, _Node]] = [(float("inf"), root)]  # ends, the innermost last
    kinds, places = trace.kind[rows].tolist(), trace.name[rows].tolist()
    times = zip(trace.start[rows].tolist(), trace.end[rows].tolist(), strict=True)
    for (start, end), kind, name, row in zip(times, kinds, places, rows.tolist(), strict=True):
        while around[-1][0] <= start:
            around.pop()
        if kind == Kind.LAUNCH:
            around[-1][1].gpu += int(launched[row])
            continue
        node = _Node(names[name], end - start)
        around[-1][1].children.append(node)
        around.append((end, node))
    return root


# ── What has changed ─────────────────────────────────────────────────────────────────────────


def _changes(before: _Tree, after: _Tree) -> tuple[list[TreeChange], int]:
    """And how many nodes are in both."""
    sums: dict[tuple[tuple[str, ...], str, str], tuple[Side, Side]] = {}
    same = 0

    def count(path: tuple[str, ...], name: str, old: Side, new: Side) -> None:
        what = f"{bool(old.calls)}{bool(new.calls)}"
        was, became = sums.get((path, name, what), (Side(), Side()))
        sums[path, name, what] = (_sum(was, old), _sum(became, new))

    def compare(path: tuple[str, ...], old: Sequence[_Node], new: Sequence[_Node]) -> None:
        nonlocal same
        for gone, come, matched in _trimmed(old, new):
            if not matched:
                replace(path, gone, come)
                continue
            for one, other in zip(gone, come, strict=True):
                same += 1
                count(path, one.name, one.alone, other.alone)
                left.append(((*path, one.name), one.children, other.children))

    def replace(path: tuple[str, ...], gone: Sequence[_Node], come: Sequence[_Node]) -> None:
        if node := _around(come, gone):
            count(path, node.name, Side(), node.alone)
            left.append((path, gone, _opened(come, node)))
        elif node := _around(gone, come):
            count(path, node.name, node.alone, Side())
            left.append((path, _opened(gone, node), come))
        else:
            for node in gone:
                count(path, node.name, node.whole, Side())
            for node in come:
                count(path, node.name, Side(), node.whole)

    left: list[tuple[tuple[str, ...], Sequence[_Node], Sequence[_Node]]] = [
        ((), one.children, other.children)
        for one, other in _partners(before.threads, after.threads)
    ]
    while left:
        compare(*left.pop())
    return [TreeChange(path, name, *sides) for (path, name, _), sides in sums.items()], same


def _sum(one: Side, other: Side) -> Side:
    return Side(one.calls + other.calls, one.cpu + other.cpu, one.gpu + other.gpu)


def _partners(before: Sequence[_Node], after: Sequence[_Node]) -> Iterator[tuple[_Node, _Node]]:
    """Each thread with that which has most names in common with it, or with an empty one."""
    names = {id(one): Counter(node.name for node in one.all()) for one in (*before, *after)}
    common = [
        ((names[id(one)] & names[id(other)]).total(), one, other)
        for one, other in product(before, after)
    ]
    taken: set[int] = set()
    for many, one, other in sorted(common, key=lambda each: -each[0]):
        if many > 1 and not taken & {id(one), id(other)}:  # the root's name is common to all
            taken |= {id(one), id(other)}
            yield one, other
    yield from ((one, _Node("")) for one in before if id(one) not in taken)
    yield from ((_Node(""), one) for one in after if id(one) not in taken)


def _name(node: _Node) -> str:
    return node.name


def _around(nodes: Sequence[_Node], others: Sequence[_Node]) -> _Node | None:
    """The node that has been put around half of the others, or more, by their names."""
    names = Counter(map(_name, others))
    for node in nodes:
        common = names & Counter(map(_name, node.children))
        if others and 2 * common.total() >= len(others):
            return node
    return None


def _opened(nodes: Sequence[_Node], node: _Node) -> list[_Node]:
    at = nodes.index(node)
    return [*nodes[:at], *node.children, *nodes[at + 1 :]]


def _trimmed(
    before: Sequence[_Node], after: Sequence[_Node]
) -> Iterator[tuple[Sequence[_Node], Sequence[_Node], bool]]:
    """Runs of siblings in their order, and whether they match: those that are equal from either
    end, and `_pairs` of what is between them, which is little if one thing has changed."""
    first, second = ([node.signature for node in nodes] for nodes in (before, after))
    most = min(len(first), len(second))
    head = next((at for at in range(most) if first[at] != second[at]), most)
    most -= head
    tail = next((at for at in range(most) if first[-1 - at] != second[-1 - at]), most)
    end, other = len(before) - tail, len(after) - tail
    yield before[:head], after[:head], True
    yield from _pairs(before[head:end], after[head:other], (lambda one: one.signature, _name))
    yield before[end:], after[other:], True


def _pairs(
    before: Sequence[_Node], after: Sequence[_Node], keys: Sequence[Callable[[_Node], object]]
) -> Iterator[tuple[Sequence[_Node], Sequence[_Node], bool]]:
    """The same: by the first key, and what is between these by the next."""
    key, *rest = keys
    codes: dict[object, int] = {}
    first, second = (
        np.array([codes.setdefault(key(node), len(codes)) for node in nodes], np.int64)
        for nodes in (before, after)
    )
    i = k = 0
    for j, m in [*_common(first, second), (len(before), len(after))]:
        if rest:
            yield from _pairs(before[i:j], after[k:m], rest)
        else:
            yield before[i:j], after[k:m], False
        yield before[j : j + 1], after[m : m + 1], True
        i, k = j + 1, m + 1


def _common(first: Column, second: Column) -> Iterator[tuple[int, int]]:
    """The places of a longest common subsequence, after Hirschberg: in memory that grows with the
    lengths, and time with their product."""
    if len(first) < 2 or not len(second):
        yield from ((0, int(at)) for at in np.flatnonzero(np.isin(second, first))[:1])
        return
    half = len(first) // 2
    upper = _lengths(first[:half], second)
    lower = _lengths(first[half:][::-1], second[::-1])[::-1]
    cut = int(np.argmax(upper + lower))
    yield from _common(first[:half], second[:cut])
    yield from ((half + i, cut + j) for i, j in _common(first[half:], second[cut:]))


def _lengths(first: Column, second: Column) -> Column:
    """How long a common subsequence with each beginning of second is, the empty one first."""
    longest = np.zeros(len(second) + 1, np.int64)
    for one in first:
        longest[1:] = np.maximum.accumulate(np.maximum(longest[1:], longest[:-1] + (second == one)))
    return longest
