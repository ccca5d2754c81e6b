"""The replays of captured graphs: what each ran, when it idled, which operators were captured."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...base.formatting import counted, microseconds, percent, ranks_text
from ...base.provenance import Provenance
from ...figures.table import Table, table
from ..joins import called_in, grouped, launch_of, named, on_device, outermost, pieces
from ..slices import NONE, Column, Kind, Slices
from ..unseen import LAUNCHES, capture_of, refuse_unseen
from .launches import GRAPH
from .wording import Answer, shortened

_STEP = re.compile(r"#\d+$")  # of a ProfilerStep
_AROUND = (Kind.STEP, Kind.ANNOTATION, Kind.OPERATOR)  # what a replay is called in
_TOP = 15  # rows of a graph's table


@dataclass(frozen=True, slots=True)
class Node:
    """One place of a graph: a kernel, a copy or a memset. Nanoseconds, means of replays.

    name: in full. start: since the replay's first node began. time: of its own. gap: in which the
    GPU idled before it, since all earlier nodes of the replay had ended. longest: its time in that
    replay in which it took longest. captured_in: the operator that launched it during the capture,
    "" where none did, or where that is not known.
    """

    name: str
    start: float
    time: float
    gap: float
    longest: int
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


@dataclass(frozen=True)
class Replays(Answer):
    """The graphs, by rank, those with the most time in replays first."""

    graphs: tuple[Graph, ...]
    stamp: Provenance

    def _tables(self) -> list[Table]:
        if not self.graphs:
            return [table("no graph was replayed", [], [], stamp=self.stamp)]
        return [self._all(), self._inside(self.graphs[0])]

    def _all(self) -> Table:
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
        return self._table(title, columns, rows)

    def _inside(self, graph: Graph) -> Table:
        kinds: dict[tuple[str, str], list[Node]] = defaultdict(list)
        for node in graph.nodes:
            kinds[node.name, node.captured_in].append(node)
        most = sorted(kinds.values(), key=lambda nodes: -sum(node.time for node in nodes))[:_TOP]
        return self._table(
            f"a replay of rank {graph.rank}, {len(most)} of {len(kinds)} kinds of nodes · µs",
            ["node", "captured in", "nodes", "time", "longest one", "idle before them"],
            [
                [
                    *(shortened(nodes[0].name, 48), shortened(nodes[0].captured_in, 32)),
                    *(f"{len(nodes):,}", microseconds(sum(node.time for node in nodes), 2)),
                    microseconds(max(node.longest for node in nodes), 2),
                    microseconds(sum(node.gap for node in nodes), 2),
                ]
                for nodes in most
            ],
        )

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
    graph = (calls != NONE) & named(trace, GRAPH)[trace.name[calls]]
    rows, calls = rows[graph], calls[graph]
    found: list[Graph] = []
    for rank, piece in pieces(trace, rows).items():
        found += _of_rank(trace, rank, rows[piece], calls[piece])
    return Replays(tuple(found), trace.provenance)


def _of_rank(trace: Slices, rank: int, rows: Column, calls: Column) -> list[Graph]:
    """rows: what replays ran. calls: which call replayed each."""
    began = np.argsort(trace.start[rows], kind="stable")
    rows, calls = rows[began], calls[began]
    alike: dict[bytes, tuple[list[int], list[Column]]] = defaultdict(lambda: ([], []))
    for call, places in grouped(calls):
        of_graph, ran = alike[np.sort(trace.name[rows[places]]).tobytes()]
        of_graph.append(call)
        ran.append(rows[places])
    captures = list(_captures(trace, rank))
    graphs = [
        _graph(trace, rank, np.array(of_graph), np.array(ran), captures)
        for of_graph, ran in alike.values()
    ]
    return sorted(graphs, key=lambda one: -one.replays * one.lengths[0])


def _graph(trace: Slices, rank: int, calls: Column, ran: Column, captures: list[Column]) -> Graph:
    """ran: the rows of each replay by their start, replays × nodes."""
    around = called_in(trace, calls[:1], np.isin(trace.kind, _AROUND))[0]
    times = trace.duration[ran]
    begins = trace.start[ran] - trace.start[ran[:, :1]]
    ended = np.maximum.accumulate(begins + times, axis=1)
    gaps = np.zeros_like(times)
    gaps[:, 1:] = (begins[:, 1:] - ended[:, :-1]).clip(0)
    lengths = ended[:, -1]
    operators, why = _captured(trace, ran[0], captures)
    return Graph(
        rank,
        len(calls),
        tuple(_nodes(trace, ran, (begins, times, gaps), operators)),
        (int(np.quantile(lengths, 0.5, method="lower")), int(lengths.min()), int(lengths.max())),
        1 - int(gaps.sum()) / max(1, int(lengths.sum())),
        float(trace.duration[calls].mean()),
        "" if around == NONE else _STEP.sub("", trace.names[trace.name[around]]),
        why,
    )


def _nodes(
    trace: Slices, ran: Column, measured: Sequence[Column], operators: Sequence[str]
) -> Iterator[Node]:
    """ran, and begins, times and gaps: replays × nodes. operators: of the first replay's nodes."""
    alike = np.argsort(trace.name[ran], axis=1, kind="stable")  # the n-th of a name in a column
    begins, times, gaps = (np.take_along_axis(each, alike, axis=1) for each in measured)
    means = np.stack([each.mean(axis=0) for each in (begins, times, gaps)], axis=1)
    for at in np.argsort(means[:, 0], kind="stable").tolist():
        first = alike[0, at]
        name = trace.names[trace.name[ran[0, first]]]
        begin, time, gap = means[at].tolist()
        yield Node(name, begin, time, gap, int(times[:, at].max()), operators[first])


# ── Where it was captured ────────────────────────────────────────────────────────────────────


def _captures(trace: Slices, rank: int) -> Iterator[Column]:
    """The launching calls of each capture, in their order."""
    every = trace.where(Kind.LAUNCH, rank=rank)
    every = every[np.argsort(trace.start[every], kind="stable")]
    launching = named(trace, LAUNCHES)[trace.name[every]]
    captured = capture_of(trace, every)
    for number in np.unique(captured[captured != NONE]).tolist():
        calls = every[(captured == number) & launching]
        # The driver's calls inside of the runtime's launch nothing more.
        yield calls[outermost(trace, calls)]


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
    names = [[trace.names[name] for name in trace.name[calls]] for calls in captures]
    fit = {
        tuple(_operators(trace, calls))
        for calls, called in zip(captures, names, strict=True)
        if len(calls) == len(own) and all(map(_launches, called, wanted))
    }
    if len(fit) == 1:
        return list(fit.pop()), ""
    many = ", ".join(f"{len(calls):,}" for calls in captures[:5])
    return unknown, (
        f"{'several' if fit else 'none'} of the trace's captures (of {many} launching calls) "
        f"{'fit' if fit else 'fits'} a graph of {counted(len(own), 'node')}"
    )


def _launches(call: str, kind: Kind) -> bool:
    """Whether a call of this name may have launched what is of this kind."""
    if "emcpy" in call:
        return kind == Kind.COPY
    return (kind == Kind.SET) == ("emset" in call) and kind != Kind.COPY


def _operators(trace: Slices, calls: Column) -> list[str]:
    around = called_in(trace, calls, trace.kind == Kind.OPERATOR)
    return ["" if at == NONE else trace.names[trace.name[at]] for at in around.tolist()]
