"""The replays of captured graphs: what each ran, when it idled, which operators were captured."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...base.formatting import counted, microseconds, percent, ranks_text
from ...base.provenance import Provenance
from ...figures.table import Table, table
from ..joins import busy, called_in, launch_of, on_device, pieces
from ..slices import NONE, Column, Kind, Slices
from ..unseen import LAUNCHES, capture_of, refuse_unseen
from .wording import Answer, shortened

_GRAPH = re.compile("GraphLaunch", re.IGNORECASE)
_STEP = re.compile(r"#\d+$")  # of a ProfilerStep
_AROUND = (Kind.STEP, Kind.ANNOTATION, Kind.OPERATOR)  # what a replay is called in
_TOP = 15  # rows of a graph's table


@dataclass(frozen=True, slots=True)
class Node:
    """What a graph runs at one place: a kernel, a copy or a memset. Nanoseconds, means of replays.

    name: in full. start: since the replay's first node began. time: of its own. gap: in which the
    GPU idled before it, since all earlier nodes of the replay had ended. captured_in: the operator
    that launched it during the capture, "" where none did, or where that is not known.
    """

    name: str
    start: float
    time: float
    gap: float
    captured_in: str = ""


@dataclass(frozen=True, slots=True)
class Graph:
    """A graph of one rank, told from others by what its replays run. Nanoseconds.

    replays: how many. nodes: of a replay, in the order in which they begin. lengths: (median,
    least, most) from the first node's begin to the last one's end. busy: the share of that in which
    any node runs. launch: the mean time of the host in the call. where: the innermost annotation
    or operator around these calls, "" outside of all. linked: why `captured_in` is not known, ""
    where it is.
    """

    rank: int
    replays: int
    nodes: tuple[Node, ...]
    lengths: tuple[int, int, int]
    busy: float
    launch: float
    where: str
    linked: str

    @property
    def by_operator(self) -> dict[str, float]:
        """Operator in the capture → nanoseconds of its nodes in a replay, most first."""
        times: Counter[str] = Counter()
        for node in self.nodes:
            times[node.captured_in] += node.time  # type: ignore[assignment]
        return dict(times.most_common())


@dataclass(frozen=True)
class Replays(Answer):
    """The graphs, by rank, those with the most time in replays first."""

    graphs: tuple[Graph, ...]
    stamp: Provenance

    def __str__(self) -> str:
        return super().__str__() if self.graphs else "no graph was replayed"

    def _tables(self) -> list[Table]:
        rows = [
            [
                *(one.rank, shortened(one.where, 40), f"{one.replays:,}", f"{len(one.nodes):,}"),
                *(" / ".join(microseconds(each, 2) for each in one.lengths), percent(one.busy, 1)),
                microseconds(one.launch, 2),
            ]
            for one in self.graphs
        ]
        columns = ["rank", "replayed in", "replays", "nodes", "length", "busy", "launching call"]
        title = "replays of graphs · lengths: median / least / most · µs"
        first = self.graphs[0]
        sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
        for node in first.nodes:
            for at, value in enumerate((1, node.time, node.gap)):
                sums[node.name, node.captured_in][at] += value
        most = sorted(sums.items(), key=lambda one: -one[1][1])[:_TOP]
        inside = table(
            f"a replay of rank {first.rank}, {len(most)} of {len(sums)} kinds of nodes · µs",
            ["node", "captured in", "nodes", "time", "idle before them"],
            [
                [
                    *(shortened(name, 48), shortened(operator, 32), f"{count:,.0f}"),
                    *(microseconds(each, 2) for each in (time, gap)),
                ]
                for (name, operator), (count, time, gap) in most
            ],
            stamp=self.stamp,
            right=True,
        )
        return [table(title, columns, rows, stamp=self.stamp, right=True), inside]

    def _notes(self) -> list[str]:
        ranks: dict[str, set[int]] = defaultdict(set)
        for one in self.graphs:
            ranks[one.linked].add(one.rank)
        return [f"{ranks_text(own)}: {why}" for why, own in ranks.items() if why]


def replays(trace: Slices) -> Replays:
    """Join each call that replays a graph to what it ran, and to the operators of its capture.

    Replays of one rank are of one graph if they run the same kernels, copies and memsets as often.
    A node is the n-th of its name in every replay, as branches may run in another order. It is
    linked to the n-th launching call of the capture if the trace has a capture of as many calls
    whose copies and memsets stand at the same places, and the replays run on one stream: what runs
    on several does not say in which order it was captured.

    Raises TraceError for a trace without what the devices did (see `unseen`).
    """
    refuse_unseen(trace)
    rows = on_device(trace)
    calls = launch_of(trace, rows)
    named = np.array([bool(_GRAPH.search(name[:1000])) for name in trace.names], bool)
    graph = (calls != NONE) & named[trace.name[calls]]
    rows, calls = rows[graph], calls[graph]
    found: list[Graph] = []
    for rank, piece in pieces(trace, rows).items():
        found += _of_rank(trace, rank, rows[piece], calls[piece])
    return Replays(tuple(found), trace.provenance)


def _of_rank(trace: Slices, rank: int, rows: Column, calls: Column) -> list[Graph]:
    """rows: what replays ran. calls: which call replayed each."""
    alike: dict[tuple[int, ...], list[Column]] = defaultdict(list)
    for call in np.unique(calls).tolist():
        own = rows[calls == call]
        own = own[np.argsort(trace.start[own], kind="stable")]
        alike[tuple(sorted(trace.name[own].tolist()))].append(own)
    captures = list(_captures(trace, rank))
    graphs = [_graph(trace, rank, own, captures) for own in alike.values()]
    return sorted(graphs, key=lambda one: -one.replays * one.lengths[0])


def _graph(trace: Slices, rank: int, replays: list[Column], captures: list[Column]) -> Graph:
    calls = np.array([launch_of(trace, own[:1])[0] for own in replays])
    around = called_in(trace, calls, np.isin(trace.kind, _AROUND))
    lengths = np.array([_length(trace, own) for own in replays])
    together = sum(busy(trace, own).total for own in replays)
    operators, why = _captured(trace, replays[0], captures)
    return Graph(
        rank,
        len(replays),
        _nodes(trace, replays, operators),
        (int(np.quantile(lengths, 0.5, method="lower")), int(lengths.min()), int(lengths.max())),
        together / max(1, int(lengths.sum())),
        float(trace.duration[calls].mean()),
        "" if around[0] == NONE else _STEP.sub("", trace.names[trace.name[around[0]]]),
        why,
    )


def _length(trace: Slices, own: Column) -> int:
    return int(trace.end[own].max() - trace.start[own[0]])


def _nodes(trace: Slices, replays: list[Column], operators: Sequence[str]) -> tuple[Node, ...]:
    """Means over replays, whose nodes stand in the order in which they began."""
    times: dict[tuple[int, int], list[tuple[int, int, int]]] = defaultdict(list)
    for own in replays:
        seen: Counter[int] = Counter()
        began, end = trace.start[own], trace.end[own]
        ended = np.maximum.accumulate(np.concatenate((began[:1], end[:-1])))
        for name, *each in zip(
            trace.name[own].tolist(),
            (began - began[0]).tolist(),
            (end - began).tolist(),
            (began - ended).clip(0).tolist(),
            strict=True,
        ):
            times[name, seen[name]].append((each[0], each[1], each[2]))
            seen[name] += 1
    # Of the first replay, whose nodes are linked, the keys stand in the order of its nodes.
    nodes = []
    for ((name, _), each), operator in zip(times.items(), operators, strict=True):
        start, time, gap = np.mean(each, axis=0).tolist()
        nodes.append(Node(trace.names[name], start, time, gap, operator))
    return tuple(sorted(nodes, key=lambda one: one.start))


# ── Where it was captured ────────────────────────────────────────────────────────────────────


def _captures(trace: Slices, rank: int) -> Iterator[Column]:
    """The launching calls of each capture, in their order."""
    every = trace.where(Kind.LAUNCH, rank=rank)
    every = every[np.argsort(trace.start[every], kind="stable")]
    launching = np.array([bool(LAUNCHES.search(name[:1000])) for name in trace.names], bool)
    captured = capture_of(trace, every)
    for number in np.unique(captured[captured != NONE]).tolist():
        yield every[(captured == number) & launching[trace.name[every]]]


def _captured(trace: Slices, own: Column, captures: list[Column]) -> tuple[list[str], str]:
    """The operator in which each node was captured; and why none is known, "" if they are."""
    unknown = [""] * len(own)
    if not captures:
        return unknown, "the trace has no capture, so no operator of a graph's nodes is known"
    if len(np.unique(trace.stream[own])) > 1:
        return unknown, (
            "the graph's nodes run on several streams, so the order in which they were captured "
            "is not known"
        )
    wanted = [Kind(kind) for kind in trace.kind[own]]
    fit = {
        tuple(_operators(trace, calls))
        for calls in captures
        if len(calls) == len(own) and all(map(_launches, _names(trace, calls), wanted))
    }
    if len(fit) == 1:
        return list(fit.pop()), ""
    many = ", ".join(f"{len(calls):,}" for calls in captures[:5])
    return unknown, (
        f"{'several' if fit else 'none'} of the trace's captures (of {many} launching calls) "
        f"{'fit' if fit else 'fits'} a graph of {counted(len(own), 'node')}"
    )


def _names(trace: Slices, calls: Column) -> list[str]:
    return [trace.names[name] for name in trace.name[calls]]


def _launches(call: str, kind: Kind) -> bool:
    """Whether a call of this name may have launched what is of this kind."""
    if "emcpy" in call:
        return kind == Kind.COPY
    return (kind == Kind.SET) == ("emset" in call) and kind != Kind.COPY


def _operators(trace: Slices, calls: Column) -> list[str]:
    around = called_in(trace, calls, trace.kind == Kind.OPERATOR)
    return ["" if at == NONE else trace.names[trace.name[at]] for at in around.tolist()]
