"""Races on the virtual GPU: what is reported, and that a wrong program computes a wrong number."""

from __future__ import annotations

import lockstep
import pytest
import torch
from race_programs import CASES, Case, N, made, verdict

RIGHT = [case for case in CASES.values() if not case.kind]
WRONG = [case for case in CASES.values() if case.kind]


def test_there_are_programs_enough() -> None:
    assert len(RIGHT) >= 12
    assert len([case for case in WRONG if case.sanitizer]) >= 12


@pytest.mark.parametrize("case", RIGHT, ids=lambda case: case.name)
def test_a_right_program_gives_the_right_number_and_no_report(case: Case) -> None:
    with lockstep.virtual.device() as cuda:
        value, expected = case.program(cuda)
        assert value == expected
        assert list(lockstep.virtual.races()) == []
        assert str(lockstep.virtual.races()).startswith("no races")


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.name)
def test_a_wrong_program_gives_a_wrong_number_and_its_lines(case: Case) -> None:
    with lockstep.virtual.device() as cuda:
        value, expected = case.program(cuda)
        found = list(lockstep.virtual.races())
    assert value != expected
    race = next(race for race in found if race.kind == case.kind)
    assert all(race.lines)
    assert case.lines[0] in race.lines[0].text
    assert case.lines[1] in race.lines[1].text


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.name)
def test_a_wrong_number_is_the_same_on_every_run(case: Case) -> None:
    values = set()
    for _ in range(2):
        with lockstep.virtual.device() as cuda:
            values.add(case.program(cuda)[0])
    assert len(values) == 1


def test_the_verdicts_are_those_of_the_sanitizer_on_a_gpu() -> None:
    """As recorded, on every program that it looks at."""
    rows = lockstep.recorded("virtual/races-h200.json").content["programs"]
    assert [row["program"] for row in rows] == [*CASES]
    for row, case in zip(rows, CASES.values(), strict=True):
        assert verdict(case) == row["virtual"]
        if row["sanitizer_looks_at_it"]:
            assert row["sanitizer"] == ("none" if row["virtual"] == "none" else "race")


def test_a_report_says_streams_lines_and_repair() -> None:
    with lockstep.virtual.device() as cuda:
        CASES["no_wait_after"].program(cuda)
        (race,) = lockstep.virtual.races()
        said = str(lockstep.virtual.races())
    assert race.first.startswith("mul") and race.second.startswith("mean")
    assert "`side` (stream 13)" in said and "the default stream" in said
    assert "cuda.default_stream().wait_stream(side)" in said
    assert f"line {race.lines[0].number}: y = x * 3" in said


def test_the_timeline_shows_why() -> None:
    """The reader begins before the writer has ended."""
    with lockstep.virtual.device() as cuda:
        CASES["no_wait_after"].program(cuda)
        slices = list(lockstep.virtual.trace())
    (writer,) = [one for one in slices if one.name == "mul" and one.stream != -1]
    (reader,) = [one for one in slices if one.name == "mean" and one.stream != -1]
    assert writer.start <= reader.start < reader.end <= writer.end


@pytest.mark.parametrize(
    ("ask", "orders"),
    [
        ("while not done.query(): pass", True),
        ("while not side.query(): pass", True),
        ("if not done.query(): done.synchronize()", True),
        ("for _ in range(40): done.query()", False),
        ("for _ in range(40): side.query()", False),
        ("pass", False),
    ],
)
def test_an_answer_orders_what_is_done_by_it(ask: str, orders: bool) -> None:
    """And nothing where the program drops it; then the number is right by luck, which is said."""
    with lockstep.virtual.device() as cuda:
        side, done = cuda.Stream(), cuda.Event()
        with cuda.stream(side):
            x = torch.full((N,), 2.0, device="cuda")
            done.record()
        torch.zeros(1, device="cuda").item()  # until then `side` is done
        exec(ask, {"done": done, "side": side})
        assert (x + 1).mean().item() == 3.0
        found = list(lockstep.virtual.races())
    assert [race.by_luck for race in found] == ([] if orders else [True])
    assert all("right by luck" in str(race) for race in found)


def test_graphs_of_one_pool_that_run_at_the_same_time() -> None:
    """A graph's own replays are in order on any streams, as CUDA has it; two graphs' are not."""
    with lockstep.virtual.device() as cuda:
        side, x = cuda.Stream(), made(1.0)
        graphs, pool = [cuda.CUDAGraph(), cuda.CUDAGraph()], cuda.graph_pool_handle()
        for graph in graphs:
            with cuda.graph(graph, pool=pool):
                (x * 2) + 1
        for stream in (side, cuda.current_stream()):
            with cuda.stream(stream):
                graphs[0].replay()
        assert list(lockstep.virtual.races()) == []
        cuda.synchronize()
        graphs[0].replay()
        with cuda.stream(side):
            graphs[1].replay()
        found = list(lockstep.virtual.races())
    assert {race.kind for race in found} == {"memory given back"}
    assert "pools of their own" in found[0].repair


def test_an_answer_of_no_orders_nothing() -> None:
    with lockstep.virtual.device() as cuda:
        side, done = cuda.Stream(), cuda.Event()
        with cuda.stream(side):
            cuda._sleep(1_000_000)
            x = made(2.0)
            done.record()
        if done.query():
            raise AssertionError
        assert (x + 1).mean().item() != 3.0
        assert [race.by_luck for race in lockstep.virtual.races()] == [False]


def test_a_strided_write_leaves_what_is_between_to_race() -> None:
    with lockstep.virtual.device() as cuda:
        side, x = cuda.Stream(), made(1.0)[1:]  # every other one of them reaches from end to end
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            x.add_(1)
            x[::2].add_(1)
        x[1::2].add_(1)
        (race,) = lockstep.virtual.races()
    assert race.kind == "write after write"
