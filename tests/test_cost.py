"""The cost model: formulas against counted messages, fits against known lines and recordings."""

import math
from itertools import pairwise
from typing import Any

import lockstep
import numpy as np
import pytest
from lockstep.models import cost
from lockstep.models.cost import Line

LINE = Line(alpha=3e-6, beta=1 / 200e9)
SIZE = 720720.0  # bytes; every n up to 16 divides it
RANKS = range(1, 17)
Round = list[tuple[int, int, set[int]]]  # messages at the same time: from, to, which parts


def seconds(rounds: list[Round], part: float, line: Line = LINE) -> float:
    """What rounds take: in each, a rank sends one message and receives one, all at once."""
    total = 0.0
    for messages in rounds:
        for end in (0, 1):
            ranks = [message[end] for message in messages]
            assert len(set(ranks)) == len(ranks)
        total += max(line(len(parts) * part) for _, _, parts in messages)
    return total


def reduced(n: int, rounds: list[Round]) -> list[list[set[int]]]:
    """Whose terms each rank has of each part after rounds of "send, and add or replace"."""
    have = [[{rank} for _ in range(n)] for rank in range(n)]
    for messages in rounds:
        sent = [(there, part, set(have[here][part])) for here, there, ps in messages for part in ps]
        for there, part, terms in sent:
            have[there][part] |= terms
    return have


def ring(n: int) -> tuple[list[Round], list[Round]]:
    """Reduce-scatter and all-gather."""
    scatter = [[(r, (r + 1) % n, {(r - k) % n}) for r in range(n)] for k in range(n - 1)]
    gather = [[(r, (r + 1) % n, {(r + 1 - k) % n}) for r in range(n)] for k in range(n - 1)]
    return scatter, gather


def binomial(n: int) -> list[Round]:
    """From rank 0 to all; the whole message."""
    whole, rounds, reached = set(range(n)), [], 1
    while reached < n:
        rounds.append([(r, r + reached, whole) for r in range(min(reached, n - reached))])
        reached *= 2
    return rounds


def doubling(n: int) -> list[Round]:
    whole, core, step = set(range(n)), 1 << n.bit_length() - 1, 1
    rounds = []
    while step < core:
        rounds.append([(r, r ^ step, whole) for r in range(core)])
        step *= 2
    if n > core:
        rounds.insert(0, [(r, r - core, whole) for r in range(core, n)])
        rounds.append([(r - core, r, whole) for r in range(core, n)])
    return rounds


def backwards(rounds: list[Round]) -> list[Round]:
    return [[(there, here, parts) for here, there, parts in one] for one in reversed(rounds)]


# Formulas


@pytest.mark.parametrize("n", RANKS)
def test_all_reduces_cost_what_their_messages_cost(n):
    everybody = set(range(n))
    for formula, rounds in (
        (cost.ring_all_reduce, [*ring(n)[0], *ring(n)[1]]),
        (cost.recursive_doubling_all_reduce, doubling(n)),
        (cost.tree_all_reduce, backwards(binomial(n)) + binomial(n)),
    ):
        assert all(terms == everybody for rank in reduced(n, rounds) for terms in rank)
        assert formula(n, SIZE, LINE) == pytest.approx(seconds(rounds, SIZE / n))


@pytest.mark.parametrize("n", RANKS)
def test_the_other_collectives_cost_what_their_messages_cost(n):
    scatter, gather = ring(n)
    for formula, rounds in (
        (cost.ring_reduce_scatter, scatter),
        (cost.ring_all_gather, gather),
        (cost.binomial_broadcast, binomial(n)),
    ):
        assert formula(n, SIZE, LINE) == pytest.approx(seconds(rounds, SIZE / n))


def test_a_double_tree_sends_all_bytes_up_and_all_down():
    s = SIZE * LINE.beta
    assert cost.double_tree_all_reduce(1, SIZE, LINE) == 0
    assert cost.double_tree_all_reduce(2, SIZE, LINE) == pytest.approx(2 * LINE.alpha + s)
    assert cost.double_tree_all_reduce(8, SIZE, LINE) == pytest.approx(6 * LINE.alpha + 2 * s)
    assert cost.double_tree_all_reduce(9, SIZE, LINE) == pytest.approx(8 * LINE.alpha + 2 * s)


def test_a_hierarchical_all_reduce():
    slow = Line(20e-6, 1 / 25e9)
    # 2 nodes of 4: 3 rounds of a quarter inside, 2 of an eighth between, 3 of a quarter inside.
    expected = 6 * LINE(SIZE / 4) + 2 * slow(SIZE / 8)
    assert cost.hierarchical_all_reduce(8, 2, SIZE, LINE, slow) == pytest.approx(expected)
    one_node = cost.hierarchical_all_reduce(8, 1, SIZE, LINE, slow)
    assert one_node == cost.ring_all_reduce(8, SIZE, LINE)
    one_each = cost.hierarchical_all_reduce(8, 8, SIZE, LINE, slow)
    assert one_each == cost.ring_all_reduce(8, SIZE, slow)
    with pytest.raises(ValueError, match="8 ranks on 3 nodes"):
        cost.hierarchical_all_reduce(8, 3, SIZE, LINE, slow)


def test_formulas_take_many_sizes_at_once():
    sizes = np.array([0.0, 1e3, 1e6])
    formulas: tuple[Any, ...] = (
        cost.ring_all_reduce,
        cost.double_tree_all_reduce,
    )
    for formula in formulas:
        assert formula(4, sizes, LINE) == pytest.approx([formula(4, s, LINE) for s in sizes])


@pytest.mark.parametrize("n", [0, -1, 2.5])
def test_there_is_one_rank_at_least(n):
    for formula in (
        cost.ring_all_reduce,
        cost.recursive_doubling_all_reduce,
        cost.tree_all_reduce,
        cost.double_tree_all_reduce,
    ):
        with pytest.raises(ValueError, match="1 rank or more"):
            formula(n, SIZE, LINE)


def test_where_two_formulas_cross():
    ring, doubling = cost.ring_all_reduce, cost.recursive_doubling_all_reduce
    # On 8 ranks: 14α + 7/4·sβ = 3α + 3sβ
    size = 11 * LINE.alpha / (5 / 4 * LINE.beta)
    assert cost.crossover(ring, doubling, 8, LINE) == pytest.approx(size)
    assert cost.crossover(doubling, ring, 8, LINE) == pytest.approx(size)
    assert doubling(8, size / 2, LINE) < ring(8, size / 2, LINE)
    assert doubling(8, size * 2, LINE) > ring(8, size * 2, LINE)


@pytest.mark.parametrize(
    ("f", "g", "n"),
    [
        (cost.ring_all_reduce, cost.recursive_doubling_all_reduce, 2),  # a round less, same bytes
        (cost.ring_all_reduce, cost.tree_all_reduce, 2),  # the same
        (cost.recursive_doubling_all_reduce, cost.tree_all_reduce, 8),  # half
        (cost.ring_all_gather, cost.ring_reduce_scatter, 8),
    ],
)
def test_formulas_that_do_not_cross(f, g, n):
    with pytest.raises(ValueError, match=f"{f.__name__} and {g.__name__} do not cross on {n}"):
        cost.crossover(f, g, n, LINE)


@pytest.mark.parametrize("n", RANKS)
def test_formulas_that_differ_by_rounding_only(n):
    def closed(n, nbytes, line):
        return 2 * (n - 1) * line.alpha + nbytes * line.beta * 2 * (n - 1) / n

    def later(n, nbytes, line):
        return 1e-6 + closed(n, nbytes, line)

    for other in (closed, later):
        with pytest.raises(ValueError, match="do not cross"):
            cost.crossover(cost.ring_all_reduce, other, n, LINE)


# Bandwidths and bubbles


PARTS = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
FACTORS = {
    "all_reduce": (0, 1, 4 / 3, 1.5, 1.75),
    **dict.fromkeys(PARTS, (0, 1 / 2, 2 / 3, 3 / 4, 7 / 8)),
    **dict.fromkeys(("broadcast", "reduce", "send", "recv"), (1, 1, 1, 1, 1)),
}


@pytest.mark.parametrize("operation", sorted(FACTORS))
def test_bus_factors_are_those_of_nccl_tests(operation):
    n = np.array([1, 2, 3, 4, 8])
    assert cost.bus_factor(operation, n) == pytest.approx(FACTORS[operation])
    assert cost.bus_factor(operation, 8) == pytest.approx(FACTORS[operation][-1])
    assert isinstance(cost.bus_factor(operation, 8), float)
    assert cost.bus_factor(operation, n[:0]).shape == (0,)


def test_bandwidths():
    assert cost.algorithm_bandwidth(1e9, 0.005) == pytest.approx(200e9)
    assert cost.bus_bandwidth("all_reduce", 4, 1e9, 0.005) == pytest.approx(300e9)
    with pytest.raises(ValueError, match=r"no bus factor is known for 'allreduce'.*all_reduce"):
        cost.bus_factor("allreduce", 2)
    with pytest.raises(ValueError, match="1 rank or more, not 0"):
        cost.bus_factor("all_reduce", [2, 0])
    for time in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="above 0 seconds"):
            cost.algorithm_bandwidth(1.0, time)


def test_a_ring_that_is_not_held_up_has_the_bandwidth_of_its_links():
    line = Line(0.0, 1 / 100e9)
    for n in range(2, 17):
        time = cost.ring_all_reduce(n, SIZE, line)
        assert cost.bus_bandwidth("all_reduce", n, SIZE, time) == pytest.approx(line.bandwidth)


@pytest.mark.parametrize("stages", [1, 2, 4, 7])
@pytest.mark.parametrize("microbatches", [1, 3, 8])
def test_a_bubble_is_what_a_pipeline_is_idle(stages, microbatches):
    # Stage s can begin microbatch m when it has ended m − 1, and stage s − 1 has ended m.
    end = np.zeros((stages + 1, microbatches + 1))
    for stage in range(1, stages + 1):
        for batch in range(1, microbatches + 1):
            end[stage, batch] = max(end[stage - 1, batch], end[stage, batch - 1]) + 1
    idle = 1 - microbatches / end[-1, -1]
    assert cost.bubble(stages, microbatches) == pytest.approx(idle)


def test_a_pipeline_needs_something_to_do():
    for stages, microbatches in ((0, 1), (4, 0)):
        with pytest.raises(ValueError, match=f"not {stages} and {microbatches}"):
            cost.bubble(stages, microbatches)
        with pytest.raises(ValueError, match=f"not {stages} and {microbatches}"):
            cost.zero_bubble(stages, microbatches)
    with pytest.raises(ValueError, match="1 chunk of the model or more, not 0"):
        cost.bubble(4, 8, chunks=0)


# Fits

SIZES = np.array([2.0**power for power in range(8, 31)])


def test_a_fit_finds_the_line_and_is_sure_of_it():
    found = cost.fit(SIZES, LINE(SIZES))
    assert (found.alpha, found.beta) == pytest.approx((LINE.alpha, LINE.beta), rel=1e-9)
    assert found.alpha_error < 1e-9 * LINE.alpha
    assert found.beta_error < 1e-9 * LINE.beta
    assert found.bandwidth == pytest.approx(200e9)
    assert str(cost.fit([1, 2, 3], [2e-6, 3e-6, 4e-6])).startswith("α = 1 ± ")


def test_a_line_says_its_latency_in_the_unit_that_fits():
    assert str(cost.Line(1.38e-3, 1e-9, 2e-4)).startswith("α = 1.38 ± 0.2 ms, ")
    assert str(cost.Line(17.7e-6, 1e-9, 5e-7)).startswith("α = 17.7 ± 0.5 µs, ")
    assert str(cost.Line(862e-6, 1e-9, 1.02e-4)).startswith("α = 862 ± 100 µs, ")


def test_standard_errors_say_how_far_off_a_fit_is():
    off = []
    for seed in range(200):
        noise = np.random.default_rng(seed).normal(1, 0.05, len(SIZES))
        found = cost.fit(SIZES, LINE(SIZES) * noise)
        off.append(
            (
                (found.alpha - LINE.alpha) / found.alpha_error,
                (found.beta - LINE.beta) / found.beta_error,
            )
        )
    # Of a normal error 68 % lie within one standard error; of 200 draws ± 3 × 3.3 %.
    for within in (np.abs(off) < 1).mean(axis=0):
        assert 0.58 < within < 0.78


def test_standard_errors_are_those_of_weighted_least_squares():
    size, time = np.array([0.0, 1.0, 2.0, 4.0]), np.array([1.0, 2.2, 2.9, 5.3])
    found = cost.fit(size, time)
    (beta, alpha), covariance = np.polyfit(size, time, 1, w=1 / time, cov=True)
    assert (found.alpha, found.beta) == pytest.approx((alpha, beta))
    errors = found.beta_error, found.alpha_error
    assert errors == pytest.approx(np.sqrt(np.diag(covariance)))


def test_small_messages_count_like_large_ones():
    time = LINE(SIZES)
    time[-1] *= 1.1  # by 0.5 ms, 180 times α
    assert cost.fit(SIZES, time).alpha == pytest.approx(LINE.alpha, rel=0.02)
    absolute = np.polynomial.Polynomial.fit(SIZES, time, 1).convert().coef
    assert absolute[0] != pytest.approx(LINE.alpha, rel=1)


def test_two_points_are_a_line_of_unknown_certainty():
    found = cost.fit([0, 1000], [1e-6, 2e-6])
    assert (found.alpha, found.beta) == pytest.approx((1e-6, 1e-9))
    assert math.isnan(found.alpha_error) and math.isnan(found.beta_error)


def test_sizes_that_do_not_tell_the_bandwidth():
    found = cost.fit([1, 2, 3], [3e-6, 2e-6, 1e-6])
    assert found.beta < 0
    assert found.bandwidth == math.inf
    assert str(found).endswith("1/β = unknown")


@pytest.mark.parametrize(
    ("sizes", "times", "why"),
    [
        ([], [], "two different sizes or more; there is none"),
        ([64], [1.0], "there is only 64 bytes"),
        ([4096, 4096], [1.0, 2.0], "there is only 4,096 bytes"),
        ([1, 2], [1.0], "there are 2 sizes and 1 times"),
        ([[1, 2]], [[1.0, 2.0]], "two lists"),
        ([1, 2048], [1.0, 0.0], "above 0 seconds; that of 2,048 bytes is 0"),
        ([1, 2], [1.0, -1.0], "above 0 seconds"),
        ([1, 2], [1.0, math.nan], "above 0 seconds"),
        ([1, 2], [math.inf, 1.0], "above 0 seconds"),
        ([-1, 2], [1.0, 1.0], "0 bytes or more, not -1"),
    ],
)
def test_measurements_that_are_none(sizes, times, why):
    with pytest.raises(ValueError, match=why):
        cost.fit(sizes, times)
    with pytest.raises(ValueError, match=why):
        cost.fit_collective("all_reduce", {2: (sizes, times)})


# Fits of collectives


def made(operation: str, n: int, launch: float, alpha: float, beta: float):
    rounds = (2 if operation == "all_reduce" else 1) * (n - 1)
    return SIZES, launch + alpha * rounds + beta * cost.bus_factor(operation, n) * SIZES


@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "broadcast"])
def test_a_fit_of_a_collective_finds_what_it_was_made_of(operation):
    truth = (16e-6, 0.7e-6, 1 / 300e9)
    sweeps = {n: made(operation, n, *truth) for n in (2, 4, 8)}
    found = cost.fit_collective(operation, sweeps)
    assert (found.launch, found.alpha, found.beta) == pytest.approx(truth, rel=1e-6)
    assert found.ranks == (2, 4, 8)
    assert found.deviation < 1e-9
    assert found.bandwidth == pytest.approx(300e9)
    assert found(64, SIZES) == pytest.approx(made(operation, 64, *truth)[1])
    assert found(64, 2.0**20) == pytest.approx(made(operation, 64, *truth)[1][12])


def test_one_number_of_ranks_does_not_tell_rounds_from_launches():
    found = cost.fit_collective("all_reduce", {4: made("all_reduce", 4, 16e-6, 1e-6, 3e-12)})
    assert found.launch == pytest.approx(22e-6)
    assert found.alpha == 0 and math.isnan(found.alpha_error)
    found = cost.fit_collective("send", {n: made("send", 2, 16e-6, 1e-6, 3e-12) for n in (2, 4)})
    assert found.alpha == 0 and math.isnan(found.alpha_error)


def test_a_round_never_saves_time():
    sweeps = {n: made("all_reduce", n, 16e-6, -1e-6, 3e-12) for n in (2, 4)}
    found = cost.fit_collective("all_reduce", sweeps)
    assert found.alpha == 0
    assert 10e-6 < found.launch < 14e-6
    assert found.deviation > 0


def test_a_collective_without_sweeps():
    with pytest.raises(ValueError, match="the sweep of some number of ranks"):
        cost.fit_collective("all_reduce", {})
    with pytest.raises(ValueError, match="no bus factor"):
        cost.fit_collective("ping_pong", {2: (SIZES, LINE(SIZES))})


# Recordings


def sweep(name: str, operation: str = "all_reduce"):
    points = lockstep.recorded(f"sweeps/h200-{name}.json").content["sweeps"][operation]
    return tuple(np.array([point[key] for point in points]) for key in ("bytes", "seconds"))


def off(predicted, measured) -> float:
    """The median relative error."""
    return float(np.median(np.abs(predicted / measured - 1)))


RINGS = {2: "x2-ring", 4: "x4-ring"}


@pytest.mark.parametrize(("known", "asked"), [(2, 4), (4, 2)])
def test_a_ring_on_some_gpus_predicts_it_on_others(known, asked):
    """No sweep of 8 GPUs is recorded: 2 predict 4, and 4 predict 2."""
    fitted = cost.fit_collective("all_reduce", {known: sweep(RINGS[known])})
    size, time = sweep(RINGS[asked])
    large = size >= 1 << 20  # below, all is launch
    assert off(fitted(asked, size), time) < 0.05  # 4.1 % and 4.4 %
    assert off(fitted(asked, size[large]), time[large]) < 0.13  # 9.8 % and 12.7 %


def test_the_launch_of_a_call_does_not_grow_with_its_rounds():
    """All of the fitted α taken for rounds: small messages are then wrong by half and more."""
    for known, asked in ((2, 4), (4, 2)):
        line = cost.fit(*sweep(RINGS[known]))
        beta = line.beta / cost.bus_factor("all_reduce", known)
        rounds = Line(line.alpha / (2 * (known - 1)), beta)
        size, time = sweep(RINGS[asked])
        assert off(cost.ring_all_reduce(asked, size, rounds), time) > 0.5
    both = cost.fit_collective("all_reduce", {n: sweep(name) for n, name in RINGS.items()})
    assert both.alpha < both.alpha_error < 0.2e-6
    assert both.launch == pytest.approx(16e-6, rel=0.05)
    assert both.deviation < 0.04


def test_the_bus_bandwidth_of_a_ring_grows_with_its_ranks():
    """Why one fit of both cannot be exact: what 1/β is, depends on n."""
    size, two = sweep(RINGS[2])
    _, four = sweep(RINGS[4])
    large = size >= 1 << 22
    bus = [cost.bus_factor("all_reduce", n) * size / time for n, time in ((2, two), (4, four))]
    assert large.sum() == 9
    assert (bus[1][large] > 1.05 * bus[0][large]).all()


@pytest.mark.parametrize(
    "operation",
    ["all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter"],
)
def test_the_other_collectives_are_fitted_as_well(operation):
    sweeps = {2: sweep("x2", operation), 4: sweep("x4", operation)}
    assert cost.fit_collective(operation, sweeps).deviation < 0.1
    for known, asked in ((2, 4), (4, 2)):
        size, time = sweeps[asked]
        fitted = cost.fit_collective(operation, {known: sweeps[known]})
        assert off(fitted(asked, size), time) < 0.16


def test_formulas_rise_with_the_size():
    for formula in (cost.ring_all_reduce, cost.tree_all_reduce, cost.ring_all_gather):
        assert all(a < b for a, b in pairwise(formula(8, size, LINE) for size in SIZES))
