"""Schedules of pipelines: the model, its formulas, and the orders of PyTorch's own schedules."""

from __future__ import annotations

import lockstep
import pytest
from lockstep import cost, pipeline

GPIPE = [f"{way}{number}" for way in "FB" for number in range(3)]


def orders(name):
    """The orders of all ranks, by the course's own answer to an exercise."""
    answer = lockstep.solution(name)
    return lambda ranks, *how: [answer(rank, ranks, *how) for rank in range(ranks)]


one_f_one_b, interleaved, zero_bubble = map(orders, ("one_f_one_b", "interleaved", "zero_bubble"))


# The model


def test_a_step_runs_when_what_it_needs_has_ended():
    plan = pipeline.simulate([GPIPE, GPIPE])
    starts = {(box.rank, box.step): box.start for box in plan.boxes}
    assert [starts[0, step] for step in GPIPE] == [0, 1, 2, 5, 6, 7]
    assert [starts[1, step] for step in GPIPE] == [1, 2, 3, 4, 5, 6]
    assert plan.length == 8
    assert plan.idle == pytest.approx(2 / 8)


def test_steps_and_messages_take_as_long_as_they_are_said_to():
    plan = pipeline.simulate([["F0", "B0"], ["F0", "B0"]], forward=2, backward=3, message=0.5)
    spans = {(box.rank, box.step): (box.start, box.end) for box in plan.boxes}
    assert spans == {(0, "F0"): (0, 2), (1, "F0"): (2.5, 4.5), (1, "B0"): (4.5, 7.5),
                     (0, "B0"): (8, 11)}  # fmt: skip
    each = pipeline.simulate([["F0", "B0"], ["F0", "B0"]], forward=[1, 5], backward=(2, 3))
    assert [(box.start, box.end) for box in each.boxes] == [(0, 1), (1, 6), (6, 9), (9, 11)]
    with pytest.raises(ValueError, match="3 durations for 1 ranks: give one, or one for each"):
        pipeline.simulate([["F0", "B0"]], forward=[1, 2, 3])
    alone = pipeline.simulate([["F0", "B0", "W0"]], weights=4, message=9)
    assert alone.length == 6  # what stays on its rank is no message


def test_chunks_are_stages_around_the_ranks():
    orders = [["F0.0", "F0.1", "B0.1", "B0.0"]] * 2
    plan = pipeline.simulate(orders, chunks=2)
    first = [(box.rank, box.step) for box in sorted(plan.boxes, key=lambda box: box.start)][:4]
    assert first == [(0, "F0.0"), (1, "F0.0"), (0, "F0.1"), (1, "F0.1")]
    assert plan.length == 8


def test_ranks_that_wait_for_ever_are_named_with_their_steps():
    with pytest.raises(pipeline.Standstill, match="rank 0 for B0, rank 1 for B0") as stands:
        pipeline.simulate([["F0", "B0"], ["B0", "F0"]])
    assert stands.value.waits == {0: "B0", 1: "B0"}
    with pytest.raises(pipeline.Standstill, match="rank 0 for W0"):
        pipeline.simulate([["F0", "W0", "B0"]])


def test_what_is_no_step_is_refused():
    for text in ("", "F", "f0", "F-1", "F0.", "F0.1.2", "X0", "F0 ", "F٣"):
        with pytest.raises(ValueError, match="is not a step"):
            pipeline.simulate([[text]])


def test_nothing_to_do_takes_no_time():
    plan = pipeline.simulate([[], []])
    assert (plan.length, plan.idle) == (0, 0)


def test_activations_are_kept_until_the_last_step_that_needs_them():
    assert pipeline.kept(GPIPE) == 3
    assert pipeline.kept(["F0", "B0", "F1", "B1"]) == 1
    assert pipeline.kept(["F0", "B0", "F1", "W0", "B1", "W1"]) == 2
    assert pipeline.kept(["F0.0", "F0.1", "B0.1", "B0.0"]) == 2
    assert pipeline.kept([]) == 0


# Its formulas


@pytest.mark.parametrize("stages", [1, 2, 4, 7])
@pytest.mark.parametrize("microbatches", [1, 3, 8])
def test_1f1b_is_idle_as_long_as_gpipe_and_keeps_less(stages, microbatches):
    orders = one_f_one_b(stages, microbatches)
    assert pipeline.simulate(orders).idle == pytest.approx(cost.bubble(stages, microbatches))
    kept = [pipeline.kept(order) for order in orders]
    assert kept == [min(stages - stage, microbatches) for stage in range(stages)]


@pytest.mark.parametrize(("ranks", "chunks"), [(2, 2), (3, 4), (4, 2), (8, 3)])
@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_chunks_divide_the_bubble(ranks, chunks, rounds):
    microbatches = rounds * ranks
    plan = pipeline.simulate(interleaved(ranks, chunks, microbatches), chunks=chunks)
    assert plan.idle == pytest.approx(cost.bubble(ranks, microbatches, chunks))
    assert plan.length == 2 * (chunks * microbatches + ranks - 1)


@pytest.mark.parametrize(("stages", "microbatches"), [(1, 1), (2, 2), (4, 8), (7, 9), (8, 32)])
@pytest.mark.parametrize("times", [(1, 1, 1), (2, 2, 1), (1, 1.5, 0.5), (3, 2, 2)])
def test_zb_h1_is_idle_as_its_formula_says_and_keeps_no_more_than_1f1b(stages, microbatches, times):
    orders = zero_bubble(stages, microbatches)
    forward, backward, weights = times
    idle = (stages - 1) * (forward + backward - weights)
    share = idle / (microbatches * sum(times) + idle)
    if times == (1, 1, 1):
        assert share == pytest.approx(cost.zero_bubble(stages, microbatches))
    plan = pipeline.simulate(orders, forward=forward, backward=backward, weights=weights)
    assert plan.idle == pytest.approx(share)
    assert max(map(pipeline.kept, orders)) == stages


# PyTorch's schedules


def pytorchs_order(name, microbatches, chunks):
    """The steps that one of PyTorch's schedules takes on this rank, when it runs."""
    import torch
    import torch.distributed as dist
    from torch.distributed import pipelining

    rank, ranks = dist.get_rank(), dist.get_world_size()
    did: list[str] = []

    def noted(way, method):
        def call(stage, number, *args, **kwargs):
            did.append(f"{way}{number}" + f".{stage.stage_index // ranks}" * (chunks > 1))
            return method(stage, number, *args, **kwargs)

        return call

    class Stage(pipelining.PipelineStage):
        forward_one_chunk = noted("F", pipelining.PipelineStage.forward_one_chunk)
        backward_one_chunk = noted("B", pipelining.PipelineStage.backward_one_chunk)
        backward_weight_one_chunk = noted("W", pipelining.PipelineStage.backward_weight_one_chunk)

    stages = [
        Stage(torch.nn.Linear(2, 2), rank + chunk * ranks, ranks * chunks, torch.device("cpu"))
        for chunk in range(chunks)
    ]
    schedule = getattr(pipelining, name)
    several = issubclass(schedule, pipelining.schedules.PipelineScheduleMulti)
    batch, loss = torch.ones(microbatches, 2), torch.nn.functional.mse_loss
    given = (batch,) if rank == 0 else ()
    last = {"target": batch} if rank == ranks - 1 else {}
    schedule(stages if several else stages[0], microbatches, loss_fn=loss).step(*given, **last)
    return did


@pytest.mark.parametrize(
    ("name", "chunks", "orders"),
    [
        ("Schedule1F1B", 1, one_f_one_b(4, 8)),
        ("ScheduleInterleaved1F1B", 2, interleaved(4, 2, 8)),
        ("ScheduleInterleavedZeroBubble", 1, zero_bubble(4, 8)),
    ],
)
def test_the_labs_orders_are_those_of_pytorch(name, chunks, orders):
    job = lockstep.torchrun(
        pytorchs_order, name, 8, chunks, nproc_per_node=4, backend="gloo", show=False
    )
    assert list(job.results) == orders
