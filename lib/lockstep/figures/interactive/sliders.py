"""Models with sliders: Python computes all that is drawn, so each formula is in one place only."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from ...base.formatting import counted, in_one_line, percent, quantity
from ...base.provenance import Provenance, each, simulated
from ...base.style import COMMUNICATION, GROUPS
from ...models import checkpoints as intervals
from ...models import cost as costs
from ...models import experts as cut_experts
from ...models import ladder as ladders
from ...models import overlap as overlaps
from ...models import pipeline as pipelines
from ..chart import Chart
from ..picture import Figure
from ..widget import Playable

NOTHING = "nothing"  # stands beside what is shown
Schedule = Callable[[int, int, int], Sequence[str]]
LINK = costs.Line(10e-6, 1 / 100e9)  # where sliders stand first: 10 µs, 100 GB/s
_CURVE = 60  # points of a curve
_SIZES = (4.0, 2.0**34)  # bytes, of the axis
# Of a step: colour and pattern, so that forward, backward and weight steps differ in both.
_STEPS = {
    "F": ("forward", *GROUPS[0]),
    "B": ("backward", *GROUPS[1]),
    "W": ("weight gradients", *GROUPS[2]),
    "C": ("communication", COMMUNICATION.colour, COMMUNICATION.pattern),
}


@dataclass(frozen=True)
class Slider:
    """One number that can be turned, through `values`; `at` is where it stands first."""

    name: str
    label: str
    values: tuple[float, ...]
    texts: tuple[str, ...]
    at: int

    @classmethod
    def of(
        cls, name: str, label: str, values: Sequence[float], start: float, say: Callable[[Any], str]
    ) -> Slider:
        """The start is one of the values, whether it is in the list or not."""
        own = tuple(sorted({*values, start}))
        return cls(name, label, own, tuple(map(say, own)), own.index(start))


class Sliders(Playable):
    """sliders: by name. choices: names with their values, the first one chosen.

    draw: what is shown, of the sliders' values and choices. picture: a chart of the same, for where
    no widget is; without it the lanes are drawn, and `alt` says what they are, around what is said.
    beside: the choice of which a second value may be shown beside the first.
    """

    start = "sliders"

    def __init__(
        self,
        title: str,
        sliders: Sequence[Slider],
        choices: Mapping[str, Sequence[str]],
        draw: Callable[[dict[str, Any]], dict[str, Any]],
        stamps: Sequence[Provenance],
        *,
        picture: Callable[[dict[str, Any]], Chart] | None = None,
        alt: str = "{}",
        beside: str = "",
    ):
        self.title, self.sliders, self.choices = title, sliders, dict(choices)
        self._draw, self._picture, self.stamps = draw, picture, stamps
        self._alt, self._beside = alt, beside
        if beside:
            self.choices["beside"] = [NOTHING, *choices[beside]]
        self.start_values = self.values(self.first())
        self._first = self._draw(self.start_values)  # raises where it cannot be

    def first(self) -> dict[str, Any]:
        """Places of the sliders and chosen words."""
        chosen = {name: values[0] for name, values in self.choices.items()}
        return {slider.name: slider.at for slider in self.sliders} | chosen

    def values(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for slider in self.sliders:
            at = asked[slider.name]
            if not isinstance(at, int) or not 0 <= at < len(slider.values):
                raise ValueError(f"{slider.label} has no place {at!r}")
            found[slider.name] = slider.values[at]
        for name, values in self.choices.items():
            if asked[name] not in values:
                raise ValueError(f"{name} is one of: {', '.join(values)}")
            found[name] = asked[name]
        return found

    def answer(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        values = self.values(asked)
        second = values.get("beside", NOTHING)
        others = [] if second == NOTHING else [{**values, self._beside: second}]
        return {
            "title": self.title,
            "sliders": [
                {"name": one.name, "label": one.label, "texts": one.texts} for one in self.sliders
            ],
            "choices": [{"name": name, "values": own} for name, own in self.choices.items()],
            "asked": dict(asked),
            "stamp": "\n".join(map(str, self.stamps)),
            "drawn": [self._draw(one) for one in [values, *others]],
        }

    def __repr__(self) -> str:
        said = " · ".join(f"{one.label} {one.texts[one.at]}" for one in self.sliders)
        return "\n".join([f"{self.title}: {said}", self._first["said"], *map(str, self.stamps)])

    def still(self) -> dict[str, Any]:
        drawn: Chart | Figure = (
            self._picture(self.start_values)
            if self._picture
            else _lanes(self._first, self._alt.format(self._first["said"]), self.stamps[0])
        )
        return {**drawn._repr_mimebundle_(), "text/plain": repr(self)}


# ── What messages and collectives cost ───────────────────────────────────────────────────────

Formula = Callable[[int, float, costs.Line], float]
FORMULAS: dict[str, Formula] = {
    "ring": costs.ring_all_reduce,
    "doubling": costs.recursive_doubling_all_reduce,
    "tree": costs.tree_all_reduce,
    "double tree": costs.double_tree_all_reduce,
}
MESSAGE: dict[str, Formula] = {"one message": lambda n, nbytes, line: line(nbytes)}


def cost(
    formulas: Mapping[str, Formula] = FORMULAS,
    *,
    line: costs.Line = LINK,
    ranks: int | None = 4,
    nbytes: float = 1 << 20,
    measured: Mapping[str, Sequence[Sequence[float]]] | None = None,
    stamp: Provenance | Sequence[Provenance] | None = None,
) -> Sliders:
    """Time over size by the α–β model, over measured points; sliders for α, 1/β, ranks and size.

    formulas: of ranks, bytes and a `lockstep.cost.Line`, by name; all-reduces if nothing is said,
    `play.MESSAGE` for a message. line, ranks, nbytes: where the sliders stand first. ranks=None:
    without this slider. measured: (bytes, seconds) by name, the first for the first formula and so
    on; stamp: where they come from. Raises ValueError for measured points without a stamp or a
    formula, and for a line whose α or β is not above 0: logarithmic sliders have no 0.
    """
    if measured and not stamp:
        raise ValueError("the measured points have no stamp: say where they come from, by stamp=")
    if len(measured or ()) > len(formulas):
        raise ValueError(
            "each measured line is compared with a formula; there are too few formulas"
        )
    points = {
        in_one_line(name): [(float(p[0]), float(p[1])) for p in own]
        for name, own in (measured or {}).items()
    }
    sliders = _line_sliders(line, (1e-7, 1e-2), (1e7, 2e12))
    if ranks is not None:
        counts = [2, 3, 4, 6, *(2**k for k in range(3, 13))]
        sliders.append(Slider.of("ranks", "ranks", counts, ranks, str))
    sizes = [2.0**k for k in range(2, 35)]
    sliders.append(Slider.of("nbytes", "size", sizes, float(nbytes), _bytes))
    every = [seconds for own in points.values() for _, seconds in own] or [1e-6, 1.0]
    time = 10 ** math.floor(math.log10(min(every) / 3)), max(*every, 1e-2) * 10

    def seconds(values: Mapping[str, Any], formula: Formula, size: float) -> float:
        return formula(int(values.get("ranks", 2)), size, _line(values))

    def said(values: Mapping[str, Any]) -> str:
        size = values["nbytes"]
        times = {name: seconds(values, one, size) for name, one in formulas.items()}
        parts = [f"{name} {quantity(took, 's')}" for name, took in times.items()]
        text = f"{quantity(size, 'B')}: {', '.join(parts)}."
        if len(times) > 1:
            text += f" The quickest: {min(times, key=lambda name: times[name])}."
        for (name, own), first in zip(points.items(), formulas, strict=False):
            near, took = min(own, key=lambda point: abs(math.log(point[0] / size)))
            ratio = seconds(values, formulas[first], near) / took
            text += (
                f" Measured ({name}) at {quantity(near, 'B')}: {quantity(took, 's')}; {first} says "
                f"{ratio:.3g} times that."
            )
        return text

    def drawn(values: dict[str, Any]) -> Chart:
        curves = {
            f"{name}, model": [
                (size, seconds(values, one, size)) for size in _curve(*_SIZES, values["nbytes"])
            ]
            for name, one in formulas.items()
        }
        models = dict(zip(points, curves.values(), strict=False))
        others = dict(list(curves.items())[len(models) :])
        x, y = "size (bytes)", "time (seconds)"
        alt = f"Time over size by the α–β model. {said(values)}"
        return Chart({**points, **others}, models=models, x=x, y=y, alt=alt, stamp=stamps)

    def draw(values: dict[str, Any]) -> dict[str, Any]:
        chart = drawn(values).packed(_SIZES, time, values["nbytes"])
        for line, name in zip(chart["lines"][len(formulas) :], formulas, strict=False):
            line["label"] = f"{name}, model"  # which formula the points are compared with
        return {"said": said(values), "chart": chart}

    stamps = [*each(stamp), simulated("α–β model")]
    return Sliders("What communication costs", sliders, {}, draw, stamps, picture=drawn)


# ── Pipelines ────────────────────────────────────────────────────────────────────────────────


def pipeline(
    schedules: Mapping[str, Schedule] = pipelines.SCHEDULES,
    *,
    stages: int = 4,
    microbatches: int = 8,
) -> Sliders:
    """A pipeline's schedule with sliders for stages, microbatches, and how long a step takes.

    schedules: by name, functions of a rank, the number of ranks and of microbatches, which give the
    rank's steps as `lockstep.pipeline.simulate` takes them; GPipe and 1F1B if nothing is said.
    It shows the bubble, and how many microbatches' activations each rank keeps.
    """
    orders = {in_one_line(name): own for name, own in schedules.items()}
    sliders = [
        Slider.of("stages", "stages", range(2, 9), stages, str),
        Slider.of("microbatches", "microbatches", range(1, 17), microbatches, str),
        Slider.of("backward", "backward takes", (0.5, 1, 1.5, 2, 3), 1, lambda v: f"{v:g} × F"),
        Slider.of("message", "a message takes", (0, 0.1, 0.25, 0.5, 1), 0, lambda v: f"{v:g} × F"),
    ]

    def played(values: Mapping[str, Any]) -> tuple[pipelines.Plan, list[int]]:
        name, p, m = values["schedule"], int(values["stages"]), int(values["microbatches"])
        try:
            steps = [list(orders[name](rank, p, m)) for rank in range(p)]
        except Exception as error:  # it is the learner's
            raise ValueError(
                f"{name} of {p} stages and {m} microbatches raises {type(error).__name__}: {error}"
            ) from error
        how = {"backward": values["backward"], "message": values["message"]}
        plan = pipelines.simulate(steps, **how)
        return plan, [pipelines.kept(order) for order in steps]

    def said(values: Mapping[str, Any], plan: pipelines.Plan, kept: Sequence[int]) -> str:
        return (
            f"{values['schedule']}: bubble {percent(plan.idle, 1)} of all time, {plan.length:.4g} "
            "units of time (a forward is 1); activations kept at once, by rank: "
            f"{', '.join(map(str, kept))}."
        )

    def draw(values: dict[str, Any]) -> dict[str, Any]:
        plan, kept = played(values)
        lanes = [_lane(f"rank {rank}", f"keeps {kept[rank]}") for rank in range(plan.ranks)]
        for box in plan.boxes:
            lanes[box.rank]["boxes"].append(
                _box(box.start, box.end, plan.length, box.step, box.step[0])
            )
        axis = _time(f"{plan.length:.4g}", plan.length, "a forward takes 1")
        return {"said": said(values, plan, kept), "lanes": lanes, "kinds": _kinds(lanes), **axis}

    stamps = [simulated("a step begins as soon as what it needs is there")]
    names = {"schedule": list(orders)}
    alt = "When each step runs. {} What is empty is the bubble."
    return Sliders(
        "A pipeline's schedule", sliders, names, draw, stamps, alt=alt, beside="schedule"
    )


# ── Overlap ──────────────────────────────────────────────────────────────────────────────────


def overlap(
    *,
    line: costs.Line = LINK,
    ranks: int = 8,
    nbytes: float = 1e9,
    backward: float = 20e-3,
    bucket: float = 25 * (1 << 20),
) -> Sliders:
    """Gradients in buckets, sent while the backward pass goes on: what is hidden, and what is not.

    line: of a message, where the sliders stand first; a bucket takes the time of a ring all-reduce.
    nbytes: of all gradients. backward: seconds. bucket: bytes. Raises ValueError as `cost` does.
    """
    sliders = [
        Slider.of("bucket", "bucket", _steps(1e5, 2e10), bucket, _bytes),
        Slider.of("nbytes", "all gradients", _steps(1e7, 2e10), nbytes, _bytes),
        Slider.of("backward", "backward", _steps(1e-3, 1.0), backward, _seconds),
        Slider.of("ranks", "ranks", [2, 4, *(2**k for k in range(3, 11))], ranks, str),
        *_line_sliders(line, (1e-7, 1e-3), (1e8, 1e12)),
    ]
    sizes = (1e5, 2e10)

    def played(values: Mapping[str, Any], size: float) -> overlaps.Overlap:
        n, wire = int(values["ranks"]), _line(values)
        return overlaps.buckets(
            *(values["backward"], values["nbytes"], size),
            lambda part: costs.ring_all_reduce(n, part, wire),
        )

    def said(values: Mapping[str, Any]) -> str:
        own = played(values, values["bucket"])
        best = min(_curve(*sizes), key=lambda size: played(values, size).exposed)
        return (
            f"{counted(len(own.sent), 'bucket')}: all-reduces take "
            f"{quantity(own.communication, 's')} together; {quantity(own.exposed, 's')} comes "
            f"after the backward ({percent(own.exposed / own.end)} of all time). The least comes "
            f"after it with buckets of about {quantity(best, 'B')}: "
            f"{quantity(played(values, best).exposed, 's')}."
        )

    def draw(values: dict[str, Any]) -> dict[str, Any]:
        own = played(values, values["bucket"])
        curve = [(size, played(values, size).exposed) for size in _curve(*sizes, values["bucket"])]
        seen = [exposed for _, exposed in curve if exposed > 0]
        times = 10 ** math.floor(math.log10(min(seen))), 2 * max(seen)
        lines = {"exposed, model": [(size, max(took, times[0])) for size, took in curve]}
        x, y = "bucket (bytes)", "exposed (seconds)"
        chart = Chart(lines, x=x, y=y, alt=said(values), stamp=stamps)
        sent = list(own.sent)
        if len(sent) > 400:  # what is narrower than a pixel is drawn as one
            sent = [(sent[0][0], sent[-1][1])]
        names = [str(at) if len(sent) < 30 else "" for at in range(len(sent))]
        sends = [_box(*ends, own.end, name, "C") for ends, name in zip(sent, names, strict=True)]
        lanes = [
            _lane("computes", "", [_box(0, own.backward, own.end, "backward", "B")]),
            _lane("sends", "", sends),
        ]
        drawn = {"chart": chart.packed(sizes, times, values["bucket"])}
        drawn |= _time(quantity(own.end, "s"), own.end)
        return {"said": said(values), "lanes": lanes, "kinds": _kinds(lanes), **drawn}

    stamps = [simulated("gradients at an even pace, ring all-reduces by α and β, no slowdown")]
    alt = "The backward pass, and below it the all-reduces of its buckets. {}"
    return Sliders("Overlap by buckets", sliders, {}, draw, stamps, alt=alt)


# ── Ring attention ───────────────────────────────────────────────────────────────────────────


def ring_attention(ranks: int = 4) -> Sliders:
    """Rounds of causal ring attention: each lasts as long as its busiest rank.

    Of plain parts, rank r has the r-th; of zigzag parts, a piece from either end. It shows when
    ranks compute, and the part of all time in which they do. To compute with all pairs of a part of
    the queries and a part of the keys takes one unit of time; messages take none.
    """
    pieces: dict[str, Callable[[int, int], tuple[int, int]]] = {
        "plain": lambda rank, n: (2 * rank, 2 * rank + 1),
        "zigzag": lambda rank, n: (rank, 2 * n - 1 - rank),
    }

    def work(values: Mapping[str, Any]) -> list[list[float]]:
        """Return what each rank computes in each round; a piece sees a half of itself."""
        n, own = int(values["ranks"]), pieces[values["parts"]]
        return [
            [
                sum((q > k) + (q == k) / 2 for q in own(rank, n) for k in own((rank - at) % n, n))
                / 4
                for rank in range(n)
            ]
            for at in range(n)
        ]

    def said(values: Mapping[str, Any]) -> str:
        rounds = work(values)
        length = sum(map(max, rounds))
        busy = sum(map(sum, rounds)) / len(rounds) / length
        return (
            f"{values['parts']} parts: {counted(len(rounds), 'round')}, {length:g} units of time; "
            f"ranks compute in {percent(busy, 1)} of it."
        )

    def draw(values: dict[str, Any]) -> dict[str, Any]:
        rounds = work(values)
        length = sum(map(max, rounds))
        lanes = [_lane(f"rank {rank}") for rank in range(len(rounds))]
        start = 0.0
        for at, works in enumerate(rounds):
            for lane, own in zip(lanes, works, strict=True):
                if own:
                    kind = "all" if own == 1 else "half"
                    lane["boxes"].append(_box(start, start + own, length, str(at), kind))
            start += max(works)
        looks = {"all": ("all pairs", *GROUPS[0]), "half": ("half of the pairs", *GROUPS[1])}
        axis = _time(f"{length:g}", length, "all pairs of two parts take 1")
        return {"said": said(values), "lanes": lanes, "kinds": _kinds(lanes, looks), **axis}

    sliders = [Slider.of("ranks", "ranks", range(2, 9), ranks, str)]
    stamps = [simulated("pairs that the mask lets through, no messages")]
    choices = {"parts": list(pieces)}
    alt = "When each rank computes in causal ring attention. {} Numbers: rounds."
    return Sliders("Causal ring attention", sliders, choices, draw, stamps, alt=alt, beside="parts")


# ── A layer on several ranks ─────────────────────────────────────────────────────────────────

_RANKS = [2**k for k in range(7)]


def _usual_product(m: int, n: int, k: int) -> float:
    return 2.0 * m * n * k / 500e12


_USUAL_LINKS = {
    "10 µs, 100 GB/s": lambda n, nbytes: costs.ring_all_reduce(n, nbytes, LINK),
    "20 µs, 25 GB/s": lambda n, nbytes: costs.ring_all_reduce(
        n, nbytes, costs.Line(20e-6, 1 / 25e9)
    ),
}


def layer(
    product: Callable[[int, int, int], float] = _usual_product,
    links: Mapping[str, Callable[[int, float], float]] = _USUAL_LINKS,
    *,
    width: int = 8192,
    tokens: int = 8192,
    measured: Mapping[int, Mapping[int, float]] | None = None,
    stamp: Provenance | Sequence[Provenance] | None = None,
) -> Sliders:
    """The forward pass of an MLP, cut by columns and rows: its products, and its all-reduce.

    product: seconds of (m × k)·(k × n), at 500 TFLOP/s if nothing is said. links: by name, seconds
    of an all-reduce of so many ranks and bytes; the first one is chosen. width, tokens: where the
    sliders stand first. The hidden width is four times as much, and a number has two bytes.
    measured: by ranks, the seconds of all-reduces by their bytes, over the first link; they are
    drawn where the size is one of these.
    """
    measured = measured or {}

    def times(values: Mapping[str, Any], n: int) -> tuple[float, float]:
        size, rows = int(values["width"]), int(values["tokens"])
        part = max(1, 4 * size // n)
        products = product(rows, part, size) + product(rows, size, part)
        return products, links[values["link"]](n, 2.0 * rows * size) if n > 1 else 0.0

    def points(values: Mapping[str, Any]) -> list[tuple[float, float]]:
        nbytes = int(2 * values["width"] * values["tokens"])
        if values["link"] != next(iter(links)):
            return []
        return [(n, known[nbytes]) for n, known in sorted(measured.items()) if nbytes in known]

    def said(values: Mapping[str, Any]) -> str:
        n = int(values["ranks"])
        products, reduced = times(values, n)
        whole = {ranks: sum(times(values, ranks)) for ranks in _RANKS}
        slower = next((b for a, b in itertools.pairwise(_RANKS) if whole[b] >= whole[a]), None)
        text = (
            f"{counted(n, 'rank')}: products {quantity(products, 's')}, all-reduce "
            f"{quantity(reduced, 's')}: {whole[1] / (products + reduced):.3g} times as fast as 1. "
        )
        text += (
            f"{slower} ranks are slower than {slower // 2}."
            if slower
            else (f"Each doubling is faster, up to {_RANKS[-1]} ranks.")
        )
        for ranks, took in points(values):
            text += f" Measured on {ranks}: {quantity(took, 's')} for the all-reduce."
        return text

    def drawn(values: Mapping[str, Any]) -> Chart:
        split = {n: times(values, n) for n in _RANKS}
        lines: dict[str, list[tuple[float, float]]] = {
            "products, model": [(n, own) for n, (own, _) in split.items()],
            "all-reduce, model": [(n, own) for n, (_, own) in split.items() if own],
            "both, model": [(n, sum(own)) for n, own in split.items()],
        }
        if known := points(values):
            lines["all-reduce, measured"] = known
        return Chart(lines, x="ranks", y="time (seconds)", alt=said(values), stamp=stamps)

    def draw(values: dict[str, Any]) -> dict[str, Any]:
        return {"said": said(values), "chart": drawn(values).packed(mark=values["ranks"])}

    sliders = [
        Slider.of("width", "width", [2**k for k in range(9, 15)], width, "{:,}".format),
        Slider.of("tokens", "tokens", [2**k for k in range(4, 18)], tokens, "{:,}".format),
        Slider.of("ranks", "ranks", _RANKS, 2, str),
    ]
    stamps = [*(each(stamp) if stamp else ()), simulated("products, then a ring; nothing overlaps")]
    choices = {"link": list(links)}
    return Sliders(
        "An MLP on several ranks", sliders, choices, draw, stamps, picture=drawn, beside="link"
    )


# ── Experts that are cut over ranks ──────────────────────────────────────────────────────────

_SENDS = {
    "experts": ("experts", *GROUPS[0]),
    "sent": ("rows travel", COMMUNICATION.colour, COMMUNICATION.pattern),
}
_LINKS = {"10 µs, 100 GB/s": LINK, "20 µs, 25 GB/s": costs.Line(20e-6, 1 / 25e9)}


def experts(
    product: Callable[[int, int, int], float] = _usual_product,
    links: Mapping[str, costs.Line] = _LINKS,
    *,
    ranks: int = 4,
    width: int = 4096,
) -> Sliders:
    """The forward pass of a layer of experts on several ranks: when each computes, and waits.

    product: seconds of (m × k)·(k × n), at 500 TFLOP/s if nothing is said; an expert has two, with
    a hidden width of four times the width. links: by name; the first one is chosen. A number has
    two bytes. The popularity of experts falls as 1/place^imbalance.
    """

    def played(values: Mapping[str, Any]) -> tuple[cut_experts.Experts, float, list[float]]:
        """With the seconds of an exchange, and of each rank's experts."""
        shares = cut_experts.popularity(int(values["experts"]), values["imbalance"])
        n, tokens = int(values["ranks"]), int(values["tokens"])
        own = cut_experts.experts(tokens, shares, values["capacity"], n, values["placed"])
        takes = [
            product(math.ceil(rows), 4 * width, width) + product(math.ceil(rows), width, 4 * width)
            for rows in own.rows
        ]
        return own, own.exchange(2 * width, links[values["link"]]), takes

    def said(values: Mapping[str, Any]) -> str:
        own, exchange, takes = played(values)
        most = cut_experts.popularity(int(values["experts"]), values["imbalance"])[0]
        slowest = max(own.rows) * len(own.rows) / sum(own.rows)
        return (
            f"The most popular expert is asked for {most * values['experts']:.3g} times an even "
            f"share; {percent(own.dropped, 1)} of the tokens are dropped. The slowest rank "
            f"computes {slowest:.3g} times as many rows as the mean: the layer takes "
            f"{quantity(2 * exchange + max(takes), 's')}, of which the experts "
            f"{quantity(max(takes), 's')}. A rank sends up to "
            f"{quantity(max(own.sent) * 2 * width, 'B')} to the experts."
        )

    def draw(values: dict[str, Any]) -> dict[str, Any]:
        _, exchange, takes = played(values)
        length = 2 * exchange + max(takes)
        lanes = []
        for rank, took in enumerate(takes):
            ends = [(0.0, exchange, "sent"), (exchange, exchange + took, "experts")]
            ends.append((length - exchange, length, "sent"))
            boxes = [_box(a, b, length, "", kind) for a, b, kind in ends if a < b]
            lanes.append(_lane(f"rank {rank}", quantity(took, "s"), boxes))
        axis = _time(quantity(length, "s"), length)
        return {"said": said(values), "lanes": lanes, "kinds": _kinds(lanes, _SENDS), **axis}

    sliders = [
        Slider.of("tokens", "tokens a rank", [2**k for k in range(8, 17)], 4096, "{:,}".format),
        Slider.of("experts", "experts", (16, 32, 64, 128, 256), 64, str),
        Slider.of("capacity", "capacity factor", (0.5, 1, 1.25, 1.5, 2, 4, math.inf), 1.25,
                lambda v: "none" if v == math.inf else f"{v:g}"),
        Slider.of("imbalance", "imbalance", (0, 0.1, 0.25, 0.5, 0.75, 1, 1.5), 0.5, "{:g}".format),
        Slider.of("ranks", "ranks", [2**k for k in range(5)], ranks, str),
    ]  # fmt: skip
    stamps = [simulated("products and exchanges by the busiest rank; no chance")]
    choices = {"placed": list(cut_experts.PLACINGS), "link": list(links)}
    alt = "When ranks exchange rows, compute, and wait. {} What is empty is waiting."
    return Sliders(
        "Experts on several ranks", sliders, choices, draw, stamps, alt=alt, beside="placed"
    )


# ── Sharding ─────────────────────────────────────────────────────────────────────────────────

_STAGES = {"DDP": 0, "ZeRO 1": 1, "ZeRO 2": 2, "ZeRO 3": 3}
_HELD = {
    "weights": ("weights", *GROUPS[0]),
    "gradients": ("gradients", *GROUPS[1]),
    "optimizer": ("optimizer", *GROUPS[2]),
}
# Bytes of a parameter, with Adam, in the order in which stages divide them.
_BYTES = {
    "bfloat16 and float32": {"optimizer": 12, "gradients": 2, "weights": 2},
    "float32": {"optimizer": 8, "gradients": 4, "weights": 4},
    "bfloat16": {"optimizer": 4, "gradients": 2, "weights": 2},
}
_CARDS = {"80 GB": 80e9, "141 GB": 141e9}  # an H100, an H200


def sharding(parameters: float = 7e9, ranks: int = 8) -> Sliders:
    """The bytes that each rank keeps of weights, gradients and optimizer, and sends in a step.

    With Adam, in three ways. Mixed precision: 2 bytes of a parameter, 2 of its gradient, 12 of
    master weight and moments in float32; all in float32: 4, 4, 8; all in bfloat16: 2, 2, 4. ZeRO
    (Rajbhandari and others, 2020) gives each rank a part of the optimizer (1), of the gradients too
    (2), of the weights too (3). A step sends by rings: twice (N − 1)/N of all gradients, or, with
    stage 3, weights twice and gradients once. Activations are not counted.
    """

    def held(values: Mapping[str, Any], stage: int) -> dict[str, float]:
        part = 1 / values["ranks"]
        return {
            name: values["parameters"] * each * (part if at < stage else 1)
            for at, (name, each) in enumerate(_BYTES[values["dtype"]].items())
        }

    def said(values: Mapping[str, Any]) -> str:
        n = values["ranks"]
        around = values["parameters"] * _BYTES[values["dtype"]]["weights"] * (n - 1) / n
        kept = {name: sum(held(values, stage).values()) for name, stage in _STAGES.items()}
        fits = [
            f"{size}: {', '.join(name for name in kept if kept[name] <= most) or 'none'}"
            for size, most in _CARDS.items()
        ]
        each = ", ".join(f"{name} {quantity(nbytes, 'B')}" for name, nbytes in kept.items())
        return (
            f"Each of {counted(int(n), 'rank')} keeps: {each}. Fits in {'; in '.join(fits)}. In a "
            f"step it sends {quantity(2 * around, 'B')}, with ZeRO 3 {quantity(3 * around, 'B')}."
        )

    def draw(values: dict[str, Any]) -> dict[str, Any]:
        whole = sum(held(values, 0).values())
        lanes = []
        for name, stage in _STAGES.items():
            own = held(values, stage)
            ends = itertools.accumulate((own[kind] for kind in _HELD), initial=0.0)
            boxes = [
                _box(a, b, whole, quantity(own[kind], "B"), kind)
                for kind, (a, b) in zip(_HELD, itertools.pairwise(ends), strict=True)
            ]
            lanes.append(_lane(name, quantity(sum(own.values()), "B"), boxes))
        axis = {"label": "bytes that a rank keeps", "end": quantity(whole, "B"), "empty": "saved"}
        kinds = _kinds(lanes, _HELD)
        size = {"length": whole, "axis": axis}
        return {"said": said(values), "lanes": lanes, "kinds": kinds, **size}

    sizes = [1e8, 3e8, 1e9, 3e9, 7e9, 13e9, 30e9, 70e9, 200e9, 400e9]
    sliders = [
        Slider.of(
            "parameters", "parameters", sizes, float(parameters), lambda v: f"{v / 1e9:g} billion"
        ),
        Slider.of("ranks", "ranks", [2**k for k in range(11)], ranks, str),
    ]
    stamps = [simulated("bytes a parameter with Adam, rings; no activations")]
    choices = {"dtype": list(_BYTES)}
    return Sliders("What sharding saves", sliders, choices, draw, stamps)


# ── Checkpoints ──────────────────────────────────────────────────────────────────────────────

_YEAR = 365 * 24 * 3600.0


def checkpoints(gpus: int = 16384, years: float = 5.8, save: float = 30.0) -> Sliders:
    """Time lost by checkpoints, failures and restarts, over the interval between two checkpoints.

    years: the mean time between failures of one GPU; all fail at random, each by itself. save:
    seconds of a checkpoint, in which nothing else is done. The expected time by Daly's equation of
    2006, with Young's interval of 1974 beside the best one.
    """

    def lost(values: Mapping[str, Any], interval: float) -> tuple[float, float, float]:
        """Return the shares of all time of saving, of work done again, and of starting again."""
        mtbf = _between(values)
        stretch = interval + values["save"]
        if stretch > 100 * mtbf:
            return 1.0, 0.0, 0.0
        failures = math.expm1(stretch / mtbf)
        whole = failures * (mtbf + values["restart"])
        saving, again = values["save"] / whole, failures * values["restart"] / whole
        return saving, 1 - interval / whole - saving - again, again

    def best(values: Mapping[str, Any]) -> float:
        return intervals.best_interval(values["save"], _between(values))

    def said(values: Mapping[str, Any]) -> str:
        mtbf, at = _between(values), best(values)
        shares = lost(values, at)
        young = math.sqrt(2 * values["save"] * mtbf)
        return (
            f"A failure each {_long(mtbf)}. Best: a checkpoint each {_long(at)} of use (Young: "
            f"{_long(young)}); {percent(max(0.0, 1 - sum(shares)), 1)} of the time is useful, "
            f"{percent(shares[0], 1)} saves, {percent(shares[1], 1)} is done again, "
            f"{percent(shares[2], 1)} starts again."
        )

    def drawn(values: Mapping[str, Any]) -> Chart:
        mtbf = _between(values)
        places = _curve(max(1.0, mtbf / 2000), 3 * mtbf, best(values))
        split = {one: lost(values, one) for one in places}
        names = ("saving", "work done again", "starting again")
        lines: dict[str, list[tuple[float, float]]] = {
            f"{name}, model": [(one / 60, 100 * part[at]) for one, part in split.items()]
            for at, name in enumerate(names)
        }
        lines["all of it, model"] = [(one / 60, 100 * sum(part)) for one, part in split.items()]
        x, y = "minutes of use between checkpoints", "lost (% of the time)"
        return Chart(lines, x=x, y=y, alt=said(values), stamp=stamps, log="x")

    def draw(values: dict[str, Any]) -> dict[str, Any]:
        return {"said": said(values), "chart": drawn(values).packed(mark=best(values) / 60)}

    counts = [8 * 4**k for k in range(8)]
    sliders = [
        Slider.of("gpus", "GPUs", counts, gpus, "{:,}".format),
        Slider.of(
            "years",
            "a GPU fails each",
            (1, 2, 10, 30),
            years,
            lambda v: f"{v:g} year{'s' * (v != 1)}",
        ),
        Slider.of("save", "a checkpoint takes", (1, 5, 30, 120, 600), save, _long),
        Slider.of("restart", "to start again takes", (0, 60, 300, 600, 1800), 600, _long),
    ]
    stamps = [simulated("failures at random, by Daly's formula")]
    return Sliders("How often to save", sliders, {}, draw, stamps, picture=drawn)


def _between(values: Mapping[str, Any]) -> float:
    """Seconds between two failures of any GPU."""
    return float(values["years"] * _YEAR / values["gpus"])


def _long(seconds: float) -> str:
    for name, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            return f"{seconds / size:.3g} {name}"
    return f"{seconds:.3g} s"


# ── A ladder of batch sizes ──────────────────────────────────────────────────────────────────

LADDERS = ladders.CHOICES
_COUNTS = (1, 2, 3, 4, 6, 8, 12)  # of graphs


def ladder(
    choices: Mapping[str, ladders.Choice] = LADDERS,
    *,
    largest: int = 64,
    graph: float = 2.0**20,
    capture: float = 2e-3,
    stamp: Provenance | Sequence[Provenance] | None = None,
) -> Sliders:
    """Padding over the memory of captured graphs, with sliders for a budget and what a graph takes.

    choices: by name, functions of the rows of many steps and a number of graphs, which return the
    sizes to capture. graph: bytes that a further graph takes in one pool. capture: seconds of a
    warm-up and a capture. stamp: where these two come from.
    """
    own = {in_one_line(name): choose for name, choose in choices.items()}

    @cache
    def padding(kind: str, most: int) -> dict[str, dict[int, tuple[list[int], float]]]:
        """By choice and number of graphs: their sizes, and the padding in % of what is computed."""
        rows = ladders.stream(kind, most)
        found: dict[str, dict[int, tuple[list[int], float]]] = {}
        for name, choose in own.items():
            found[name] = {}
            for count in _COUNTS:
                try:
                    sizes = list(choose(rows, count))
                    spent = ladders.computed(rows, sizes)
                except Exception as error:  # it is the learner's
                    raise ValueError(f"{name} with {counted(count, 'size')}: {error}") from error
                found[name][count] = sizes, 100 * (1 - sum(rows) / spent)
        return found

    def said(values: Mapping[str, Any]) -> str:
        budget, each_graph = values["budget"], values["graph"]
        fit = max((one for one in _COUNTS if one * each_graph <= budget), default=0)
        if not fit:
            return f"{quantity(budget, 'B')} have room for no graph: each step runs eagerly."
        text = f"{quantity(budget, 'B')} have room for {counted(fit, 'graph')}, captured in "
        text += f"{quantity(fit * values['capture'], 's')}."
        for name, by_count in padding(values["stream"], int(values["largest"])).items():
            sizes, share = by_count[fit]
            text += f" {name}: {' '.join(map(str, sizes))}; {share:.0f} % of the rows are padding."
        return text

    def drawn(values: Mapping[str, Any]) -> Chart:
        lines = {
            f"{name}, model": [
                (count * values["graph"] / (1 << 20), share)
                for count, (_, share) in by_count.items()
            ]
            for name, by_count in padding(values["stream"], int(values["largest"])).items()
        }
        x, y = "memory of the graphs (MiB)", "padding (% of rows)"
        return Chart(lines, x=x, y=y, alt=said(values), stamp=stamps, log="x")

    def draw(values: dict[str, Any]) -> dict[str, Any]:
        mark = values["budget"] / (1 << 20)
        return {"said": said(values), "chart": drawn(values).packed(mark=mark)}

    sliders = [
        Slider.of("budget", "memory for graphs", [2.0**k for k in range(20, 31)], 8 * graph,
                _bytes),
        Slider.of("largest", "most rows", (8, 16, 32, 64), largest, str),
        Slider.of("graph", "a graph takes", [2.0**k for k in range(18, 27)], graph,
                _bytes),
        Slider.of("capture", "a capture takes", _steps(1e-3, 1.0), _rounded(capture),
                _seconds),
    ]  # fmt: skip
    stamps = [*each(stamp), simulated("120 steps, each in the smallest size that fits")]
    streams = {"stream": ladders.STREAMS}
    return Sliders(
        "A ladder of batch sizes", sliders, streams, draw, stamps, picture=drawn, beside="stream"
    )


# ── What they share ──────────────────────────────────────────────────────────────────────────


def _steps(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, 20, … from low to high."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = [float(f"{one}e{decade}") for decade in decades for one in (1, 2, 5)]
    return [value for value in every if low <= value <= high]


def _curve(low: float, high: float, *also: float) -> list[float]:
    """Places of the points of a curve over a logarithmic axis."""
    step = math.log(high / low) / (_CURVE - 1)
    return sorted({*(low * math.exp(step * at) for at in range(_CURVE)), *also})


def _line_sliders(
    line: costs.Line, alphas: tuple[float, float], bandwidths: tuple[float, float]
) -> list[Slider]:
    if not (line.alpha > 0 and line.beta > 0):
        raise ValueError(f"α and β must be above 0 to be on sliders; this is {line}")
    alpha, bandwidth = _rounded(line.alpha), _rounded(line.bandwidth)
    return [
        Slider.of("alpha", "α", _steps(*alphas), alpha, _seconds),
        Slider.of("bandwidth", "1/β", _steps(*bandwidths), bandwidth, lambda v: quantity(v, "B/s")),
    ]


def _line(values: Mapping[str, Any]) -> costs.Line:
    """Return the line that the sliders of `_line_sliders` say."""
    return costs.Line(values["alpha"], 1 / values["bandwidth"])


def _seconds(value: float) -> str:
    return quantity(value, "s")


def _bytes(value: float) -> str:
    return quantity(value, "B")


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def _lane(label: str, end: str = "", boxes: Sequence[Sequence[Any]] = ()) -> dict[str, Any]:
    """Return a row of boxes: each with its start and end, as shares, its text and its kind."""
    return {"label": label, "end": end, "boxes": [*boxes]}


def _box(start: float, end: float, length: float, text: str, kind: str) -> list[Any]:
    """Return a box of a row that is so long."""
    return [round(start / length, 5), round(end / length, 5), text, kind]


def _kinds(
    lanes: Sequence[Mapping[str, Any]], looks: Mapping[str, tuple[str, str, str]] = _STEPS
) -> dict[str, Any]:
    """The looks of the kinds that are drawn."""
    drawn = {kind for lane in lanes for *_, kind in lane["boxes"]}
    return {
        kind: {"label": label, "colour": colour, "pattern": pattern}
        for kind, (label, colour, pattern) in looks.items()
        if kind in drawn
    }


def _time(end: str, length: float, unit: str = "") -> dict[str, Any]:
    """The axis of lanes, from 0 to `end`, which is `length` long beside others."""
    label = f"time ({unit})" if unit else "time"
    return {"length": length, "axis": {"label": label, "end": end, "empty": "idle"}}


def _lanes(drawn: Mapping[str, Any], alt: str, stamp: Provenance) -> Figure:
    def draw(canvas: Any) -> None:
        from matplotlib.patches import Patch

        axes = canvas.subplots()
        paper = axes.get_facecolor()
        for row, lane in enumerate(drawn["lanes"]):
            for start, end, text, kind in lane["boxes"]:
                look = {"color": drawn["kinds"][kind]["colour"], "edgecolor": paper}
                hatch = drawn["kinds"][kind]["pattern"]
                axes.barh(-row, end - start, left=start, height=0.8, hatch=hatch, **look)
                if end - start > 0.012 * len(text):
                    box = {"facecolor": paper, "pad": 0.5, "linewidth": 0}
                    middle = ((start + end) / 2, -row)
                    axes.text(*middle, text, ha="center", va="center", fontsize=7, bbox=box)
            axes.text(1.01, -row, lane["end"], va="center", fontsize=9)
        rows = len(drawn["lanes"])
        axes.set_yticks([-row for row in range(rows)], [lane["label"] for lane in drawn["lanes"]])
        axes.set(xlim=(0, 1.12), ylim=(0.5 - rows, 0.5), xlabel=drawn["axis"]["label"])
        axes.set_xticks([0, 1], ["0", drawn["axis"]["end"]])
        axes.spines[["top", "right", "bottom"]].set_visible(False)
        handles = [
            Patch(
                facecolor=one["colour"], hatch=one["pattern"], edgecolor=paper, label=one["label"]
            )
            for one in drawn["kinds"].values()
        ]
        canvas.legend(handles=handles, loc="outside upper left", ncols=4, frameon=False)

    rows = len(drawn["lanes"])
    return Figure(draw, alt=alt, stamp=stamp, size=(9, 1.5 + 0.4 * rows))
