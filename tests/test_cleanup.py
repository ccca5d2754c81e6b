"""`lockstep clean`: it finds what crashes have left, and nothing else."""

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import lockstep
import psutil
import pytest
from lockstep.__main__ import main
from lockstep.launch import processes
from lockstep.teach import cleanup
from lockstep.teach.cleanup import Places

LIBRARY = str(Path(lockstep.__file__).parents[1])
OLD = 10 * 365 * 86400  # seconds: no process is as old
CRASH = """
import os, signal, subprocess, sys, lockstep
def detach():
    import subprocess, sys, time
    program = "import time; print(flush=True); time.sleep(600)"
    command = [sys.executable, "-c", program]
    sleeper = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE)
    sleeper.stdout.readline()  # it has begun, so its environment can be read
    print("sleeper", sleeper.pid, flush=True)
    time.sleep(600)
import psutil, threading
def kill_when_told():
    sys.stdin.readline()
    me = psutil.Process()
    for one in [*me.children(recursive=False), me]:  # at once: nobody can tidy up
        os.kill(one.pid, signal.SIGKILL)
threading.Thread(target=kill_when_told, daemon=True).start()
lockstep.torchrun(detach, nproc_per_node=1, init=False)
"""


@pytest.fixture
def places(tmp_path) -> Places:
    for name in ("tmp", "shm", "tickets", "traces"):
        (tmp_path / name).mkdir()
    return Places((tmp_path / "tmp",), tmp_path / "shm", tmp_path / "tickets", tmp_path / "traces")


@pytest.fixture
def old() -> Callable[[Path], Path]:
    """Makes a file or a folder that seems to be of another time."""

    def make(path: Path, content: str | None = None) -> Path:
        path.mkdir() if content is None else path.write_text(content)
        os.utime(path, (time.time() - OLD, time.time() - OLD))
        return path

    return make


def found(places: Places) -> list[str]:
    return sorted(Path(one.what).name for one in cleanup.find(places) if one.kind != "process")


def test_what_nobody_holds_is_found_and_removed(places, old):
    base = places.temporary[0]
    old(base / "lockstep-job-abc")
    old(base / "lockstep-abcd_123")
    old(base / "lockstep-trace-abcd_123")
    old(places.tickets / "ticket-1.json", "{}")
    old(places.traces / ".half")
    old(places.shared / "torch_123_456_0", "x" * 2048)
    old(places.shared / "nccl-abCD12", "x")
    assert found(places) == [
        ".half",
        "lockstep-abcd_123",
        "lockstep-job-abc",
        "lockstep-trace-abcd_123",
        "nccl-abCD12",
        "ticket-1.json",
        "torch_123_456_0",
    ]
    assert "2.00 KiB" in " ".join(map(str, cleanup.find(places)))
    for one in cleanup.find(places):
        if one.kind != "process":
            assert one.remove() == ""
    assert found(places) == []


def test_what_is_used_or_young_or_of_others_stays(places, old):
    base = places.temporary[0]
    (base / "lockstep-job-young").mkdir()
    recent = old(base / "lockstep-recent_1")
    old(base / "lockstep-failed-abcd_123")  # kept on purpose
    old(base / "lockstep-mine")
    target = old(base / "precious")
    (base / "lockstep-job-link").symlink_to(target)
    old(places.shared / "psm_12345678", "x")
    used = [old(base / "lockstep-job-used"), old(places.tickets / "ticket-2.json", "{}")]
    claims = [os.open(path, os.O_RDONLY) for path in used]
    for claim in claims:
        fcntl.flock(claim, fcntl.LOCK_SH)
    if os.geteuid() == 0:
        os.chown(old(base / "lockstep-job-others"), 65534, 65534)
    user = subprocess.Popen(  # has the package loaded
        [sys.executable, "-c", "import msgspec, sys; print(1, flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with user:
        user.stdout.readline()
        # Not young any more, but made at most a minute before this process began: maybe its own.
        made = psutil.Process(user.pid).create_time() - 59.99
        os.utime(recent, (made, made))
        assert found(places) == []
        user.stdin.close()
    recent.rmdir()  # other tests may have begun before that
    for claim in claims:
        os.close(claim)
    assert found(places) == ["lockstep-job-used", "ticket-2.json"]


def test_a_folder_that_is_taken_meanwhile_stays(places, old):
    path = old(places.temporary[0] / "lockstep-job-abc")
    (one,) = (one for one in cleanup.find(places) if one.kind != "process")
    claim = os.open(path, os.O_RDONLY)
    fcntl.flock(claim, fcntl.LOCK_SH)
    assert one.remove() == "in use now"
    os.close(claim)
    assert path.exists()


def test_a_process_of_a_dead_notebook_is_ended_and_one_of_a_living_is_not(places):
    notebook = subprocess.Popen(
        [sys.executable, "-c", CRASH],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": LIBRARY},
    )
    with notebook:
        line = notebook.stdout.readline()
        sleeper = psutil.Process(int(line.split()[-1]))
        job = sleeper.environ()[processes.VARIABLE]
        assert job.startswith(f"{notebook.pid}-")
        assert str(sleeper.pid) not in [one.what for one in cleanup.find(places)]
        notebook.stdin.write("\n")
        notebook.stdin.flush()
        assert notebook.wait(30) == -signal.SIGKILL
    (one,) = (one for one in cleanup.find(places) if one.what == str(sleeper.pid))
    assert f"of notebook {notebook.pid}, which has ended: {sys.executable} -c" in str(one)
    assert one.remove() == ""
    assert not sleeper.is_running() or sleeper.status() == psutil.STATUS_ZOMBIE


def test_nothing_is_removed_before_it_was_shown_and_allowed(places, old, monkeypatch, capsys):
    path = old(places.temporary[0] / "lockstep-job-abc")
    monkeypatch.setattr(Places, "usual", lambda: places)
    monkeypatch.setattr(cleanup, "_processes", lambda: iter(()))  # those are of other tests
    assert main(["clean"]) == 0
    said = capsys.readouterr().out
    assert str(path) in said
    assert "nothing was removed: add --yes" in said
    assert path.exists()
    assert main(["clean", "--yes"]) == 0
    assert "removed 1 of 1" in capsys.readouterr().out
    assert not path.exists()
    assert main(["clean", "--yes"]) == 0
    assert "no crash has left anything" in capsys.readouterr().out


def test_the_usual_places_are_those_of_this_user():
    usual = Places.usual()
    assert Path(os.path.realpath(tempfile.gettempdir())) in usual.temporary
    assert usual.tickets.name == "nodes"
