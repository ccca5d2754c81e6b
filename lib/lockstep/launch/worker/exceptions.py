"""A program's exception as plain data, and the hook that hears of it first."""

from __future__ import annotations

import inspect
import sys
import traceback
import types
from time import perf_counter
from typing import Any

from ..replies import Block, Failed

_TORCHS_HOOK = "init_process_group.<locals>._distributed_excepthook"
_MOST_TEXT = 20_000  # characters of an exception's message
_MOST_CAUSES = 10
_LONGEST_LINE = 500  # characters of a source line that is shown


def failed(error: BaseException) -> Failed:
    try:
        kind, blocks, code = describe(error)
    except BaseException:  # a program may have replaced whatever that needs
        kind = type(error).__name__
        blocks, code = [(kind, [])], ""
    return Failed(perf_counter(), kind, blocks, code)


def describe(error: BaseException) -> tuple[str, list[Block], str]:
    """Return an exception as plain data: its type's name, its text and where, and an exit code.

    Behind its own text and place stand those of what has caused it.
    """
    blocks: list[Block] = []
    seen: set[int] = set()  # `raise e from e` is legal
    at: BaseException | None = error
    while at is not None and id(at) not in seen and len(blocks) < _MOST_CAUSES:
        seen.add(id(at))
        frames = [
            (frame.filename, frame.lineno or 0, frame.name, (frame.line or "")[:_LONGEST_LINE])
            for frame in traceback.extract_tb(at.__traceback__)
        ]
        if isinstance(at, SyntaxError) and at.filename:
            frames.append((str(at.filename), at.lineno or 0, "<module>", str(at.text or "")))
            text = f"{type(at).__name__}: {at.msg}"
        else:
            text = "".join(traceback.format_exception_only(at)).strip()
        blocks.append((shortened(text), frames))
        at = at.__cause__ or (None if at.__suppress_context__ else at.__context__)
    code, kind = None, type(error).__name__
    if isinstance(error, SystemExit):
        code, kind = error.code, "SystemExit"
    return kind, blocks, shortened(repr(code))


def exit_status(error: SystemExit) -> int:
    """Return the exit status that Python would end with."""
    if error.code is None:
        return 0
    return error.code & 0xFF if isinstance(error.code, int) else 1


def _is_ours(frame: types.FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith("lockstep.launch.")


def tell_hook(error: BaseException, before: Any) -> BaseException:
    """Tell the program's own `sys.excepthook` what has ended it, as Python does; returns what it
    ends with then.

    before: the innermost hook that was there when the program began. It would show the exception,
    but the notebook does that.
    """
    hook: Any = getattr(sys, "excepthook", None)
    if before is None or innermost(hook) in (None, before) or isinstance(error, SystemExit):
        return error
    trace = error.__traceback__
    while trace is not None and _is_ours(trace.tb_frame):
        trace = trace.tb_next
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    try:
        hook(type(error), error.with_traceback(trace), trace)
    except SystemExit as another:
        return another
    except BaseException:
        print("Error in sys.excepthook:", file=sys.stderr)
        traceback.print_exc()
    return error


def innermost(hook: Any) -> Any:
    """The hook for exceptions that `init_process_group` has wrapped, once a group, to name the
    rank."""
    while getattr(hook, "__qualname__", "") == _TORCHS_HOOK:
        hook = inspect.getclosurevars(hook).nonlocals["old_hook"]
    return hook


def shortened(text: str) -> str:
    if len(text) <= _MOST_TEXT:
        return text
    half = _MOST_TEXT // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters …\n{text[-half:]}"
