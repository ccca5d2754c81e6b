"""The text of a Kineto file: unpacked block by block and cut between events, in constant memory.

The list of events is cut where `}, {"x` stands. In valid JSON this is never inside of a string:
there a quote is escaped, and behind a string's last quote no letter follows. It may be inside of an
event that holds a list of objects; then the batch does not decode, and is taken event by event.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ...slices import TraceError

BLOCK = 4 << 20  # bytes of text at once
_LIMIT = 256 << 20  # bytes of one event, or of what stands before and after the events
_DENSE = 64 << 20, 200  # bytes unpacked, times as many as were packed: more is no trace
_BETWEEN = re.compile(rb'\}\s*,\s*(?=\{\s*"[A-Za-z_])')
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_LIST = re.compile(rb"\s*\[")
_SOMETHING = re.compile(rb"[^\s,]")
# Of strings and brackets, which tell how deep a place lies.
_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]', re.DOTALL)
_OTHER_FORMATS = (
    (b"PK\x03\x04", 0, "a zip archive: unpack it, and load the folder"),
    (b"ustar", 257, "a tar archive: unpack it (tar -xf), and load the folder"),
    (b"BZh", 0, "packed by bzip2: unpack it"),
    (b"\xfd7zXZ", 0, "packed by xz: unpack it"),
    (b"\x28\xb5\x2f\xfd", 0, "packed by zstd: unpack it"),
    (
        b"SQLite format 3",
        0,
        "an SQLite database, perhaps of Nsight Systems, not JSON",
    ),
    (b"\xff\xfe", 0, "text in UTF-16: convert it to UTF-8"),
    (b"\xfe\xff", 0, "text in UTF-16: convert it to UTF-8"),
    (b"{\0", 0, "text in UTF-16 or UTF-32: convert it to UTF-8"),
    (b"\0{", 0, "text in UTF-16: convert it to UTF-8"),
)
# By members of its object: JSON that is often taken for a trace.
_NOT_TRACES = (
    ({"rocprofiler-sdk-tool"}, "rocprofv3 wrote it; PyTorch's profiler writes traces on ROCm, too"),
    (
        {"schema", "nodes"},
        "it is an execution trace (ExecutionTraceObserver, Chakra), without times",
    ),
    ({"segments", "device_traces"}, "it is a snapshot of the allocator"),
    ({"pg_config", "entries"}, "it is a dump of the flight recorder"),
)
_LENIENT = json.JSONDecoder(strict=False, parse_float=Decimal)


class Decoders(NamedTuple):
    """The decoders of events: of a list of them, and of one. Where that fails a lenient parser
    reads, and `by_hand` makes an event of what it gives: any JSON value, with `Decimal` numbers."""

    many: msgspec.json.Decoder[Any]
    one: msgspec.json.Decoder[Any]
    by_hand: Callable[[Any], Any]


class NotATrace(TraceError):
    """JSON, but no trace of events."""


class _Place:
    """Looks for the list of events among the file's own members, in text that grows.

    nested: the first such list that lies deeper, inside of another member.
    """

    def __init__(self) -> None:
        self.nested: re.Match[bytes] | None = None
        self._looked = self._depth = self._counted = 0

    def next_member(self, text: bytes) -> re.Match[bytes] | None:
        while found := _EVENTS.search(text, self._looked):
            self._looked = found.end()
            for token in _TOKENS.finditer(text, self._counted, found.start()):
                self._depth += (token[0] in b"{[") - (token[0] in b"}]")
            self._counted = found.start()
            if self._depth == 1:
                return found
            self.nested = self.nested or found
        self._looked = max(self._looked, len(text) - 100)  # it may go on in the next block
        return None


class Text:
    """One file. `events()` gives its events; afterwards the rest is known.

    about: the members of the file beside its events. damage: what is wrong with it, in sentences.
    """

    def __init__(self, path: Path, decoders: Decoders):
        self.path = path
        self.decoders = decoders  # may be replaced between batches
        self.about: dict[str, Any] = {}
        self.damage: list[str] = []
        self._is_list = False

    def events(self) -> Iterator[tuple[bytes, list[Any]]]:
        """The events batch by batch, each with its text; None for an event that cannot be read, so
        that the others keep their numbers.

        Raises TraceError for a file that cannot be read, and NotATrace.
        """
        foot: list[bytes] | None = None
        tail = b""  # an event that goes on in the next batch, because it holds a list of objects
        for batch in self._batches(block for block in self._blocks() if not block.isspace()):
            if foot is not None:
                foot.append(batch)
                continue
            whole = b",".join((tail, batch)) if tail else batch
            found, rest, unread = _decoded(whole, self.decoders)
            foot = None if rest is None else [rest]
            tail = whole[len(whole) - unread :]
            if len(tail) > _LIMIT:
                raise TraceError(
                    f"{self.path} has an event of more than {_LIMIT >> 20} MB: it is not a "
                    "trace, or part of it is missing"
                )
            yield whole, found
        self._close(foot, len(tail))

    def _batches(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        """Text of events, separated by commas. All but the last end where an event, or an object
        within one, does; the last goes on to the file's end."""
        rest = self._open(blocks)
        for block in blocks:
            if cut := _last_cut(rest):
                yield rest[: cut[0]]
                rest = rest[cut[1] :]
            elif len(rest) > _LIMIT:  # what stands behind the events, or an endless event
                yield rest
                rest = b""
            rest += block
        if cut := _last_cut(rest):
            yield rest[: cut[0]]
            rest = rest[cut[1] :]
        yield rest

    def _close(self, foot: list[bytes] | None, unread: int) -> None:
        if foot is None:
            where = f", and {unread:,} bytes of an event are left out" if unread else ""
            self.damage.append(f"its end is missing: it breaks off within the events{where}")
            return
        if any(_EVENTS.search(part) for part in foot):
            raise TraceError(
                f"{self.path} holds several lists of events: were several traces written into "
                "one file? Split it"
            )
        if sum(map(len, foot)) > _LIMIT:
            self.damage.append(
                f"the text after the events is longer than {_LIMIT >> 20} MB: left out"
            )
            return
        text = b",".join(foot).decode(errors="replace").strip()
        if self._is_list:
            end = 0
        else:
            try:
                # The brace that opens the file is taken up again.
                found, end = _LENIENT.raw_decode("{" + text.lstrip(", "))
                self.about |= found
                end += len(text) - len(text.lstrip(", ")) - 1
            except (ValueError, RecursionError):
                self.about |= _members(text)
                self.damage.append("its end is missing: it breaks off after the events")
                return
        if left := text[end:].strip():
            if left.startswith("["):
                raise TraceError(f"{self.path} holds several lists of events: split it")
            self.damage.append(f"{len(left):,} characters after its end are left out")

    def _open(self, blocks: Iterator[bytes]) -> bytes:
        text = b""
        place = _Place()
        for block in blocks:
            text += block
            if len(text) == len(block):
                text = text.removeprefix(b"\xef\xbb\xbf")
                for mark, at, what in _OTHER_FORMATS:
                    if text[at : at + len(mark)] == mark:
                        raise TraceError(f"{self.path} is {what}")
            if found := _LIST.match(text):
                self._is_list = True
                return text[found.end() :]
            if found := place.next_member(text):
                return self._behind(text, found)
            if len(text) > _LIMIT:
                break
        if place.nested:
            self.damage.append("its events lie inside another member")
            return self._behind(text, place.nested)
        if not text.strip():
            raise TraceError(
                f"{self.path} is empty: "
                + ("; ".join(self.damage) or "did the run end before it was written?")
            )
        if len(text) > _LIMIT:
            raise TraceError(
                f"{self.path} has no events in its first {_LIMIT >> 20} MB: it is not a "
                "trace, or the text before its events is that long"
            )
        try:
            said = json.loads(text)
        except (ValueError, RecursionError):
            what = "; ".join(self.damage) or "it is not JSON, or breaks off before its events"
            raise TraceError(f"{self.path} cannot be read as a trace: {what}") from None
        members = set(said) if isinstance(said, dict) else set()
        known = (what for marks, what in _NOT_TRACES if marks <= members)
        what = next(known, 'it has no "traceEvents"')
        raise NotATrace(f"{self.path} is JSON, but not a trace: {what}")

    def _behind(self, text: bytes, found: re.Match[bytes]) -> bytes:
        """Yield what follows the start of the list of events; what precedes it is `about`."""
        head = text[: found.start()].decode(errors="replace").rstrip().rstrip(",")
        try:
            self.about = _LENIENT.decode(head + "}")
        except (ValueError, RecursionError):
            self.about = _members(head)
            self.damage.append("the text before the events cannot be read as a whole")
        return text[found.end() :]

    def _blocks(self) -> Iterator[bytes]:
        try:
            with self.path.open("rb") as file:
                packed = file.read(2) == b"\x1f\x8b"
                file.seek(0)
                if packed:
                    yield from self._unpacked(file)
                else:
                    while block := file.read(BLOCK):
                        yield block
        except OSError as error:
            raise TraceError(f"{self.path} cannot be read: {error.strerror or error}") from error

    def _unpacked(self, file: Any) -> Iterator[bytes]:
        unpack = zlib.decompressobj(31)
        packed = b""
        unpacked = 0
        while True:
            packed = packed or file.read(1 << 20)
            if not packed:
                if not unpack.eof:
                    self.damage.append("the packed file (gz) is cut off")
                return
            if unpack.eof:  # several packed files may stand in one
                if not packed.startswith(b"\x1f\x8b"):
                    return
                unpack = zlib.decompressobj(31)
            before = unpack.copy()
            try:
                block = unpack.decompress(packed, BLOCK)
            except zlib.error as error:
                self.damage.append(
                    f"the packed file (gz) is damaged ({error}): events may lack or be wrong"
                )
                yield _as_far_as_it_goes(before, packed)
                return
            packed = unpack.unused_data if unpack.eof else unpack.unconsumed_tail
            unpacked += len(block)
            self._refuse_dense(unpacked, file.tell() - len(packed))
            if block:
                yield block

    def _refuse_dense(self, unpacked: int, packed: int) -> None:
        large, times = _DENSE
        if unpacked > large and unpacked > times * packed:
            raise TraceError(
                f"{self.path} is no trace: its first {packed:,} bytes unpack to {unpacked >> 20} "
                f"MB; traces hold up to {times} times as many bytes as they are packed in"
            )


def _as_far_as_it_goes(unpack: Any, packed: bytes) -> bytes:
    text = bytearray()
    with suppress(zlib.error):
        for at in range(len(packed)):
            text += unpack.decompress(packed[at : at + 1])
            if len(text) > _LIMIT:
                break
    return bytes(text)


def decode(batch: bytes, decoders: Decoders) -> list[Any]:
    """The events of a batch from `Text.events`, decoded another way."""
    return _decoded(batch, decoders)[0]


def _decoded(batch: bytes, decoders: Decoders) -> tuple[list[Any], bytes | None, int]:
    """The events, what stands behind the end of their list (None where that is not seen), and how
    many bytes at the end of the batch are no complete event."""
    try:
        return decoders.many.decode(b"".join((b"[", batch, b"]"))), None, 0
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _one_by_one(batch, decoders)


def _one_by_one(batch: bytes, decoders: Decoders) -> tuple[list[Any], bytes | None, int]:
    """The same for a batch that is broken, or unusual, or holds the end of the list."""
    found: list[Any] = []
    cuts = [(cut.start() + 1, cut.end()) for cut in _BETWEEN.finditer(batch)]
    cuts.append((len(batch), len(batch)))
    at, ahead = 0, 0  # ahead: the first cut behind `at`
    while (at := _skip(batch, at)) < len(batch):
        if batch[at : at + 1] == b"]":
            return found, batch[at + 1 :], 0
        while cuts[ahead][0] <= at and ahead < len(cuts) - 1:
            ahead += 1
        end, begin = cuts[ahead]
        try:
            found.append(decoders.one.decode(batch[at:end]))
            at = begin
            continue
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            parsed = _parse(batch, at, cuts[ahead:])
        if parsed is None:
            found.append(None)
            at = begin
        elif parsed[1] < 0:
            return found, None, len(batch) - at
        else:
            found.append(decoders.by_hand(parsed[0]))
            at = parsed[1]
    return found, None, 0


def _parse(batch: bytes, at: int, cuts: list[tuple[int, int]]) -> tuple[Any, int] | None:
    """The JSON value that begins at `at`, and where it ends; it may reach over several cuts.

    It ends at −1 if it goes on behind the batch. None for what is no JSON.
    """
    reach = 0
    while True:
        text = batch[at : cuts[reach][0]].decode(errors="surrogateescape")
        try:
            value, length = _LENIENT.raw_decode(text)
            return value, at + len(text[:length].encode(errors="surrogateescape"))
        except json.JSONDecodeError as error:
            cut_short = error.msg.startswith("Unterminated") or error.pos >= len(text.rstrip())
            if not cut_short:
                return None
            if reach == len(cuts) - 1:
                return None, -1
            reach = min(2 * reach + 1, len(cuts) - 1)
        except (ValueError, RecursionError, ArithmeticError):  # numbers or nesting beyond limits
            return None


def _skip(text: bytes, at: int) -> int:
    """The first place from `at` on that is neither blank nor a comma."""
    found = _SOMETHING.search(text, at)
    return found.start() if found else len(text)


def _members(text: str) -> dict[str, Any]:
    """Return the members of a file that matter, when it cannot be read as a whole."""
    found = {}
    for member in ("baseTimeNanoseconds", "distributedInfo", "deviceProperties"):
        if place := re.search(rf'"{member}"\s*:\s*', text):
            with suppress(ValueError, RecursionError):
                found[member] = _LENIENT.raw_decode(text, place.end())[0]
    return found


def _last_cut(text: bytes) -> tuple[int, int] | None:
    """Return the place where the last event but one ends and the last one begins."""
    for reach in (1 << 14, 1 << 18, len(text)):
        start = max(0, len(text) - reach)
        if cuts := [*_BETWEEN.finditer(text, start)]:
            return cuts[-1].start() + 1, cuts[-1].end()
    return None
