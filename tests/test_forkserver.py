"""Ends that must come in bounded time, and what becomes of the forkserver and its jobs."""

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import lockstep
import psutil
import pytest
from kernel import HANG, Kernel, suspend
from lockstep import JobFailed, LaunchError, World, torchrun
from test_failures import runs
from test_launch import cell as cell_of


def cell(body: str, flags: str = "") -> str:
    return cell_of(body, flags, n=4)


LIB = str(Path(lockstep.__file__).parents[1])
# By one call of write: ranks have `python -u`, where print writes each of its arguments alone.
READY = "print(f'ready {os.getpid()}')\n"
ENOUGH = 6  # seconds: a time limit before which ranks have begun, on a busy machine, too


@pytest.fixture(scope="module")
def own():
    """A kernel for what a kernel's parent may not survive."""
    kernel = Kernel()
    yield kernel
    kernel.close()


@pytest.fixture
def apart(own):
    """After it the next job works, and nothing is left but a forkserver."""
    yield own
    own.execute("%%torchrun -n 1\n1")
    known = {own.process.pid, own.warm_parent.pid}
    gone = [p for p in own.processes() if p.pid not in known]
    psutil.wait_procs(gone, timeout=5)
    # Who forks and ends again and again is another process at each look, and may pass by one.
    assert [p for _ in range(5) for p in own.processes() if p.pid not in known and runs(p)] == []
    assert [f for f in own.files() if "lockstep" in f] == []


def start(kernel: Kernel, body: str, flags: str = "", ranks: int = 4) -> list[psutil.Process]:
    """Start a cell and wait until its ranks have printed READY; returns their processes."""
    kernel.start(cell(body, flags))
    reply = kernel.wait_for(lambda reply: reply.shown.count("ready") >= ranks)
    assert reply.shown.count("ready") >= ranks, reply.error
    words = reply.shown.replace("│", " ").split()
    return [psutil.Process(int(words[at + 1])) for at, w in enumerate(words) if w == "ready"]


def script(tmp_path: Path, body: str, *before: str, **environment: str) -> str:
    """What a program of its own prints."""
    file = tmp_path / "program.py"
    file.write_text(textwrap.dedent(body))
    done = subprocess.run(
        [*before, sys.executable, str(file)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": LIB, **environment},
        capture_output=True,
        text=True,
        timeout=2 * HANG,
        check=False,
    )
    print(done.stdout, done.stderr)
    return done.stdout


# ── Who cannot be ended is named, and nobody waits for it ────────────────────────────────────


@pytest.fixture
def freezer():
    """A control group whose processes do not even take SIGKILL until they are thawed."""
    group = Path("/sys/fs/cgroup/freezer") / f"lockstep-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "freezer.state").write_text("THAWED")
    except OSError:
        pytest.skip("no freezer (of the first version of control groups) that we may use")
    yield group
    (group / "freezer.state").write_text("THAWED")
    pids = [int(pid) for pid in (group / "cgroup.procs").read_text().split()]
    psutil.wait_procs([psutil.Process(pid) for pid in pids], timeout=5)
    group.rmdir()


def test_a_frozen_rank_is_named_and_left(apart, freezer):
    ranks = start(apart, READY + "time.sleep(600)", f"--no-init --timeout {ENOUGH}")
    frozen = ranks[0]
    (freezer / "cgroup.procs").write_text(str(frozen.pid))
    (freezer / "freezer.state").write_text("FROZEN")
    reply = apart.finish()
    assert f"The time limit of {ENOUGH} s has passed." in reply.error
    assert f"(pid {frozen.pid}) could not be ended: it is frozen" in reply.shown
    assert not any(runs(rank) for rank in ranks[1:])
    assert "ok" in apart.execute(cell("rank")).shown
    (freezer / "freezer.state").write_text("THAWED")
    psutil.wait_procs([frozen], timeout=5)
    assert not runs(frozen)


def test_a_rank_of_another_user_is_named_and_left(tmp_path):
    """A parent that may set users but not end others' processes, as where sudo is configured."""
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("only root can set this up")
    tmp_path.chmod(0o777)
    may = "+setuid,+dac_read_search"  # and not +kill; the second to read this environment
    become = [f"--inh-caps={may}", f"--ambient-caps={may}"]
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o777)
    printed = script(
        tmp_path,
        """
        import os, time
        from lockstep import torchrun
        from lockstep.launch.engines.supervised import forkserver
        def become_another():
            if os.environ["RANK"] == "1":
                os.setuid(65533)
                print("pid", os.getpid(), flush=True)
            time.sleep(600)
        if __name__ == "__main__":
            job = torchrun(become_another, nproc_per_node=2, timeout=6, init=False, may_fail=True)
            print("note", job.note)
            before = forkserver.pid
            print(torchrun(os.getuid, nproc_per_node=2, init=False, show=False).results)
            print("the same parent:", forkserver.pid == before)
        """,
        *("setpriv", "--reuid=65534", "--clear-groups", *become),
        HOME=str(home),
        TMPDIR=str(home),
    )
    pid = int(printed.partition("pid ")[2].split()[0])
    os.kill(pid, signal.SIGKILL)
    assert f"note rank 1 (pid {pid}) could not be ended: it runs as another user" in printed
    assert "[65534, 65534]\nthe same parent: True\n" in printed


CHAIN = """\
import subprocess
links = "import os\\nos.setsid()\\nwhile True:\\n    if os.fork(): os._exit(0)\\n    os.setsid()"
subprocess.run([sys.executable, "-S", "-E", "-c", links])  # over when the chain has begun
def fork_on():
    for _ in range(10_000):
        os.setsid()
        if os.fork():
            os._exit(0)
if rank == 0 and os.fork() == 0:
    if os.fork() == 0:
        fork_on()
    os._exit(0)
"""


@pytest.mark.parametrize("end", ["'ok'", "1 / 0"])
def test_who_forks_and_leaves_its_session_again_and_again_ends_too(apart, end):
    assert ("ok" in apart.execute(cell(CHAIN + end)).shown) == (end == "'ok'")


def test_a_stopped_rank_ends_like_any_other(apart):
    ranks = start(apart, READY + "time.sleep(600)", f"--no-init --timeout {ENOUGH}")
    suspend(ranks[0])
    reply = apart.finish()
    assert f"The time limit of {ENOUGH} s has passed." in reply.error
    assert "rank 0: stopped by a signal (SIGSTOP) or a debugger, no call so far" in reply.error
    assert not any(runs(rank) for rank in ranks)
    assert "could not be ended" not in reply.shown


POLITE = """\
import signal
def save(*_):
    open(f"saved-{rank}", "w").write("a checkpoint")
    os._exit(0)
if rank == 1:
    signal.signal(signal.SIGTERM, save)
"""


def test_ranks_that_handle_sigterm_may_end_by_themselves(apart):
    ranks = start(apart, POLITE + READY + "time.sleep(600 if rank else 0)\n1 / 0", "--no-init")
    reply = apart.finish()
    assert "ZeroDivisionError" in reply.error
    assert (apart.work / "saved-1").read_text() == "a checkpoint"
    assert not any(runs(rank) for rank in ranks)


def test_who_never_ends_by_itself_is_killed_and_others_are_served_meanwhile(tmp_path):
    """One thread's job is given its last seconds while another thread's jobs come and go."""
    world = World(1)
    world.run(abs, -1)
    begun = tmp_path / "begun"

    def stubborn() -> None:
        signal.signal(signal.SIGTERM, lambda *_: begun.write_text("ends"))
        while True:
            time.sleep(1)

    job = []
    options: dict[str, Any] = {
        "nproc_per_node": 1,
        "init": False,
        "show": False,
        "may_fail": True,
        "timeout": ENOUGH,
    }
    thread = threading.Thread(target=lambda: job.append(torchrun(stubborn, **options)))
    thread.start()
    while not begun.exists():
        time.sleep(0.01)
    world.close()
    assert torchrun(os.getpid, nproc_per_node=2, init=False, show=False).ok
    assert thread.is_alive()
    thread.join(HANG)
    assert job[0].state == "failed" and job[0].note == ""


# ── The forkserver is stopped, killed, or refuses ────────────────────────────────────────────


def test_a_stopped_parent_is_replaced(apart):
    ranks = start(apart, READY + "time.sleep(600)", f"--no-init --timeout {ENOUGH}")
    stopped = apart.warm_parent
    suspend(stopped)
    reply = apart.finish()
    assert f"The time limit of {ENOUGH} s has passed." in reply.error
    assert f"(pid {stopped.pid})" in reply.shown
    assert "did not answer (it had been stopped)" in reply.shown
    assert not runs(stopped) and not any(runs(rank) for rank in ranks)
    apart.execute(cell("rank"))
    stopped = apart.warm_parent
    suspend(stopped)
    reply = apart.execute(cell("rank"))
    assert reply.error_name == "LaunchError" and "did not answer" in reply.error
    assert "ranks 0–3 → │ 1" in apart.execute(cell("1")).shown


BROOD = """\
import subprocess
subprocess.Popen(["sleep", "600"], start_new_session=True)
if os.fork() == 0:
    os.setsid()
    time.sleep(600)
"""


def test_the_parent_s_death_is_named(apart):
    apart.execute("import lockstep\nkept = lockstep.World(2)\nkept.run(abs, -1)")
    ranks = start(apart, BROOD + READY + "dist.barrier()\ntime.sleep(600)")
    apart.warm_parent.kill()
    reply = apart.finish()
    headline = reply.error.splitlines()[1]
    assert headline.startswith("The forkserver, which starts and watches the ranks, was ended by")
    assert "SIGKILL (by hand, or because memory ran out)" in headline
    assert "Run the cell again" in headline
    assert not any(runs(rank) for rank in ranks)
    assert "The forkserver" in apart.execute("kept.run(abs, -1)").error
    assert "[1, 1]" in apart.execute("print(kept.run(abs, -1).results)\nkept.close()").stdout


def test_a_parent_that_cannot_start_says_why(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nif any('worker.forkserver' in word for word in sys.orig_argv):\n"
        "    raise SystemExit('no parents today')\n"
    )
    printed = script(
        tmp_path,
        """
        from lockstep import LaunchError, torchrun
        try:
            torchrun(abs, -1)
        except LaunchError as error:
            print(error)
        """,
        PYTHONPATH=os.pathsep.join([str(tmp_path), LIB]),
    )
    assert "The forkserver, which starts and watches the ranks, has ended unexpectedly." in printed
    assert "Its last output:" in printed and "no parents today" in printed


# ── Folders, daemons, forks ──────────────────────────────────────────────────────────────────


def test_without_its_folder_for_temporary_files_a_job_is_refused_and_worlds_live_on(apart):
    apart.execute("import lockstep\nkept = lockstep.World(2)\nkept.run(abs, -1)")
    parent = apart.warm_parent
    shutil.rmtree(apart.temporary)
    reply = apart.execute(cell("rank"))
    assert reply.error_name == "LaunchError"
    assert str(apart.temporary) in reply.error and "TMPDIR" in reply.error
    assert "[2, 2]" in apart.execute("print(kept.run(abs, -2).results)\nkept.close()").stdout
    assert "did not" not in apart.execute(cell("rank")).shown
    apart.temporary.mkdir()
    assert "ranks 0–3 → │ 1" in apart.execute(cell("1")).shown
    assert apart.warm_parent == parent


DAEMONS = """\
def daemons():
    import os, subprocess, time
    started = []
    command = "setsid sleep 600 >/dev/null 2>&1 & echo $!"
    started.append(int(subprocess.check_output(command, shell=True)))
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if pid := os.fork():
            os.write(write, str(pid).encode())
            os._exit(0)
        time.sleep(600)
    os.wait()
    started.append(int(os.read(read, 100)))
    return started
"""


def test_a_job_s_end_spares_the_daemons_of_another_world(apart):
    apart.execute("import lockstep\nkept = lockstep.World(2)\n" + DAEMONS)
    printed = apart.execute("print(sum(kept.run(daemons).results, []))").stdout
    pids = [int(word) for word in printed.strip(" []\n").split(",")]
    assert len(pids) == 4
    daemons = [psutil.Process(pid) for pid in pids]
    assert apart.execute(cell(BROOD + "1")).error == ""
    assert apart.execute(cell("1 / 0")).error
    assert all(runs(daemon) for daemon in daemons)
    assert all(daemon.status() == psutil.STATUS_SLEEPING for daemon in daemons)
    apart.execute("kept.close()")
    assert not any(runs(daemon) for daemon in daemons)


FORK = """\
import os, time
child = os.fork()
if child == 0:
    time.sleep(600)
"""


def test_a_kernels_first_ranks_say_what_they_wait_for(apart):
    apart.warm_parent.kill()
    psutil.wait_procs([apart.warm_parent], timeout=5)
    apart.start("%%torchrun -n 1\n1")
    reply = apart.wait_for(lambda reply: "until PyTorch is loaded" in reply.shown)
    assert "until PyTorch is loaded" in reply.shown
    assert "running" in reply.html
    for _ in range(2):  # the next ranks find it loaded
        reply = apart.finish()
        assert len(reply.displays) == 1
        assert "ok" in reply.shown and "PyTorch" not in reply.shown
        apart.start("%%torchrun -n 1\n1")
        reply = apart.wait_for(lambda reply: "live" in reply.shown)
        assert "PyTorch" not in reply.shown
    apart.finish()


def test_ranks_end_with_the_kernel_though_a_fork_of_it_lives():
    kernel = Kernel()
    process = kernel.process
    try:
        kernel.execute("import lockstep\nkept = lockstep.World(1)\nkept.run(abs, -1)")
        kernel.start(FORK + "print('forked', child, flush=True)\ntime.sleep(600)")
        reply = kernel.wait_for(lambda reply: "forked" in reply.stdout)
        child = psutil.Process(int(reply.stdout.split()[1]))
        others = [p for p in kernel.processes() if p not in (process, child)]
        assert len(others) >= 2
        process.kill()
        psutil.wait_procs(others, timeout=5)
        assert not any(runs(other) for other in others)
        assert runs(child)
        assert [f for f in kernel.files() if "lockstep" in f] == []
    finally:
        kernel.close()


def test_a_fork_of_the_notebook_that_ends_does_not_end_the_ranks(tmp_path):
    printed = script(
        tmp_path,
        """
        import os, sys
        from lockstep import World
        world = World(2)
        before = world.run(os.getpid, timeout=60).results
        child = os.fork()
        if child == 0:
            sys.exit()  # as a program ends: what is registered to be closed is closed
        os.waitpid(child, 0)
        print("the same", world.run(os.getpid).results == before)
        world.close()
        """,
    )
    assert "the same True" in printed


def test_folders_of_those_who_were_killed_are_swept(tmp_path):
    stale, used = tmp_path / "lockstep-job-stale", tmp_path / "lockstep-job-used"
    for folder in (stale, used):
        (folder / "logs").mkdir(parents=True)
        os.utime(folder, (0, 0))
    import fcntl

    claim = os.open(used, os.O_RDONLY)
    fcntl.flock(claim, fcntl.LOCK_SH)
    body = "from lockstep import torchrun\nprint(torchrun(abs, -1, nproc_per_node=1).results)"
    assert "[1]" in script(tmp_path, body, TMPDIR=str(tmp_path))
    os.close(claim)
    assert sorted(p.name for p in tmp_path.glob("lockstep-*")) == [used.name]


# ── What a rank's program writes where it should not ─────────────────────────────────────────

SOCKETS = """\
def sockets():
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                yield int(name)
        except OSError:
            pass
"""


def test_a_junk_byte_does_not_disable_the_time_limit(apart):
    body = SOCKETS + "if rank == 1:\n    for s in sockets():\n        os.write(s, b'x')\n"
    reply = apart.execute(cell(body + "time.sleep(600)", "--no-init --timeout 1"))
    assert "The time limit of 1 s has passed." in reply.error


def test_junk_is_told(apart):
    body = SOCKETS + "if rank == 1:\n    for s in sockets():\n        os.write(s, b'x' * 100)\n"
    reply = apart.execute(cell(body + "time.sleep(600)", "--no-init"))
    assert "rank 1: sent an invalid message" in reply.error
    assert "its program wrote to a file descriptor that it did not open" in reply.error


def test_a_record_that_is_cut_short_does_not_end_the_kernel(apart):
    body = """\
    maps = [line for line in open("/proc/self/maps") if "lockstep-calls" in line]
    said = "no record"
    for line in maps:
        try:
            os.truncate(f"/proc/self/map_files/{line.split()[0]}", 0)
            said = "cut"
        except PermissionError as error:
            said = "fixed"
    time.sleep(0.3 if rank else 0)
    said
    """
    assert "ranks 0–3 → │ 'fixed'" in apart.execute(cell(body)).shown


# ── What the machine refuses ─────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def limit(what: int, most: int):
    soft, hard = resource.getrlimit(what)
    resource.setrlimit(what, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(what, (soft, hard))


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_too_few_descriptors_are_told_and_none_is_lost():
    options: dict[str, Any] = {"nproc_per_node": 4, "show": False, "init": False}
    torchrun(abs, -1, **options)
    before = descriptors()
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    said = []
    for room in range(64):
        try:
            with limit(resource.RLIMIT_NOFILE, lowest + room):
                assert torchrun(abs, -1, **options).results == [1] * 4
            break
        except (LaunchError, JobFailed) as error:
            said.append(str(error))
        assert descriptors() == before
    assert 5 < len(said) < 64
    assert all("too many files are open" in text and "ulimit -n" in text for text in said)


def test_a_limit_on_the_size_of_files_is_told():
    with limit(resource.RLIMIT_FSIZE, 1 << 20), pytest.raises(LaunchError, match=r"ulimit -f"):
        torchrun(abs, -1, nproc_per_node=2, show=False)
    with World(1) as world:
        world.run(abs, -1)
        with limit(resource.RLIMIT_FSIZE, 1 << 20), pytest.raises(LaunchError, match="ulimit -f"):
            world.run(len, b"x" * (2 << 20))
        assert world.run(abs, -2).results == [2]


def test_no_free_port_is_told(tmp_path):
    """In a network of its own, whose only ports are taken."""
    if subprocess.run(["unshare", "-rn", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no network namespace to be had")
    printed = script(
        tmp_path,
        """
        import fcntl, socket, struct
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:  # bring `lo` up
            fcntl.ioctl(s, 0x8914, struct.pack("16sH14x", b"lo", 0x1 | 0x40))
        with open("/proc/sys/net/ipv4/ip_local_port_range", "w") as file:
            file.write("50000 50001")
        taken = [socket.create_server(("127.0.0.1", port)) for port in (50000, 50001)]
        from lockstep import LaunchError, torchrun
        try:
            torchrun(abs, -1)
        except LaunchError as error:
            print(error)
        """,
        *("unshare", "-rn"),
    )
    assert "no TCP port of 127.0.0.1 is free" in printed


@pytest.mark.long
def test_a_long_folder_for_temporary_files(tmp_path):
    long = tmp_path / ("long" * 25)
    long.mkdir()
    printed = script(
        tmp_path,
        """
        import os
        from lockstep import torchrun
        if __name__ == "__main__":
            for engine in ("warm", "torchrun"):
                print(torchrun(abs, -1, nproc_per_node=2, engine=engine, show=False).results)
        """,
        TMPDIR=str(long),
    )
    assert printed == "[1, 1]\n[1, 1]\n"


def in_huge_pages(pid: int) -> int:
    """Bytes of a process's own memory that lie in huge pages."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("AnonHugePages:"))


def may_use_huge_pages() -> bool:
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    version = tuple(map(int, os.uname().release.split(".")[:2]))
    return version >= (6, 1) and setting.exists() and "[never]" not in setting.read_text()


@pytest.mark.skipif(not may_use_huge_pages(), reason="this Linux cannot move memory into them")
def test_the_memory_that_ranks_share_moves_into_huge_pages_while_nothing_runs(apart):
    until = time.monotonic() + HANG
    while in_huge_pages(apart.warm_parent.pid) < 20_000_000 and time.monotonic() < until:
        assert apart.execute("%%torchrun -n 1\n1").error == ""
    assert in_huge_pages(apart.warm_parent.pid) >= 20_000_000


def test_semaphores_of_killed_ranks_are_removed(tmp_path):
    def holds_a_queue(folder):
        import multiprocessing
        import os
        import time

        queue = multiprocessing.get_context("spawn").Queue()
        with open("/proc/self/maps") as file:
            own = {line.strip().rpartition("/dev/shm/")[2] for line in file if "/dev/shm/" in line}
        with open(f"{folder}/{os.environ['RANK']}", "w") as file:
            file.write("\n".join(own))
        while queue.empty():
            time.sleep(1)

    job = torchrun(
        holds_a_queue, str(tmp_path), nproc_per_node=1, timeout=3, may_fail=True, show=False
    )
    assert "time limit" in job.verdict
    names = (tmp_path / "0").read_text().split()
    assert names and not set(names) & set(os.listdir("/dev/shm"))
