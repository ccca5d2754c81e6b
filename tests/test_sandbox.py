"""Sandboxes: what a hostile program wants to do in one, and what of it comes to pass."""

import json
import os
import subprocess
import sys
import sysconfig
import uuid
import venv
from pathlib import Path
from typing import Any

import psutil
import pytest
from lockstep.teach import sandbox
from lockstep.teach.sandbox import Limits

pytestmark = pytest.mark.skipif(bool(sandbox.why_not()), reason=sandbox.why_not())

SHORT = Limits(seconds=20, memory=400 << 20, disk=8 << 20, processes=30)
TELL = """
import json, os
def tell(**what):
    with open(os.environ["SANDBOX_OUT"] + "/told", "w") as file:
        json.dump(what, file)
"""


def run(program: str, limits: Limits = SHORT, **how: Any) -> sandbox.Ended:
    return sandbox.run(["-c", TELL + program], limits=limits, **how)


def told(ended: sandbox.Ended) -> dict:
    assert ended.how == "exit 0", ended
    return json.loads(ended.files["told"])


def test_a_program_has_its_files_and_leaves_others():
    ended = run("tell(read=open('mine').read(), folder=os.getcwd())", files={"mine": "text"})
    assert told(ended) == {"read": "text", "folder": "/home"}


def test_it_sees_nobody_and_nothing_of_its_user(tmp_path, monkeypatch):
    secret = tmp_path / "secret"
    secret.write_text("key")
    monkeypatch.setenv("SECRET", "key")
    ended = run(
        f"tell(secret=os.path.exists({str(secret)!r}), variable=os.environ.get('SECRET'),"
        "processes=[n for n in os.listdir('/proc') if n.isdigit()],"
        "guard=os.access('/proc/1/fd', os.R_OK))"
    )
    assert told(ended) == {
        "secret": False,
        "variable": None,
        "processes": ["1", "2"],
        "guard": False,
    }


@pytest.mark.parametrize("path", [sys.prefix, "/usr", str(Path(sandbox.__file__).parent)])
def test_it_writes_nowhere_outside(path):
    mark = os.path.join(os.path.realpath(path), "written")
    ended = run(f"""
try:
    open({mark!r}, "w").close()
    tell(said="written")
except OSError as error:
    tell(said=str(error))
""")
    assert "Read-only file system" in told(ended)["said"]
    assert not os.path.exists(mark)


def test_it_cannot_take_down_its_walls():
    ended = run("""
import subprocess
done = subprocess.run(
    ["unshare", "-Urm", "sh", "-c", "mount -o remount,rw /usr; touch /usr/written"],
    capture_output=True, text=True)
tell(code=done.returncode)
""")
    assert told(ended)["code"] != 0
    assert not os.path.exists("/usr/written")


def test_there_is_no_network_but_its_own():
    ended = run("""
import socket
with socket.socket() as server:
    server.bind(("127.0.0.1", 0))
    server.listen()
    socket.create_connection(server.getsockname()).close()
try:
    socket.create_connection(("192.0.2.1", 80), 5)
    said = "reached"
except OSError as error:
    said = str(error)
tell(said=said)
""")
    assert "unreachable" in told(ended)["said"]


@pytest.mark.parametrize(
    ("program", "how"),
    [
        ("while True: pass", "time"),
        ("import time\nif not os.fork():\n    os.setsid()\n    time.sleep(999)", "exit 0"),
        ("import time\nwhile True: os.fork() or time.sleep(999)", "processes"),
        ("x = bytearray(500 << 20)", "exit 1"),  # MemoryError, before anybody looks
        (
            "import time\nfor _ in range(3): os.fork()\nx = b'x' * (150 << 20)\ntime.sleep(99)",
            "memory",
        ),
        ("for n in range(99): open(f'/tmp/{n}', 'wb').write(bytes(1 << 20))", "disk"),
        ("import time\nfor n in range(1 << 20): open(f'/tmp/{n}', 'w')", "disk"),
        ("import signal\nos.kill(1, signal.SIGTERM)\nsignal.pause()", "stopped"),
        ("import signal\nos.kill(1, signal.SIGKILL)\nos.kill(0, 9)", "signal 9"),
    ],
    ids=["hangs", "hides", "forks", "memory", "memory-of-many", "disk", "files", "stops", "kills"],
)
def test_what_takes_too_much_is_ended_and_named(program, how):
    limits = SHORT if how != "time" else Limits(seconds=6)  # it has to begin before that
    mark = uuid.uuid4().hex  # on the command line of what runs
    early = "open(os.environ['SANDBOX_OUT'] + '/early', 'w').write('kept')"
    ended = run(f"{early}  # {mark}\n{program}", limits)
    assert ended.how == how
    left = [one for one in psutil.process_iter(["cmdline"]) if mark in str(one.info["cmdline"])]
    assert left == []
    if how != "memory":
        assert ended.files["early"] == b"kept"


def test_what_comes_back_is_bounded():
    big = Limits(seconds=20, out=1 << 20)
    ended = run("open(os.environ['SANDBOX_OUT'] + '/big', 'wb').write(bytes(2 << 20))", big)
    assert ended.how == "exit 0"
    assert "big" not in ended.files


def test_links_and_pipes_do_not_come_back():
    ended = run("""
os.chdir(os.environ["SANDBOX_OUT"])
os.symlink("/etc/passwd", "link")
os.mkfifo("pipe")
os.mkdir("folder")
""")
    assert ended.how == "exit 0"
    assert ended.files == {}


def test_without_walls_time_and_processes_are_still_bounded():
    ended = run(
        """
import time
if not os.fork():
    os.setsid()
    time.sleep(999)
tell(ok=True)
""",
        Limits(seconds=20),
        walls=False,
    )
    assert told(ended) == {"ok": True}
    assert run("while True: pass", Limits(seconds=1), walls=False).how == "time"


def test_packages_of_another_environment_are_seen_there(tmp_path):
    """As with --system-site-packages, where PyTorch is the system's."""
    own = tmp_path / "own"  # unlike what is above it, others may read that
    venv.create(own, symlinks=True, with_pip=False)
    (there,) = own.glob("lib/python*/site-packages")
    (there / "others.pth").write_text(os.path.realpath(sysconfig.get_path("purelib")))
    program = "from lockstep.teach import sandbox; print(repr(sandbox.lacks()))"
    variables = {**os.environ, "PYTHONPATH": str(Path(sandbox.__file__).parents[2])}
    python = [own / "bin" / "python", "-c", program]
    said = subprocess.run(python, env=variables, capture_output=True, text=True, check=True)
    assert said.stdout == "''\n"
