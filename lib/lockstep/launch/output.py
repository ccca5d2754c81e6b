"""What ranks print: kept whole, shown in lines, equal lines of several ranks folded into one."""

from __future__ import annotations

import difflib
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

HEAD_BYTES = TAIL_BYTES = 50_000  # of a rank's output that are shown; the rest goes to a file
_MOST_LINES_TO_FOLD = 500
_KEEP_FLOODS = 20


class Output:
    """The output of one rank, as it arrives."""

    def __init__(self, rank: int):
        self._rank = rank
        self._head = bytearray()
        self._tail = bytearray()
        self._fresh = bytearray()  # what new_lines() has not given out yet
        self._closed = False
        self._size = 0
        self._file: BinaryIO | None = None
        self.path: Path | None = None  # of the file that holds a flood, whole

    def feed(self, data: bytes) -> None:
        self._size += len(data)
        if self._file is not None:
            self._file.write(data)
        elif self._size > HEAD_BYTES + TAIL_BYTES:
            self._file = self._open_file()
            self._file.write(self._head + self._tail + data)
        self._fresh += data
        del self._fresh[:-HEAD_BYTES]
        room = HEAD_BYTES - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        del self._tail[:-TAIL_BYTES]

    def close(self) -> None:
        self._closed = True
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def text(self) -> str:
        """What was printed; of a flood its beginning and its end, with a note between them."""
        head, tail = self._head, self._tail
        if self.path is None:
            return (head + tail).decode(errors="replace")
        head = head[: head.rfind(b"\n") + 1]
        tail = tail[tail.find(b"\n") + 1 :]
        cut = self._size - len(head) - len(tail)
        note = f"… {cut / 1e6:.1f} MB are not shown; all of it is in {self.path}\n"
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
        return [_overwritten(line) for line in lines]

    def _open_file(self) -> BinaryIO:
        folder = cache_folder() / "output"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for old in sorted(folder.iterdir(), key=os.path.getmtime)[:-_KEEP_FLOODS]:
            old.unlink(missing_ok=True)
        stamp = time.strftime("%Y%m%d-%H%M%S")
        descriptor, path = tempfile.mkstemp(".log", f"{stamp}-rank{self._rank}-", folder)
        self.path = Path(path)
        return open(descriptor, "wb")


def cache_folder() -> Path:
    """Where this user's files of ours are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lockstep"


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
