"""What the recordings are said to show is what the analyses find in them."""

import pytest
from lockstep import Trace, recorded
from lockstep.trace.ask.diff import diff
from lockstep.trace.read.flight import flight
from lockstep.trace.read.memory import memory


@pytest.fixture(scope="module")
def traces():
    names = ["data-parallel-before", "data-parallel-after", "slow-rank", "starved", "experts"]
    names += [f"tensor-parallel-{how}" for how in ("eager", "compiled", "graph")]
    return {name: Trace.load(recorded(f"traces/{name}")).align() for name in names}


def shares(trace, what):
    """By rank, of the length of its steps."""
    return [getattr(part, what) / part.length for part in trace.breakdown().totals]


def test_every_trace_is_on_one_clock_and_its_breakdown_adds_up(traces):
    for name, trace in traces.items():
        assert trace.ranks == (0, 1, 2, 3), name
        assert trace.certificate.resolution < 25_000, name
        for part in trace.breakdown().steps:
            busy = part.compute + part.exposed + part.copies
            idle = part.host_bound + part.dependency + part.other
            assert busy + idle == part.length == part.end - part.start


def test_buckets_hide_communication(traces):
    before, after = (traces[f"data-parallel-{when}"] for when in ("before", "after"))
    assert max(part.overlap for part in before.breakdown().totals) < 0.05
    assert min(part.overlap for part in after.breakdown().totals) > 0.7
    assert min(shares(before, "exposed")) > 4 * max(shares(after, "exposed"))


def test_the_slow_rank_is_the_one_that_all_wait_for(traces):
    found = traces["slow-rank"].collectives()
    last = found.stragglers[0]
    assert last.rank == 1
    assert last.caused > 0.95 * found.waited.sum()
    assert max(shares(traces["slow-rank"], "exposed")) > 0.14


def test_a_rank_without_input_is_bound_by_its_host(traces):
    assert min(shares(traces["starved"], "host_bound")) > 0.4
    assert max(shares(traces["data-parallel-after"], "host_bound")) < 0.05


def test_a_graph_is_one_launch_of_many_kernels(traces):
    eager, graph = (traces[f"tensor-parallel-{how}"].launches() for how in ("eager", "graph"))
    assert graph.of(0, "graph").calls == 3
    assert graph.of(0, "graph").launched == eager.of(0, "kernel").launched == 3 * 16 * 6


def test_compiling_fuses_kernels(traces):
    found = diff(traces["tensor-parallel-eager"], traces["tensor-parallel-compiled"])
    new = {one.work.name for one in found.only_after}
    assert any(name.startswith("triton_per_fused_add_native_layer_norm") for name in new)
    assert "triton_poi_fused_gelu_0" in new
    assert {one.work.range for one in found.only_after} == {"## Call CompiledFxGraph ##"}


def test_experts_exchange_tokens(traces):
    known = {one.operation for one in traces["experts"].known}
    assert known == {"all_to_all"}


def test_the_hang_names_the_rank_that_left_one_out():
    found = flight(recorded("traces/hang").path)
    assert "Ranks 0, 1, 3 wait in all_reduce #6" in str(found)
    assert "for rank 2, which never called it" in str(found)


def test_the_allocator_frees_what_it_took():
    found = memory(recorded("traces/memory").path / "rank0.pickle.gz")
    assert found.allocated[found.peak] > 500e6
    assert set(found.mismatch.values()) == {0}
