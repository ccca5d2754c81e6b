"""A plugin of pytest for `make check`: after $CHECK_UNTIL, in seconds since 1970, no test starts,
and one that runs then is cut. Neither is a failure. It works in pytest-xdist's processes, too.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Generator
from types import FrameType
from typing import Any

import pytest

OVER = "the time of make check is over"
_cut = pytest.StashKey[bool]()
_left: Counter[str] = Counter()  # test file → tests that were not run, or not to their end


def _rest() -> float:
    """Return how many seconds are left."""
    return float(os.environ["CHECK_UNTIL"]) - time.time()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if _rest() <= 0:
        pytest.skip(OVER)


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool | None:
    """Take the place of pytest-timeout's alarm where that would come after the end."""
    if not 0 < _rest() < settings.timeout:
        return None

    def cut(number: int, frame: FrameType | None) -> None:
        item.stash[_cut] = True
        pytest.skip(OVER)

    signal.signal(signal.SIGALRM, cut)
    signal.setitimer(signal.ITIMER_REAL, max(_rest(), 0.001))
    vars(item)["cancel_timeout"] = lambda: signal.setitimer(signal.ITIMER_REAL, 0)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What fixtures say at the end of a test that was cut is no failure."""
    report = yield
    if _cut in item.stash and report.when == "teardown":
        report.outcome, report.longrepr = "passed", None
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and isinstance(report.longrepr, tuple) and OVER in report.longrepr[2]:
        _left[report.nodeid.partition("::")[0]] += 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    left = ", ".join(f"{file} ({count})" for file, count in _left.items())
    terminalreporter.line(f"left to make test when the time was over: {left or 'none'}")
