"""How the kernel and a rank talk: framed messages, and files without a name, over a Unix socket.

Messages are small pickled dicts. Anything large (a cell's variables, a result) travels as an
anonymous file whose descriptor is sent along: it is written once, mapped by whoever needs it,
and gone when the last of them lets go. Both ends are processes that we started ourselves.
"""

from __future__ import annotations

import array
import contextlib
import mmap
import os
import pickle
import select
import signal
import socket
import struct
import tempfile
import threading
from collections.abc import Iterator, Sequence
from typing import Any

_HEADER = struct.Struct("<QI")  # length of the pickle, number of descriptors that come along
_MOST_DESCRIPTORS = 253  # the kernel's limit for one message (SCM_MAX_FD)


class Channel:
    """One end of a connected Unix stream socket that carries dicts and file descriptors."""

    def __init__(self, sock: socket.socket):
        self._socket = sock

    def fileno(self) -> int:
        return self._socket.fileno()

    def ready(self, patience: float = 0.0) -> bool:
        """Whether something has come, or comes within `patience` seconds."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(patience * 1000))

    def send(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send one message; raises OSError when the other end is gone."""
        data = pickle.dumps(message)
        with deaf():
            socket.send_fds(self._socket, [_HEADER.pack(len(data), len(descriptors))], descriptors)
            self._socket.sendall(data)

    def receive(self) -> tuple[dict[str, Any], list[int]]:
        """Wait for one message; raises EOFError when the other end is gone."""
        try:
            head, descriptors = self._receive_head()
            length, count = _HEADER.unpack(head)
            data = self._read(length)
        except ConnectionError as error:
            raise EOFError("the other end of the channel is gone") from error
        if len(descriptors) != count:
            raise OSError(
                f"{count} descriptors were sent and {len(descriptors)} arrived: this process has "
                "too many open files (see ulimit -n)"
            )
        return pickle.loads(data), descriptors

    def _receive_head(self) -> tuple[bytes, list[int]]:
        room = socket.CMSG_SPACE(_MOST_DESCRIPTORS * array.array("i").itemsize)
        head, ancillary, _, _ = self._socket.recvmsg(_HEADER.size, room)
        if not head:
            raise EOFError("the other end of the channel is gone")
        descriptors = array.array("i")
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                whole = len(data) - len(data) % descriptors.itemsize
                descriptors.frombytes(data[:whole])
        return head + self._read(_HEADER.size - len(head)), list(descriptors)

    def _read(self, length: int) -> bytes:
        data = bytearray(length)
        view = memoryview(data)
        while view:
            got = self._socket.recv_into(view)
            if not got:
                raise EOFError("the other end of the channel is gone")
            view = view[got:]
        return bytes(data)

    def close(self) -> None:
        self._socket.close()


@contextlib.contextmanager
def deaf() -> Iterator[None]:
    """Hold back Ctrl-C for a moment: half a message, or half a clean-up, helps nobody.

    A signal mask would not do: a kernel has other threads, and one of them would take it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python raises KeyboardInterrupt in the main thread only
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)


def anonymous_file(name: str) -> int:
    """A descriptor of an empty file that has no place in the file system."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(f"lockstep-{name}", os.MFD_CLOEXEC)
    descriptor, path = tempfile.mkstemp(prefix=f"lockstep-{name}-")  # macOS
    os.unlink(path)
    return descriptor


def map_file(descriptor: int, *, shared: bool = False) -> mmap.mmap:
    """Map a whole file and close its descriptor.

    Private by default: the owner may write to its own view, nobody else sees it.
    """
    try:
        size = os.fstat(descriptor).st_size
        return mmap.mmap(descriptor, size, access=mmap.ACCESS_WRITE if shared else mmap.ACCESS_COPY)
    finally:
        os.close(descriptor)
