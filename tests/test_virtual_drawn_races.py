"""Programs drawn at random: the virtual GPU reports what races in them, and nothing else."""

from __future__ import annotations

import pytest
from drawn_races import Program, judged, mistakes

PROGRAMS, STEPS = 200, 8


@pytest.mark.parametrize("first", range(STEPS))
def test_drawn_programs_are_judged_as_they_were_made(first: int) -> None:
    for seed in range(first, PROGRAMS, STEPS):
        program = Program(seed)
        found = mistakes(program)
        assert not found, f"{found} in the program of seed {seed}:\n{program.source}"


def test_the_programs_differ_enough() -> None:
    """Of all sorts of lines and races there are some, and about as many are right as wrong."""
    programs = [Program(seed) for seed in range(40)]
    verdicts = [judged(program) for program in programs]
    racing = [bool(program.races()) for program in programs]
    assert 12 <= sum(racing) <= 28
    assert sum(bool(one.wrong) for one in verdicts) >= 10
    assert sum(bool(one.lucky) for one in verdicts) >= 5
    every = "\n".join(program.source for program in programs)
    lines = ("wait_stream", "wait_event", ".synchronize()", ".query(): pass", "record_stream",
             "del t", "non_blocking=True", "replay()", "].item()", ":2]")  # fmt: skip
    assert [line for line in lines if every.count(line) < 5] == []
