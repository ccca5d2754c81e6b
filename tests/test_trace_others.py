"""Traces of other people: their shapes, their numbering, and what they leave out."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from kineto_files import START, event, kernel, write
from lockstep.trace import Kind, Trace
from painted import differences
from shapes import REDUCED, SENT, old_recorder


def load(path: Path, events: list[str], about: dict | None = None) -> Trace:
    return Trace.load(write(path / "rank0.json", events, about), cache=False)


# ── An External id that is the correlation ───────────────────────────────────────────────────


@pytest.mark.parametrize("facts", ["annotation", "operator"])
def test_a_launch_inside_of_an_operator_says_what_the_kernel_does(facts, tmp_path):
    old_recorder(tmp_path, facts=facts)
    trace = Trace.load(tmp_path, cache=False)
    found = {
        (trace.names[trace.name[row]], trace.known[trace.collective[row]])
        for row in trace.where(Kind.COMMUNICATION)
    }
    told = {(name, one.operation, one.bytes_in, one.evidence) for name, one in found}
    assert told == {
        (SENT, "all_to_all", 24_576, "launch"),
        (REDUCED, "all_reduce", 24_576, "launch"),
    }
    one_clock = trace.align()
    assert one_clock.certificate.matches == 16
    assert one_clock.certificate.spread <= 3_000
    assert all(one.bus_bandwidth > 0 for one in one_clock.collectives() if one.bytes)


@pytest.mark.parametrize("facts", ["annotation", "operator"])
def test_no_numbering_makes_communication_of_compute(facts, tmp_path):
    draw = random.Random(4)
    for _ in range(12):
        first = draw.randint(1, 60)  # so that operators' numbers are kernels' correlations, too
        (path,) = old_recorder(
            tmp_path,
            ranks=1,
            facts=facts,
            correlation=first,
            external=draw.randint(max(1, first - 40), first + 40),
            stride=draw.choice([1, 1, 2, 3]),
        )
        assert differences(path) == []


def test_an_external_id_counts_only_where_its_operator_ran_at_the_launch(tmp_path):
    says = {"Collective name": "allreduce", "In msg nelems": 8, "dtype": "Float"}
    events = [
        event("cpu_op", "record_param_comms", START, 50, **{"External id": 9}, **says),
        event("cuda_runtime", "launch", START + 10, 5, tid=1, correlation=1, **{"External id": 9}),
        event("cuda_runtime", "launch", START + 70, 5, correlation=2, **{"External id": 9}),
        kernel("at once", START + 100, 10, correlation=1, **{"External id": 9}),
        kernel("later", START + 200, 10, correlation=2, **{"External id": 9}),
        kernel("before the recording began", START, 10, correlation=3, **{"External id": 9}),
        kernel("its correlation", START, 10, correlation=9, **{"External id": 9}),
    ]
    trace = load(tmp_path, events)
    told = {trace.names[trace.name[row]] for row in trace.where(Kind.COMMUNICATION)}
    assert told == {"at once", "before the recording began"}
    assert {one.evidence for one in trace.known} == {"external id"}
