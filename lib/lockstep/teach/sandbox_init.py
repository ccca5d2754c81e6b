"""The inside of a sandbox, from its walls to its end: a program that needs Python alone.

`python -I -S sandbox_init.py`, with a JSON object on stdin, which `sandbox` writes, is three
processes:

- the first makes namespaces and waits;
- the second is the first of the new process namespace, where all end when it ends. It builds a
  root folder in memory, of what is needed and for reading only, gives up all rights, and starts
- the third, the program itself. When that ends, or its time is up, everybody else in the namespace
  is killed, and what the program has left in /out is written to stdout.

Without namespaces ("walls" is false) there are limits and a time, and processes are found as
descendants: what is weaker then, `sandbox.WEAKER` says.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import signal
import socket
import stat
import struct
import sys
import time
from typing import Any, NoReturn

_CLONE = 0x20000 | 0x4000000 | 0x8000000 | 0x20000000 | 0x40000000  # NS, UTS, IPC, PID, NET
_CLONE_USER = 0x10000000
_READ_ONLY, _NO_SUID, _BIND, _RECURSIVE, _PRIVATE = 1, 2, 0x1000, 0x4000, 0x40000
_PDEATHSIG, _DUMPABLE, _SUBREAPER, _NO_NEW_PRIVILEGES = 1, 4, 36, 38
_MOUNT_SETATTR = 442
_DETACH = 2
_NOBODY = 65534
_DEVICES = ("null", "zero", "full", "random", "urandom")
# What programs look for in /etc.
_SETTINGS = "ld.so.cache ld.so.conf ld.so.conf.d passwd group localtime fonts"
_SETTINGS += " timezone alternatives mime.types ssl/openssl.cnf"
_OWN_SETTINGS = {  # who asks for a name is not sent to a server that cannot be reached
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
_libc = ctypes.CDLL(None, use_errno=True)


class CannotEnter(Exception):
    """This machine does not let us; the message says what."""


def _call(what: str, name: str, *arguments: Any) -> None:
    if getattr(_libc, name)(*arguments) < 0:
        code = ctypes.get_errno()
        raise CannotEnter(f"{what}: {os.strerror(code)}")


def _prctl(option: int, value: int) -> None:
    _libc.prctl(option, value, 0, 0, 0)


def main() -> NoReturn:
    asked = json.load(sys.stdin)
    os.close(0)
    os.open("/dev/null", os.O_RDONLY)
    _prctl(_PDEATHSIG, signal.SIGKILL)
    if asked["walls"]:
        _make_namespaces()
    inner = os.fork()
    if not inner:
        _guarded(asked)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(inner, signal.SIGTERM))
    _, status = os.waitpid(inner, 0)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _guarded(asked: dict[str, Any]) -> NoReturn:
    """Build the walls, run the program and hand over what it left, in the second process."""
    try:
        _prctl(_PDEATHSIG, signal.SIGKILL)
        if asked["walls"]:
            _build(asked)
            _loopback()
        else:
            _prctl(_SUBREAPER, 1)
            os.makedirs(asked["out"], exist_ok=True)
        _limit(asked)
        if asked["walls"]:
            _give_up_rights()
            _prctl(_PDEATHSIG, signal.SIGKILL)  # another user's number has put it out of force
        _prctl(_DUMPABLE, 0)  # so that what runs here cannot read or write this process
        ended = _run(asked)
        _hand_over(asked["out"], ended, asked["most_out"])
    except CannotEnter as error:
        _tell({"refused": str(error)})
    except Exception as error:
        _tell({"refused": f"{type(error).__name__}: {error}"})
    finally:
        os._exit(0)


def _tell(message: dict[str, Any]) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")


# ── Walls ────────────────────────────────────────────────────────────────────────────────────


def _make_namespaces() -> None:
    """Enter namespaces of our own. Root, who becomes another user, needs none of users."""
    user, group = os.geteuid(), os.getegid()
    flags = _CLONE | (_CLONE_USER if user else 0)
    if _libc.unshare(flags) < 0:
        _tell({"refused": f"unshare: {os.strerror(ctypes.get_errno())}"})
        os._exit(0)
    if user:
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)


def _build(asked: dict[str, Any]) -> None:
    """Build a root folder in memory: parts of this machine to read, three folders to write in."""
    root = asked["root"]
    _mount(None, "/", None, _PRIVATE | _RECURSIVE)
    _mount("tmpfs", root, "tmpfs", _NO_SUID, f"size={asked['disk']},nr_inodes=100000,mode=755")
    for path in asked["show"]:
        _show(root, path)
    for name in _SETTINGS.split():
        if os.path.exists(f"/etc/{name}"):
            _show(root, f"/etc/{name}")
    os.makedirs(f"{root}/dev/shm")
    for name in _DEVICES:
        open(f"{root}/dev/{name}", "w").close()
        _mount(f"/dev/{name}", f"{root}/dev/{name}", None, _BIND)
    for name, target in (("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0")):
        os.symlink(target, f"{root}/dev/{name}")
    os.makedirs(f"{root}/proc")
    _mount("proc", f"{root}/proc", "proc", _NO_SUID)
    os.makedirs(f"{root}/etc", exist_ok=True)
    owner = (_NOBODY, _NOBODY) if os.geteuid() == 0 else (-1, -1)
    for name, text in _OWN_SETTINGS.items():
        with open(f"{root}/etc/{name}", "w") as file:
            file.write(text)
    for name in ("tmp", "home", "out", "dev/shm"):
        os.makedirs(f"{root}/{name}", exist_ok=True)
        os.chown(f"{root}/{name}", *owner)
        os.chmod(f"{root}/{name}", 0o700)
    for path, text in asked["files"].items():
        os.makedirs(os.path.dirname(root + path), exist_ok=True)
        with open(root + path, "w", encoding="utf-8", errors="surrogatepass") as file:
            file.write(text)
        os.chown(root + path, *owner)
        os.chown(os.path.dirname(root + path), *owner)
    os.chdir(root)
    _call("pivot_root", "syscall", 155 if os.uname().machine == "x86_64" else 41, b".", b".")
    _call("letting go of the old root", "umount2", b".", _DETACH)
    os.chdir("/home")
    with contextlib.suppress(OSError):
        socket.sethostname("sandbox")


def _mount(
    source: str | None, target: str, kind: str | None, flags: int, options: str = ""
) -> None:
    _call(
        f"mount {target}",
        "mount",
        source and source.encode(),
        target.encode(),
        kind and kind.encode(),
        ctypes.c_ulong(flags),
        options.encode() or None,
    )


def _show(root: str, path: str) -> None:
    """Let this folder or file be seen, at its own path, and nobody write to it."""
    target = root + path
    if os.path.lexists(target):
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(path):
        os.symlink(os.readlink(path), target)
        return
    if os.path.isdir(path):
        os.makedirs(target)
    else:
        open(target, "w").close()
    _mount(path, target, None, _BIND | _RECURSIVE)
    wanted = struct.pack("4Q", _READ_ONLY | _NO_SUID, 0, 0, 0)
    _call(
        f"read-only {path}",
        "syscall",
        _MOUNT_SETATTR,
        -1,
        target.encode(),
        0x8000,  # AT_RECURSIVE
        wanted,
        ctypes.c_size_t(len(wanted)),
    )


def _loopback() -> None:
    """Bring up the only interface there is: ranks meet at 127.0.0.1."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH14x", b"lo", 0x41))  # SIOCSIFFLAGS: UP


def _give_up_rights() -> None:
    _prctl(_NO_NEW_PRIVILEGES, 1)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)  # with it go all capabilities
        return
    header, none = struct.pack("Ii", 0x20080522, 0), struct.pack("6I", *[0] * 6)
    _call("giving up rights", "capset", header, none)


def _limit(asked: dict[str, Any]) -> None:
    def limit(kind: int, most: int) -> None:
        _, hard = resource.getrlimit(kind)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))

    limit(resource.RLIMIT_DATA, asked["memory"])
    limit(resource.RLIMIT_FSIZE, asked["disk"])
    limit(resource.RLIMIT_CORE, 0)
    limit(resource.RLIMIT_NOFILE, 4096)
    if asked["walls"]:  # else it would count what the user runs besides
        limit(resource.RLIMIT_NPROC, 8 * asked["processes"])  # it counts threads
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # where memory runs out all the same, these go first


# ── The program ──────────────────────────────────────────────────────────────────────────────


def _run(asked: dict[str, Any]) -> str:
    """Run the program until it ends or its time is up; then nobody is left but this process.

    Returns how it ended: "exit 0", "signal 9", "time", "disk", "processes" or "stopped".
    """
    state = {"ended": ""}

    def stop(*_: object) -> None:
        state["ended"] = state["ended"] or "stopped"

    signal.signal(signal.SIGTERM, stop)
    verdicts = asked["verdicts"]  # the descriptor on which the program, and nobody else, may speak
    program = os.fork()
    if not program:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            os.setsid()
            null = os.open("/dev/null", os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(null, descriptor)
            os.set_inheritable(verdicts, True)
            os.chdir(asked["directory"])
            os.execve(asked["command"][0], asked["command"], asked["environment"])
        finally:
            os._exit(127)
    os.close(verdicts)
    until = time.monotonic() + asked["seconds"]
    while not state["ended"]:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if pid == program:
            code = os.waitstatus_to_exitcode(status)
            state["ended"] = f"exit {code}" if code >= 0 else f"signal {-code}"
        elif pid == 0:
            if time.monotonic() > until:
                state["ended"] = "time"
            elif asked["walls"] and _excess(asked):
                break
            time.sleep(0.02)
    excess = _excess(asked) if asked["walls"] else ""  # it may have ended of that
    _kill_all(asked["walls"])
    return excess or state["ended"]


def _excess(asked: dict[str, Any]) -> str:
    """Return what is used up inside: "disk", "processes" or ""."""
    room = os.statvfs(asked["out"])
    if room.f_bavail * room.f_frsize < 1 << 20 or room.f_ffree < 100:
        return "disk"
    count = sum(name.isdigit() for name in os.listdir("/proc"))
    return "processes" if count > asked["processes"] else ""


def _kill_all(walls: bool) -> None:
    for _ in range(1000):
        if walls:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)  # all that this process can see but itself
        else:
            for child in _below(os.getpid()):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(child, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)


def _below(pid: int) -> list[int]:
    found: list[int] = []
    for thread in os.listdir(f"/proc/{pid}/task") if os.path.isdir(f"/proc/{pid}/task") else []:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as file:
            for child in map(int, file.read().split()):
                found += [child, *_below(child)]
    return found


def _hand_over(folder: str, ended: str, most: int) -> None:
    """Write what the program has left in `folder` to stdout, after a line that says how it ended:
    for each file a line of JSON, then its bytes."""
    with os.fdopen(1, "wb", closefd=False) as out:
        out.write(json.dumps({"ended": ended}).encode() + b"\n")
        for name in sorted(os.listdir(folder))[:1000]:
            try:
                file = os.open(f"{folder}/{name}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            except OSError:
                continue
            if not stat.S_ISREG(os.fstat(file).st_mode):
                os.close(file)
                continue
            with os.fdopen(file, "rb") as opened:
                content = opened.read(most + 1)
            if len(content) > most:
                break
            most -= len(content)
            head = {"name": os.fsencode(name).decode(errors="replace"), "size": len(content)}
            out.write(json.dumps(head).encode() + b"\n" + content)


if __name__ == "__main__":
    main()
