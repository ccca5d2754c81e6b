"""What ranks notice of another's end, under gloo; and what stands in the recording."""

from __future__ import annotations

import re
from typing import Any

import pytest
from experiments import elastic, faults, namespaces, restart
from lockstep import recorded


@pytest.mark.long
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


@pytest.mark.long
def test_torchrun_starts_a_job_anew_if_each_attempt_has_a_store_of_its_own() -> None:
    found = restart.job("gloo", restart.OWN_STORE, 2)
    assert found["exit code"] == 0
    first, second = ([one["calls"] for one in rows] for rows in found["attempts"])
    assert first == [restart.AFTER] * 2 and second == [restart.CALLS] * 2


def peer(cases: list[dict[str, Any]], ending: str, **wanted: Any) -> dict[str, Any]:
    wanted = {"starts": "no agent", "then": "", "environment": {}, **wanted}
    (found,) = (
        one
        for one in cases
        if one["ending"] == ending and wanted.items() <= {key: one[key] for key in wanted}.items()
    )
    (other,) = found["peers"]
    return {**other, "agent": found.get("agent")}


def test_under_nccl_a_peer_is_told_by_the_watchdog_at_the_time_out_and_lives_on() -> None:
    content = recorded("faults/h200-x2.json").content
    cases, timeout = content["cases"], 1000 * content["timeout"]
    for ending in ("raises", "is killed", "leaves", "sleeps", "is stopped", "its GPU is busy"):
        found = peer(cases, ending)
        assert found["noticed"] is None and found["ended"] is None, ending
        said = re.search(r"Watchdog caught collective .* ran for (\d+) milliseconds", found["said"])
        assert said and timeout < int(said[1]) < timeout + 1000, ending
    for ending in ("is killed", "sleeps"):
        assert not peer(cases, ending, environment={"TORCH_NCCL_BLOCKING_WAIT": "1"})["said"]
    late = peer(cases, "comes late")
    assert late["noticed"] is None and late["longest call"] > content["late"] - 0.5
    assert peer(cases, "computes wrong")["sums"][faults.AT] > 1e5


def test_under_nccl_torchrun_ends_the_peers_of_a_rank_that_fails_and_not_of_one_that_leaves() -> (
    None
):
    cases = recorded("faults/h200-x2.json").content["cases"]
    for ending in ("raises", "is killed"):
        found = peer(cases, ending, starts="torchrun")
        assert found["ended"] < 5 and found["agent"]["exit code"] == 1
    for ending in ("leaves", "sleeps"):
        found = peer(cases, ending, starts="torchrun")
        assert found["ended"] is None and found["agent"]["ended"] is None


def test_under_nccl_survivors_begin_anew_and_shrink_only_without_the_dead() -> None:
    cases = recorded("faults/h200-x2.json").content["cases"]
    alone = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}
    for ending in ("is killed", "sleeps", "its GPU is busy"):
        found = peer(cases, ending, then=faults.ANEW, environment=alone)
        assert found["sums"] == [1.0] == [found["size"]]
        found = peer(cases, ending, then=faults.SHRINK, environment=alone)
        assert ("sums" in found) == (ending == "is killed")  # else it does not return


@pytest.mark.parametrize(
    ("file", "backend"),
    [("faults/restart-cpu-x2.json", "gloo"), ("faults/restart-h200-x2.json", "nccl")],
)
def test_with_torchruns_own_store_a_second_attempt_makes_no_call(file: str, backend: str) -> None:
    content = recorded(file).content
    shared, own = (job for job in content["jobs"] if job["backend"] == backend)
    for job, calls in ((shared, 0), (own, content["calls"])):
        first, second = ([one["calls"] for one in rows] for rows in job["attempts"])
        assert first == [content["killed_after"]] * 2 and second == [calls] * 2
    assert shared["exit code"] != 0 == own["exit code"]


@pytest.mark.long
@pytest.mark.skipif(bool(namespaces.why_not()), reason=namespaces.why_not())
def test_a_node_that_comes_is_let_in_with_a_store_for_each_attempt() -> None:
    with namespaces.Network(2) as network:
        found = elastic.job(network, restart.OWN_STORE, 2)
    assert [row["ranks"] for row in found["rows"]] == [1, 2]
    assert found["exit codes"] == [0, 0]


def test_without_a_store_of_its_own_no_node_gets_in_and_with_one_each_does() -> None:
    shared, own = recorded("faults/elastic-cpu-x3.json").content["jobs"]
    assert [row["seconds"] is None for row in shared["rows"]] == [False, True]
    assert [row["ranks"] for row in own["rows"]] == [1, 2, 3, 2, 3, 2, 3]
    steps = [row["step"] for row in own["rows"]]
    assert steps == sorted(steps)
