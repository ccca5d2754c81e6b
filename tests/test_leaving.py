"""How ranks end: as Python ends, whatever the program has left open, and in bounded time."""

import _thread
import atexit
import gzip
import os
import signal
import subprocess
import sys
import threading
import time
import types
from pathlib import Path
from typing import IO, Any

import pytest
import torch
import torch.distributed as dist
from lockstep import JobFailed, LaunchError, World
from lockstep.launch import processes, stall_detector
from lockstep.launch.cell import Cell
from lockstep.launch.options import Options
from lockstep.launch.worker.rendezvous import file_of
from test_launch import launch

file: IO[str]  # these are left open, by functions on ranks
compressed: IO[str]
beats: list[int]
COMPRESSED = b"compressed, and never closed"


def leaves_things_open(folder: str) -> str:
    """As programs do that rely on what Python does at its end."""
    global file, compressed
    own = Path(folder) / os.environ["RANK"]
    file = open(own.with_suffix(".txt"), "w")  # noqa: SIM115
    file.write("written, and never closed")
    compressed = gzip.open(own.with_suffix(".gz"), "wt")  # noqa: SIM115
    compressed.write(COMPRESSED.decode())
    at_end = threading.Event()
    thread = threading.Thread(
        target=lambda: (at_end.wait(), own.with_suffix(".late").write_text("by a thread"))
    )
    thread.start()
    threading.Timer(0.2, at_end.set).start()
    atexit.register(own.with_suffix(".exit").write_text, "at exit")
    return "value"


def assert_all_is_there(folder: Path) -> None:
    for rank in range(2):
        own = folder / str(rank)
        assert own.with_suffix(".txt").read_text() == "written, and never closed"
        assert gzip.decompress(own.with_suffix(".gz").read_bytes()) == COMPRESSED
        assert own.with_suffix(".late").read_text() == "by a thread"
        assert own.with_suffix(".exit").read_text() == "at exit"


def test_nothing_that_a_program_wrote_is_lost(tmp_path):
    job = launch(leaves_things_open, str(tmp_path))
    assert job.results == ["value", "value"]
    assert_all_is_there(tmp_path)


def test_nor_by_a_script(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import test_leaving\ntest_leaving.leaves_things_open(sys.argv[2])\n"
        "import threading, time\n"
        "def last(): print('main is', __name__, MINE)\n"
        "MINE = 'still there'\n"
        "threading.Timer(0.1, last).start()\n"
    )
    job = launch(script, str(Path(__file__).parent), str(tmp_path))
    assert_all_is_there(tmp_path)
    assert "main is __main__ still there" in job.output(0)


def test_nor_by_a_rank_that_fails(tmp_path):
    def fails():
        leaves_things_open(str(tmp_path))
        if os.environ["RANK"] == "1":
            raise ValueError("after all was written")
        return None

    job = launch(fails, may_fail=True)
    assert "rank 1: ValueError: after all was written" in job.report
    assert_all_is_there(tmp_path)


def test_nor_by_a_world(tmp_path):
    world = World(2)
    world.run(leaves_things_open, str(tmp_path))
    world.close()
    assert_all_is_there(tmp_path)


def test_a_rank_that_others_fail_may_save_its_work(tmp_path):
    def saves_when_asked_to_end():
        saved = tmp_path / os.environ["RANK"]
        if os.environ["RANK"] == "0":
            signal.signal(signal.SIGTERM, lambda *_: (saved.write_text("saved"), os._exit(0)))
            dist.barrier()
            signal.pause()
        dist.barrier()
        raise ValueError("the other one")

    job = launch(saves_when_asked_to_end, may_fail=True)
    assert "rank 1: ValueError: the other one" in job.report
    assert (tmp_path / "0").read_text() == "saved"


def test_a_thread_that_never_ends_is_named(monkeypatch):
    monkeypatch.setattr(stall_detector, "_STILL_LEAVING", 0.5)

    def waits_for_nothing():
        threading.Thread(target=threading.Event().wait, name="saver").start()

    job = launch(waits_for_nothing, may_fail=True)
    assert "ranks 0, 1 awaiting the end of its thread 'saver'" in job.verdict
    assert "make it a daemon" in job.verdict
    assert "its job is done, and it waits for the end of its thread 'saver'" in job.report


def test_atexit_that_waits_for_other_ranks_is_explained():
    def meets_at_exit():
        if dist.get_rank() == 0:
            atexit.register(dist.barrier)

    job = launch(meets_at_exit, may_fail=True)
    assert "Rank 0 waits in barrier #0" in job.verdict
    assert "rank 1, which already left" in job.verdict


def test_what_a_program_puts_among_the_modules_harms_nobody():
    def program():
        class Angry(types.ModuleType):
            __dict__ = property(lambda self: 1 / 0)

            def __getattr__(self, name):
                raise KeyboardInterrupt(name)

        simple: Any = types.SimpleNamespace(__file__="a.py")
        sys.modules |= {"simple": simple, "angry": Angry("angry")}
        return "value"

    job = launch(program)
    assert job.results == ["value"] * 2 and job.notes == ()


def test_nobody_hears_of_a_daemon_that_goes_on():
    def program():
        def loop():
            while beats:
                beats.append(1)
                time.sleep(0.001)

        global beats
        beats = [1]
        threading.Thread(target=loop, daemon=True).start()
        _thread.start_new_thread(loop, ())
        if os.environ["RANK"] == "1":
            time.sleep(0.3)  # while the other one has left already

    job = launch(program)
    assert [job.output(rank) for rank in range(2)] == ["", ""]


def test_the_signals_of_a_program_are_its_own():
    def program():
        heard = []
        signal.signal(signal.SIGQUIT, lambda *_: heard.append("quit"))
        os.kill(os.getpid(), signal.SIGQUIT)
        print(heard)
        if dist.get_rank() == 0:
            dist.barrier()

    with pytest.raises(JobFailed) as failed:  # for whose report stacks were asked for
        launch(program)
    assert failed.value.job.output(0) == "['quit']\n"
    assert "in program" in str(failed.value)


def test_a_rank_that_closes_every_descriptor_is_named():
    def program():
        os.closerange(3, 10_000)
        time.sleep(60)

    with pytest.raises(JobFailed, match="its program has closed a file descriptor"):
        launch(program, init=False)


DEPTH = """
import sys
def depth(n=0):
    try:
        return depth(n + 1)
    except RecursionError:
        return n
print(depth(), sys.getrecursionlimit())
sys.setrecursionlimit(100)
print(depth(), sys.getrecursionlimit())
"""


def test_a_program_may_go_as_deep_as_in_python_itself(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(DEPTH)
    alone = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    with World(1) as world:  # in the second cell, too
        cells = [world.run_cell(Cell(DEPTH, "depth"), {}, Options(show=False)) for _ in range(2)]
    assert launch(str(script)).output(1) == cells[0].output(0) == alone.stdout
    assert cells[1].output(0).splitlines()[1] == alone.stdout.splitlines()[1]


def test_a_fork_that_comes_to_the_end_is_no_rank(tmp_path):
    def forks():
        child = os.fork()
        if child == 0:
            (tmp_path / os.environ["RANK"]).write_text("the child's")
            return "child"
        status = os.waitpid(child, 0)[1]
        return "rank", os.waitstatus_to_exitcode(status)

    with World(2) as world:
        assert world.run(forks).results == [("rank", 0)] * 2
        assert world.run(os.getpid).results != [0, 0]
        assert world.run(len, "four").results == [4, 4]
    assert (tmp_path / "1").read_text() == "the child's"


class Interrupted(Exception):
    pass


def test_a_program_that_becomes_another_all_the_time_is_found(tmp_path):
    """While it does, its environment reads as empty: one in 25 of these escaped."""
    restless = tmp_path / "restless"
    restless.write_text('#!/bin/sh\nexec "$0"\n')
    restless.chmod(0o755)
    for attempt in range(10):
        job = f"{os.getpid()}-restless{attempt}"
        environment = {**os.environ, processes.VARIABLE: job}
        programs = [
            subprocess.Popen([restless], env=environment, start_new_session=True) for _ in range(10)
        ]
        reaper = processes.Reaper(job, {})
        while reaper.kill_once([one.pid for one in programs], own=False):
            pass
        try:
            for one in programs:
                assert one.wait(5) == -signal.SIGKILL
        finally:
            for one in programs:
                one.kill()


def test_a_world_never_answers_with_another_jobs_result(tmp_path):
    """The second answer of a rank that was still at work when its job was given up."""
    go = tmp_path / "go"

    def waits_for_the_file(value):
        import time

        (tmp_path / f"up{os.environ['RANK']}").touch()
        while not go.exists():
            time.sleep(0.01)
        return value

    def alarm(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, alarm)
    try:
        with World(2) as world:
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            with pytest.raises(Interrupted):
                world.run(waits_for_the_file, 111)
            go.touch()
            assert world.run(waits_for_the_file, 222).results == [222, 222]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# ── What a program means by env:// ───────────────────────────────────────────────────────────


def test_ranks_that_make_their_own_group_meet_in_a_file_that_nobody_else_can_open():
    def where():
        import torch.distributed.distributed_c10d as c10d

        sums = []
        stores = []
        told: dict[str, Any] = {"rank": int(os.environ["RANK"]), "world_size": 2}
        for options in ({}, told):
            dist.init_process_group("gloo", **options)
            x = torch.ones(1)
            dist.all_reduce(x)
            sums.append(x.item())
            store = c10d._get_default_store()
            while hasattr(store, "underlying_store"):
                store = store.underlying_store
            stores.append(type(file_of(store)).__name__)
            dist.destroy_process_group()
        return sums, stores

    assert launch(where).results == [([2.0, 2.0], ["FileStore", "FileStore"])] * 2


def test_an_address_of_ones_own_is_meant():
    def elsewhere(port):
        import torch.distributed.distributed_c10d as c10d

        os.environ["MASTER_PORT"] = str(port)
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
        dist.init_process_group("gloo")
        store: Any = c10d._get_default_store()
        while hasattr(store, "underlying_store"):
            store = store.underlying_store
        return store.port

    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert launch(elsewhere, port).results == [port, port]


# ── What a rank raises ───────────────────────────────────────────────────────────────────────


class RunsWhereItIsUnpickled(Exception):
    def __reduce__(self):
        return os._exit, (3,)


def test_an_exception_crosses_as_text():
    def raises():
        raise RunsWhereItIsUnpickled("only text")

    with pytest.raises(JobFailed) as caught:
        launch(raises)
    assert caught.value.__cause__.type_name == "RunsWhereItIsUnpickled"
    assert caught.value.__cause__.rank in (0, 1)
    assert "RunsWhereItIsUnpickled: only text" in str(caught.value)


def test_sys_exit_in_a_rank_does_not_end_the_notebook():
    def leaves():
        raise SystemExit(3)

    with pytest.raises(JobFailed, match=r"sys\.exit\(3\) was called"):
        launch(leaves)


def test_an_exception_that_is_its_own_cause():
    def raises():
        error = ValueError("of itself")
        raise error from error

    with pytest.raises(JobFailed) as caught:
        launch(raises)
    assert str(caught.value).count("of itself") <= 3


def test_a_long_message_is_cut():
    def raises():
        raise ValueError("begins " + "x" * 50_000_000 + " ends")

    with pytest.raises(JobFailed) as caught:
        launch(raises)
    said = caught.value.job.failures[0].message
    assert "begins" in said and said.endswith("ends") and "characters" in said
    assert len(str(caught.value)) < 100_000


def test_bad_limits_are_refused():
    with pytest.raises(LaunchError, match="positive"):
        launch(len, "x", timeout=0)
