"""Finds others at work in a rank: threads that may yet do what its main thread waits for."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from builtins import any, len, set
from collections.abc import Callable, Set
from concurrent.futures import thread as pools
from os import listdir
from sys import _current_exceptions, _current_frames
from threading import get_ident
from time import sleep
from types import FrameType
from typing import Any

# Seconds in which a new thread gets to begin; all ranks wait for a longer sleep than is needed.
_TURNS = (1e-6, 1e-4, *(0.001,) * 5, 0)


class OtherThreads:
    """Remembers a process's threads from one look to the next."""

    def __init__(self) -> None:
        self._newest = 0  # the identity of the newest thread that was seen
        self._frameless = 0  # how many ran no Python then: those of C++ that have run some before
        self._is_alone = False
        self._tasks: set[str] = set()  # the system's threads when all had begun last
        self.may_call_back = False  # the program has asked for futures, and C++ may call it
        self._main = _state()

    def may_act(self, ours: Set[int]) -> bool:
        """Return whether a thread might yet do something while this one waits; `ours` will not."""
        head = _head(_INTERPRETER)
        if head == self._main:  # no thread has come since the first one, or is there still
            self._frameless = 0
            return False
        newest = _identity(head)
        if newest == self._newest and self._is_alone:
            return False
        if _count() <= 1 + len(ours):
            self._newest, self._is_alone, self._frameless = newest, True, 0
            return False
        if _frames() is None or (newest != self._newest and not self._have_begun()):
            return True
        own = {*ours, get_ident()}
        others = [at for ident, at in (_frames() or {}).items() if ident not in own]
        self._newest, self._is_alone = newest, not others
        return any(not _is_idle(at) for at in others)

    def _have_begun(self) -> bool:
        """Return whether all threads that were started have begun; they are given a little time.

        One that has not is in no list of Python's but that of thread states, as is a thread of
        C++ that takes Python's lock: which it is where none was started since the last look.
        """
        tasks = _tasks()
        if tasks and tasks <= self._tasks and not self.may_call_back:
            return True
        for turn in _TURNS:
            frameless = _count() - len(_frames() or ())
            if frameless <= self._frameless:
                break
            if not turn and _count() > len(_current_exceptions().keys() - {0}):
                return False
            sleep(turn)
        self._frameless, self._tasks = frameless, tasks
        return True


def _frames() -> dict[int, FrameType] | None:
    """Return what each thread executes; None where a program's audit hook forbids to look."""
    with contextlib.suppress(Exception):
        return _current_frames()
    return None


def _tasks() -> set[str]:
    """Return this process's threads by the numbers that the system has for them: none where it
    does not tell.
    """
    with contextlib.suppress(Exception):
        return set(listdir("/proc/self/task"))
    return set()


def _is_idle(frame: FrameType) -> bool:
    """Return whether a thread is idle, or waits without a limit for others of its process."""
    if frame.f_code is _POOL or (
        frame.f_code in _WAITS and frame.f_locals.get("timeout") in (None, -1)
    ):
        return True
    at: FrameType | None = frame
    while at is not None:
        if at.f_code.co_filename.endswith(_IDLE_FILES):
            return True
        at = at.f_back
    return False


_POOL = pools._worker.__code__
_WAITS = {threading.Condition.wait.__code__, threading.Thread.join.__code__}
if hasattr(threading.Thread, "_wait_for_tstate_lock"):  # Python 3.11 and 3.12
    _WAITS.add(threading.Thread._wait_for_tstate_lock.__code__)
# Threads that look now and then at what others do, or wait in C for work.
_IDLE_FILES = (
    "/tqdm/_monitor.py",
    "/torch/_inductor/compile_worker/subproc_pool.py",
    "/torch/utils/data/_utils/pin_memory.py",
)


def _function(name: str, result: Any, *takes: Any) -> Callable[..., Any]:
    function = getattr(_PYTHON, name)
    function.restype, function.argtypes = result, takes
    return function


_PYTHON = ctypes.PyDLL(None)  # a handle of our own: the program may set types in its one
_INTERPRETER = _function("PyInterpreterState_Get", ctypes.c_void_p)()
_head = _function("PyInterpreterState_ThreadHead", ctypes.c_void_p, ctypes.c_void_p)
_state = _function("PyThreadState_Get", ctypes.c_void_p)
_next = _function("PyThreadState_Next", ctypes.c_void_p, ctypes.c_void_p)
_identity = _function("PyThreadState_GetID", ctypes.c_uint64, ctypes.c_void_p)


def _count() -> int:
    """Return how many threads Python has a state of: from the moment on in which one is started."""
    count, state = 0, _head(_INTERPRETER)
    while state:
        count, state = count + 1, _next(state)
    return count
