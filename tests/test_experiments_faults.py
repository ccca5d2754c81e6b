"""What ranks notice of another's end, under gloo; and what stands in the recording."""

from __future__ import annotations

import pytest
from experiments import faults, restart
from lockstep import recorded


def test_peers_of_a_killed_rank_are_told_at_once_and_of_one_that_sleeps_go_on() -> None:
    found = faults.watched(faults.Case("is killed", then=faults.ANEW), "gloo", 3)
    assert found["culprit"]["exit code"] == -9
    for peer in found["peers"]:
        assert peer["gave up"] < faults.PATIENCE and "Connection" in peer["why"]
        assert next(iter(peer["steps"])) == "abort" and peer["sums"] == [2.0] == [peer["size"]]


def test_a_case_in_which_nothing_starts_says_so() -> None:
    found = faults._tried(faults.Case("is killed"), "no such backend", 2)
    assert found["failed"] == "the culprit did not come to its end"
    assert "no such backend" in found["said"][0]


@pytest.mark.parametrize("file", ["faults/cpu-x4.json"])
def test_who_is_alive_is_waited_for_and_who_is_not_is_noticed_at_once(file: str) -> None:
    content = recorded(file).content
    alone = {
        one["ending"]: one["peers"]
        for one in content["cases"]
        if (one["starts"], one["call"], one["then"]) == ("no agent", "all_reduce", "")
    }
    for ending in ("is killed", "leaves", "raises"):
        assert all(peer["noticed"] < 5 and peer["words"] for peer in alone[ending]), ending
    for ending in ("sleeps", "is stopped"):
        assert all(peer["noticed"] > content["timeout"] - 1 for peer in alone[ending]), ending
    for peer in (*alone["comes late"], *alone["computes wrong"]):
        assert peer["noticed"] is None and len(peer["sums"]) == faults.CALLS
    assert all(peer["longest call"] > content["late"] - 0.5 for peer in alone["comes late"])
    assert all(peer["sums"][faults.AT] > 1e5 for peer in alone["computes wrong"])


def test_torchrun_starts_a_job_anew_if_each_attempt_has_a_store_of_its_own() -> None:
    found = restart.job("gloo", restart.OWN_STORE, 2)
    assert found["exit code"] == 0
    first, second = ([one["calls"] for one in rows] for rows in found["attempts"])
    assert first == [restart.AFTER] * 2 and second == [restart.CALLS] * 2
