"""Writes a failure down: the cause first, the learner's own line marked, the rest folded."""

from __future__ import annotations

import linecache
import re
import signal
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..base.formatting import megabytes, printable, ranks_text
from ..base.machine import is_cell, packages
from .replies import Block, Failed, Frame

# What a rank raises when a peer has gone: the consequence of another failure, never the cause.
_CONSEQUENCE = re.compile(
    r"connection (was )?(closed|reset|refused)|closed by peer|broken pipe|socket closed"
    r"|recvvalue failed|failed to recv|remote process|peer.*(exited|gone|closed)",
    re.IGNORECASE,
)
_OWN = str(Path(__file__).parents[1])
_LIBRARIES = (_OWN, sysconfig.get_path("stdlib"), *packages())


@dataclass
class Failure:
    """The failure of one rank.

    kind: "raised", "died" (signal, or an exit without a word), "stuck" (waits in a call that can
        never complete), "timeout", "interrupted".
    message: one line. type_name: of the exception that was raised, "" where none was.
    frames: where, outermost call first. call: the c10d call in which the rank was, as text.
    """

    rank: int
    kind: str
    message: str
    at: float = 0.0
    frames: list[Frame] = field(default_factory=list)
    causes: list[Block] = field(default_factory=list)
    type_name: str = ""
    call: str = ""

    @property
    def is_consequence(self) -> bool:
        return self.kind == "raised" and bool(_CONSEQUENCE.search(self.message))


def raised(rank: int, reply: Failed) -> Failure:
    """Return the failure of a rank by what it said about its exception."""
    (text, frames), *causes = reply.blocks
    if reply.kind == "SystemExit":
        text = f"sys.exit({reply.exit_code}) was called"
    if "'NoneType'" in text and (operation := _used_as_a_value(frames)):
        text += f" ({operation} returns None: what it computes is in the tensors it was given)"
    return Failure(rank, "raised", text, reply.at, frames, causes, reply.kind)


# c10d's calls whose results are in their arguments, and what may keep their None.
_IN_PLACE = re.compile(
    r"(?:(?P<kept>\w+)\s*=\s*)?(?:\w+\.)*dist(?:ributed)?\.(?P<operation>broadcast|scatter|gather|reduce"
    r"|all_reduce|all_gather(?:_into_tensor)?|reduce_scatter(?:_tensor)?|all_to_all(?:_single)?)\("
)


def _used_as_a_value(frames: Sequence[Frame]) -> str:
    """Return the operation whose None the innermost line uses, "" if there is none.

    It is called there, or a line above keeps what it returned.
    """
    if not frames:
        return ""
    filename, number, _, text = frames[-1]
    words = re.findall(r"\w+", text)
    for line in [text, *linecache.getlines(filename)[: number - 1][::-1]]:
        for found in _IN_PLACE.finditer(line):
            if line is text or found["kept"] in words:
                return found["operation"]
    return ""


_LIKELY = {
    signal.SIGKILL: "killed from outside; if nobody did so by hand, the machine (or the "
    "container) ran out of memory",
    signal.SIGSEGV: "a crash in C++ code: a wrong pointer or shape handed to an extension, "
    "or a bug in it",
    signal.SIGABRT: "C++ code aborted: a failed assertion or an uncaught C++ exception; its "
    "message is in the rank's output",
    signal.SIGBUS: "shared memory was used up (see /dev/shm), or a mapped file was truncated",
    signal.SIGFPE: "an integer division by zero in C++ code",
    signal.SIGILL: "an instruction that this processor does not have",
    signal.SIGTERM: "it was asked to terminate",
}


def died(
    rank: int,
    code: int | None,
    peak: int,
    at: float,
    frames: Sequence[Frame],
    output: str,
    starved: bool = False,
) -> Failure:
    """A rank whose process ended without a word: exit code, or minus the signal's number.

    output: what it had printed. starved: the kernel ended it because memory was used up, and the
    verdict says so.
    """
    if starved:
        message = "killed by the kernel (SIGKILL), because memory ran out"
    elif code is None:
        message = "its process is gone"
    elif code == -signal.SIGABRT and (thrown := uncaught(output)):
        message = f"ended by SIGABRT, because nothing caught this C++ exception: {thrown}"
    elif code < 0:
        number = signal.Signals(-code)
        message = f"ended by {number.name}: {_LIKELY.get(number, 'a signal')}"
    else:
        message = f"exited by os._exit({code}) or from C++, without finishing its job"
    if peak:
        message += f" (peak memory {megabytes(peak)} MB)"
    return Failure(rank, "died", message, at, list(frames))


# As libstdc++ prints it, and what PyTorch puts behind its own: where it was thrown.
_THROWN = re.compile(r"^  what\(\):(.*?)(?=^Exception raised from |^frame #|\Z)", re.M | re.S)
_LONGEST_THROWN = 400  # characters


def uncaught(output: str) -> str:
    """Return the words of a C++ exception that ended the process, in one line; "" for none."""
    found = _THROWN.findall(output)
    said = " ".join(printable(found[-1]).split()) if found else ""
    return said if len(said) <= _LONGEST_THROWN else f"{said[:_LONGEST_THROWN]}…"


_MOST_REPEATS = 2  # of one frame in a row that are shown
_STACK_LINE = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')


def parse_stack(dump: str) -> list[Frame]:
    """The main thread's stack, outermost call first, from what faulthandler wrote."""
    frames: list[Frame] = []
    for line in dump.splitlines():
        if line.startswith(("Thread ", "Current thread ", "Stack (most recent", "Fatal")):
            frames = []
        elif match := _STACK_LINE.match(line):
            frames.append((match["file"], int(match["line"]), match["function"], ""))
    return frames[::-1]


# ── Text ─────────────────────────────────────────────────────────────────────────────────────


def is_library(filename: str) -> bool:
    return filename.startswith((*_LIBRARIES, "<frozen")) or filename == "<string>"


def place(filename: str, cell: str) -> str:
    """A file's name as the learner knows it; the same in every run of the notebook."""
    if filename == cell:
        return "this cell"
    if is_cell(filename):
        return "an earlier cell"
    return filename


def format_frames(frames: Iterable[Frame], cell: str) -> list[str]:
    """The learner's frames with the lines around them; library frames are only counted."""
    lines: list[str] = []
    hidden: list[Frame] = []

    def flush() -> None:
        if hidden:
            count = f"{len(hidden)} frame{'s' if len(hidden) > 1 else ''}"
            package = hidden[-1][0].partition("site-packages/")[2].split("/")[0] or "Python"
            lines.append(f"  … {count} of {package}, last in {hidden[-1][2]}()")
            hidden.clear()

    shown = False
    repeated = 0
    before: Frame | None = None
    for frame in frames:
        repeated = repeated + 1 if frame[:3] == (before or ())[:3] else 0
        before = frame
        if repeated >= _MOST_REPEATS:
            if repeated == _MOST_REPEATS:
                lines.append("  … and so on: it calls itself")
            continue
        filename, number, function, text = frame
        if is_library(filename):
            if shown and not filename.startswith(
                _OWN
            ):  # how the launcher came to the learner's code is of no interest
                hidden.append(frame)
            continue
        flush()
        shown = True
        where = f", in {function}" if function != "<module>" else ""
        lines.append(f"  {place(filename, cell)}, line {number}{where}")
        lines += _context(filename, number, text)
    flush()
    return lines


def _context(filename: str, number: int, text: str) -> list[str]:
    linecache.checkcache(filename)  # a script may have been edited since the last report
    known = linecache.getlines(filename)
    if not 0 < number <= len(known):
        return [f"  → {number:>4} │ {text}"] if text else []
    lines = []
    for at in range(max(1, number - 2), min(len(known), number + 1) + 1):
        mark = "→" if at == number else " "
        lines.append(f"  {mark} {at:>4} │ {known[at - 1].rstrip()}".rstrip())
    return lines


def format_failures(failures: Sequence[Failure], verdict: str, cell: str) -> str:
    """The whole report. `verdict` is a sentence about all ranks together, or ""."""
    causes = [f for f in failures if not f.is_consequence]
    if not (causes or verdict):
        causes = list(failures)
    consequences = [f for f in failures if f not in causes]
    parts: list[str] = [verdict] if verdict else []
    groups: dict[str, list[Failure]] = {}
    for failure in causes:
        groups.setdefault(_body(failure, cell), []).append(failure)
    for body, alike in groups.items():
        parts.append("\n".join([*_headlines(alike), *([body] if body else [])]))
    if consequences:
        who = ranks_text(f.rank for f in consequences)
        parts.append(f"{who}: lost the connection to the failed rank, as a consequence")
    return "\n\n".join(parts)


def _headlines(alike: Sequence[Failure]) -> list[str]:
    """Say which ranks failed, and how; they were all in the same place."""
    said: dict[str, list[int]] = {}
    for failure in alike:
        text = failure.message
        if failure.call and failure.kind != "raised":
            text = f"{text}, {failure.call}" if text else failure.call
        said.setdefault(text, []).append(failure.rank)
    return [f"{ranks_text(ranks)}: {text}" for text, ranks in said.items()]


def _body(failure: Failure, cell: str) -> str:
    lines = format_frames(failure.frames, cell)
    for text, frames in failure.causes:
        lines.append(f"  caused by, or while handling: {text}")
        lines += format_frames(frames, cell)
    return "\n".join(lines)
