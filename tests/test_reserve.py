"""Ranks in reserve: fresh like any others, used once, never in the way; here with gloo."""

import textwrap
import time

import psutil
import pytest
from kernel import HANG, Kernel, suspend
from lockstep import LaunchError, reserve
from lockstep.launch.outcome import Plan
from rank_state import CHANGES, PROBE
from test_failures import runs
from test_launch import cell as cell_of


def cell(body: str, flags: str = "", n: int = 2) -> str:
    return cell_of(body, flags, n)


def make() -> Kernel:
    """A kernel whose jobs keep a reserve from now on."""
    return Kernel(LOCKSTEP_RESERVE="between")


@pytest.fixture(scope="module")
def shared():
    kernel = make()
    kernel.execute("from lockstep.launch.reserve import kept")
    yield kernel
    kernel.close()


@pytest.fixture
def kernel(shared):
    """Without a reserve at its begin and at its end, when nothing else may be left either."""
    shared.execute(
        "import os, lockstep; from lockstep.launch.reserve import kept\n"
        "lockstep.reserve('off'); lockstep.reserve()"
    )
    shared.execute("%%torchrun -n 1 --no-init\n1")
    yield shared
    shared.execute("lockstep.reserve('off')")
    shared.execute("%%torchrun -n 1 --no-init\n1")  # which waits for the end of the job before
    shared.execute("lockstep.reserve()")
    known = {shared.process.pid, shared.warm_parent.pid}
    gone = [p for p in shared.processes() if p.pid not in known]
    psutil.wait_procs(gone, timeout=5)
    assert [p for p in gone if runs(p)] == []
    assert [f for f in shared.files() if "lockstep" in f] == []


@pytest.fixture
def alone():
    kernel = make()
    kernel.execute("from lockstep.launch.reserve import kept")
    yield kernel
    kernel.close()


def waiting(kernel: Kernel) -> list[psutil.Process]:
    """The ranks in reserve, once they have met."""
    until = time.monotonic() + HANG
    while time.monotonic() < until:
        if found := eval(kernel.value("kept.pids")):
            return [psutil.Process(pid) for pid in found]
    raise AssertionError(f"no ranks in reserve but {kernel.warm_parent.children()}")


def others(kernel: Kernel, count: int) -> list[psutil.Process]:
    """The ranks of the job that runs and of the reserve, once these have met."""
    until = time.monotonic() + HANG
    while time.monotonic() < until:  # gloo's threads run when they have met
        ranks = [rank for rank in kernel.warm_parent.children() if runs(rank)]
        if len(ranks) == count and all(rank.num_threads() > 1 for rank in ranks):
            return ranks
    raise AssertionError(f"not {count} ranks but {kernel.warm_parent.children()}")


def pids(kernel: Kernel, flags: str = "", n: int = 2) -> list[int]:
    reply = kernel.execute(cell("print('pid', os.getpid())", flags, n))
    words = reply.shown.replace("│", " ").split()
    assert not reply.error, reply.error
    return sorted(int(words[at + 1]) for at, word in enumerate(words) if word == "pid")


def numbers(processes: list[psutil.Process]) -> list[int]:
    return sorted(process.pid for process in processes)


# ── Used, once ───────────────────────────────────────────────────────────────────────────────


def test_the_next_job_like_the_last_one_finds_its_ranks_there_and_each_its_own(kernel):
    first = pids(kernel)
    ready = numbers(waiting(kernel))
    assert not set(first) & set(ready)
    assert pids(kernel) == ready
    assert not set(numbers(waiting(kernel))) & {*first, *ready}
    values = kernel.execute(cell("x = torch.ones(2)\ndist.all_reduce(x)\nx.tolist()"))
    assert "ranks 0, 1 → │ [2.0, 2.0]" in values.shown


@pytest.mark.parametrize("flags, n", [("", 3), ("--no-init", 2)])
def test_a_job_of_another_kind_gets_ranks_of_its_own_and_the_reserve_goes(kernel, flags, n):
    pids(kernel)
    ready = waiting(kernel)
    assert not set(pids(kernel, flags, n)) & set(numbers(ready))
    psutil.wait_procs(ready, timeout=5)
    assert not any(runs(rank) for rank in ready)


def test_gloo_has_none_unless_asked_and_another_word_is_refused(kernel):
    with pytest.raises(LaunchError, match="when is off, between or behind, not 'on'"):
        reserve("on")
    kernel.execute("lockstep.reserve(); del os.environ['LOCKSTEP_RESERVE']")
    try:
        pids(kernel)
        assert kernel.value("lockstep.reserve()") == "no ranks in reserve"
        assert kernel.warm_parent.children() == []
        kernel.execute("lockstep.reserve('between')")
        pids(kernel)
        assert kernel.value("lockstep.reserve('between')").startswith("2 ranks in reserve, gloo")
        kernel.execute("lockstep.reserve(); os.environ['LOCKSTEP_RESERVE'] = 'on'")
        reply = kernel.execute(cell("open('ran', 'w')"))
        assert reply.error_name == "LaunchError" and "not 'on'" in reply.error
        assert not (kernel.work / "ran").exists()
    finally:
        kernel.execute("os.environ['LOCKSTEP_RESERVE'] = 'between'")


def test_by_default_only_a_notebook_on_gpus_keeps_one(kernel):
    kernel.execute("lockstep.reserve(); from lockstep.launch.job import Plan")
    asked = "[kept.when(Plan(2, backend)) for backend in ('nccl', 'gloo', None)]"
    try:
        for said, whens in [
            (None, ["between", "off", "off"]),
            ("off", ["off", "off", "off"]),
            ("behind", ["behind", "behind", "off"]),
        ]:
            kernel.execute(f"os.environ.pop('LOCKSTEP_RESERVE', 0); said = {said!r}")
            kernel.execute("os.environ |= {'LOCKSTEP_RESERVE': said} if said else {}")
            assert kernel.value(asked) == repr(whens)
        kernel.execute("lockstep.reserve('off')")  # which goes before the variable
        assert kernel.value(asked) == "['off', 'off', 'off']"
    finally:
        kernel.execute("os.environ['LOCKSTEP_RESERVE'] = 'between'")
    assert reserve().when(Plan(2, "nccl")) == "off"  # nobody reads between a script's jobs


def test_it_comes_up_behind_the_job_where_that_is_asked(kernel):
    kernel.execute("lockstep.reserve('behind')")
    kernel.start(cell("while not os.path.exists('go'): time.sleep(0.01)\nos.getpid()"))
    ready = numbers(others(kernel, 4))
    (kernel.work / "go").touch()
    kernel.finish()
    (kernel.work / "go").unlink()
    assert set(pids(kernel)) < set(ready)


def test_a_world_takes_it(kernel):
    pids(kernel)
    ready = numbers(waiting(kernel))
    kernel.execute("import lockstep, os\nworld = lockstep.World(2)")
    assert kernel.value("sorted(world.run(os.getpid).results)") == repr(ready)
    assert kernel.value("sorted(world.run(os.getpid).results)") == repr(ready)
    kernel.execute("world.close()")


# ── As fresh as fresh ────────────────────────────────────────────────────────────────────────


def states(kernel: Kernel, when: str) -> str:
    """What each of two ranks finds, as one text; the ranks are fresh or from the reserve."""
    kernel.execute(f"lockstep.reserve({when!r})")
    if when != "off":
        pids(kernel)
        waiting(kernel)
    job = "lockstep.torchrun(state, nproc_per_node=2, show=False)"
    return kernel.value(f"{job}.results")


def test_ranks_in_reserve_are_in_the_state_of_fresh_ones(kernel):
    kernel.execute(PROBE)
    fresh, used = (eval(states(kernel, when)) for when in ("off", "between"))
    for one, other in zip(fresh, used, strict=True):
        assert {k: (one[k], other[k]) for k in one if one[k] != other[k]} == {}


@pytest.mark.parametrize("when", ["between", "behind"])
def test_nothing_that_a_job_changes_is_there_in_the_next(kernel, when):
    kernel.execute(PROBE)
    before = eval(states(kernel, "off"))
    kernel.execute(f"lockstep.reserve({when!r})")
    assert not kernel.execute(cell(CHANGES)).error
    waiting(kernel)
    assert not kernel.execute(cell(CHANGES)).error
    after = eval(kernel.value("lockstep.torchrun(state, nproc_per_node=2, show=False).results"))
    for one, other in zip(before, after, strict=True):
        assert {k: (one[k], other[k]) for k in one if one[k] != other[k]} == {}


def test_ranks_of_one_reserve_draw_other_random_numbers_than_those_of_the_next(kernel):
    draw = "import random, numpy\nprint('drew', random.random(), numpy.random.random())"
    seen: set[str] = set()
    for _ in range(3):
        shown = kernel.execute(cell(draw)).shown.replace("│", " ").split()
        waiting(kernel)
        seen |= {
            word for at, w in enumerate(shown) if w == "drew" for word in shown[at + 1 : at + 3]
        }
    assert len(seen) == 3 * 2 * 2


def test_what_the_notebook_changes_is_seen_by_the_next_job(kernel, tmp_path):
    module = kernel.work / "of_mine.py"
    module.write_text("value = 1\n")
    look = cell("import of_mine\nprint(of_mine.value, os.environ.get('NEW'), os.getcwd(), word)")
    kernel.execute("import os, sys\nword = 'first'")
    assert "1 None" in kernel.execute(look).shown
    waiting(kernel)
    module.write_text("value = 'edited'\n")
    kernel.execute("word = 'second'")
    assert f"edited None {kernel.work} second" in kernel.execute(look).shown
    waiting(kernel)
    kernel.execute("%env NEW=variable")
    assert "edited variable" in kernel.execute(look).shown
    waiting(kernel)
    (tmp_path / "of_mine.py").write_text("value = 'elsewhere'\n")
    kernel.execute(f"os.chdir({str(tmp_path)!r}); sys.path.insert(0, {str(tmp_path)!r})")
    try:
        assert f"elsewhere variable {tmp_path}" in kernel.execute(look).shown
        waiting(kernel)
        kernel.execute(
            f"import shutil; shutil.rmtree({str(tmp_path)!r}); os.mkdir({str(tmp_path)!r})\n"
            "os.chdir(os.getcwd() if False else '/')\n"
            f"os.chdir({str(tmp_path)!r}); open('of_mine.py', 'w').write('value = \"again\"')"
        )
        assert f"again variable {tmp_path}" in kernel.execute(look).shown
    finally:
        kernel.execute(f"os.chdir({str(kernel.work)!r}); sys.path.pop(0); del os.environ['NEW']")


# ── Faults ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("fault", ["killed", "stopped"])
@pytest.mark.parametrize("whose", ["a rank", "the parent"])
def test_a_reserve_that_died_or_was_stopped_is_not_used(kernel, fault, whose):
    pids(kernel)
    ready = waiting(kernel)
    victim = ready[1] if whose == "a rank" else kernel.warm_parent
    if fault == "killed":
        victim.kill()
        psutil.wait_procs([victim], timeout=5)
    else:
        suspend(victim)
    began = time.monotonic()
    assert not set(pids(kernel)) & set(numbers(ready))
    if whose == "a rank":  # else a new parent imports torch, which takes what it takes
        assert time.monotonic() - began < 10
    psutil.wait_procs(ready, timeout=5)
    assert not any(runs(rank) for rank in ready)
    assert not set(pids(kernel)) & set(numbers(ready))


def test_unused_for_minutes_it_ends_and_the_next_job_starts_fresh_ranks(kernel):
    kernel.execute("lockstep.reserve('between', minutes=0.02)")
    pids(kernel)
    ready = waiting(kernel)
    psutil.wait_procs(ready, timeout=10)
    assert not any(runs(rank) for rank in ready)
    assert not set(pids(kernel)) & set(numbers(ready))
    kernel.execute("lockstep.reserve('between')")


@pytest.mark.parametrize("how", ["kill -9", "restart"])
def test_it_goes_with_the_kernel(alone, how):
    pids(alone)
    ready = waiting(alone)
    parent = alone.warm_parent
    if how == "restart":
        alone.restart()
    else:
        alone.process.kill()
    psutil.wait_procs([*ready, parent], timeout=10)
    assert not any(runs(process) for process in [*ready, parent])
    if how != "restart":
        assert [f for f in alone.files() if "lockstep" in f] == []


ENDS = {"a failure": "1 / 0", "its time limit": "time.sleep(600)", "Ctrl-C": "time.sleep(600)"}


@pytest.mark.parametrize("end", ENDS)
def test_a_job_on_reserved_ranks_ends_like_any_other(kernel, end):
    pids(kernel)
    ready = waiting(kernel)
    flags = "--timeout 1" if end == "its time limit" else ""
    kernel.start(cell(f"print('ready', os.getpid(), flush=True)\n{ENDS[end]}", flags))
    kernel.wait_for(lambda reply: reply.shown.count("ready") >= 2)
    if end == "Ctrl-C":
        kernel.interrupt()
    reply = kernel.finish()
    assert reply.error_name in (
        "JobFailed",
        "JobInterrupted",
        "ZeroDivisionError",
        "KeyboardInterrupt",
    )
    psutil.wait_procs(ready, timeout=5)
    assert not any(runs(rank) for rank in ready)
    assert "ranks 0, 1 → │ 'next'" in kernel.execute(cell("'next'")).shown


LOCK = """\
import fcntl, subprocess
lock = open("lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
for _ in range(20):
    subprocess.Popen(["sleep", "600"], pass_fds=[lock.fileno()], start_new_session=True)
'locked'
"""


def test_a_job_begins_when_the_one_before_is_gone(kernel):
    for _ in range(3):
        assert "│ 'locked'" in kernel.execute(cell(LOCK, n=1)).shown
    kernel.execute("lockstep.reserve('off')")
    assert "│ 'locked'" in kernel.execute(cell(LOCK, n=1)).shown


OUTLAW = """\
import subprocess
program = "import os, time; os.setsid(); print(os.getpid(), flush=True); time.sleep(600)"
if rank == 0:
    outlaw = subprocess.Popen(
        [sys.executable, "-S", "-E", "-c", "import os\\nif os.fork(): os._exit(0)\\n" + program],
        env={}, stdout=subprocess.PIPE, start_new_session=True)
    print("outlaw", outlaw.stdout.readline().decode().strip(), flush=True)
"""


def test_what_a_job_leaves_behind_ends_although_there_is_a_reserve(kernel):
    kernel.execute("lockstep.reserve('behind')")
    body = textwrap.dedent(OUTLAW) + "while not os.path.exists('go'): time.sleep(0.01)"
    kernel.start(cell("import sys\n" + body))
    reply = kernel.wait_for(lambda reply: "outlaw" in reply.shown)
    words = reply.shown.replace("│", " ").split()
    outlaw = psutil.Process(int(words[words.index("outlaw") + 1]))
    job = kernel.warm_parent.children()
    (kernel.work / "go").touch()
    kernel.finish()
    (kernel.work / "go").unlink()
    psutil.wait_procs([outlaw], timeout=5)
    assert not runs(outlaw)
    ready = waiting(kernel)
    assert not set(numbers(ready)) & {rank.pid for rank in job if not runs(rank)}
    assert pids(kernel) == numbers(ready)


def test_a_fork_of_the_notebook_leaves_its_reserve_alone(kernel):
    pids(kernel)
    ready = waiting(kernel)
    kernel.execute(
        "import lockstep, os\n"
        "if (child := os.fork()) == 0:\n"
        "    try:\n"
        "        own = lockstep.torchrun(os.getpid, nproc_per_node=2, show=False).results\n"
        "        open('own', 'w').write(repr(own))\n"
        "        lockstep.reserve('off')\n"
        "    finally:\n"
        "        os._exit(0)\n"
        "os.waitpid(child, 0)\n"
    )
    own = eval((kernel.work / "own").read_text())
    assert len(own) == 2 and not set(own) & set(numbers(ready))
    assert all(runs(rank) for rank in ready)
    assert pids(kernel) == numbers(ready)
