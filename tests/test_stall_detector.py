"""Programs that stand still over messages, several groups and asynchronous calls are named soon."""

from typing import Any

import pytest
from lockstep import torchrun
from standing_still import PROGRAMS


def told(name: str, launched: dict[str, Any]) -> str:
    """The report's first paragraph, where it came within 10 s of the last call."""
    program = PROGRAMS[name]
    job = torchrun(
        **launched, nproc_per_node=program.nproc, show=False, may_fail=True, timeout=30,
    )  # fmt: skip
    last = max(call.start for calls in job.calls for call in calls)
    after = max(end.at for end in job.ends) - last
    headline: str = job.report.split("\n\n")[0]
    print(f"{name}: {after:.1f} s, {job.state}: {headline}")
    assert job.state == "failed" and "time limit" not in headline
    assert after < 10
    return headline


@pytest.mark.parametrize("name", PROGRAMS)
def test_who_waits_for_whom_is_named_within_seconds(name):
    headline = told(name, {"what": PROGRAMS[name].ranks, "backend": "gloo"})
    for words in PROGRAMS[name].says:
        assert words in headline
