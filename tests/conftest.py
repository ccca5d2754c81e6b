import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lockstep.author.fast_nbformat  # noqa: F401 - before a test imports nbformat, slowly
import pytest
from kernel import Kernel, Reply
from playing import browsing
from playwright.sync_api import BrowserContext
from xdist.scheduler.loadscope import LoadScopeScheduling

# These take minutes. Begun last, one worker would be at them when others have nothing to do. Files
# that are named on the command line are tested in that order.
FIRST = (
    "test_browser",
    "test_notebooks",
    "test_labs",
    "test_report",
    "test_failures",
    "test_families",
)
# Whole systems, for `make test-more`; so are tests that are marked, and those in a browser.
MORE = (
    *("axe", "bench", "browser", "elastic", "endings", "environment", "kills", "nodes"),
    *("preflight", "report", "reserve", "sandbox", "screenshots", "touched", "trace_perfetto"),
    *(f"experiments_{name}" for name in ("data_parallel", "faults", "foreign", "graphs")),
    "experiments_tensor_parallel",
)
# Of these each worker takes one test at a time; of others all of a file, for what they share.
APART = ("test_notebooks", "test_labs")

os.environ["LOCKSTEP_PROGRESS"] = "off"  # tests are no work of the developer who runs them
# Threads of torch that wait by spinning would take the cores from the tests beside. Recordings note
# the variable, so it is not set for a test that runs alone, as under `make test-gpu`.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
# A shell lets what it starts in the background ignore Ctrl-C, and so would all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if item.path.stem.removeprefix("test_") in MORE or "context" in fixtures:
            item.add_marker("more")
    if config.args_source is not config.ArgsSource.ARGS:
        items.sort(key=lambda item: FIRST.index(item.path.stem) if item.path.stem in FIRST else 99)


class ByFile(LoadScopeScheduling):
    """Deals out whole files; of those in APART, tests."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return nodeid if Path(path).stem in APART else path


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    return ByFile(config, log)


@pytest.fixture(autouse=True)
def only_what_executes_turns_it_off(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it is tested that `lockstep run` stores nothing, it has to see to that itself."""
    if request.module.__name__ == "test_execute":
        monkeypatch.delenv("LOCKSTEP_PROGRESS")


@pytest.fixture(scope="module")
def context() -> Iterator[BrowserContext]:
    """A browser's, for `make test-more`."""
    with browsing() as made:
        yield made


@pytest.fixture(scope="session")
def kernel() -> Iterator[Kernel]:
    kernel = Kernel()
    yield kernel
    kernel.close()


@pytest.fixture
def run(kernel: Kernel) -> Iterator[Callable[[str], Reply]]:
    """Runs cells; after them nothing may be left, and the next cell must work."""

    kernel.remember()

    def execute(code: str) -> Reply:
        reply = kernel.execute(code)
        print(f"{reply.seconds:.2f} s", code, reply.shown, reply.error, sep="\n")  # for pytest -rP
        return reply

    yield execute
    assert kernel.leftovers() == []
    after = kernel.execute("%%torchrun -n 2\n'next'")
    assert "ranks 0, 1 → │ 'next'" in after.shown, after.error
