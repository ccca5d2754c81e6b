"""Lab 05, torch.compile: the trials of its exercises, and the signs of what goes wrong in them.

What Dynamo captures is counted by a backend that runs each graph as it is: nothing is generated,
so a trial takes moments and needs no compiler.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..judging import Run, Tensor, Trial, judged, takes
from ..judging.values import make

Sign = Callable[[Run, int], bool]
_PATIENCE = 60.0  # seconds: the first compilation of a process loads much


class Graphs:
    """A backend of torch.compile that keeps the graphs it is given, and counts their runs."""

    def __init__(self) -> None:
        self.graphs: list[Any] = []
        self.runs = 0

    def __call__(self, module: Any, _: Any) -> Callable[..., Any]:
        self.graphs.append(module.graph)

        def run(*args: Any) -> Any:
            self.runs += 1
            return module(*args)

        return run

    @staticmethod
    def fresh() -> Graphs:
        """One in a process that has compiled nothing yet."""
        import torch
        from torch._dynamo.utils import counters

        torch.compiler.reset()
        counters.clear()
        return Graphs()

    @property
    def breaks(self) -> int:
        from torch._dynamo.utils import counters

        return sum(counters["graph_break"].values())

    @property
    def calls(self) -> list[int]:
        """The number of calls in each graph."""
        return [sum(node.op.startswith("call") for node in graph.nodes) for graph in self.graphs]


def _right(run: Run, rank: int, *names: str) -> bool:
    """Whether these parts of what a rank ended up with are right."""
    got, right = run.got(rank), run.right(rank)
    return all(got.get(name) == right[name] for name in names)


def _has(name: str, test: Callable[[Any, Any], bool]) -> Sign:
    """The values are right, and of another part `test(got, right)` holds."""
    return lambda run, rank: (
        _right(run, rank, "values") and test(run.got(rank)[name], run.right(rank)[name])
    )


# ── traffic ──────────────────────────────────────────────────────────────────────────────────

Operation = tuple[list[str], str]


@judged("traffic", lab="05", silent=True)
def traffic(draw: random.Random) -> Iterator[Trial]:
    """`traffic(operations, kept, size)`: bytes moved eagerly, and by one kernel."""
    fixed: list[tuple[list[Operation], list[str]]] = [
        ([(["x"], "a"), (["a"], "b"), (["b"], "c")], ["c"]),
        ([(["x", "x"], "a"), (["a", "y"], "b"), (["b", "x"], "c")], ["c"]),
        ([(["x", "y"], "a"), (["a"], "b"), (["a", "b"], "c")], ["a", "c"]),
        ([(["x", "y"], "a"), (["a", "x"], "b"), (["b"], "c")], ["a", "b"]),
        # Three inputs, of which two that are the same are no neighbours; a name within another.
        ([(["x", "y", "x"], "max"), (["max", "y"], "y2")], ["y2"]),
    ]
    for operations, kept in (*fixed, *(_chain(draw) for _ in range(3))):
        size = draw.choice((12, 1000, 4096))
        yield Trial(
            0,
            given=[(operations, kept, size)],
            right=[_traffic(operations, kept, size)],
            facts={"operations": operations, "kept": kept, "size": size},
        )


def _chain(draw: random.Random) -> tuple[list[Operation], list[str]]:
    """Operations of one or two inputs each, of which some results are wanted."""
    names = ["x", "y"]
    operations = []
    for name in "abcde"[: draw.randint(3, 5)]:
        operations.append(([draw.choice(names) for _ in range(draw.randint(1, 2))], name))
        names.append(name)
    made = [output for _, output in operations]
    return operations, sorted({made[-1], draw.choice(made)})


def _traffic(operations: Sequence[Operation], kept: Sequence[str], size: int) -> tuple[int, int]:
    made = {output for _, output in operations}
    eager = sum(len(set(inputs)) + 1 for inputs, _ in operations)
    read = {name for inputs, _ in operations for name in inputs} - made
    return eager * size, (len(read) + len(kept)) * size


# ── adjust ───────────────────────────────────────────────────────────────────────────────────


def _captured(answer: Any, batches: Sequence[Tensor]) -> dict[str, Any]:
    import torch

    graphs = Graphs.fresh()
    answer.through(lambda f: torch.compile(f, backend=graphs, dynamic=False))
    values, counts = [], []
    for x in batches:
        values.append(answer(make(x)))
        counts.append(len(graphs.graphs))
    return {
        "values": values,
        "first": counts[0],
        "graphs": counts[-1],
        "breaks": graphs.breaks,
    }


@judged("adjust", lab="05", play=_captured, silent=True)
def adjust(draw: random.Random) -> Iterator[Trial]:
    """`adjust(x)`: half of x or four times it, by its sum, and how many are positive added."""
    for length, shape, dtype in (
        (draw.randint(3, 8), None, "float32"),
        (6, (2, 3), "float64"),
        (300, (20, 15), "float32"),
    ):
        batches = [[*_quarters(draw, length - 1, sign), 0.0] for sign in (1, -1, 0, 1)]
        batches.append([-abs(number) for number in batches[0]])
        if length > 255:  # a byte does not hold the count
            batches.append([abs(number) + 1 for number in batches[0]])
        values = [Tensor.of(_adjusted(batch), dtype, shape) for batch in batches]
        yield Trial(
            1,
            given=[([Tensor.of(batch, dtype, shape) for batch in batches],)],
            right=[{"values": values, "first": 1, "graphs": 1, "breaks": 0}],
            patience=_PATIENCE,
            facts={"batches": batches, "dtype": dtype, "shape": shape},
            like=f"{length} numbers" + (f" of shape {list(shape)}" if shape else ""),
        )


def _quarters(draw: random.Random, length: int, sign: int) -> list[float]:
    """Numbers that halves and fourfolds are exact of; their sum has this sign, or is 0."""
    while True:
        numbers = [draw.choice((-1, 1)) * draw.randint(1, 40) / 4 for _ in range(length)]
        if _sign(sum(numbers)) == sign:
            return numbers


def _sign(number: float) -> int:
    return (number > 0) - (number < 0)


Batch = Sequence[float]


def _is_positive(batch: Batch, _: float) -> bool:
    return sum(batch) > 0


def _positive(batch: Batch, _: float) -> int:
    return sum(one > 0 for one in batch)


def _adjusted(
    batch: Batch,
    halves: Callable[[Batch, float], bool] = _is_positive,
    plus: Callable[[Batch, float], float] = _positive,
) -> list[float]:
    """`halves` and `plus` say of a number of the batch whether it is halved, what is added."""
    return [one * (0.5 if halves(batch, one) else 4) + plus(batch, one) for one in batch]


def _made_by(*ways: Callable[[Batch], list[float]]) -> Sign:
    """All results are those of one of these ways."""
    return lambda run, rank: any(
        run.got(rank)["values"]
        == [Tensor.of(way(batch), run.trial.dtype, run.trial.shape) for batch in run.trial.batches]
        for way in ways
    )


def _chosen_by(*halves: Callable[[Batch, float], bool]) -> Sign:
    return _made_by(*(functools.partial(_adjusted, halves=one) for one in halves))


def _counting(plus: Callable[[Batch, float], float]) -> Sign:
    return _made_by(functools.partial(_adjusted, plus=plus))


adjust.shows("one-branch", _chosen_by(lambda batch, _: True, lambda batch, _: False))
adjust.shows("other-branch", _chosen_by(lambda batch, _: sum(batch) <= 0))
adjust.shows("zero-sum", _chosen_by(lambda batch, _: sum(batch) >= 0))
adjust.shows("place-by-place", _chosen_by(lambda _, number: number > 0))
adjust.shows("no-count", _counting(lambda batch, _: 0))
adjust.shows("zero-counted", _counting(lambda batch, _: sum(one >= 0 for one in batch)))
adjust.shows("counted-by-itself", _counting(lambda _, number: number > 0))
adjust.shows("sum-for-count", _counting(lambda batch, _: sum(one for one in batch if one > 0)))
adjust.shows("nothing-captured", _has("graphs", lambda got, right: got == 0))
adjust.shows(
    "breaks",
    lambda run, rank: (
        _right(run, rank, "values")
        and run.got(rank)["breaks"] > 0
        and {name: run.got(rank)[name] for name in ("first", "graphs", "breaks")}
    ),
)
adjust.shows("recompiles", _has("graphs", lambda got, right: got > right))


# ── Warmup ───────────────────────────────────────────────────────────────────────────────────

_CALLS, _FULL, _ENOUGH = 260, 8, 4  # a byte does not hold the number of calls


def _warmed_up(answer: Any, batches: Sequence[Tensor]) -> dict[str, Any]:
    """Play two modules: one gets all batches but the last, the other one gets that."""
    import torch

    graphs = Graphs.fresh()
    values: list[Any] = []
    modules = [answer(), answer()]
    if isinstance(modules[1], torch.nn.Module):  # a call is a call, whatever the mode
        modules[1].eval()
    ways = [torch.compile(one, backend=graphs) for one in modules if takes(one, batches[0])]
    if len(ways) == len(modules):
        with torch.no_grad():
            values = [ways[0](make(x)) for x in batches[:-1]]
            values.append(ways[1](make(batches[-1])))
    made = len(graphs.graphs)
    return {"values": values, "captured": made > 0, "storm": made if made > _ENOUGH else 0}


@judged("Warmup", lab="05", play=_warmed_up, silent=True)
def warmup(draw: random.Random) -> Iterator[Trial]:
    """`Warmup()`: a module whose call number n returns x · min(n, 8) / 8, in few graphs."""
    for row, dtype in ((draw.randint(2, 4), "float32"), (3, "float64")):
        rows = [draw.randint(2, 9) for _ in range(_CALLS + 1)]
        numbers = [[draw.randint(1, 99) / 2 for _ in range(n * row)] for n in rows]
        shapes = [(n, row) for n in rows]

        def scaled(
            weights: Callable[[int], float],
            *,
            numbers: list[list[float]] = numbers,
            shapes: list[tuple[int, int]] = shapes,
            dtype: str = dtype,
        ) -> list[Tensor]:
            """Return all results, each by the weight of its number."""
            order = [*range(1, _CALLS + 1), 1]
            return [
                Tensor.of([weights(n) * x for x in one], dtype, shape)
                for n, one, shape in zip(order, numbers, shapes, strict=True)
            ]

        yield Trial(
            1,
            given=[
                (
                    [
                        Tensor.of(one, dtype, shape)
                        for one, shape in zip(numbers, shapes, strict=True)
                    ],
                )
            ],
            right=[
                {"values": scaled(_weight), "captured": True, "storm": 0},
            ],
            patience=_PATIENCE,
            facts={
                "made": {
                    "no-warmup": scaled(lambda n: 1),
                    "from-zero": scaled(lambda n: _weight(n - 1)),
                    "beyond": scaled(lambda n: n / _FULL),
                    "stuck": scaled(lambda n: 1 / _FULL),
                }
            },
            like=f"{_CALLS} calls with batches of {dtype}",
        )


def _weight(number: int) -> float:
    return min(number, _FULL) / _FULL


def _warmed(name: str) -> Sign:
    return lambda run, rank: run.got(rank)["values"] == run.trial.made[name]


warmup.shows("no-module", lambda run, rank: not run.got(rank)["values"])
for _name in ("no-warmup", "from-zero", "beyond", "stuck"):
    warmup.shows(_name, _warmed(_name))
warmup.shows(
    "shared-count",
    lambda run, rank: run.got(rank)["values"][-1] == run.trial.made["no-warmup"][-1],
)
warmup.shows("nothing-captured", _has("captured", lambda got, right: not got))
warmup.shows(
    "storm",
    lambda run, rank: (
        _right(run, rank, "values")
        and run.got(rank)["storm"]
        and {"graphs": run.got(rank)["storm"]}
    ),
)


# ── by_block ─────────────────────────────────────────────────────────────────────────────────


def _compiled_stack(answer: Any, x: Tensor, gains: list[float]) -> dict[str, Any]:
    import torch

    class Gain(torch.nn.Module):
        def __init__(self, gain: float):
            super().__init__()
            self.gain = torch.nn.Parameter(torch.tensor(gain))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.gain

    class Block(torch.nn.Module):
        def __init__(self, gain: float):
            super().__init__()
            self.gain = Gain(gain)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.gain(x)) + 1

    graphs = Graphs.fresh()
    model = torch.nn.Sequential(*map(Block, gains))
    returned = answer(model, graphs)
    if not takes(returned, x):
        return {"values": None, "graphs": 0, "runs": 0, "calls": []}
    values = returned(make(x).requires_grad_())  # as all that one block gives the next
    return {
        "values": values,
        "graphs": len(graphs.graphs),
        "runs": graphs.runs,
        "calls": graphs.calls,
        "has_gradients": isinstance(values, torch.Tensor) and values.requires_grad,
        "trains": all(one.training for one in model.modules()),
    }


@judged("by_block", lab="05", play=_compiled_stack, silent=True)
def by_block(draw: random.Random) -> Iterator[Trial]:
    """`by_block(model, backend)`: equal blocks, of which one is compiled, and all run its code."""
    for count in draw.sample((3, 5, 6), 2):
        while True:
            gains = [draw.choice((0.5, 1.0, 2.0, -1.0)) for _ in range(count)]
            numbers = [draw.randint(-8, 8) / 2 for _ in range(6)]
            right = _stacked(numbers, gains)
            alone = [_stacked(numbers, [gain] * count) for gain in (gains[0], gains[-1])]
            first_ones = [_stacked(numbers, gains[:many]) for many in range(1, count + 1)]
            if not any(one in alone for one in first_ones):
                break
        yield Trial(
            1,
            given=[(Tensor.of(numbers), gains)],
            right=[
                {
                    "values": Tensor.of(right),
                    "graphs": 1,
                    "runs": count,
                    "calls": [3],
                    "has_gradients": True,
                    "trains": True,
                }
            ],
            patience=_PATIENCE,
            facts={"count": count, "alone": [Tensor.of(one) for one in alone]},
            like=f"{count} blocks",
        )


def _stacked(numbers: list[float], gains: Sequence[float]) -> list[float]:
    """Return what the blocks make of these numbers, one block after the other."""
    for gain in gains:
        numbers = [max(0.0, number * gain) + 1 for number in numbers]
    return numbers


def _stack(**parts: Callable[[Run], Any]) -> Sign:
    """The values are right, and these parts are so."""
    return lambda run, rank: (
        _right(run, rank, "values")
        and all(run.got(rank)[name] == part(run) for name, part in parts.items())
    )


by_block.shows("no-model", lambda run, rank: not isinstance(run.got(rank)["values"], Tensor))
by_block.shows("same-block", lambda run, rank: run.got(rank)["values"] in run.trial.alone)
by_block.shows("no-gradients", _has("has_gradients", lambda got, right: not got))
by_block.shows("set-to-eval", _has("trains", lambda got, right: not got))
by_block.shows("not-compiled", _stack(graphs=lambda run: 0))
by_block.shows(
    "one-large-graph", _stack(graphs=lambda run: 1, calls=lambda run: [3 * run.trial.count])
)
by_block.shows("parts", _stack(graphs=lambda run: 1, calls=lambda run: [1]))
by_block.shows("one-block-only", _stack(graphs=lambda run: 1, runs=lambda run: 1))
by_block.shows(
    "some-blocks",
    lambda run, rank: (
        _stack(graphs=lambda run: 1, calls=lambda run: [3])(run, rank)
        and 1 < run.got(rank)["runs"] < run.trial.count
        and {"runs": run.got(rank)["runs"]}
    ),
)
by_block.shows("a-graph-each", _stack(graphs=lambda run: run.trial.count))
by_block.shows(
    "several-graphs",
    lambda run, rank: (
        _right(run, rank, "values")
        and run.got(rank)["graphs"] > 1
        and {"graphs": run.got(rank)["graphs"]}
    ),
)


# ── beside ───────────────────────────────────────────────────────────────────────────────────


def _beside(
    answer: Any, x: Tensor, a: Tensor, b: Tensor, groups: list[list[int]]
) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    graphs = Graphs.fresh()
    answer.through(lambda f: torch.compile(f, backend=graphs, dynamic=False))
    group, _ = dist.new_subgroups_by_enumeration(groups)
    assert group is not None
    values = answer(make(x), make(a), make(b), group.group_name)
    return {
        "values": values,
        "graphs": len(graphs.graphs),
        "breaks": graphs.breaks,
        "order": [step for graph in graphs.graphs for step in _steps(graph)],
    }


def _steps(graph: Any) -> list[str]:
    """Return the steps of Dynamo's graph: "start", "product", "wait".

    A product is told by what it is made of, whatever it is called: of two inputs that are not
    summed, and of no sum. Its nodes in a row are one; to add a number (Python's sum begins with
    0) is none.
    """
    made_of: dict[Any, set[Any]] = {}  # of a node: the graph's inputs and starts behind it
    for node in graph.nodes:
        behind = set().union(*(made_of[one] for one in node.all_input_nodes))
        own = {node} if node.op == "placeholder" or _is(node, "all_reduce") else set()
        made_of[node] = behind | own
    starts = {node for node in graph.nodes if _is(node, "all_reduce")}
    summed = set().union(*(made_of[node] for node in starts))
    found: list[str] = []
    for node in graph.nodes:
        if node in starts:
            found.append("start")
        elif _is(node, "wait_tensor"):
            found.append("wait")
        elif node.op == "output" or _adds_a_number(node):
            continue
        elif len(made_of[node] - summed) > 1 and not made_of[node] & starts:
            found.append("product")
    return [
        step
        for step, alike in itertools.groupby(found)
        for _ in (alike if step != "product" else range(1))
    ]


def _adds_a_number(node: Any) -> bool:
    return node.target is operator.add and len(node.all_input_nodes) == 1


def _is(node: Any, name: str) -> bool:
    """Whether a node calls this collective operation, or its form that writes into its input."""
    return node.op.startswith("call") and name in f"{node.target} {node.name}"


@judged("beside", lab="05", play=_beside, called="the result")
def beside(draw: random.Random) -> Iterator[Trial]:
    """`beside(x, a, b, group)`: x summed over the ranks, and meanwhile a product, added to it."""
    for nproc, alone in ((2, []), (3, [draw.randrange(3)])):
        groups = [[rank for rank in range(nproc) if rank not in alone], *([alone] if alone else [])]
        whole = lambda n: [float(draw.randint(-9, 9)) for _ in range(n)]  # noqa: E731
        mine, left, right = ([whole(4) for _ in range(nproc)] for _ in range(3))
        everything = _summed(mine)
        own_group = [next(one for one in groups if rank in one) for rank in range(nproc)]
        totals = [_summed([mine[one] for one in group]) for group in own_group]
        products = [_product(a, b) for a, b in zip(left, right, strict=True)]
        square = (2, 2)
        yield Trial(
            nproc,
            given=[
                (*(Tensor.of(one[rank], shape=square) for one in (mine, left, right)), groups)
                for rank in range(nproc)
            ],
            right=[
                {
                    "values": Tensor.of(_summed([total, own]), shape=square),
                    "graphs": 1,
                    "breaks": 0,
                    "order": ["start", "product", "wait"],
                }
                for total, own in zip(totals, products, strict=True)
            ],
            patience=_PATIENCE,
            facts={
                "alone": [
                    Tensor.of(_summed([one, own]), shape=square)
                    for one, own in zip(mine, products, strict=True)
                ],
                "of_all": [Tensor.of(_summed([everything, own]), shape=square) for own in products],
                "all_summed": [
                    Tensor.of(_summed([total, *(products[one] for one in group)]), shape=square)
                    for total, group in zip(totals, own_group, strict=True)
                ],
            },
            like="".join([f"{nproc} ranks", *(f", {one} alone in a group" for one in alone)]),
        )


def _summed(rows: Sequence[Sequence[float]]) -> list[float]:
    return [sum(column) for column in zip(*rows, strict=True)]


def _product(a: Sequence[float], b: Sequence[float]) -> list[float]:
    return [a[2 * i] * b[j] + a[2 * i + 1] * b[2 + j] for i in range(2) for j in range(2)]


def _is_of_all(run: Run, rank: int) -> bool:
    """Whether x was summed over all ranks, and not over the group."""
    return bool(run.got(rank)["values"] == run.trial.of_all[rank])


def _is_a_sum(run: Run, rank: int) -> bool:
    return _right(run, rank, "values") or _is_of_all(run, rank)


def _order(*order: str) -> Sign:
    return _has("order", lambda got, right: got == list(order))


beside.shows(  # first: what is read before the sum is there may be x, the sum, or neither
    "no-wait",
    lambda run, rank: (
        not run.got(rank)["breaks"]
        and "start" in run.got(rank)["order"]
        and "wait" not in run.got(rank)["order"]
    ),
)
beside.shows(
    "not-reduced", lambda run, rank: bool(run.got(rank)["values"] == run.trial.alone[rank])
)
beside.shows(
    "breaks",
    lambda run, rank: (
        _is_a_sum(run, rank) and run.got(rank)["breaks"] > 0 and {"graphs": run.got(rank)["graphs"]}
    ),
)
beside.shows(
    "product-summed", lambda run, rank: bool(run.got(rank)["values"] == run.trial.all_summed[rank])
)
beside.shows(
    "waits-at-once",
    _has("order", lambda got, _: got in (["start", "wait"], ["start", "wait", "product"])),
)
beside.shows("starts-late", _order("product", "start", "wait"))
beside.shows(
    "other-collective",
    lambda run, rank: _is_a_sum(run, rank) and "start" not in run.got(rank)["order"],
)
beside.shows("whole-world", _is_of_all)
beside.shows("waits-again", _has("order", lambda got, _: got.count("wait") > 1))


# ── blocks_needed ────────────────────────────────────────────────────────────────────────────


Mask = Callable[[int, int], bool]


def _window(width: int) -> Mask:
    return lambda q, k: q - width <= k <= q


def _within(block: int, row: int, column: int) -> Mask:
    """In blocks on the diagonal and above it, one pair, at the same place in all of them."""
    return lambda q, k: (q % block, k % block) == (row, column) and k // block >= q // block


def _count_blocks(answer: Any, pairs: frozenset[tuple[int, int]], length: int, block: int) -> Any:
    return answer(lambda q, k: (q, k) in pairs, length, block)


def _needed(
    mask: Mask, side: int, block: int, within: Sequence[int], enough: Callable[..., bool] = any
) -> set[tuple[int, int]]:
    """The blocks of which some pairs count, or all: of the pairs at these places within a block."""
    return {
        (i, j)
        for i, j in itertools.product(range(side), repeat=2)
        if enough(mask(i * block + q, j * block + k) for q in within for k in within)
    }


@judged("blocks_needed", lab="05", play=_count_blocks, silent=True, further=True)
def blocks_needed(draw: random.Random) -> Iterator[Trial]:
    """`blocks_needed(mask, length, block)`: blocks of an attention matrix with anything in them."""
    for mask, side, block, rule in _masks(draw):
        length = block * side
        pairs = {(q, k) for q, k in itertools.product(range(length), repeat=2) if mask(q, k)}
        touched = _needed(mask, side, block, range(block))
        yield Trial(
            0,
            given=[(frozenset(pairs), length, block)],
            right=[len(touched)],
            facts={
                "side": side,
                "pairs": len(pairs),
                "size": block,
                "rule": rule,
                "full": len(_needed(mask, side, block, range(block), enough=all)),
                "first": len(_needed(mask, side, block, [0])),
                "corners": len(_needed(mask, side, block, [0, block - 1])),
                "below": sum(j <= i for i, j in touched),
            },
            like=f"length {length} and blocks of {block}",
        )


def _masks(draw: random.Random) -> Iterator[tuple[Mask, int, int, str]]:
    """Masks, with how many blocks there are beside each other, of what size, and the rule."""
    for blocks in (0, 1):  # that a window has, at least
        block, side = draw.choice((3, 4, 5)), draw.randint(4, 6)
        width = draw.randint(max(1, blocks * block), (blocks + 1) * block - 1)
        rule = f"each token sees itself and the {width} before it"
        yield _window(width), side, block, rule
    block = draw.choice((4, 5))
    for row, column in ((1, 1), (1, 0), (0, 1), (block - 1, block - 1)):
        rule = f"in each block on the diagonal or after it, row {row} sees column {column}"
        yield _within(block, row, column), draw.randint(4, 6), block, rule
    block, side = draw.choice((3, 4)), draw.randint(4, 6)
    rule = f"tokens see their own document; the first one is {2 * block} long, all others {block}"
    yield lambda q, k: max(q // block, 1) == max(k // block, 1), side, block, rule
    side, block = 10, 12  # more than half of the blocks, with one pair each, anywhere in it
    some = draw.sample(list(itertools.product(range(side), repeat=2))[1:], 60)
    pairs = {
        (i * block + draw.randrange(block), j * block + draw.randrange(block)) for i, j in some
    }
    yield lambda q, k: (q, k) in pairs, side, block, "in 60 blocks one pair counts, anywhere in it"


# ── bound ────────────────────────────────────────────────────────────────────────────────────


Rows = Sequence[Sequence[float]]


def _sums(
    x: Rows,
    w: Rows,
    factor: float,
    size: Callable[[float], float] = abs,
    other: Callable[[float], float] = abs,
) -> Tensor:
    """`factor` times the product of what `size` makes of x and `other` of w."""
    columns = list(zip(*w, strict=True))
    numbers = [
        factor * sum(size(a) * other(b) for a, b in zip(row, column, strict=True))
        for row in x
        for column in columns
    ]
    return Tensor.of(numbers, "float64", (len(x), len(columns)))


def _sizes(tensor: Tensor) -> Tensor:
    return Tensor.of(map(abs, tensor.numbers), tensor.dtype, tensor.shape)


@judged("bound", lab="05", silent=True, further=True)
def bound(draw: random.Random) -> Iterator[Trial]:
    """`bound(x, w, u)`: how far sums of products, in any order, can be from the exact ones."""
    for rows, terms, columns, most in (
        (2, 4, 3, 8),
        (3, draw.randint(5, 9), 2, 8),
        (1, 16, 1, 2**20),  # more digits than a type of 16 bits has, and larger
    ):
        x = [[draw.randint(-most, most) / 2 for _ in range(terms)] for _ in range(rows)]
        w = [[draw.randint(-8, 8) / 4 for _ in range(columns)] for _ in range(terms)]
        unit = 2.0 ** -draw.choice((8, 11, 24))
        part = terms * unit
        sums = functools.partial(_sums, x, w)
        given = (
            Tensor.of(itertools.chain(*x), "float64", (rows, terms)),
            Tensor.of(itertools.chain(*w), "float64", (terms, columns)),
            unit,
        )
        yield Trial(
            1,
            given=[given],
            right=[sums(part)],
            facts={
                "terms": terms,
                "without_terms": sums(unit),
                "cancelled": sums(part, float, float),
                "signed": _sizes(sums(part, float, float)),
                "sizes_of_x": sums(part, abs, float),
                "sizes_of_w": sums(part, float, abs),
                "root": sums(terms**0.5 * unit),
                "without_u": sums(terms),
                "u_twice": sums(part * unit),
                "exact": sums(part / (1 - part)),
            },
            like=f"{terms} terms",
        )


def _other_count(run: Run, rank: int) -> Any:
    """Another number than that of the terms stands before all sums."""
    pairs = list(zip(run.got(rank).numbers, run.trial.without_terms.numbers, strict=True))
    counts = [got / one for got, one in pairs if one]
    if not counts or counts[0] <= 0 or not all(math.isclose(n, counts[0]) for n in counts):
        return False
    return {"count": f"{counts[0]:.4g}"}


def _larger(run: Run, rank: int) -> Any:
    pairs = zip(run.got(rank).numbers, run.right(rank).numbers, strict=True)
    return all(got >= right * (1 - 1e-6) for got, right in pairs)


bound.shows("other-count", _other_count)
bound.shows("larger", _larger)
