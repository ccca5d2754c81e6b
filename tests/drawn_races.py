"""Programs of streams, events, copies, freed memory and graphs, drawn at random, with their races.

`Program(seed)` is drawn line by line; while it is drawn it notes what each line orders and what
memory it uses, and computes on the CPU what a machine would that does one line after the other. So
it knows, without the virtual GPU, which lines race (`races`) and what is right (`right`).

    python tests/drawn_races.py 5000 [first seed]   tries as many; shows what is judged wrongly
    python tests/drawn_races.py = 17                prints the program of a seed and its races
"""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from typing import Any, NamedTuple

import torch
from lockstep import virtual

HOST = "host"
STREAMS = ("s0", "s1", "s2")
SIZES = (2048, 4096)  # elements, of 8 bytes
Pair = tuple[int, int]  # two lines


class Order:
    """Points of lanes (streams, the host), each with all that is done before it, as bits."""

    def __init__(self) -> None:
        self.before: list[int] = []
        self.last: dict[str, int] = {}

    def add(self, lane: str, *others: int) -> int:
        """The next point of a lane: after its last, what the host knows, and `others`."""
        known = {*others, *(self.last[one] for one in (lane, HOST) if one in self.last)}
        self.before.append(0)
        for one in known:
            self.before[-1] |= self.before[one] | 1 << one
        self.last[lane] = len(self.before) - 1
        return self.last[lane]

    def is_before(self, one: int, other: int) -> bool:
        return bool(self.before[other] >> one & 1)


@dataclass(eq=False)
class Piece:
    """A tensor. lane: the stream it was allocated on, or HOST. pinned: whether copies go on while

    ends: points that were waited for before its memory went to others.
    """

    name: str
    lane: str
    value: torch.Tensor
    pinned: bool = False
    ends: list[int] = field(default_factory=list)
    recorded: set[str] = field(default_factory=set)


class Use(NamedTuple):
    """Elements [first:last:step] of a piece, as a line uses them.

    over: whether it writes whatever was there.
    """

    piece: Piece
    writes: bool
    first: int
    last: int
    over: bool = False
    step: int = 1


class Step(NamedTuple):
    point: int
    line: int
    lane: str
    uses: Sequence[Use]
    act: Callable[[], object]


@dataclass
class Graph:
    name: str
    body: list[Step]
    order: Order
    ends: list[int] = field(default_factory=list)  # of its last replay


def whole(piece: Piece, writes: bool = False, over: bool = False) -> Use:
    return Use(piece, writes, 0, len(piece.value), over)


class Program:
    """A program: its `source`, and what is known of it.

    address: of each device tensor by its name, filled in when the program is run.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.lines = ["import torch", *(f"{one} = cuda.Stream()" for one in STREAMS[1:])]
        self.lines.insert(1, "s0 = cuda.default_stream()")
        self.order, self.steps = Order(), list[Step]()
        self.body: list[Step] | None = None  # of the graph that is being captured
        self.lanes: Sequence[str] = STREAMS
        self.points: dict[str, int] = {}  # of events
        self.live: list[Piece] = []
        self.gone: list[Piece] = []
        self.fixed: set[Piece] = set()  # what a graph uses, or what is looked at in the end
        self.host: list[Piece] = []
        self.graphs: list[Graph] = []
        self.right: dict[str, torch.Tensor] = {}
        self.looks: set[int] = set()  # points at which a value is kept
        self.silent: set[int] = set()  # points that change nothing
        self.made = 0
        self.address: dict[str, int] = {}
        self.order.add(HOST)
        self.care = self.rng.choice((0.0, 0.8, 1.0, 1.0))
        for _ in range(2):
            self.new()
            self.new_on_host()
        for _ in range(self.rng.randint(10, 30)):
            self.statement()
        self.synchronize()
        for piece in (*self.live, *self.host):
            self.look(piece, "s0")

    @property
    def source(self) -> str:
        return "\n".join(self.lines)

    # ── Lines ────────────────────────────────────────────────────────────────────────────────

    def emit(self, text: str, lane: str = "") -> int:
        if lane in self.lanes and lane != self.lanes[0]:
            text = f"with cuda.stream({lane}): {text}"
        self.lines.append("    " * (self.body is not None) + text)
        return len(self.lines)

    def name(self, letter: str) -> str:
        self.made += 1
        return f"{letter}{self.made}"

    def do(self, lane: str, text: str, uses: Sequence[Use], act: Callable[[], object]) -> int:
        """A line that uses memory on a stream or on the host. act: does it on the CPU."""
        if self.rng.random() < self.care:
            self.protect(lane, uses)
        line = self.emit(text, lane)
        step = Step(self.order.add(lane), line, lane, uses, act)
        self.steps.append(step)
        if self.body is None:
            self.perform(step)
        else:
            self.body.append(step)
        return line

    def perform(self, step: Step) -> None:
        before = [(use.piece.value, use.piece.value.clone()) for use in step.uses if use.writes]
        step.act()
        if all(torch.equal(now, then) for now, then in before):
            self.silent.add(step.point)

    def protect(self, lane: str, uses: Sequence[Use]) -> None:
        """Let a lane wait for what else would race."""
        for step in [*self.steps]:
            if not self.is_ordered(step.point, lane) and any(
                conflict(one, other) for one in step.uses for other in uses
            ):
                self.wait(step.lane, lane)

    def is_ordered(self, point: int, lane: str) -> bool:
        """Whether the next thing that a lane does comes after a point."""
        last = (self.order.last[one] for one in (lane, HOST) if one in self.order.last)
        return any(point == one or self.order.is_before(point, one) for one in last)

    # ── What orders ──────────────────────────────────────────────────────────────────────────

    def wait(self, source: str, target: str) -> None:
        """Let a stream or the host wait for a stream."""
        how = self.rng.randrange(3 if target == HOST or self.body is not None else 4)
        if target == HOST or how == 3:
            self.host_waits(source)
        elif how == 0:
            self.emit(f"{target}.wait_stream({source})")
            self.order.add(target, self.order.add(source))
        else:
            self.event_waits(target, self.record(source))

    def event_waits(self, target: str, event: str) -> None:
        self.emit(self.rng.choice((f"{target}.wait_event({event})", f"{event}.wait({target})")))
        self.order.add(target, self.points[event])

    def record(self, source: str) -> str:
        event = self.name("e")
        self.emit(f"{event} = cuda.Event(); {event}.record({source})")
        self.points[event] = self.order.add(source)
        return event

    def host_waits(self, source: str) -> None:
        how = self.rng.randrange(4)
        if how == 0:
            self.synchronize()
        elif how == 1:
            loop = f"while not {source}.query(): pass"
            self.emit(self.rng.choice((f"{source}.synchronize()", loop)))
            self.order.add(HOST, self.order.add(source))
        else:
            self.host_waits_for_event(self.record(source))

    def host_waits_for_event(self, event: str) -> None:
        loop = f"while not {event}.query(): pass"
        self.emit(self.rng.choice((f"{event}.synchronize()", loop)))
        self.order.add(HOST, self.points[event])

    def synchronize(self) -> None:
        self.emit("cuda.synchronize()")
        self.order.add(HOST, *(self.order.add(one) for one in STREAMS))

    # ── What uses memory ─────────────────────────────────────────────────────────────────────

    def statement(self) -> None:
        kinds: dict[Callable[[], object], int] = {
            self.add: 2, self.add_other: 1, self.copy_over: 1, self.new: 1, self.free: 1,
        }  # fmt: skip
        if self.body is not None:
            kinds[self.temporary] = 2
        else:
            kinds |= {
                self.noise: 1, self.unneeded_wait: 1, self.look_at_any: 2, self.free: 3,
                self.new: 1, self.item: 1, self.to_device: 2, self.to_host: 3, self.add_on_host: 1,
                self.replay: 2, self.capture: 1,
            }  # fmt: skip
        self.rng.choices([*kinds], [*kinds.values()])[0]()

    def some(self) -> tuple[str, Piece]:
        return self.rng.choice(self.lanes), self.rng.choice(self.live)

    def new(self, source: Piece | None = None, lane: str = "", size: int = 0) -> Piece:
        lane = lane or self.rng.choice(self.lanes)
        name, number = self.name("t"), self.rng.randrange(1, 1 << 30)
        if source is None:
            value = torch.zeros(size or self.rng.choice(SIZES), dtype=torch.int64)
            made = f'torch.full(({len(value)},), {number}, device="cuda")'
        else:
            value, made = torch.zeros_like(source.value), f"{source.name}.clone()"
        piece = Piece(name, lane, value)

        def act() -> None:
            piece.value.copy_(source.value) if source else piece.value.fill_(number)

        uses = [whole(piece, True, True), *([whole(source)] if source else [])]
        self.do(lane, f'{name} = {made}; address["{name}"] = {name}.data_ptr()', uses, act)
        self.live.append(piece)
        return piece

    def add(self) -> None:
        lane, piece = self.some()
        number, size = self.rng.randrange(1, 1 << 30), len(piece.value)
        parts = ((0, size // 2, 1), (size // 2, size, 1), (0, size, 2), (1, size, 2))
        first, last, step = self.rng.choice(((0, size, 1), (0, size, 1), *parts))
        part = f"[{first}:{last}:{step}]" if step > 1 or last - first < size else ""
        x = piece.value[first:last:step]
        act = partial(x.addcmul_, x, x, value=2 * number)
        text = f"x = {piece.name}{part}; x.addcmul_(x, x, value={2 * number}); del x"
        self.do(lane, text, [Use(piece, True, first, last, step=step)], act)

    def pair(self) -> tuple[str, Piece, Piece]:
        lane, piece = self.some()
        alike = [one for one in self.live if len(one.value) == len(piece.value)]
        return lane, piece, self.rng.choice(alike)

    def add_other(self) -> None:
        lane, target, source = self.pair()
        if target is not source:
            self.combine(lane, target, source)

    def combine(self, lane: str, target: Piece, source: Piece) -> None:
        """Like `add`, another number in another order."""
        x = target.value
        act = partial(torch.addcmul, source.value, x, x, out=x)
        text = f"torch.addcmul({source.name}, {target.name}, {target.name}, out={target.name})"
        self.do(lane, text, [whole(target, True), whole(source)], act)

    def copy_over(self) -> None:
        lane, target, source = self.pair()
        if target is not source:
            self.copy(lane, target, source, "")

    def copy(self, lane: str, target: Piece, source: Piece, more: str) -> None:
        uses = [whole(target, True, True), whole(source)]
        if not target.pinned and not source.pinned:  # the host's side is staged, or waited for
            uses = [one for one in uses if one.piece.lane != HOST]
        act = partial(target.value.copy_, source.value)
        self.do(lane, f"{target.name}.copy_({source.name}{more})", uses, act)

    def free(self) -> None:
        free = [one for one in self.live if one not in self.fixed]
        if len(free) < 2:
            return
        piece = self.rng.choice(free)
        for lane in self.lanes:
            if lane != piece.lane and self.body is None and self.rng.random() < 0.2:
                self.recorded(piece, lane)
        if self.rng.random() < self.care:
            for step in [*self.steps]:
                used = any(use.piece is piece for use in step.uses)
                known = step.lane in piece.recorded or self.is_ordered(step.point, piece.lane)
                if used and not known:
                    if self.body is None and self.rng.random() < 0.5:
                        self.recorded(piece, step.lane)
                    else:
                        self.wait(step.lane, piece.lane)
        self.emit(f"del {piece.name}")
        self.live.remove(piece)
        self.gone.append(piece)
        piece.ends = [self.order.add(lane) for lane in sorted(piece.recorded)]
        if self.rng.random() < 0.6:
            self.new(lane=piece.lane, size=self.rng.choice((len(piece.value), SIZES[0])))

    def recorded(self, piece: Piece, lane: str) -> None:
        self.emit(f"{piece.name}.record_stream({lane})")
        piece.recorded.add(lane)

    def look_at_any(self) -> None:
        lane, piece = self.some()
        self.look(piece if self.rng.random() < 0.8 else self.rng.choice(self.host), lane)

    def look(self, piece: Piece, lane: str) -> None:
        """Keep what is in a piece now, to be compared in the end."""
        if piece.lane == HOST:
            name = self.name("r")
            self.do(HOST, f"{name} = {piece.name}.clone()", [whole(piece)], lambda: None)
        else:
            kept = self.new(piece, lane)
            self.live.remove(kept)
            name = kept.name
        self.right[name] = piece.value.clone()
        self.looks.add(self.steps[-1].point)

    def item(self) -> None:
        """A value that the host waits for."""
        lane, piece = self.some()
        name = self.name("r")
        self.do(lane, f"{name} = {piece.name}[:1].item()", [Use(piece, False, 0, 1)], lambda: None)
        self.right[name] = piece.value[0].clone()
        self.order.add(HOST, self.order.add(lane))

    def noise(self) -> None:
        """What orders nothing: time that passes, answers that nobody looks at."""
        lane = self.rng.choice(STREAMS)
        if self.points and self.rng.random() < 0.3:
            self.emit(f"{self.rng.choice([*self.points])}.query()")
        elif self.rng.random() < 0.3:
            self.emit(f"{lane}.query()")
        else:
            self.emit(f"cuda._sleep({self.rng.choice((2, 20, 200)) * 1000})", lane)

    def unneeded_wait(self) -> None:
        if self.points and self.rng.random() < 0.3:
            event = self.rng.choice([*self.points])
            if self.rng.random() < 0.3:
                self.host_waits_for_event(event)
            else:
                self.event_waits(self.rng.choice(STREAMS), event)
        elif self.rng.random() < 0.3:
            self.host_waits(self.rng.choice(STREAMS))
        else:
            self.wait(*self.rng.sample(STREAMS, 2))

    # ── The host ─────────────────────────────────────────────────────────────────────────────

    def new_on_host(self) -> None:
        name, number = self.name("h"), self.rng.randrange(1, 1 << 30)
        piece = Piece(name, HOST, torch.full((SIZES[0],), number), pinned=self.rng.random() < 0.8)
        self.emit(f"{name} = torch.full(({SIZES[0]},), {number}){'.pin_memory()' * piece.pinned}")
        self.host.append(piece)

    def add_on_host(self) -> None:
        piece, number = self.rng.choice(self.host), self.rng.randrange(1, 1 << 30)
        act = partial(piece.value.add_, number)
        self.do(HOST, f"{piece.name}.add_({number})", [whole(piece, True)], act)

    def to_device(self) -> None:
        self.move(inward=True)

    def to_host(self) -> None:
        self.move(inward=False)

    def move(self, inward: bool) -> None:
        there = self.rng.choice(self.host)
        alike = [one for one in self.live if len(one.value) == SIZES[0]]
        if not alike:
            return
        lane, here = self.rng.choice(STREAMS), self.rng.choice(alike)
        later = self.rng.random() < 0.8
        target, source = (here, there) if inward else (there, here)
        self.copy(lane, target, source, f", non_blocking={later}")
        if not later or (not inward and not there.pinned):
            self.order.add(HOST, self.order.add(lane))

    # ── Graphs ───────────────────────────────────────────────────────────────────────────────

    def capture(self) -> None:
        graph = Graph(self.name("g"), [], Order())
        self.emit(f"{graph.name} = cuda.CUDAGraph()")
        self.emit(f"with cuda.graph({graph.name}):")  # waits for all
        self.order.add(HOST, *(self.order.add(one) for one in STREAMS))
        origin = self.name("c")
        outside = self.order, self.steps, self.points, self.lanes, self.fixed
        self.order, self.steps, self.points, self.body = graph.order, [], {}, graph.body
        self.lanes, self.fixed = (origin, "s1"), {*self.live}
        there = [*self.live]
        self.emit(f"{origin} = cuda.current_stream()")
        self.emit(f"s1.wait_stream({origin})")
        self.order.add("s1", self.order.add(origin))
        for _ in range(self.rng.randint(2, 9)):
            self.statement()
        self.emit(f"{origin}.wait_stream(s1)")
        self.order, self.steps, self.points, self.lanes, self.fixed = outside
        self.body = None
        self.fixed = {*self.fixed, *self.live}
        self.live = there  # what the graph has made is looked at after a replay
        self.graphs.append(graph)
        self.replay()

    def temporary(self) -> None:
        """A tensor of the graph that goes into another one, and whose memory is used again."""
        lane, target, source = self.pair()
        made = self.new(source, lane)
        self.combine(self.rng.choice(self.lanes), target, made)
        if made in self.live and self.rng.random() < 0.8:
            self.free()

    def replay(self) -> None:
        if not self.graphs:
            return
        graph, lane = self.rng.choice(self.graphs), self.rng.choice(STREAMS)
        if self.rng.random() < self.care:
            self.protect(lane, [use for step in graph.body for use in step.uses])
        self.emit(f"{graph.name}.replay()", lane)
        start = self.order.add(lane, *graph.ends)  # a graph's replays are in order
        at: list[int] = []
        points = {step.point: place for place, step in enumerate(graph.body)}
        for step in graph.body:
            after = [at[place] for point, place in points.items() if place < len(at)
                     and graph.order.is_before(point, step.point)]  # fmt: skip
            at.append(self.order.add(f"{graph.name}.{len(self.order.before)}", start, *after))
            self.steps.append(Step(at[-1], step.line, lane, step.uses, step.act))
            self.perform(self.steps[-1])
        graph.ends = [self.order.add(lane, start, *at)]

    # ── What is known ────────────────────────────────────────────────────────────────────────

    def races(self) -> dict[Pair, bool]:
        """The pairs of lines that race; whether the wrong order of the two shows in the end.

        It need not where one race can hide another.
        """
        pairs: list[tuple[Step, Step, Use, Use]] = []
        for old, new in combinations(self.steps, 2):
            if self.order.is_before(old.point, new.point):
                continue
            for one in old.uses:
                for other in new.uses:
                    if conflict(one, other) or self.reuse(one, other, old.point):
                        pairs.append((old, new, one, other))
        rivals: dict[int, set[int]] = {}
        for old, new, _, _ in pairs:
            rivals.setdefault(old.point, set()).add(new.point)
            rivals.setdefault(new.point, set()).add(old.point)
        observed = self.observed({*rivals})
        found: dict[Pair, bool] = {}
        for old, new, one, _ in pairs:
            both = {old.point, new.point}
            shown = (new if one.writes else old).point in observed and not both & self.silent
            shown &= rivals[old.point] | rivals[new.point] <= both
            found[old.line, new.line] = found.get((old.line, new.line), True) and shown
        return found

    def observed(self, racing: set[int]) -> set[int]:
        """The points whose results reach a value that is kept, and through none that races."""
        reached: set[int] = set()
        inside: dict[Piece, set[int]] = {}  # the points that a piece depends on
        for step in self.steps:
            found = {step.point}
            if step.point not in racing:
                found.update(*(inside.get(use.piece, ()) for use in step.uses if not use.over))
            inside.update((use.piece, found) for use in step.uses if use.writes)
            if step.point in self.looks:
                reached |= found
        return reached

    def reuse(self, one: Use, other: Use, point: int) -> bool:
        """Whether another tensor writes to memory of one that is gone.

        point: of the use of the first. Memory that was waited for before it was given out again is
        in order.
        """
        different = one.piece is not other.piece and HOST not in (one.piece.lane, other.piece.lane)
        if not (different and other.writes):
            return False
        common = self.places(one) & self.places(other)
        for gone in self.gone:
            if gone is other.piece:
                break
            if common and any(self.order.is_before(point, end) for end in gone.ends):
                common -= self.places(whole(gone))
        return bool(common)

    def places(self, use: Use) -> set[int]:
        """The memory of the device that a use is of, in pieces of 512 bytes."""
        address = self.address[use.piece.name]
        first, last = (address + 8 * use.first) >> 9, (address + 8 * use.last) >> 9
        return {*range(first, max(last, first + 1))}


def conflict(one: Use, other: Use) -> bool:
    together = one.piece is other.piece and one.first < other.last and other.first < one.last
    apart = one.step == other.step == 2 and one.first != other.first
    return together and not apart and (one.writes or other.writes)


# ── Verdicts ─────────────────────────────────────────────────────────────────────────────────


class Verdict(NamedTuple):
    """What the virtual GPU makes of a program. lucky: races whose number is right by luck."""

    races: set[Pair]
    lucky: set[Pair]
    wrong: set[str]  # the values


def judged(program: Program) -> Verdict:
    with virtual.device() as cuda:
        names: dict[str, Any] = {"cuda": cuda, "address": program.address}
        gc.freeze()  # captures collect garbage
        exec(compile(program.source, "<drawn>", "exec"), names)
        cuda.synchronize()
        wrong = {
            name
            for name, right in program.right.items()
            if not torch.equal(torch.as_tensor(names[name]).cpu(), right)
        }
        races: set[Pair] = set()
        lucky: set[Pair] = set()
        for race in virtual.races():
            assert all(race.lines)
            pair = race.lines[0].number, race.lines[1].number
            (lucky if race.by_luck else races).add(pair)
    return Verdict(races | lucky, lucky - races, wrong)


def mistakes(program: Program) -> list[str]:
    """What the virtual GPU says of a program that is not so."""
    said = judged(program)
    known = program.races()
    found = [f"{pair} do not race" for pair in sorted(said.races - {*known})]
    missed = {pair[1] for pair in known} - {pair[1] for pair in said.races}
    found += [f"line {line} races, and is not reported" for line in sorted(missed)]
    shown = [pair for pair in said.races - said.lucky if known.get(pair)]
    if said.wrong and said.races == said.lucky:
        found.append(f"{sorted(said.wrong)} are wrong, and the report says nothing of it")
    if shown and not said.wrong:
        found.append(f"{sorted(shown)} are reported as wrong numbers, and all are right")
    return found


if __name__ == "__main__":
    if sys.argv[1] == "=":
        drawn = Program(int(sys.argv[2]))
        for number, text in enumerate(drawn.source.splitlines(), 1):
            print(f"{number:3} {text}")
        print(judged(drawn), drawn.races(), *mistakes(drawn), sep="\n")
        sys.exit()
    first, wrong, racing = int((*sys.argv, "0")[2]), 0, 0
    for seed in range(first, first + int(sys.argv[1])):
        drawn = Program(seed)
        found = mistakes(drawn)
        racing += bool(drawn.races())
        if found:
            wrong += 1
            print(seed, *found, sep="\n  ")
    print(f"{sys.argv[1]} programs, {racing} with races: {wrong} judged wrongly")
