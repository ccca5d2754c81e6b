"""Lab 13's own answers, one of whose ranks is killed at random moments, by time and not by line."""

from __future__ import annotations

from typing import Any

import lockstep
import pytest
from experiments import kills


@pytest.fixture(scope="module")
def answers() -> kills.Answers:
    return lockstep.carry_on("Checkpoints"), lockstep.carry_on("train")


def last(answers: kills.Answers, number: int = 20) -> dict[str, Any]:
    *_, found = kills.killed(number, 2, answers)
    return found


def test_no_kill_at_a_random_moment_costs_a_checkpoint_or_a_number(answers: kills.Answers) -> None:
    found = last(answers)
    assert len(found["kills"]) == 20
    assert found["ends"] and all(one["right"] for one in found["ends"])
    assert all(one["latest"] >= one["before"] for one in found["kills"])
    assert any(one["latest"] > one["before"] for one in found["kills"])


def test_who_forgets_the_random_numbers_ends_wrong(answers: kills.Answers) -> None:
    checkpoints, train = answers

    def forgetful(run: Any, saved: Any, steps: int, every: int) -> None:
        import torch

        here = torch.get_rng_state()
        latest = saved.latest

        def without() -> Any:
            found = latest()
            return found and (found[0], found[1] | {"random": here})

        saved.latest = without
        train(run, saved, steps, every)

    assert not all(one["right"] for one in last((checkpoints, forgetful), 5)["ends"])
