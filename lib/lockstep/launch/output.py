"""The output of ranks: shown in lines, equal lines of ranks folded into one; floods go to files."""

from __future__ import annotations

import difflib
import fcntl
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import platformdirs

from ..base.formatting import in_one_line
from .locks import is_held

HEAD_BYTES = TAIL_BYTES = 50_000  # of a rank's output that are shown; a flood goes to a file
FILE_BYTES = 32_000_000  # of a flood that the file keeps
FOLDER_BYTES = 1_000_000_000  # that all these files take together
_MOST_LINES_TO_FOLD = 500


class Output:
    """The output of one rank, as it arrives."""

    def __init__(self, rank: int):
        self._rank = rank
        self._head = bytearray()
        self._tail = bytearray()
        self._fresh = bytearray()  # what new_lines() has not given out yet
        self._missed = 0  # bytes that came too fast for new_lines()
        self._closed = False
        self._size = 0
        self._file: _FloodFile | None = None

    @property
    def path(self) -> Path | None:
        """The file that holds a flood; None where there was none."""
        return None if self._file is None else self._file.path

    def feed(self, data: bytes) -> None:
        """Take what the rank has printed. A file that cannot be written is no reason to raise."""
        self._size += len(data)
        if self._size > HEAD_BYTES + TAIL_BYTES:
            if self._file is None:
                self._file = _FloodFile(self._rank)
                self._file.write(self._head + self._tail)
            self._file.write(data)
        self._fresh += data
        self._missed += max(len(self._fresh) - HEAD_BYTES - TAIL_BYTES, 0)
        del self._fresh[: -HEAD_BYTES - TAIL_BYTES]
        room = HEAD_BYTES - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        del self._tail[:-TAIL_BYTES]

    def close(self) -> None:
        self._closed = True
        if self._file is not None:
            self._file.close(self._tail)

    @property
    def text(self) -> str:
        """Return what was printed; of a flood beginning and end, with a note between them."""
        head, tail = self._head, self._tail
        if self._file is None:
            return (head + tail).decode(errors="replace")
        head = head[: head.rfind(b"\n") + 1] or head + b"\n"
        tail = tail[tail.find(b"\n") + 1 :]
        cut = self._size - len(head) - len(tail)
        note = f"… {_megabytes(cut)} are not shown{self._file.says}\n"
        return head.decode(errors="replace") + note + tail.decode(errors="replace")

    @property
    def lines(self) -> list[str]:
        """The lines as a terminal would show them: a progress bar is its last state."""
        lines = self.text.split("\n")
        if not lines[-1]:
            lines.pop()  # the text ended with a whole line, or is empty
        return [_overwritten(line) for line in lines]

    def new_lines(self) -> list[str]:
        """The whole lines that have come since the last call; after `close()`, all the rest."""
        end = len(self._fresh) if self._closed else self._fresh.rfind(b"\n") + 1
        lines = self._fresh[:end].decode(errors="replace").split("\n")
        del self._fresh[:end]
        if not lines[-1]:
            lines.pop()
        if self._missed and self._file is not None:
            lines.insert(0, f"… {_megabytes(self._missed)} are not shown{self._file.says}")
            self._missed = 0
        return [_overwritten(line) for line in lines]


class _FloodFile:
    """A file with what a rank has printed: all of it, or its beginning, a note, and its end.

    While it is written it is locked, so that no other process takes it for an old one.
    """

    def __init__(self, rank: int):
        self.path: Path | None = None
        self._problem = ""  # why nothing is kept
        self._size = 0  # of what was printed
        self._descriptor = -1
        try:
            folder = platformdirs.user_cache_path("lockstep") / "output"
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            _make_room(folder)
            name = f"{time.strftime('%Y%m%d-%H%M%S')}-rank{rank}-"
            self._descriptor, path = tempfile.mkstemp(".log", name, folder)
            self.path = Path(path)
            with suppress(OSError):  # not every file system has locks
                fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        except (OSError, RuntimeError) as error:  # RuntimeError: there is no home folder
            self._give_up(error)

    @property
    def says(self) -> str:
        """Say what became of all that is not shown; the end of a sentence."""
        if self.path is None:
            return f"; not kept: {self._problem}"
        what = "all of it is"
        if self._size > FILE_BYTES:
            what = f"the first {_megabytes(FILE_BYTES)} and the end are"
        return f"; {what} in {in_one_line(self.path)}"

    def write(self, data: bytes | bytearray) -> None:
        room = FILE_BYTES - self._size
        self._size += len(data)
        if room > 0:
            self._put(data[:room])

    def close(self, tail: bytearray) -> None:
        """tail: the last bytes that were printed."""
        beyond = self._size - FILE_BYTES
        if beyond > 0:
            end = tail[-beyond:]
            if left_out := beyond - len(end):
                self._put(f"\n… {_megabytes(left_out)} are left out here\n".encode())
            self._put(end)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _put(self, data: bytes | bytearray) -> None:
        rest = memoryview(data)
        try:
            while rest and self._descriptor >= 0:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """Half a file is of little use, and the disk may be full: others need the room."""
        why = (isinstance(error, OSError) and error.strerror) or str(error)
        self._problem = in_one_line(why)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        if self.path is not None:
            with suppress(OSError):
                self.path.unlink()
            self.path = None


def _make_room(folder: Path) -> None:
    """Remove the oldest files until one more has room. Raises OSError where none may go."""
    taken = FILE_BYTES
    for path in sorted(folder.glob("*.log"), reverse=True):  # their names begin with the time
        with suppress(OSError):  # another process has just removed it
            if is_held(path):
                taken += FILE_BYTES
            elif taken + (size := path.stat().st_size) > FOLDER_BYTES:
                path.unlink()
            else:
                taken += size
    if taken > FOLDER_BYTES:
        raise OSError(f"{folder} is full ({_megabytes(FOLDER_BYTES)})")


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB"


def _overwritten(line: str) -> str:
    parts = [part for part in line.split("\r") if part]
    return parts[-1] if parts else ""


def fold(outputs: Mapping[int, Sequence[str]]) -> list[tuple[tuple[int, ...], list[str]]]:
    """Blocks of lines with the ranks that printed them, in an order that every rank agrees with.

    Lines that all ranks have in common come once; between them, each rank's own, by rank, equal
    blocks once.
    """
    ranks = sorted(rank for rank in outputs if outputs[rank])
    if not ranks:
        return []
    common: list[str] = list(outputs[ranks[0]])
    for rank in ranks[1:]:
        if len(common) > _MOST_LINES_TO_FOLD or len(outputs[rank]) > _MOST_LINES_TO_FOLD:
            common = common if common == list(outputs[rank]) else []
        else:
            common = _common(common, outputs[rank])
    blocks: list[tuple[tuple[int, ...], list[str]]] = []
    at = dict.fromkeys(ranks, 0)
    for line in [*common, None]:
        own: dict[tuple[str, ...], list[int]] = {}
        for rank in ranks:
            rest = outputs[rank][at[rank] :]
            length = len(rest) if line is None else list(rest).index(line)
            at[rank] += length + 1
            if length:
                own.setdefault(tuple(rest[:length]), []).append(rank)
        blocks += [(tuple(who), list(lines)) for lines, who in own.items()]
        if line is not None:
            if blocks and blocks[-1][0] == tuple(ranks) and not own:
                blocks[-1][1].append(line)
            else:
                blocks.append((tuple(ranks), [line]))
    return blocks


def _common(first: Sequence[str], second: Sequence[str]) -> list[str]:
    matcher = difflib.SequenceMatcher(None, first, second, autojunk=False)
    return [line for m in matcher.get_matching_blocks() for line in first[m.a : m.a + m.size]]
