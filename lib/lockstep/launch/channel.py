"""Messages, and files without a name, between the kernel, its forkserver and a rank.

A message is a small dict of plain values in MessagePack, behind a header that says how long it is
and how many descriptors come along. Anything large (a cell's variables, a result) travels as an
anonymous file whose descriptor is sent with a message: it is written once, mapped by whoever needs
it, and gone when the last of them lets go.

A rank runs anybody's program, which may write to any descriptor and cut any file short. So nothing
is taken for granted here: what is no message is refused, half a message keeps nobody waiting who
does not want to wait, and a file is mapped only when it can no longer shrink.
"""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import mmap
import os
import select
import selectors
import socket
import struct
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from .interrupts import defer_signals

MOST_BYTES = 16 << 20  # of one message
_MARK = b"lstp"  # a message begins with it
_HEADER = struct.Struct("<4sIH")  # mark, length of the message, number of descriptors
_MOST_DESCRIPTORS = 253  # the kernel's limit for one message (SCM_MAX_FD)
_CHUNK = 1 << 18
_ODD_TEXT = 1  # MessagePack's extension for text that is no UTF-8, as the names of old files
_CLOSE_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)

Message = tuple[dict[str, Any], list[int]]  # with the descriptors that came along


class NoMessage(Exception):
    """Raised for what we would not send over a channel: somebody else wrote to it."""


class Channel:
    """One end of a connected Unix stream socket that carries dicts and file descriptors."""

    def __init__(self, sock: socket.socket):
        sock.setblocking(False)
        self._socket = sock
        self._begin()

    def _begin(self) -> None:
        """Forget the message that was read last."""
        self._data = bytearray()
        self._length: int | None = None  # of the message, once its header has come
        self._count = 0
        self._descriptors: list[int] = []

    def fileno(self) -> int:
        return self._socket.fileno()

    def ready(self, patience: float = 0.0) -> bool:
        """Return whether something has come, or comes within `patience` seconds."""
        return self._wait(select.POLLIN, patience)

    def _wait(self, event: int, patience: float | None) -> bool:
        poll = select.poll()
        poll.register(self._socket, event)
        return bool(poll.poll(None if patience is None else max(patience, 0) * 1000))

    def send(
        self,
        message: dict[str, Any],
        descriptors: Sequence[int] = (),
        patience: float | None = None,
    ) -> None:
        """Send one message.

        Raises OSError when the other end is gone, or (TimeoutError) when it has not made room
        within `patience` seconds; ValueError when the message is longer than MOST_BYTES.
        """
        rest = memoryview(framed(message, len(descriptors)))
        until = None if patience is None else time.monotonic() + patience
        with defer_signals():
            while rest:
                try:
                    # Without descriptors plainly: no audit hook of a program hears of that.
                    sent = (
                        socket.send_fds(self._socket, [rest], descriptors)
                        if descriptors
                        else self._socket.send(rest)
                    )
                    rest, descriptors = rest[sent:], ()
                except BlockingIOError:
                    left = None if until is None else until - time.monotonic()
                    if not self._wait(select.POLLOUT, left):
                        raise TimeoutError("the other end of the channel does not read") from None

    def receive(self, patience: float | None = None) -> Message:
        """Wait for one message, for `patience` seconds at most; then raises TimeoutError.

        Raises as `take` does.
        """
        until = None if patience is None else time.monotonic() + patience
        while (message := self.take()) is None:
            left = None if until is None else until - time.monotonic()
            if not self._wait(select.POLLIN, left):
                raise TimeoutError("nothing has come over the channel")
        return message

    def take(self) -> Message | None:
        """The next message if all of it has come, else None; never waits.

        It reads no further than to the end of that message, so what has not been taken yet keeps
        the channel readable. Raises EOFError when the other end is gone, NoMessage when what came
        is none, OSError when descriptors that were sent could not come in.
        """
        if self._length is None:
            if not self._read(_HEADER.size):
                return None
            mark, length, self._count = _HEADER.unpack(self._data)
            if mark != _MARK or length > MOST_BYTES:
                raise NoMessage(f"it begins with {bytes(self._data)!r}")
            self._length = length
            self._data.clear()
        if not self._read(self._length):
            return None
        data, count, descriptors = self._data, self._count, self._descriptors
        self._begin()
        try:
            if len(descriptors) < count:
                raise OSError(errno.EMFILE, "too many open files: descriptors were lost")
            if len(descriptors) > count:
                raise NoMessage("descriptors came with it that it does not name")
            return _unpack(data), descriptors
        except BaseException:
            _close_all(descriptors)
            raise

    def _read(self, length: int) -> bool:
        """Return whether that many bytes of the current part are there; reads what has come."""
        room = socket.CMSG_SPACE(_MOST_DESCRIPTORS * array.array("i").itemsize)
        while len(self._data) < length:
            most = min(length - len(self._data), _CHUNK)
            try:
                # Not socket.recv_fds, which ignores its flags: a program that another thread
                # starts just then would inherit the descriptors.
                part, ancillary, _, _ = self._socket.recvmsg(most, room, _CLOSE_ON_EXEC)
            except BlockingIOError:
                return False
            except ConnectionError:
                part, ancillary = b"", []
            for level, kind, data in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    came = array.array("i")
                    came.frombytes(data[: len(data) - len(data) % came.itemsize])
                    self._descriptors += came
            if not part:
                raise EOFError("the other end of the channel is gone")
            self._data += part
            if len(self._descriptors) > _MOST_DESCRIPTORS:
                raise NoMessage("too many descriptors came with it")
        return True

    def close(self) -> None:
        self._socket.close()
        _close_all(self._descriptors)
        self._begin()


def in_turn(
    selector: selectors.BaseSelector, patience: float | None
) -> Iterator[selectors.SelectorKey]:
    """Return what is ready within `patience` seconds, one after the other, but for what was let go
    of since: whoever has its turn may have closed what comes later.
    """
    for key, _ in selector.select(patience):
        if selector.get_map().get(key.fd) == key:
            yield key


def _close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def framed(message: dict[str, Any], descriptors: int = 0) -> bytes:
    """A message as it is sent. Raises ValueError when it is longer than MOST_BYTES."""
    body = _pack(message)
    if len(body) > MOST_BYTES:
        raise ValueError(f"a message of {len(body)} bytes is too long for a channel")
    return _HEADER.pack(_MARK, len(body), descriptors) + body


def _pack(message: dict[str, Any]) -> bytes:
    try:
        return msgspec.msgpack.encode(message)
    except UnicodeEncodeError:  # names of files and variables may be any bytes
        return msgspec.msgpack.encode(_with_odd_text(message))


def _with_odd_text(value: Any) -> Any:
    if isinstance(value, str):
        try:
            value.encode()
            return value
        except UnicodeEncodeError:
            return msgspec.msgpack.Ext(_ODD_TEXT, value.encode("utf-8", "surrogatepass"))
    if isinstance(value, dict):
        return {
            key.encode(errors="replace").decode() if isinstance(key, str) else key: _with_odd_text(
                one
            )
            for key, one in value.items()
        }
    return [_with_odd_text(one) for one in value] if isinstance(value, (list, tuple)) else value


def _odd_text(code: int, data: memoryview) -> str:
    if code != _ODD_TEXT:
        raise ValueError(f"unknown extension {code}")
    return bytes(data).decode("utf-8", "surrogatepass")


_decoder = msgspec.msgpack.Decoder(ext_hook=_odd_text)


def _unpack(data: bytearray) -> dict[str, Any]:
    try:
        message = _decoder.decode(data)
    except Exception as error:  # whatever stands there: a decoder's error, too deep, no text, …
        raise NoMessage(str(error)) from error
    if not isinstance(message, dict):
        raise NoMessage(f"it is a {type(message).__name__}")
    return message


# ── Files without a name ─────────────────────────────────────────────────────────────────────


def anonymous_file(name: str, size: int | None = None) -> int:
    """A descriptor of an empty file that has no place in the file system.

    size: make it that long, for ever: whoever maps it can rely on that.
    """
    if hasattr(os, "memfd_create"):
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        descriptor = os.memfd_create(f"lockstep-{name}", flags)
    else:  # macOS
        descriptor, path = tempfile.mkstemp(prefix=f"lockstep-{name}-")
        os.unlink(path)
    if size is not None:
        try:
            os.ftruncate(descriptor, size)
        except BaseException:
            os.close(descriptor)
            raise
        _fix_size(descriptor)
    return descriptor


def _fix_size(descriptor: int) -> bool:
    """See to it that nobody can change a file's size any more; False where that cannot be had."""
    if not hasattr(fcntl, "F_ADD_SEALS"):
        return False
    size_seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
    with contextlib.suppress(OSError):  # no memfd, or one that takes no (further) seals
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, size_seals)
    try:
        return bool(fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK)
    except OSError:
        return False


def map_file(descriptor: int, *, shared: bool = False) -> mmap.mmap:
    """Map a whole file and close its descriptor.

    Private by default: the owner may write to its own view, nobody else sees it. A file that
    somebody could cut short is copied instead: to read beyond a mapped file's end is the end of
    the process (SIGBUS). shared: see what others write; for files whose size we have fixed.
    """
    try:
        size = os.fstat(descriptor).st_size
        if shared:
            return mmap.mmap(descriptor, size, access=mmap.ACCESS_WRITE)
        if _fix_size(descriptor):
            size = os.fstat(descriptor).st_size  # as it will stay
            return mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY)
        return _copy(descriptor, size)
    finally:
        os.close(descriptor)


def _copy(descriptor: int, size: int) -> mmap.mmap:
    memory = mmap.mmap(-1, size)
    at = 0
    while at < size:
        part = os.pread(descriptor, min(size - at, 1 << 24), at)
        if not part:
            break  # it has become shorter meanwhile; the rest is zeros
        memory[at : at + len(part)] = part
        at += len(part)
    return memory
