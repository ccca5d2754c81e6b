"""Models to play with: they say what formulas and records say, in a real browser, too."""

import json
import math
import random
import re
from collections import Counter
from itertools import pairwise
from typing import Any

import lockstep
import numpy as np
import playwright.sync_api as playwright
import pytest
from lockstep import interactive
from lockstep.base.formatting import quantity
from lockstep.calls.record import Call, Group
from lockstep.figures.interactive.messages_of_job import messages_of
from lockstep.figures.number_line import number_line
from lockstep.figures.widget import BROWSER, FILES, Playable, reply
from lockstep.models import cost, experts, ladder, pipeline
from lockstep.models.overlap import buckets
from lockstep.models.rounds import ring
from playing import Opened

LINE = cost.Line(10e-6, 1 / 100e9)
NASTY = "</script><img src=x onerror=alert(1)>"
STAMP = lockstep.simulated("numbers of a test")


# ── A job's own messages ─────────────────────────────────────────────────────────────────────


def ring_sum() -> None:
    import torch
    import torch.distributed as dist

    rank, n = dist.get_rank(), dist.get_world_size()
    chunks, came = torch.ones(n).chunk(n), torch.zeros(1)
    for step in range(2 * (n - 1)):
        out = chunks[(rank - step) % n]
        ops = [
            dist.P2POp(dist.isend, out, (rank + 1) % n),
            dist.P2POp(dist.irecv, came, (rank - 1) % n),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()


def exchanges() -> None:
    import torch
    import torch.distributed as dist

    rank, n, distance = dist.get_rank(), dist.get_world_size(), 1
    x, came = torch.ones(5), torch.empty(5)
    while distance < n:
        both = dist.isend(x, rank ^ distance), dist.irecv(came, rank ^ distance)
        for work in both:
            assert work is not None
            work.wait()
        distance *= 2


def one_by_one() -> None:
    import torch
    import torch.distributed as dist

    x = torch.ones(5)
    if dist.get_rank():
        dist.send(x, 0)
    else:
        for other in range(1, dist.get_world_size()):
            dist.recv(x, other)
    dist.barrier()


def all_at_once() -> None:
    import torch
    import torch.distributed as dist

    rank, n = dist.get_rank(), dist.get_world_size()
    others = [other for other in range(n) if other != rank]
    ops = [dist.P2POp(dist.isend, torch.ones(3), other) for other in others]
    ops += [dist.P2POp(dist.irecv, torch.ones(3), other) for other in others]
    for work in dist.batch_isend_irecv(ops):
        work.wait()


@pytest.mark.parametrize(
    ("program", "messages", "reach"),
    [
        (ring_sum, [4] * 6, [15] * 4),
        (exchanges, [4, 4], [15] * 4),
        (one_by_one, [1, 1, 1], [15, 2, 4, 8]),
        (all_at_once, [12], [15] * 4),
    ],
)
def test_the_messages_of_a_job_are_in_rounds(
    program: Any, messages: list[int], reach: list[int]
) -> None:
    job = lockstep.torchrun(program, nproc_per_node=4, backend="gloo", show=False)
    found = messages_of(job.calls)
    assert [len(each) for each in found.rounds] == messages
    assert found.states[-1] == reach
    player = interactive.collective(job)
    assert player.film.stamp == job.stamp
    sent = [sum(c.bytes for c in own if c.operation == "send") for own in job.calls]
    assert player.film.sent[-1] == sent
    assert ("1 barrier" in player.film.note) == (program is one_by_one)


def a_call(rank: int, operation: str, peer: int, start: float, end: float) -> Call:
    group = Group("default", (0, 1))
    return Call(
        *(rank, operation, group, 0, ((5,),), "float32", 20, peer, 0, True), start=start, end=end
    )


def test_what_is_begun_together_is_one_round_even_if_a_part_is_over_at_once() -> None:
    both = [
        [a_call(rank, "send", 1 - rank, 0.0, 0.1), a_call(rank, "recv", 1 - rank, 0.2, 0.3)]
        for rank in range(2)
    ]
    again = [
        [a_call(rank, "send", 1 - rank, 1.0, 1.1), a_call(rank, "recv", 1 - rank, 1.2, 1.3)]
        for rank in range(2)
    ]
    assert [len(each) for each in messages_of(both).rounds] == [2]
    twice = [own + later for own, later in zip(both, again, strict=True)]
    assert [len(each) for each in messages_of(twice).rounds] == [2, 2]


def test_a_job_without_messages_cannot_be_played() -> None:
    with pytest.raises(ValueError, match="no messages to play"):
        messages_of([[], []])


# ── What is said ─────────────────────────────────────────────────────────────────────────────


def test_a_ring_is_counted_as_it_is() -> None:
    player = interactive.collective("ring", ranks=4, nbytes=1_200_000)
    assert repr(player) == (
        "Ring all-reduce, 4 ranks, 1.2 MB each: 6 rounds, 24 messages; the busiest rank sends "
        "1.8 MB, all together 7.2 MB\nsimulated · messages in rounds, no time"
    )
    (shown,) = player.answer(player.first())["films"]
    assert [sum(each) for each in shown["complete"]] == [0, 0, 0, 4, 8, 12, 16]
    assert shown["said"][1] == (
        "Round 1 of 6: 0 → 1 (chunk 0), 1 → 2 (chunk 1), 2 → 3 (chunk 2), 3 → 0 (chunk 3), "
        "300 kB each. The receiver adds. Then no ranks have the whole sum."
    )
    assert shown["said"][6].endswith("The receiver takes. Then 4 ranks have the whole sum.")
    assert shown["states"] == [[list(row) for row in state] for state in ring(4).held()]
    for earlier, later in pairwise(player.film.sent):
        assert all(a <= b for a, b in zip(earlier, later, strict=True))


@pytest.mark.parametrize("name", ["ring", "doubling", "tree", "two-level"])
def test_messages_have_the_bytes_that_are_counted(name: str) -> None:
    film = interactive.collective(name, 8, nbytes=1e6).film
    sent = [0.0] * 8
    for source, *_, size in (one for each in film.rounds for one in each):
        sent[source] += size
    assert sent == pytest.approx(film.sent[-1])


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ({"algorithm": "magic"}, "there is no algorithm 'magic'"),
        ({"ranks": 9}, "2 to 8 ranks can be played, not 9"),
        ({"ranks": "4"}, "not '4'"),
        ({"algorithm": "two-level", "ranks": 5}, "5 ranks on 2 nodes"),
    ],
)
def test_what_cannot_be_played_is_said(asked: dict, problem: str) -> None:
    player = interactive.collective("ring")
    said = json.loads(reply(player, json.dumps(asked)))
    assert problem in said["problem"]
    with pytest.raises(ValueError, match=re.escape(problem)):
        arguments = {"algorithm": "ring", "ranks": 4, **asked}
        interactive.collective(arguments["algorithm"], arguments["ranks"])


def told(made: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """What is drawn where nothing stands beside it."""
    (drawn,) = made.answer(asked)["drawn"]
    return drawn


def test_sliders_say_what_the_formulas_say() -> None:
    made = interactive.cost(line=LINE, ranks=8, nbytes=1e6)
    asked = made.first()
    assert made.values(asked) == {"alpha": 10e-6, "bandwidth": 100e9, "ranks": 8, "nbytes": 1e6}
    times = {name: formula(8, 1e6, LINE) for name, formula in interactive.FORMULAS.items()}
    said = told(made, asked)["said"]
    for name, took in times.items():
        assert f"{name} {took * 1e6:.3g} µs" in said
    assert said.endswith(f"The quickest: {min(times, key=lambda name: times[name])}.")
    # What is drawn is where the formula says: places are shares of logarithmic axes.
    turned = {**asked, "alpha": asked["alpha"] + 3, "ranks": 0}  # α 100 µs, 2 ranks
    drawn = told(made, turned)["chart"]
    (x0, y0), (x1, y1) = drawn["lines"][0]["points"][0], drawn["lines"][0]["points"][-1]
    small, large = (cost.ring_all_reduce(2, s, cost.Line(1e-4, 1e-11)) for s in (4.0, 2.0**34))
    ticks = {text: at for at, text in drawn["y"]["ticks"]}
    decade = (ticks["1 ms"] - ticks["10 µs"]) / 2
    assert (x0, x1) == (0, 1)
    assert y1 - y0 == pytest.approx(decade * _decades(large / small), abs=1e-3)
    assert y0 - ticks["10 µs"] == pytest.approx(decade * _decades(small / 1e-5), abs=1e-3)


def _decades(ratio: float) -> float:
    return math.log10(ratio)


def test_measured_points_stand_beside_their_formula() -> None:
    recording = lockstep.recorded("sweeps/h200-x4-ring.json")
    rows = recording.content["sweeps"]["all_reduce"]
    points = [(row["bytes"], row["seconds"]) for row in rows]
    made = interactive.cost(line=LINE, measured={"4 H200s": points}, stamp=recording.stamp)
    near = next(row for row in rows if row["bytes"] == 1 << 20)
    ratio = cost.ring_all_reduce(4, 1 << 20, LINE) / near["seconds"]
    assert f"ring says {ratio:.3g} times that" in repr(made)
    assert repr(made).endswith(f"{recording.stamp}\nsimulated · α–β model")
    measured, *_, model = told(made, made.first())["chart"]["lines"]
    assert len(measured["points"]) == len(rows)
    assert model["label"] == "ring, model" and model["colour"] == measured["colour"]
    with pytest.raises(ValueError, match="no stamp"):
        interactive.cost(line=LINE, measured={"x": points})
    with pytest.raises(ValueError, match="above 0"):
        interactive.cost(line=cost.Line(0.0, 1e-9))


def gpipe(stage: int, stages: int, microbatches: int) -> list[str]:
    return [f"{way}{number}" for way in "FB" for number in range(microbatches)]


def blank(stage: int, stages: int, microbatches: int) -> list[str]:
    if microbatches != 8:
        raise NotImplementedError
    return gpipe(stage, stages, microbatches)


def test_a_pipeline_says_its_bubble_and_what_is_kept() -> None:
    made = interactive.pipeline({"GPipe": gpipe, "blank": blank})
    for stages, microbatches in ((4, 8), (2, 3), (8, 16)):
        asked = {**made.first(), "stages": stages - 2, "microbatches": microbatches - 1}
        shown = told(made, asked)
        bubble = cost.bubble(stages, microbatches)
        assert f"bubble {100 * bubble:.1f} %" in shown["said"]
        kept = pipeline.kept(gpipe(0, stages, microbatches))
        assert [lane["end"] for lane in shown["lanes"]] == [f"keeps {kept}"] * stages
        assert all(len(lane["boxes"]) == 2 * microbatches for lane in shown["lanes"])
    slow = told(made, {**made.first(), "backward": 3})["said"]  # a backward takes twice as long
    assert "bubble 27.3 % of all time, 33 units of time" in slow
    asked = {"schedule": "blank", "microbatches": 3}
    said = json.loads(reply(made, json.dumps(asked)))["problem"]
    assert said == "blank of 4 stages and 4 microbatches raises NotImplementedError: "
    asked = {"stages": 99}
    assert "no place 99" in json.loads(reply(made, json.dumps(asked)))["problem"]


@pytest.mark.parametrize("count", [1, 2, 5, 40])
@pytest.mark.parametrize("each", [0.1, 1.0, 3.0])
def test_buckets_end_when_counting_says(count: int, each: float) -> None:
    """Equal buckets: either the last one is late by itself, or all wait for the first."""
    found = buckets(10.0, 1000.0, 1000.0 / count, lambda _: each)
    assert len(found.sent) == count
    assert found.end == pytest.approx(max(10 / count + count * each, 10 + each))
    assert found.exposed == pytest.approx(found.end - 10)
    assert found.communication == pytest.approx(count * each)


def test_the_last_bucket_has_the_rest() -> None:
    sizes: list[float] = []
    found = buckets(10.0, 1000.0, 300.0, lambda size: sizes.append(size) or 0.5)  # type: ignore[func-returns-value]
    assert sizes == [300, 300, 300, 100]
    assert [start for start, _ in found.sent] == [3, 6, 9, 10]
    with pytest.raises(ValueError, match="above 0"):
        buckets(10.0, 0.0, 300.0, lambda _: 0.5)


def test_overlap_says_what_its_model_says() -> None:
    made = interactive.overlap(line=LINE, ranks=8, nbytes=1e9, backward=20e-3, bucket=5e7)
    own = buckets(20e-3, 1e9, 5e7, lambda size: cost.ring_all_reduce(8, size, LINE))
    assert f"20 buckets: all-reduces take {own.communication * 1e3:.3g} ms together" in repr(made)
    assert f"{own.exposed * 1e3:.3g} ms comes after the backward" in repr(made)


@pytest.mark.parametrize("ranks", [2, 5, 8])
def test_ring_attention_counts_the_pairs_that_a_causal_mask_lets_through(ranks: int) -> None:
    made = interactive.ring_attention(ranks)
    for parts in ("plain", "zigzag"):
        places = np.arange(4 * ranks)  # two positions a piece
        pieces = places.reshape(2 * ranks, 2)
        own = [np.sort([*pieces[r], *pieces[-1 - r]]) for r in range(ranks)]
        own = np.split(places, ranks) if parts == "plain" else own
        pairs = np.zeros((ranks, ranks))  # by round and rank; of its own place a query sees half
        for at, rank in np.ndindex(ranks, ranks):
            queries, keys = own[rank][:, None], own[(rank - at) % ranks]
            pairs[at, rank] = ((queries > keys) + (queries == keys) / 2).sum()
        share = 100 * pairs.sum() / (ranks * pairs.max(1).sum())
        shown = told(made, {**made.first(), "parts": parts})
        assert f"ranks compute in {share:.1f} % of it" in shown["said"]
        boxes = [len(lane["boxes"]) for lane in shown["lanes"]]
        assert boxes == (pairs > 0).sum(0).tolist()


def test_a_layer_says_where_more_ranks_are_slower() -> None:
    nvlink = {2: {8 << 20: 3e-5}}
    made = interactive.layer(
        lambda m, n, k: 2e-14 * m * n * k,  # of 10^14 operations a second
        {"fast": lambda n, size: size / 1e12, "slow": lambda n, size: n * size / 1e10},
        width=1024,
        tokens=4096,
        measured=nvlink,
    )
    first = made.first()
    ranks = {"ranks": 2}  # the third of 1, 2, 4, …
    said = told(made, first | ranks)["said"]
    products, reduced = 2 * 2e-14 * 4096 * 1024 * 1024, 8e6 * 1.048576 / 1e12
    times = 4 * products / (products + reduced)
    assert f"4 ranks: products {products * 1e6:.3g} µs, all-reduce {reduced * 1e6:.3g} µs" in said
    assert f"{times:.3g} times as fast as 1" in said and "Each doubling is faster" in said
    assert "Measured on 2: 30 µs" in said
    slow = told(made, first | ranks | {"link": "slow"})["said"]
    assert "2 ranks are slower than 1." in slow and "Measured" not in slow


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_sharding_counts_bytes_as_its_paper_does(ranks: int) -> None:
    """Rajbhandari and others, 2020, figure 1: 4Ψ + KΨ/N, 2Ψ + (2 + K)Ψ/N and (4 + K)Ψ/N bytes."""
    psi, k = 7e9, 12
    made = interactive.sharding(psi, ranks)
    paper = [4 + k, 4 + k / ranks, 2 + (2 + k) / ranks, (4 + k) / ranks]
    lanes = told(made, made.first())["lanes"]
    assert [lane["end"] for lane in lanes] == [quantity(psi * each, "B") for each in paper]
    longest = [max(end for _, end, *_ in lane["boxes"]) for lane in lanes]
    assert longest == pytest.approx([each / (4 + k) for each in paper], abs=1e-5)


def test_sharding_says_what_fits_in_which_dtype() -> None:
    made = interactive.sharding(7e9, 4)
    fits = {
        dtype: re.search(
            r"Fits in (.*?)\. In", told(made, {**made.first(), "dtype": dtype})["said"]
        )
        for dtype in ("bfloat16 and float32", "float32", "bfloat16")
    }
    # ZeRO 1 keeps 49, 70 and 35 GB, DDP 112, 112 and 56.
    every, parts = "DDP, ZeRO 1, ZeRO 2, ZeRO 3", "ZeRO 1, ZeRO 2, ZeRO 3"
    assert {dtype: found and found[1] for dtype, found in fits.items()} == {
        "bfloat16 and float32": f"80 GB: {parts}; in 141 GB: {every}",
        "float32": f"80 GB: {parts}; in 141 GB: {every}",
        "bfloat16": f"80 GB: {every}; in 141 GB: {every}",
    }
    large = interactive.sharding(70e9, 8)  # 1120, 385, 262.5 and 140 GB
    assert "Fits in 80 GB: none; in 141 GB: ZeRO 3. In" in told(large, large.first())["said"]


@pytest.mark.parametrize("gpus", [8, 512, 131072])
def test_what_checkpoints_lose_is_what_random_failures_take(gpus: int) -> None:
    """Against weeks that are played with failures at random."""
    years, save, restart = 5.8, 30.0, 600.0
    made = interactive.checkpoints(gpus, years, save)
    said = told(made, made.first())["said"]
    useful = float(re.search(r"([\d.]+) % of the time is useful", said)[1])  # type: ignore[index]
    mtbf = years * 365 * 24 * 3600 / gpus
    interval = mtbf * min(range(1, 400), key=lambda k: math.expm1(k / 200 + save / mtbf) / k) / 200
    draw, clock, done = random.Random(gpus), 0.0, 0.0
    for _ in range(20_000):  # failures
        lives = draw.expovariate(1 / mtbf)
        whole = int(lives // (interval + save))
        done, clock = done + whole * interval, clock + lives + restart
    assert useful == pytest.approx(100 * done / clock, abs=0.7)


def test_a_ladder_says_what_a_budget_has_room_for_and_the_padding() -> None:
    made = interactive.ladder(graph=1 << 20, capture=2e-3, largest=16)
    said = told(made, made.first())["said"]
    assert "have room for 8 graphs, captured in 16 ms." in said
    assert "halves: 1 2 4 8 16;" in said and "equal distances: 2 4 6 8 10 12 14 16;" in said
    rows = ladder.stream("any number of rows", 16)
    spent = sum(2 * math.ceil(one / 2) for one in rows)
    assert f"16; {100 * (1 - sum(rows) / spent):.0f} % of" in said.partition("equal")[2]
    least = told(made, {**made.first(), "graph": 8, "budget": 0})["said"]
    assert "have room for no graph" in least


def test_a_choice_of_a_learner_that_does_not_fit_is_told() -> None:
    with pytest.raises(ValueError, match=r"mine with 1 size: 64 rows fit into none"):
        interactive.ladder({"mine": lambda rows, count: [max(rows) - 1]})


@pytest.mark.parametrize("placing", experts.PLACINGS)
@pytest.mark.parametrize(("ranks", "capacity"), [(1, 1.25), (4, 1.25), (4, math.inf), (16, 0.5)])
def test_the_rows_of_experts_are_those_of_tokens_that_are_drawn(
    ranks: int, capacity: float, placing: str
) -> None:
    tokens, shares, draw = 40_000, experts.popularity(32, 0.5), random.Random(ranks)
    model = experts.experts(tokens, shares, capacity, ranks, placing)
    orders = {
        "in order": [e // (32 // ranks) for e in range(32)],
        "in turn": [[*range(ranks), *reversed(range(ranks))][e % (2 * ranks)] for e in range(32)],
    }
    rows, sent, dropped = [0.0] * ranks, [0.0] * ranks, 0.0
    for source in range(ranks):
        asked = Counter(draw.choices(range(32), shares, k=tokens))
        for expert, many in asked.items():
            kept = min(many, capacity * tokens / 32)
            rank = orders[placing][expert]
            rows[rank] += kept
            sent[source] += kept if rank != source else 0
            dropped += many - kept
    assert model.dropped == pytest.approx(dropped / tokens / ranks, abs=0.005)
    assert model.rows == pytest.approx(rows, rel=0.02)
    assert model.sent == pytest.approx(sent, rel=0.02)
    assert sum(model.rows) == pytest.approx((1 - model.dropped) * tokens * ranks)


def test_a_layer_of_experts_takes_as_long_as_its_busiest_rank() -> None:
    """Twelve rows on two ranks: all but two of them for the first rank's expert."""
    shares, line = [5 / 6, 1 / 6], cost.Line(1e-3, 1e-3)
    own = experts.experts(6, shares, math.inf, 2, "in order")
    assert own.rows == pytest.approx((10, 2)) and own.sent == pytest.approx((1, 5))
    assert own.exchange(1, line) == pytest.approx(1e-3 + 5e-3)  # rank 0 gets five rows
    made = interactive.experts(lambda m, n, k: float(m), {"a": line}, ranks=2)
    lanes = told(made, made.first())["lanes"]
    (_, first, back), (_, second, _) = (lane["boxes"] for lane in lanes)
    takes = [float(lane["end"].removesuffix(" s").replace(",", "")) for lane in lanes]
    lasts = [end - start for start, end, *_ in (first, second)]
    assert lasts[0] / lasts[1] == pytest.approx(takes[0] / takes[1], rel=0.01)
    assert first[1] == pytest.approx(back[0])  # nobody is waited for but the first rank


MODELS = {
    name: getattr(interactive, name)
    for name in (
        "checkpoints", "collective", "cost", "experts", "ladder", "layer", "overlap", "parts",
        "pipeline",
        "ring_attention", "sharding",
    )
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_each_model_can_be_played_with_as_it_is(name: str) -> None:
    assert "simulated · " in MODELS[name]()._repr_mimebundle_()["text/plain"]


def test_one_cell_shows_all_models(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    interactive.show_all()
    assert len(shown) == len(MODELS)


@pytest.mark.parametrize(
    ("name", "choice", "second"),
    [
        ("pipeline", "schedule", "1F1B"),
        ("ring_attention", "parts", "zigzag"),
        ("experts", "placed", "in turn"),
    ],
)
def test_two_choices_stand_beside_each_other(name: str, choice: str, second: str) -> None:
    made = MODELS[name]()
    both = made.answer({**made.first(), "beside": second})["drawn"]
    alone = told(made, made.first()), told(made, {**made.first(), choice: second})
    assert both == list(alone)
    assert "beside is one of" in json.loads(reply(made, '{"beside": "magic"}'))["problem"]


def test_the_ready_schedules_are_what_the_field_calls_so() -> None:
    for stages, microbatches in ((1, 3), (2, 1), (4, 8), (3, 2)):
        for name, schedule in pipeline.SCHEDULES.items():
            orders = [schedule(rank, stages, microbatches) for rank in range(stages)]
            plan = pipeline.simulate(orders)
            assert plan.idle == pytest.approx(cost.bubble(stages, microbatches))
            kept = [pipeline.kept(order) for order in orders]
            few = [min(stages - rank, microbatches) for rank in range(stages)]
            assert kept == ([microbatches] * stages if name == "GPipe" else few)


def test_a_chart_says_the_value_where_the_dial_crosses_a_line() -> None:
    made = interactive.cost(line=LINE, ranks=8, nbytes=1e6)
    lines = told(made, made.first())["chart"]["lines"]
    for line, formula in zip(lines, interactive.FORMULAS.values(), strict=True):
        share, text = line["crossed"]
        value, unit = text.split()
        exact = formula(8, 1e6, LINE) / {"µs": 1e-6, "ms": 1e-3}[unit]
        assert float(value) == pytest.approx(exact, rel=0.005)  # three digits
        assert min(y for _, y in line["points"]) <= share <= max(y for _, y in line["points"])


STILLS = {
    "player": lambda: interactive.collective("two-level", 8),
    "cost": lambda: interactive.cost(line=LINE),
    "pipeline": lambda: interactive.pipeline({"GPipe": gpipe}),
    "overlap": lambda: interactive.overlap(line=LINE),
    "ring attention": lambda: interactive.ring_attention(),
    "layer": lambda: interactive.layer(lambda m, n, k: 1e-15 * m * n * k, {"a": lambda n, b: b}),
    "sharding": lambda: interactive.sharding(),
    "checkpoints": lambda: interactive.checkpoints(),
    "ladder": lambda: interactive.ladder(),
    "experts": lambda: interactive.experts(),
}


@pytest.mark.parametrize("name", STILLS)
def test_a_picture_and_a_sentence_stay(name: str) -> None:
    first, again = (STILLS[name]()._repr_mimebundle_() for _ in range(2))
    assert first == again
    assert first["image/png"]
    assert first["text/plain"].splitlines()[-1].startswith("simulated · ")
    (alt,) = set(re.findall(r'alt="([^"]*)"', first["text/html"]))
    assert len(alt) > 60


def test_the_parts_of_a_job_are_drawn_in_words_too() -> None:
    drawn = interactive.parts(nodes=2, per_node=4)
    assert "rank = node × 4 + local rank" in drawn.alt
    assert "ranks 0, 4 are one more group" in drawn.alt
    wrong: dict[str, Any]
    for wrong in ({"nodes": 5, "per_node": 4}, {"nodes": 2, "group": [4]}, {"group": []}):
        with pytest.raises(ValueError, match=r"ranks"):
            interactive.parts(**wrong)


@pytest.mark.parametrize(
    ("yours", "real"), [(3, 4), (4, 4), (0, 0), (-2, 5), (1e-6, 1e9), (0, 1e-12), (1e300, -1e300)]
)
def test_numbers_are_in_order_on_their_line(yours: float, real: float) -> None:
    import base64

    sources = number_line({NASTY: yours, "measured": real}, "s", (real * 0.8, real * 1.3))
    assert set(sources) == {"light", "dark"}
    text = base64.b64decode(sources["light"].split(",")[1]).decode()
    assert "<img" not in text
    first, second = (float(x) for x in re.findall(r'd="M([\d.]+) \d+L[\d.]+ \d+H', text))
    assert (first < second, first == second) == (yours < real, yours == real)
    assert 0 <= min(first, second) <= max(first, second) <= 330


def test_no_line_is_drawn_of_what_is_no_number() -> None:
    assert number_line({"predicted": 1.0, "measured": float("nan")}) == {}


# ── In a browser ─────────────────────────────────────────────────────────────────────────────


def test_each_file_of_the_browser_imports_what_it_calls_from_files_before_it() -> None:
    assert {file.stem for file in BROWSER.glob("*.js")} == {
        n for own in FILES.values() for n in own
    }
    import_ = re.compile(r'^import \{([^}]*)\} from "\./(\w+)\.js";$', re.MULTILINE)
    export = re.compile(r"^export (?:const|function) (\w+)", re.MULTILINE)
    texts = {file.stem: file.read_text(encoding="utf-8") for file in BROWSER.glob("*.js")}
    for names in FILES.values():
        offered: dict[str, set[str]] = {}
        for name in names:
            code = import_.sub("", texts[name])
            for wanted, origin in import_.findall(texts[name]):
                assert set(re.findall(r"\w+", wanted)) <= offered[origin]
                assert set(re.findall(r"\w+", wanted)) <= set(re.findall(r"\w+", code))
            offered[name] = set(export.findall(texts[name]))


def test_a_ring_is_played_step_by_step(context: playwright.BrowserContext) -> None:
    opened = Opened(context, interactive.collective("ring"))
    assert opened.text(".ls-said").startswith("Start: each rank has its own numbers only")
    opened.button("one round forward").click()
    assert opened.text(".ls-said").startswith("Round 1 of 6: 0 → 1 (chunk 0)")
    assert "300 kB" in opened.text(".ls-counts")
    bits = opened.page.locator("svg [data-bits]").evaluate_all(
        "all => all.map(n => n.dataset.bits)"
    )
    assert bits == [str(one) for row in ring(4).held()[1] for one in row]
    picture = opened.page.locator("svg[role=img]").first
    picture.focus()
    for key, at in (("ArrowRight", "2"), ("End", "6"), ("ArrowLeft", "5"), ("Home", "0")):
        opened.page.keyboard.press(key)
        assert opened.page.locator(".lockstep-play").get_attribute("data-time") == at
    opened.page.get_by_label("round", exact=True).fill("6")
    assert opened.text(".ls-counts").endswith("complete 16 of 16")
    assert opened.button("one round forward").is_disabled()
    opened.choose("algorithm", "tree")
    opened.choose("ranks", "7")
    opened.page.get_by_text("Tree all-reduce, 7 ranks").wait_for()
    assert opened.page.locator("svg [data-bits]").count() == 7
    opened.choose("algorithm", "two-level")  # 7 ranks are not two nodes
    opened.page.get_by_text("7 ranks on 2 nodes").wait_for()
    opened.choose("ranks", "6")
    opened.page.get_by_text("Two-level all-reduce, 6 ranks").wait_for()
    kept = opened.page.locator(":is(button, input, select, [tabindex])[data-lm-suppress-shortcuts]")
    assert (
        kept.count() == opened.page.locator(":is(button, input, select, [tabindex])").count() == 9
    )
    assert opened.problems == []


@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_it_plays_to_its_end(context: playwright.BrowserContext, motion: str) -> None:
    opened = Opened(context, interactive.collective("ring", 2))
    opened.page.emulate_media(reduced_motion=motion)  # type: ignore[arg-type]
    opened.page.evaluate(
        "() => { window.seen = new Set(); const root = document.querySelector('.lockstep-play');"
        "new MutationObserver(() => seen.add(Number(root.dataset.time)))"
        ".observe(root, {attributes: true}); }"
    )
    opened.button("play").click()
    opened.page.locator('[data-time="2"]').wait_for()
    opened.button("play").wait_for()  # no longer "pause"
    seen = opened.page.evaluate("[...seen]")
    flies = [time for time in seen if time != int(time)]
    assert bool(flies) == (motion == "no-preference")
    assert {1, 2} <= set(seen)
    assert opened.problems == []


def test_two_algorithms_are_played_beside_each_other(context: playwright.BrowserContext) -> None:
    opened = Opened(context, interactive.collective("ring"))
    opened.page.set_viewport_size({"width": 1200, "height": 700})
    opened.choose("beside", "tree")
    opened.page.get_by_text("Tree all-reduce, 4 ranks").wait_for()
    opened.page.get_by_label("round", exact=True).fill("6")
    counts = opened.page.locator(".ls-counts").all_inner_texts()
    assert [text.split("busiest")[0].strip() for text in counts] == [
        "rounds 6 of 6",
        "rounds 4 of 4",
    ]
    left, right = (one.bounding_box() for one in opened.page.locator("svg[role=img]").all())
    assert left is not None and right is not None
    assert right["x"] > left["x"] + left["width"] and right["y"] == left["y"]
    opened.choose("speed", "4×")
    opened.button("play").click()
    opened.page.locator('[data-time="6"]').wait_for()
    assert opened.problems == []


def test_schedules_beside_each_other_have_one_scale(context: playwright.BrowserContext) -> None:
    """The shorter one ends where its time says."""
    twice = {"GPipe": gpipe, "twice": lambda r, p, m: gpipe(r, p, 2 * m)}
    opened = Opened(context, interactive.pipeline(twice))
    opened.page.set_viewport_size({"width": 1200, "height": 700})
    opened.choose("beside", "twice")
    opened.page.get_by_text("twice: bubble").wait_for()
    ends = opened.page.locator(".ls-beside > div").evaluate_all(
        "all => all.map(view => Math.max(...[...view.querySelectorAll('rect:has(title)')]"
        ".map(one => Number(one.getAttribute('x')) + Number(one.getAttribute('width')))) - 66)"
    )
    assert ends[0] / ends[1] == pytest.approx(22 / 38, abs=0.01)
    assert opened.problems == []


def test_sliders_ask_python_and_say_when_nobody_answers(context: playwright.BrowserContext) -> None:
    made = interactive.pipeline({"GPipe": gpipe, NASTY: gpipe})
    opened = Opened(context, made)
    assert opened.text(".ls-said").startswith("GPipe: bubble 27.3 %")
    opened.page.get_by_label("microbatches").focus()
    opened.page.keyboard.press("Home")
    opened.page.get_by_text("GPipe: bubble 75.0 %").wait_for()
    assert opened.page.evaluate("document.activeElement.ariaValueText") == "1"
    assert opened.page.locator("svg title").all_text_contents() == ["F0", "B0"] * 4
    opened.page.evaluate("window.answers = false")
    opened.page.keyboard.press("ArrowRight")
    opened.page.get_by_text("The kernel is busy, or has ended").wait_for()
    opened.page.evaluate("window.answers = true")
    opened.choose("schedule", NASTY)
    opened.page.get_by_text(f"{NASTY}: bubble 60.0 %").wait_for()
    assert opened.page.locator("img").count() == 0
    assert opened.problems == []


POINTS = [(10.0**at, 1e-5 * at) for at in range(1, 9)]


def a_chart() -> Playable:
    """Eight lines, a band, points that scatter, and a model."""
    lines: Any = {f"line {at}": [(x, y * (at + 1)) for x, y in POINTS] for at in range(6)}
    lines["scatters"] = [(x, y / 3, y / 5, y / 2) for x, y in POINTS]
    lines["band"] = [(10 ** (1 + at / 8), 1e-3, 5e-4, 2e-3) for at in range(50)]
    return lockstep.chart(
        lines,
        models={"scatters": POINTS},
        x="size (bytes)",
        y="time (seconds)",
        alt=f"Lines of {NASTY}.",
        stamp=STAMP,
    )


def test_points_of_a_chart_say_their_values(context: playwright.BrowserContext) -> None:
    opened = Opened(context, a_chart())
    chart = opened.page.locator("svg[role=img]:visible")
    assert chart.count() == 1
    said = chart.locator("title").all_text_contents()
    assert said[0] == "10 B: 10 µs" and len(said) == 7 * len(POINTS)
    assert "100 MB: 26.7 µs (16 µs to 40 µs)" in said
    assert chart.locator("polyline").count() == 9 and chart.locator("polygon").count() == 1
    assert opened.text(".ls-legend").endswith("scatters, model")
    assert NASTY in opened.text(".ls-said") and opened.page.locator("img").count() == 0
    assert opened.problems == []


MADE: dict[str, Any] = {
    **STILLS,
    "ring of 8": lambda: interactive.collective("ring", 8),
    "chart": a_chart,
}


@pytest.mark.parametrize("name", MADE)
def test_it_fits_into_narrow_windows_and_both_themes(
    context: playwright.BrowserContext, name: str
) -> None:
    opened = Opened(context, MADE[name]())
    for scheme, ink in (("light", "rgb(0, 0, 0)"), ("dark", "rgb(255, 255, 255)")):
        opened.page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        opened.page.set_viewport_size({"width": 420, "height": 700})
        opened.frame()
        page = "document.documentElement.scrollWidth <= 420"
        assert opened.page.evaluate(page)
        drawn = opened.page.locator("svg[role=img]:visible").first
        box = drawn.bounding_box()
        assert box is not None and box["width"] <= 404
        texts = drawn.locator("text").evaluate_all(
            "all => all.map(n => [n.getBoundingClientRect().right, getComputedStyle(n).fill])"
        )
        assert max(right for right, _ in texts) <= 414
        assert {fill for _, fill in texts} == {ink}
    assert opened.problems == []


@pytest.mark.parametrize("width", [260, 420, 1440])
def test_lanes_have_a_title_on_their_axis(context: playwright.BrowserContext, width: int) -> None:
    opened = Opened(context, interactive.pipeline())
    opened.page.set_viewport_size({"width": width, "height": 700})
    opened.frame()
    drawn = opened.page.locator("svg[role=img]:visible").first
    title, last = (
        drawn.get_by_text(said, exact=True).bounding_box()
        for said in ("time (a forward takes 1)", "22")
    )
    assert title is not None and last is not None and title["width"] > 100
    assert title["x"] + title["width"] < last["x"] or title["y"] >= last["y"] + last["height"]
    assert title["x"] + title["width"] < width


@pytest.mark.parametrize("name", MADE)
def test_pictures_grow_with_letters_and_still_fit(
    context: playwright.BrowserContext, name: str
) -> None:
    opened = Opened(context, MADE[name]())
    texts = opened.page.locator("svg[role=img]:visible text")
    usual = texts.first.bounding_box()
    opened.page.evaluate(
        "() => document.documentElement.style.setProperty('--jp-code-font-size', '26px')"
    )
    for width in (1024, 420):
        opened.page.set_viewport_size({"width": width, "height": 700})
        opened.frame()
        opened.frame()  # what watches the size is told after the first
        large = texts.first.bounding_box()
        assert usual is not None and large is not None
        assert large["height"] == pytest.approx(2 * usual["height"], abs=2)
        rights = texts.evaluate_all("all => all.map(n => n.getBoundingClientRect().right)")
        assert max(rights) <= width - 6
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    assert opened.problems == []


@pytest.mark.parametrize("name", ["ring of 8", "cost", "pipeline"])
def test_a_page_that_is_laid_out_passes_through_every_width(
    context: playwright.BrowserContext, name: str
) -> None:
    opened = Opened(context, MADE[name]())
    for width in (8, 60, 120, 160, 161, 240, 420):
        opened.page.evaluate(
            "width => (document.querySelector('#here').style.width = `${width}px`)", width
        )
        opened.frame()
        opened.frame()  # what watches the width is told after the first
    assert opened.problems == []


@pytest.mark.parametrize("output", ["jp-OutputArea-child", "output_container"])
def test_the_still_is_folded_below_a_widget_in_jupyterlab_and_in_vs_code(
    context: playwright.BrowserContext, output: str
) -> None:
    opened = Opened(context, interactive.cost())
    opened.page.evaluate(
        """output => {
            const here = document.querySelector('#here');
            here.className = output;
            here.insertAdjacentHTML('afterend', `<div class="${output}">
                <details open class="lockstep-still">A picture.</details></div>`);
            here.style.width = '400px';
        }""",
        output,
    )
    opened.page.wait_for_selector("details.lockstep-still[data-plays]:not([open])")
    assert opened.problems == []


def test_a_widget_holds_little_and_its_still_stands_below(monkeypatch: pytest.MonkeyPatch) -> None:
    ipywidgets = pytest.importorskip("ipywidgets")
    shown: list[dict] = []
    monkeypatch.setattr("lockstep.figures.widget.in_notebook", lambda: True)
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append(data))
    made: Playable = interactive.collective("two-level", 8)
    made._ipython_display_()
    live, still = shown
    model = live["application/vnd.jupyter.widget-view+json"]["model_id"]
    widget = ipywidgets.widgets.widget._instances[model]
    assert len(json.dumps(widget.get_state(), default=str)) < 60_000
    assert set(still) == {"text/html", "image/png"}
    assert '<details open class="lockstep-still">' in still["text/html"]
    widget.asked = json.dumps({"algorithm": "ring", "ranks": 3})
    assert json.loads(widget.shown)["films"][0]["title"].startswith("Ring all-reduce, 3 ranks")
