"""What is read from the traces of small programs is what was known of them before."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from experiments import known
from experiments.experiment import Result
from lockstep import Trace
from lockstep.base.formatting import milliseconds
from lockstep.trace import Kind, summary
from lockstep.trace.analyses.headline import headline
from lockstep.trace.read.memory_snapshot import memory
from recorded import DATA

FOLDER = DATA / "known"
RECORDED = sorted(one.name for one in FOLDER.iterdir()) if FOLDER.is_dir() else []
ON_GPU = ("kernel", "copy", "memset")  # nodes of other kinds leave nothing in a trace
Known = dict[str, dict[str, Any]]  # by rank


def of(name: str) -> tuple[Trace, Known]:
    facts = DATA.parent / "known" / f"{name}.json"
    return Trace.load(FOLDER / name), json.loads(facts.read_text(encoding="utf-8"))


def calls(trace: Trace, rank: int) -> Counter[tuple[str, int]]:
    return Counter(
        (one.collective.operation, one.collective.bytes_in)
        for one in trace
        if one.rank == rank and one.collective and one.collective.evidence == "metadata"
    )


def steps(trace: Trace) -> int:
    return len({one.number for one in trace.steps()})


def check_ddp(trace: Trace, facts: Known) -> None:
    for rank in trace.ranks:
        one = facts[str(rank)]
        assert sum(one["bucket_bytes"]) == one["gradient_bytes_a_step"]
        wanted = Counter(("all_reduce", size) for size in one["bucket_bytes"] * steps(trace))
        assert calls(trace, rank) == wanted


def check_fsdp2(trace: Trace, facts: Known) -> None:
    """Blocks are gathered for both passes, in bfloat16, the rest once; all are reduced in float32,
    by an operation that gloo names otherwise."""
    block, rest = (facts["0"][f"weights_of_{one}"] for one in ("a_block", "the_rest"))
    blocks, number = known.LAYERS * steps(trace), steps(trace)
    for rank in trace.ranks:
        found = calls(trace, rank)
        gathered = {size: n for (name, size), n in found.items() if name == "all_gather"}
        reduced = {size: n for (name, size), n in found.items() if name != "all_gather"}
        assert gathered == {block: 2 * blocks, rest: number}  # half of the weights, of two bytes
        assert reduced == {4 * block: blocks, 4 * rest: number}


def check_tensor_parallel(trace: Trace, facts: Known) -> None:
    one = facts["0"]
    for rank in trace.ranks:
        wanted = {("all_reduce", one["all_reduce_bytes"]): one["all_reduces_a_step"] * steps(trace)}
        assert calls(trace, rank) == wanted
    products = Counter(
        slice_.rank for slice_ in trace if slice_.name == "aten::matmul" and is_operator(slice_)
    )
    assert products[1] - products[0] == one["more_products"]


def is_operator(slice_: Any) -> bool:
    return bool(slice_.kind == Kind.OPERATOR)


CHECKS = {
    "ddp": check_ddp,
    "fsdp2": check_fsdp2,
    "tensor-parallel": check_tensor_parallel,
}


@pytest.mark.more
@pytest.mark.parametrize("name", ["ddp", "tensor-parallel"])
def test_calls_and_bytes_of_a_program_that_runs_now(name: str, tmp_path: Path) -> None:
    traces, facts = known.record(name, 2)
    write(tmp_path, traces)
    CHECKS[name](Trace.load(tmp_path), facts.content)


def write(folder: Path, result: Result) -> None:
    for file, content in result.content.items():
        (folder / file.removesuffix(".gz")).write_text(json.dumps(content))


@pytest.mark.parametrize("name", sorted(CHECKS.keys() & set(RECORDED)))
def test_calls_and_bytes_of_recorded_programs(name: str) -> None:
    CHECKS[name](*of(name))


def test_every_recorded_program_is_one_of_these() -> None:
    assert set(RECORDED) <= known.WHAT.keys()


@pytest.mark.parametrize("name", sorted({"ddp", "fsdp2"} & set(RECORDED)))
def test_the_rank_that_slept_is_late_by_so_much_in_that_step_and_by_what_it_did(name: str) -> None:
    trace, facts = of(name)
    slept = facts["1"]["late_seconds"] * 1e9
    found = trace.collectives()
    first, *_ = found.stragglers
    assert first.rank == known.LATE_RANK
    (step,) = (one for one in trace.align().steps() if (one.rank, one.number) == (0, known.LATE_IN))
    mine = [one for one in found if step.start <= one.start[0] < step.end]
    first_call = min(mine, key=lambda one: one.start[0])
    assert first_call.last == known.LATE_RANK
    # Some milliseconds more or less: until there, each rank's host launches at its own pace. To
    # later calls it comes late by that alone.
    assert 0.8 * slept < first_call.waited[0] < 1.5 * slept
    assert "read from a slow disk" in {one.name for one in first.doing}
    said = " ".join(headline(trace.align(), found))
    assert "On rank 1 that happens" in said
    assert f"and the others waited {milliseconds(first.caused)} ms for it" in said
    assert "all hosts are busy, and rank 1 comes last: the others wait" in trace.cause().because


@pytest.mark.parametrize("name", sorted({"tensor-parallel"} & set(RECORDED)))
def test_products_have_the_flop_that_follow_from_their_sizes_and_one_rank_more(name: str) -> None:
    trace, facts = of(name)
    one = facts["0"]
    a_product = 2 * one["rows"] * one["width"] * one["hidden_of_a_rank"]
    products = steps(trace) * (6 * one["layers"] - 1)  # the first layer's input has no gradient
    more = one["more_products"] * 2 * one["side"] ** 3
    wanted = len(trace.ranks) * products * a_product + more
    assert sum(each.flops for each in trace.rates().operators) == wanted
    found = trace.collectives().stragglers[0]
    assert found.rank == known.LATE_RANK
    assert found.doing[0].where == "device"


@pytest.mark.parametrize("name", sorted({"graph", "graph-two-streams"} & set(RECORDED)))
def test_a_replay_has_as_many_nodes_as_the_driver_says(name: str) -> None:
    trace, facts = of(name)
    found = trace.replays()
    for rank in trace.ranks:
        (graph,) = (one for one in found.graphs if one.rank == rank)
        one = facts[str(rank)]
        assert graph.replays == one["replays"]
        assert len(graph.nodes) == sum(one["nodes"].get(kind, 0) for kind in ON_GPU)
        if not graph.linked:
            captured = Counter(node.captured_in for node in graph.nodes)
            for operator, count in one["operators"].items():
                if operator.startswith("aten::"):
                    assert captured[operator] == count
        assert bool(graph.linked) == (name == "graph-two-streams")


@pytest.mark.parametrize("name", ["thrashing", "thrashing-one-step"])
def test_the_drivers_calls_are_those_that_the_allocator_counted(name: str) -> None:
    trace, facts = of(name)
    for rank in trace.ranks:
        for call, counted in (("cudaMalloc", "num_device_alloc"), ("cudaFree", "num_device_free")):
            seen = sum(one.rank == rank and one.name == call for one in trace)
            assert seen == facts[str(rank)][counted] > 0


def test_steps_that_hardly_fit_thrash_and_the_headline_says_so() -> None:
    trace, _ = of("thrashing")
    found = trace.cause()
    assert (found.word, found.ranks) == ("allocator thrashing", ())
    _, sections, _ = summary.summarise(FOLDER / "thrashing")
    assert "cudaMalloc and cudaFree" in sections[0][1]


def test_calls_that_take_little_of_an_only_step_are_not_its_cause() -> None:
    """They take 8 % of rank 0's step, and 5 % of rank 1's."""
    trace, _ = of("thrashing-one-step")
    assert trace.cause().word != "allocator thrashing"
    calls = [one for one in trace if one.name in ("cudaMalloc", "cudaFree")]
    for step in trace.steps():
        spent = sum(one.end - one.start for one in calls if one.rank == step.rank)
        assert 0 < spent < 0.1 * (step.end - step.start)


@pytest.mark.parametrize("name", sorted(one for one in RECORDED if one.startswith("memory-")))
def test_a_history_of_memory_adds_up(name: str) -> None:
    found = memory(FOLDER / name / "rank0.pickle.gz")
    assert set(found.mismatch.values()) == {0}


@pytest.mark.parametrize("name", ["memory-ddp", "memory-compiled"])
def test_a_history_tells_weights_from_buckets_and_from_the_optimizers_moments(name: str) -> None:
    """At the peak DDP has the bucket that it began with, and those that it has rebuilt."""
    found = memory(FOLDER / name / "rank0.pickle.gz").by_kind()
    facts = json.loads((DATA.parent / "known" / f"{name}.json").read_text(encoding="utf-8"))
    size = facts["0"]["gradient_bytes_a_step"]  # in float32, as weights are
    assert found["weights"] == size
    assert found["gradients"] == pytest.approx(2 * size, rel=1e-4)
    assert found["optimizer"] == pytest.approx(2 * size, rel=1e-4)  # a count of steps, too
