"""Messages of a collective, played step by step: of an algorithm, or of a job's own record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ...base.formatting import counted, in_one_line, quantity
from ...base.provenance import Provenance, simulated
from ...models.rounds import ALGORITHMS, Algorithm
from ..picture import PALETTE, Figure
from ..widget import Playable
from .messages_of_job import Messages, messages_of
from .sliders import NOTHING

MOST_RANKS = 8
_DATA = 1_200_000  # bytes that each rank reduces, if nobody says otherwise
_MOST_ROUNDS = 40  # in the picture, not in the player


class Played(Protocol):
    """A job, as far as it is played."""

    @property
    def stamp(self) -> Provenance: ...
    @property
    def calls(self) -> Sequence[Sequence[Any]]: ...


@dataclass(frozen=True)
class Film:
    """The rounds that are drawn. states: for each rank and chunk a bit for each rank whose numbers
    are in it.

    rounds: (source, to, chunks, adds, bytes) each. sent: bytes by rank, after each round.
    """

    title: str
    ranks: int
    nodes: int
    whole: int  # bits of a complete sum
    states: list[list[list[int]]]
    rounds: list[list[tuple[int, int, list[int], bool, float]]]
    sent: list[list[float]]
    stamp: Provenance
    note: str = ""

    @property
    def chunks(self) -> int:
        return len(self.states[0][0])

    def complete(self, at: int) -> list[int]:
        """Return how many chunks each rank has complete after round `at`."""
        return [row.count(self.whole) for row in self.states[at]]

    def said(self, at: int) -> str:
        """One sentence on round `at`, or on the start."""
        if at == 0:
            pieces = "one piece" if self.chunks == 1 else f"{self.chunks} chunks"
            return f"Start: each rank has its own numbers only, in {pieces}."
        messages = self.rounds[at - 1]
        adds = [one for one in messages if one[3]]
        does = "adds" if len(adds) == len(messages) else "takes"
        if adds and len(adds) < len(messages):
            does = "adds or takes"
        bits = [
            f"{source} → {to}" + (f" ({_named(chunks)})" if self.chunks > 1 else "")
            for source, to, chunks, *_ in messages
        ]
        sizes = {size for *_, size in messages}
        each = f", {quantity(sizes.pop(), 'B')} each" if len(sizes) == 1 else ""
        done = sum(count == self.chunks for count in self.complete(at))
        head = f"Round {at} of {len(self.rounds)}: {', '.join(bits)}{each}."
        if self.note:  # what came in is not known
            return f"{head} By then {done} of {self.ranks} ranks may have numbers of all."
        has = "1 rank has" if done == 1 else f"{done or 'no'} ranks have"
        return f"{head} The receiver {does}. Then {has} the whole sum."

    @property
    def summary(self) -> str:
        busiest = max(self.sent[-1], default=0.0)
        return (
            f"{counted(len(self.rounds), 'round')}, {sum(map(len, self.rounds))} messages; "
            f"the busiest rank sends {quantity(busiest, 'B')}, all together "
            f"{quantity(sum(self.sent[-1]), 'B')}"
        )

    def packed(self) -> dict[str, Any]:
        """For the page, in plain types."""
        steps = range(len(self.rounds) + 1)
        return {
            "title": self.title,
            "ranks": self.ranks,
            "nodes": self.nodes,
            "whole": self.whole,
            "states": self.states,
            "rounds": [
                [
                    {"from": a, "to": b, "chunks": c, "adds": adds, "bytes": quantity(size, "B")}
                    for a, b, c, adds, size in messages
                ]
                for messages in self.rounds
            ],
            "said": [self.said(at) for at in steps],
            "busiest": [quantity(max(row), "B") for row in self.sent],
            "all": [quantity(sum(row), "B") for row in self.sent],
            "complete": [self.complete(at) for at in steps],
            "legend": "A square is a rank whose numbers may have come this far"
            if self.note
            else "A square is a rank whose numbers are in the sum",
            "note": self.note,
            "stamp": str(self.stamp),
            "colours": list(PALETTE),
        }


class Player(Playable):
    """Films to choose from: see `collective`."""

    start = "player"

    def __init__(self, asked: Mapping[str, Any], nbytes: float, film: Film | None = None):
        self._asked, self._bytes, self._film = dict(asked), nbytes, film
        self.film = film or self._make(self._asked)  # raises where it cannot be

    def _make(self, asked: Mapping[str, Any]) -> Film:
        name, ranks = asked["algorithm"], asked["ranks"]
        if name not in ALGORITHMS:
            raise ValueError(f"there is no algorithm {name!r}; there are: {', '.join(ALGORITHMS)}")
        if not isinstance(ranks, int) or not 2 <= ranks <= MOST_RANKS:
            raise ValueError(f"2 to {MOST_RANKS} ranks can be played, not {ranks!r}")
        return _simulated(ALGORITHMS[name](ranks), self._bytes)

    def first(self) -> dict[str, Any]:
        return self._asked

    def answer(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        if self._film:
            return {"films": [self._film.packed()], "asked": {}, "choices": []}
        choices = [
            {"name": "algorithm", "values": list(ALGORITHMS)},
            {"name": "beside", "values": [NOTHING, *ALGORITHMS]},
            {"name": "ranks", "values": list(range(2, MOST_RANKS + 1))},
        ]
        names = [name for name in (asked["algorithm"], asked["beside"]) if name != NOTHING]
        films = [self._make({**asked, "algorithm": name}).packed() for name in names]
        return {"films": films, "asked": dict(asked), "choices": choices}

    def __repr__(self) -> str:
        return f"{self.film.title}: {self.film.summary}\n{self.film.stamp}"

    def still(self) -> dict[str, Any]:
        film = self.film
        rounds = min(len(film.rounds), _MOST_ROUNDS)
        size = (max(6.0, min(11.0, 1.6 + 1.15 * rounds)), 1.0 + 0.42 * film.ranks)
        alt = f"{film.title}: {film.summary}."
        if film.rounds:
            alt += f" {film.said(1)}"
        figure = Figure(lambda canvas: _draw(canvas, film), alt=alt, stamp=film.stamp, size=size)
        return {**figure._repr_mimebundle_(), "text/plain": repr(self)}


def collective(
    what: str | Played = "ring", ranks: int = 4, *, nbytes: float = _DATA, title: str = ""
) -> Player:
    """Play an all-reduce message by message: step, scrub, and count its rounds and bytes.

    what: "ring", "doubling", "tree" or "two-level" (on two nodes); in the widget these and the
    number of ranks can be changed, and another one can be played beside it. Or a job: its own sends
    and receives are played, as its record has them. Then a round is what nobody had to wait for: a
    message is in the round after all those that its sender had finished, and that its receiver had
    received, before. The record does not say what is in a message, so the player shows whose
    numbers *may* have arrived.
    ranks: 2 to 8. nbytes: of each rank's data. title: of a job.

    Raises ValueError for another algorithm or number of ranks, and for a job without messages.
    """
    if isinstance(what, str):
        return Player({"algorithm": what, "beside": NOTHING, "ranks": ranks}, nbytes)
    found = messages_of(what.calls)
    if len(found.states[0]) > MOST_RANKS:
        raise ValueError(f"{MOST_RANKS} ranks can be played, not {len(found.states[0])}")
    return Player({}, nbytes, _recorded(found, what.stamp, title or "The job's own messages"))


def _simulated(algorithm: Algorithm, nbytes: float) -> Film:
    size = nbytes / algorithm.chunks
    on = f" on {algorithm.nodes} nodes" if algorithm.nodes > 1 else ""
    return Film(
        title=f"{algorithm.name.capitalize()} all-reduce, {algorithm.ranks} ranks{on}, "
        f"{quantity(nbytes, 'B')} each",
        ranks=algorithm.ranks,
        nodes=algorithm.nodes,
        whole=algorithm.complete,
        states=[[list(row) for row in state] for state in algorithm.held()],
        rounds=[
            [(m.source, m.to, list(m.chunks), m.adds, size * len(m.chunks)) for m in each]
            for each in algorithm.rounds
        ],
        sent=[[nbytes * times for times in row] for row in algorithm.sent()],
        stamp=simulated("messages in rounds, no time"),
    )


def _recorded(found: Messages, stamp: Provenance, title: str) -> Film:
    ranks = len(found.states[0])
    sent = [[0.0] * ranks]
    for each in found.rounds:
        sent.append(list(sent[-1]))
        for one in each:
            sent[-1][one.source] += one.nbytes
    note = "From the record of calls: it has no contents, so this is what may have arrived."
    if found.others:
        note += f" Not shown, because they are no messages: {found.others}."
    return Film(
        title=in_one_line(title),
        ranks=ranks,
        nodes=1,
        whole=(1 << ranks) - 1,
        states=[[[bits] for bits in state] for state in found.states],
        rounds=[
            [(one.source, one.to, [0], True, float(one.nbytes)) for one in each]
            for each in found.rounds
        ],
        sent=sent,
        stamp=stamp,
        note=note,
    )


def _named(chunks: Sequence[int]) -> str:
    return f"chunk {chunks[0]}" if len(chunks) == 1 else f"chunks {', '.join(map(str, chunks))}"


def _draw(canvas: Any, film: Film) -> None:
    """Ranks from top to bottom, rounds from left to right, an arrow for each message."""
    axes = canvas.subplots()
    ink = axes.spines["left"].get_edgecolor()
    shown = min(len(film.rounds), _MOST_ROUNDS)
    for rank in range(film.ranks):
        axes.plot([0, shown], [-rank, -rank], color=ink, alpha=0.25, linewidth=1)
    for at, messages in enumerate(film.rounds[:shown]):
        for source, to, chunks, adds, _ in messages:
            look = {"color": PALETTE[1], "linewidth": 1.6, "linestyle": "-" if adds else "--"}
            ends = {"xy": (at + 0.88, -to), "xytext": (at + 0.12, -source)}
            axes.annotate("", **ends, arrowprops={"arrowstyle": "->", **look})
            if film.chunks > 1 and len(chunks) < film.chunks:
                axes.text(
                    *(at + 0.3, -source + 0.24 * (source - to)),
                    ",".join(map(str, chunks)),
                    fontsize=8,
                    ha="center",
                    va="center",
                    color=ink,
                    bbox={"facecolor": axes.get_facecolor(), "pad": 0.6, "linewidth": 0},
                )
    for at in range(shown + 1):
        for rank, count in enumerate(film.complete(at)):
            whole = count == film.chunks
            # One that is complete is square, and filled: not by colour alone.
            face = PALETTE[2] if whole else axes.get_facecolor()
            mark = "s" if whole else "o"
            axes.plot(at, -rank, mark, markersize=9, color=ink, markerfacecolor=face)
    axes.set_yticks([-rank for rank in range(film.ranks)], [f"rank {r}" for r in range(film.ranks)])
    labels = ["start", *(str(at) for at in range(1, shown + 1))]
    axes.set_xticks(range(shown + 1), labels)
    key = "■ has the whole sum; arrow: solid is added, dashed is taken"
    key += "; number: chunk" if film.chunks > 1 else ""
    if film.note:
        key = "■ may have numbers of all"
    axes.set_xlabel(f"after round   ({key})", size=8)
    axes.set(xlim=(-0.3, shown + 0.3), ylim=(0.5 - film.ranks, 0.5))
    axes.set_title(film.title, loc="left", fontsize=10)
    axes.spines[["top", "right", "left", "bottom"]].set_visible(False)
    axes.tick_params(length=0)
