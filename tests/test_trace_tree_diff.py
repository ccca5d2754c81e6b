"""Two trees of operators: what is new, gone or slower is named in its place, and nothing else."""

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lockstep import Trace
from lockstep.trace import Kind, Slice, TraceError


@dataclass
class Op:
    """An operator that takes 1 by itself before and after each child, and launches gpu ns."""

    name: str
    children: list = field(default_factory=list)
    gpu: int = 0
    own: int = 10


def slices(ops, rank=0, thread="thread 1", begin=0):
    """A step of these operators, and the kernels that they launched."""
    found, correlation = [], [begin * 1000]

    def grow(op, start):
        at = start + op.own
        if op.gpu:
            correlation[0] += 1
            found.append(
                Slice(rank, thread, "cudaLaunchKernel", start, 1, Kind.LAUNCH,
                      correlation=correlation[0])
            )  # fmt: skip
            found.append(
                Slice(rank, "stream 7", "kernel", start + 5, op.gpu, Kind.COMPUTE, 7,
                      correlation[0])
            )  # fmt: skip
        for child in op.children:
            at = grow(child, at)
        found.append(Slice(rank, thread, op.name, start, at - start, Kind.OPERATOR))
        return at

    at = begin
    for op in ops:
        at = grow(op, at)
    return found


def traced(*ops, **how):
    return Trace.from_slices(slices(ops, **how))


def layer(name="layer", gpu=100):
    return Op(name, [Op("mm", gpu=gpu), Op("relu", gpu=gpu // 10)])


def changed(found):
    return [(one.what, "/".join(one.path), one.name, one.before[0], one.after[0])
            for one in found.changes if one.before != one.after]  # fmt: skip


def test_a_layer_more_in_the_middle_is_all_that_is_new():
    head, tail = Op("embed", gpu=50), Op("loss", gpu=20)
    other = Op("layer", [Op("mm", gpu=300), Op("gelu", gpu=7), Op("mm", gpu=100)])
    before = traced(Op("model", [head, layer(), layer(), tail]))
    after = traced(Op("model", [head, layer(), other, layer(), tail]))
    found = before.tree_diff(after)
    assert changed(found) == [("new", "model", "layer", 0, 1)]
    assert found.new[0].after == (1, 40, 407)
    assert (found.nodes, found.same) == ((9, 13), 9)
    back = after.tree_diff(before)
    assert changed(back) == [("gone", "model", "layer", 1, 0)]
    assert "gone  " in str(back) and "9 operators of 13 before and 9 after" in str(back)


def test_what_is_slower_counts_without_what_is_inside():
    before = traced(Op("model", [layer(), layer()]))
    after = traced(Op("model", [layer(), layer(gpu=150)], own=30))
    found = before.tree_diff(after)
    # Of the two layers: 100 + 100 before, 100 + 150 after.
    assert changed(found) == [
        ("both", "model/layer", "mm", 2, 2),
        ("both", "model/layer", "relu", 2, 2),
        ("both", "", "model", 1, 1),
    ]
    mm, _, model = (one for one in found.changes if one.before != one.after)
    assert (mm.before, mm.after) == ((2, 20, 200), (2, 20, 250))
    assert (model.before, model.after) == ((1, 10, 0), (1, 30, 0))


def test_what_is_put_around_others_leaves_them_the_same():
    inside = [layer("first"), layer("second"), Op("loss", gpu=5)]
    before, after = traced(Op("forward", inside)), traced(Op("forward", [Op("DDP", inside)]))
    assert changed(before.tree_diff(after)) == [("new", "forward", "DDP", 0, 1)]
    assert before.tree_diff(after).new[0].after == (1, 10, 0)  # alone
    assert changed(after.tree_diff(before)) == [("gone", "forward", "DDP", 1, 0)]


def test_threads_are_compared_with_those_that_do_the_same():
    forward, backward = [layer("forward")], [layer("backward")]
    before = Trace.from_slices(
        [*slices(forward, thread="thread 1"), *slices(backward, thread="thread 2", begin=1000)]
    )
    after = Trace.from_slices(
        [
            *slices([Op("gloo")], thread="thread 0"),
            *slices(backward, thread="thread 1", begin=1000),
            *slices(forward, thread="thread 2"),
        ]
    )
    assert changed(before.tree_diff(after)) == [("new", "", "gloo", 0, 1)]


def stepped(*each):
    found, at = [], 0
    for number, ops in enumerate(each):
        own = slices(ops, begin=at)
        end = max(one.start + one.duration for one in own)
        found += [*own, Slice(0, "thread 1", f"ProfilerStep#{number}", at, end - at, Kind.STEP)]
        at = end + 1000
    return Trace.from_slices(found)


def test_the_tree_is_that_of_most_steps_and_two_steps_can_be_compared():
    once = [Op("compile", gpu=9), layer()]
    trace = stepped(once, [layer()], [layer(gpu=200)], [layer(gpu=300)])
    found = trace.tree_diff(stepped([layer(gpu=200)]))
    assert found.steps == (3, 1)
    assert changed(found) == []
    assert changed(trace.tree_diff(trace, steps=(0, 1))) == [("gone", "", "compile", 1, 0)]
    with pytest.raises(TraceError, match="rank 0 has no step 7"):
        trace.tree_diff(trace, steps=(0, 7))
    with pytest.raises(TraceError, match="rank 3 is in both traces; in both are: rank 0"):
        trace.tree_diff(trace, rank=3)


NAMES = st.sampled_from(["mm", "add", "relu", "layer", "block"])
TREES = st.recursive(
    st.builds(Op, NAMES, gpu=st.integers(0, 50)),
    lambda inner: st.builds(Op, NAMES, st.lists(inner, max_size=4), st.integers(0, 50)),
    max_leaves=20,
)


@settings(max_examples=60, deadline=None)
@given(st.lists(TREES, min_size=1, max_size=4), st.integers(0, 2**32))
def test_what_is_put_somewhere_is_all_that_is_new(forest, seed):
    draw = random.Random(seed)
    before = traced(*forest)
    assert changed(before.tree_diff(traced(*forest))) == []
    lists: list[tuple[tuple[str, ...], list[Op]]] = [((), forest)]
    for where, ops in lists:  # which grows
        lists += [((*where, op.name), op.children) for op in ops]
    path, ops = draw.choice(lists)
    ops.insert(draw.randint(0, len(ops)), Op("unheard of", [layer(), Op("mm")], gpu=3))
    found = before.tree_diff(traced(*forest))
    assert changed(found) == [("new", "/".join(path), "unheard of", 0, 1)]
    assert found.new[0].after == (1, 50, 113)


@settings(max_examples=60, deadline=None)
@given(st.lists(TREES, min_size=1, max_size=3), st.lists(TREES, min_size=1, max_size=3))
def test_every_operator_is_counted_once_on_its_side(one, other):
    before, after = traced(*one), traced(*other)
    found = before.tree_diff(after)
    for trace, side in ((before, 0), (after, 1)):
        kernels = trace.duration[trace.where(Kind.COMPUTE)].sum()
        own = [(change.before, change.after)[side] for change in found.changes]
        assert sum(each.gpu for each in own) == pytest.approx(kernels)
        length = sum(map(_length, (one, other)[side]))
        assert sum(each.cpu for each in own) == pytest.approx(length)


FLAT = st.lists(st.sampled_from("abcd"), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(FLAT, FLAT)
def test_as_many_siblings_as_possible_are_in_both_trees(one, other):
    longest = [[0] * (len(other) + 1) for _ in range(len(one) + 1)]
    for i, name in enumerate(one):
        for k, second in enumerate(other):
            beside = max(longest[i][k + 1], longest[i + 1][k])
            longest[i + 1][k + 1] = longest[i][k] + 1 if name == second else beside
    found = traced(*map(Op, one)).tree_diff(traced(*map(Op, other)))
    assert found.same == longest[-1][-1]


def test_a_tree_may_be_deeper_than_python_calls():
    def deep(last):
        around = [Slice(0, "t", f"d{at}", at, 9000 - 2 * at, Kind.OPERATOR) for at in range(2000)]
        return Trace.from_slices([*around, Slice(0, "t", last, 3000, 10, Kind.OPERATOR)])

    found = deep("relu").tree_diff(deep("gelu"))
    assert (found.same, found.new[0].name, found.gone[0].name) == (2000, "gelu", "relu")
    assert len(found.new[0].path) == 2000


def _length(op):
    return op.own + sum(map(_length, op.children))


class Model(torch.nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.layers = torch.nn.Sequential(*layers)

    def forward(self, x):
        return self.layers(x).sum()


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    def profile(*layers):
        torch.manual_seed(0)
        model, x = Model(*layers), torch.randn(4, 8)
        with torch.profiler.profile(with_stack=True) as profiler:
            model(x).backward()
        path = tmp_path_factory.mktemp("traces") / "rank0.json"
        profiler.export_chrome_trace(str(path))
        return Trace.load(path)

    return profile


def test_a_changed_network_is_told_from_what_pytorch_recorded(profiled):
    def linear():
        return torch.nn.Linear(8, 8)

    before = profiled(linear(), torch.nn.ReLU(), linear())
    after = profiled(linear(), torch.nn.GELU(), linear(), torch.nn.Dropout(0.0), linear())
    found = before.tree_diff(after)
    made = Counter({one.name: one.after.calls for one in found.new})
    gone = Counter({one.name: one.before.calls for one in found.gone})
    assert gone["nn.Module: ReLU"] == made["nn.Module: GELU"] == made["nn.Module: Dropout"] == 1
    assert made["nn.Module: Linear"] == 1 and "nn.Module: Linear" not in gone
    backward = {name for name in (*made, *gone) if name.startswith("autograd::engine")}
    assert {name.split(": ")[1] for name in backward} >= {"ReluBackward0", "GeluBackward0"}
