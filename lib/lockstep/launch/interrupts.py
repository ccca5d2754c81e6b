"""Ctrl-C, which must neither break a thing half done nor be lost."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator

# Names, and not their modules: ranks use this, too, and a program may have replaced what is there.
from signal import getsignal, raise_signal
from signal import signal as handle
from threading import current_thread, main_thread
from typing import Any

_AGAIN = 0.05  # seconds until an interrupt that was lost comes once more

# What a notebook may handle in Python, and so may raise an exception between any two lines.
_SIGNALS = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2),
    *(signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF),
)


@contextlib.contextmanager
def defer_signals() -> Iterator[None]:
    """Defer Ctrl-C, and other signals that Python handles, until the block is over.

    Half a message, or half a clean-up, helps nobody. A signal mask would not do: a kernel has
    other threads, and one of them would take the signal.
    """
    if current_thread() is not main_thread():
        yield  # Python handles signals in the main thread only
        return
    came: list[int] = []
    before: dict[int, Any] = {}
    try:
        for number in _SIGNALS:
            handler = getsignal(number)
            if callable(handler):
                before[number] = handler
                handle(number, lambda came_now, _: came.append(came_now))
        yield
    finally:
        try:
            _handle(before)
        finally:  # the first to be given back may have raised at once
            _handle(before)
        for held in dict.fromkeys(came):
            raise_signal(held)


def _handle(handlers: dict[int, Any]) -> None:
    for number, handler in handlers.items():
        handle(number, handler)


@contextlib.contextmanager
def redeliver_interrupts() -> Iterator[None]:
    """Deliver Ctrl-C again where it was lost.

    What a destructor or a weak reference's callback raises goes to nobody, and KeyboardInterrupt is
    raised in whatever runs at that moment. So one that was lost there comes again a moment later.
    """
    if current_thread() is not main_thread():
        yield
        return
    lost: list[threading.Timer] = []
    main, before = main_thread().ident, sys.unraisablehook

    def hook(seen: Any) -> None:
        if seen.exc_type is not KeyboardInterrupt:
            before(seen)
            return
        lost.append(threading.Timer(_AGAIN, signal.pthread_kill, (main, signal.SIGINT)))
        lost[-1].start()

    sys.unraisablehook = hook
    try:
        yield
    except KeyboardInterrupt as came:
        if type(came) is not KeyboardInterrupt:
            raise
        # It may have come between two lines, and IPython cannot show a traceback with none.
        raise KeyboardInterrupt from None
    finally:
        try:
            for timer in lost:
                timer.join()
        finally:
            sys.unraisablehook = before
