"""What `python -m experiments graphs` measures, on the virtual GPU, by the same code."""

from __future__ import annotations

from experiments import graphs
from experiments.graphs import Sizes
from lockstep import virtual

SMALL = Sizes(
    models=((4, 64), (4, 256)), batches=(1, 16), graphs=(8, 4096, 8192), training=((2, 64, 8),),
    latencies=20, seconds=2.0, repeats=3,
)  # fmt: skip


def test_a_replay_is_quicker_than_its_launches_and_serving_costs_two_more() -> None:
    with virtual.device("H200", values=False) as cuda:
        rows = graphs.steps(cuda, SMALL) + graphs.training_steps(cuda, SMALL)
    assert [(row["width"], row["batch"]) for row in rows] == [
        (64, 1), (64, 16), (256, 1), (256, 16), (64, 8),
    ]  # fmt: skip
    assert all(row["replay_us"] < 0.6 * row["eager_us"] for row in rows)
    assert all(row["served_us"] > row["replay_us"] for row in rows if "served_us" in row)


def test_one_pool_takes_what_its_largest_graph_needs() -> None:
    taken = {}
    for name, how in graphs.MEMORY.items():
        with virtual.device("H200", values=False) as cuda:
            taken[name] = graphs.memory(cuda, SMALL, *how)
    last = {name: rows[-1]["reserved"] for name, rows in taken.items()}
    assert last["own pools"] > 1.2 * last["one pool, largest first"]
    assert last["one pool, largest first"] <= last["one pool, smallest first"]
    assert [row["batch"] for row in taken["one pool, smallest first"]] == [8, 4096, 8192]


def test_latencies_have_all_percentiles_in_order() -> None:
    with virtual.device("H200", values=False) as cuda:
        found = graphs.latencies(cuda, SMALL, busy=True)
    for one in found.values():
        parts = [one[f"p{part}"] for part in ("1", "50", "90", "99", "99.9", "100")]
        assert parts == sorted(parts) and one["steps"] == 10
    assert found["replay"]["p50"] < found["eager"]["p50"]
