"""Lab 05, torch.compile: the trials of its exercises, and the signs of what goes wrong in them.

What Dynamo captures is counted by a backend that runs each graph as it is: nothing is generated,
so a trial takes moments and needs no compiler.
"""

from __future__ import annotations

import copy
import itertools
import math
import operator
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..judging import Noted, Run, Tensor, Trial, judged, same, takes
from ..judging.values import make, see

Sign = Callable[[Run, int], Any]
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
    def reason(self) -> str:
        """Dynamo's words for the first graph break, their first line; "" without one."""
        from torch._dynamo.utils import counters

        return next(iter(counters["graph_break"]), "").partition("\n")[0]

    @property
    def calls(self) -> list[int]:
        """The number of calls in each graph."""
        return [sum(node.op.startswith("call") for node in graph.nodes) for graph in self.graphs]


@contextmanager
def _compiling() -> Iterator[None]:
    """What Dynamo asserts, it asserts of the answer."""
    try:
        yield
    except AssertionError as error:
        raise RuntimeError(str(error)) from error


def _noted(name: str, test: Callable[[Any, Run], bool]) -> Sign:
    """Whether `test(noted, run)` holds of what was noted; the sentence may use all that was."""
    return lambda run, rank: test(run.noted[rank][name], run) and run.noted[rank]


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


def _captured(answer: Any, batches: Sequence[Tensor]) -> Noted:
    import torch

    graphs = Graphs.fresh()
    answer.through(lambda f: torch.compile(f, backend=graphs, dynamic=False))
    values, counts = [], []
    with _compiling():
        for x in batches:
            values.append(answer(make(x)))
            counts.append(len(graphs.graphs))
    noted = {"first": counts[0], "graphs": counts[-1], "breaks": graphs.breaks}
    return Noted(values, noted | {"reason": graphs.reason})


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
        yield Trial(
            1,
            given=[([Tensor.of(batch, dtype, shape) for batch in batches],)],
            right=[[Tensor.of(_adjusted(batch), dtype, shape) for batch in batches]],
            patience=_PATIENCE,
            like=f"{length} numbers" + (f" of shape {list(shape)}" if shape else ""),
        )


def _adjusted(batch: list[float]) -> list[float]:
    factor = 0.5 if sum(batch) > 0 else 4
    return [one * factor + sum(other > 0 for other in batch) for one in batch]


def _quarters(draw: random.Random, length: int, sign: int) -> list[float]:
    """Numbers that halves and fourfolds are exact of; their sum has this sign, or is 0."""
    while True:
        numbers = [draw.choice((-1, 1)) * draw.randint(1, 40) / 4 for _ in range(length)]
        if _sign(sum(numbers)) == sign:
            return numbers


def _sign(number: float) -> int:
    return (number > 0) - (number < 0)


adjust.demands("nothing-captured", _noted("graphs", lambda count, _: count == 0))
adjust.demands("breaks", _noted("first", lambda count, _: count > 1))
adjust.demands("left-out", _noted("breaks", lambda count, _: count > 0))
adjust.demands("recompiles", _noted("graphs", lambda count, _: count > 1))


# ── Warmup ───────────────────────────────────────────────────────────────────────────────────

_FULL, _ENOUGH = 8, 4


def _warmed_up(answer: Any, batches: Sequence[Tensor]) -> Noted | None:
    """Play two modules: one gets all batches but the last, the other one gets that."""
    import torch

    graphs = Graphs.fresh()
    modules = [answer(), answer()]
    if not all(takes(one, batches[0]) for one in modules):
        return None
    if isinstance(modules[1], torch.nn.Module):  # a call is a call, whatever the mode
        modules[1].eval()
    ways = [torch.compile(one, backend=graphs) for one in modules]
    with torch.no_grad(), _compiling():
        values = [ways[0](make(x)) for x in batches[:-1]]
        values.append(ways[1](make(batches[-1])))
    return Noted(values, {"graphs": len(graphs.graphs), "calls": len(batches)})


@judged("Warmup", lab="05", play=_warmed_up, silent=True, called="the calls' results")
def warmup(draw: random.Random) -> Iterator[Trial]:
    """`Warmup()`: a module whose call number n returns x · min(n, 8) / 8, in few graphs."""
    for calls, row, dtype in (
        (20, draw.randint(2, 4), "float32"),
        (260, 3, "float64"),  # a byte does not hold this number
    ):
        given, right = [], []
        rows = [draw.randint(2, 9) for _ in range(calls)]
        for number, many in zip((*range(1, calls + 1), 1), (rows[0], *rows), strict=True):
            shape = (many, row)
            x = [draw.randint(1, 99) / 2 for _ in range(many * row)]
            given.append(Tensor.of(x, dtype, shape))
            weight = min(number, _FULL) / _FULL
            right.append(Tensor.of([weight * one for one in x], dtype, shape))
        yield Trial(
            1,
            given=[(given,)],
            right=[right],
            patience=_PATIENCE,
            like=f"{calls} calls with batches of {dtype}",
        )


def _starts_again(run: Run, rank: int) -> bool:
    """The first calls are right, and that of the other module."""
    got, right = run.got(rank), run.right(rank)
    return same([*got[:_FULL], got[-1]], [*right[:_FULL], right[-1]])


warmup.shows("starts-again", _starts_again)
warmup.shows("shared-count", lambda run, rank: same(run.got(rank)[-1], run.trial.given[0][0][-1]))
warmup.demands("nothing-captured", _noted("graphs", lambda count, _: count == 0))
warmup.demands("storm", _noted("graphs", lambda count, _: count > _ENOUGH))


# ── by_block ─────────────────────────────────────────────────────────────────────────────────


def _compiled_stack(answer: Any, x: Tensor, gains: list[float]) -> Noted | None:
    import torch

    # Whoever asks Inductor is told so at once.
    sys.modules["torch._inductor.compile_fx"] = None  # type: ignore[assignment]

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

    def gradients(values: Any, model: torch.nn.Module, x: torch.Tensor) -> list[Any] | None:
        if not isinstance(values, torch.Tensor) or not values.requires_grad:
            return None
        values.sum().backward()
        return [one.grad for one in (x, *model.parameters())]

    graphs = Graphs.fresh()
    model = torch.nn.Sequential(*map(Block, gains))
    plain, x_plain, x_given = copy.deepcopy(model), *(make(x).requires_grad_() for _ in range(2))
    expected = gradients(plain(x_plain), plain, x_plain)
    returned = answer(model, graphs)
    if not takes(returned, x):
        return None
    values = returned(x_given)
    noted = {
        "gradients": see(gradients(values, model, x_given)) == see(expected),
        "graphs": len(graphs.graphs),
        "runs": graphs.runs,
        "calls": graphs.calls,
        "has_gradients": isinstance(values, torch.Tensor) and values.requires_grad,
        "trains": all(one.training for one in model.modules()),
    }
    return Noted(values, noted)


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
            right=[Tensor.of(right)],
            patience=_PATIENCE,
            facts={"count": count},
            like=f"{count} blocks",
        )


def _stacked(numbers: list[float], gains: Sequence[float]) -> list[float]:
    """Return what the blocks make of these numbers, one block after the other."""
    for gain in gains:
        numbers = [max(0.0, number * gain) + 1 for number in numbers]
    return numbers


by_block.fails(
    "other-backend",
    lambda run, rank: any("_inductor.compile_fx" in one.message for one in run.job.failures),
)
by_block.demands("no-gradients", _noted("has_gradients", lambda has, _: not has))
by_block.demands("other-gradients", _noted("gradients", lambda same, _: not same))
by_block.demands("set-to-eval", _noted("trains", lambda trains, _: not trains))
by_block.demands("not-compiled", _noted("graphs", lambda count, _: count == 0))
by_block.demands(
    "one-large-graph", _noted("calls", lambda calls, run: calls == [3 * run.trial.count])
)
by_block.demands("parts", _noted("calls", lambda calls, _: {*calls} <= {1, 2}))
by_block.demands("a-graph-each", _noted("graphs", lambda count, run: count == run.trial.count))
by_block.demands("several-graphs", _noted("graphs", lambda count, _: count > 1))
by_block.demands("one-block-only", _noted("runs", lambda runs, _: runs == 1))
by_block.demands("some-blocks", _noted("runs", lambda runs, run: runs < run.trial.count))


# ── beside ───────────────────────────────────────────────────────────────────────────────────


def _beside(answer: Any, x: Tensor, a: Tensor, b: Tensor, groups: list[list[int]]) -> Noted:
    import torch
    import torch.distributed as dist

    graphs = Graphs.fresh()
    answer.through(lambda f: torch.compile(f, backend=graphs, dynamic=False))
    group, _ = dist.new_subgroups_by_enumeration(groups)
    assert group is not None
    values = answer(make(x), make(a), make(b), group.group_name)
    noted = {
        "graphs": len(graphs.graphs),
        "breaks": graphs.breaks,
        "order": [step for graph in graphs.graphs for step in _steps(graph)],
    }
    return Noted(values, noted)


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
            behind = made_of[node]
            is_for_it = behind & starts and not behind - starts - summed
            found.append("wait" if is_for_it else "wait for another")
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
        products = [_product(a, b) for a, b in zip(left, right, strict=True)]
        own_group = [next(one for one in groups if rank in one) for rank in range(nproc)]
        square = (2, 2)
        yield Trial(
            nproc,
            given=[
                (*(Tensor.of(one[rank], shape=square) for one in (mine, left, right)), groups)
                for rank in range(nproc)
            ],
            right=[
                Tensor.of(_summed([own, *(mine[one] for one in group)]), shape=square)
                for own, group in zip(products, own_group, strict=True)
            ],
            patience=_PATIENCE,
            facts={
                "alone": [
                    Tensor.of(_summed([own, one]), shape=square)
                    for own, one in zip(products, mine, strict=True)
                ]
            },
            like="".join([f"{nproc} ranks", *(f", {one} alone in a group" for one in alone)]),
        )


def _summed(rows: Sequence[Sequence[float]]) -> list[float]:
    return [sum(column) for column in zip(*rows, strict=True)]


def _product(a: Sequence[float], b: Sequence[float]) -> list[float]:
    return [a[2 * i] * b[j] + a[2 * i + 1] * b[2 + j] for i in range(2) for j in range(2)]


def _no_wait(run: Run, rank: int) -> Any:
    """What is read before the sum is there may be x, the sum, or neither."""
    noted = run.noted[rank]
    return not noted["breaks"] and "start" in noted["order"] and "wait" not in noted["order"]


beside.shows("no-wait", _no_wait)
beside.shows("not-reduced", lambda run, rank: same(run.got(rank), run.trial.alone[rank]))
beside.demands("no-wait", _no_wait)
beside.demands("breaks", _noted("breaks", lambda count, _: count > 0))
beside.demands("other-collective", _noted("order", lambda order, _: "start" not in order))
beside.demands("waits-again", _noted("order", lambda order, _: order.count("wait") > 1))
beside.demands(
    "starts-late", _noted("order", lambda order, _: "product" in order[: order.index("start")])
)
beside.demands("waits-at-once", _noted("order", lambda order, _: order[-2:] != ["product", "wait"]))


# ── blocks_needed ────────────────────────────────────────────────────────────────────────────


Mask = Callable[[int, int], bool]


def _window(width: int) -> Mask:
    return lambda q, k: q - width <= k <= q


def _within(block: int, row: int, column: int) -> Mask:
    """In blocks on the diagonal and above it, one pair, at the same place in all of them."""
    return lambda q, k: (q % block, k % block) == (row, column) and k // block >= q // block


def _count_blocks(answer: Any, pairs: frozenset[tuple[int, int]], length: int, block: int) -> Any:
    return answer(lambda q, k: (q, k) in pairs, length, block)


@judged("blocks_needed", lab="05", play=_count_blocks, silent=True, further=True)
def blocks_needed(draw: random.Random) -> Iterator[Trial]:
    """`blocks_needed(mask, length, block)`: blocks of an attention matrix with anything in them."""
    for mask, side, block, rule in _masks(draw):
        length = block * side
        pairs = {(q, k) for q, k in itertools.product(range(length), repeat=2) if mask(q, k)}
        yield Trial(
            0,
            given=[(frozenset(pairs), length, block)],
            right=[len({(q // block, k // block) for q, k in pairs})],
            facts={"rule": rule},
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


@judged("bound", lab="05", silent=True, further=True)
def bound(draw: random.Random) -> Iterator[Trial]:
    """`bound(x, w, u)`: how far sums of products, in any order, can be from the exact ones."""
    for rows, terms, columns, most in (
        (2, 4, 3, 8),
        (3, draw.randint(5, 9), 2, 8),
        (1, 16, 1, 2**20),  # more digits than a type of 16 bits has, and larger
    ):
        x = [[draw.randint(-most, most) / 2 for _ in range(terms)] for _ in range(rows)]
        w = [[draw.randint(-8, 8) / 4 for _ in range(terms)] for _ in range(columns)]
        unit = 2.0 ** -draw.choice((8, 11, 24))
        sizes = [
            unit * sum(abs(a * b) for a, b in zip(row, column, strict=True))
            for row in x
            for column in w
        ]
        yield Trial(
            1,
            given=[
                (
                    Tensor.of(itertools.chain(*x), "float64", (rows, terms)),
                    Tensor.of(itertools.chain(*zip(*w, strict=True)), "float64", (terms, columns)),
                    unit,
                )
            ],
            right=[Tensor.of([terms * one for one in sizes], "float64", (rows, columns))],
            facts={"terms": terms},
            like=f"{terms} terms",
        )


def _other_count(run: Run, rank: int) -> Any:
    """Another number than that of the terms stands before all sums."""
    pairs = zip(run.got(rank).numbers, run.right(rank).numbers, strict=True)
    counts = [run.trial.terms * got / right for got, right in pairs if right]
    if not counts or counts[0] <= 0 or not all(math.isclose(n, counts[0]) for n in counts):
        return False
    return {"count": f"{counts[0]:.4g}"}


def _larger(run: Run, rank: int) -> Any:
    pairs = zip(run.got(rank).numbers, run.right(rank).numbers, strict=True)
    return all(got >= right * (1 - 1e-6) for got, right in pairs)


bound.shows("other-count", _other_count)
bound.shows("larger", _larger)
