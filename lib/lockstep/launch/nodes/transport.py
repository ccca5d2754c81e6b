"""The connection between a notebook and an agent on another host: messages over TCP.

Whoever dials in proves that it knows the key, and so does whoever listens; multiprocessing's way of
doing that waits for ever for a stranger who says nothing. Beyond loopback all of it is under TLS.
"""

from __future__ import annotations

import hmac
import secrets
import select
import socket
import ssl
import sys
from collections import deque
from collections.abc import Sequence
from typing import Any, cast

from ..channel import Channel, NoMessage, framed
from ..interrupts import defer_signals
from .tls import TlsSocket

_PART = 1 << 20  # bytes of one message, of what is attached
_PATIENCE = 5.0  # seconds for each step of the proof
# Seconds, seconds, times; and milliseconds for what was sent, else a host that is gone is missed
# only when all was sent again in vain for many minutes (tcp_retries2).
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 25_000}

Attached = bytes | bytearray | memoryview


class Transport(Channel):
    """A channel to another host. `post` never waits, so that nobody waits for one who waits.

    Descriptors cannot travel; large content is attached to a message and arrives as bytes.
    """

    def __init__(self, sock: socket.socket, tls: ssl.SSLContext | None = None):
        """tls: None for none. Raises OSError where the other end does not do its part."""
        if tls is not None:
            sock = cast(socket.socket, TlsSocket(sock, tls, _PATIENCE))
        super().__init__(sock)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if sys.platform == "linux":
            for name, value in _KEEPALIVE.items():
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._queue: deque[dict[str, Any] | memoryview] = deque()
        self._frame = memoryview(b"")  # what is being sent
        self._came = bytearray()  # attached to the message that comes

    @property
    def address(self) -> str:
        """The address of this end."""
        return str(self._socket.getsockname()[0])

    @property
    def peer(self) -> str:
        """The address of the other end."""
        return str(self._socket.getpeername()[0])

    @property
    def pending(self) -> int:
        """About how many bytes wait to be sent."""
        waiting = (len(one) if isinstance(one, memoryview) else 100 for one in self._queue)
        return len(self._frame) + sum(waiting)

    def post(self, message: dict[str, Any], *attached: Attached) -> None:
        """Send a message as soon as the other end takes it. Raises OSError when that is gone."""
        for data in attached:
            view = memoryview(data).cast("B")
            self._queue += [view[at : at + _PART] for at in range(0, len(view), _PART)]
        self._queue.append({**message, "attached": [len(data) for data in attached]})
        self.flush()

    def flush(self) -> None:
        """Send what the other end takes now. Raises OSError when it is gone."""
        with defer_signals():
            while self._frame or self._queue:
                if not self._frame:
                    one = self._queue.popleft()
                    part = {"part": bytes(one)} if isinstance(one, memoryview) else one
                    self._frame = memoryview(framed(part))
                try:
                    self._frame = self._frame[self._socket.send(self._frame) :]
                except BlockingIOError:
                    return

    def wait_to_send(self, patience: float) -> None:
        """Wait until the other end may take more, for `patience` seconds at most."""
        self._wait(select.POLLOUT, patience)

    def take_message(self) -> tuple[dict[str, Any], list[memoryview]] | None:
        """Return the next message and what is attached to it, None until all of it has come.

        Raises EOFError when the other end is gone, NoMessage for what nobody of ours would send.
        """
        with defer_signals():  # a message that is half read would be lost
            while (received := self.take()) is not None:
                message, _ = received
                if "part" in message:
                    self._came += message["part"]
                    continue
                came, self._came = memoryview(self._came), bytearray()
                return message, _cut(came, message.get("attached", []))
        return None


def _cut(data: memoryview, lengths: Sequence[int]) -> list[memoryview]:
    if sum(lengths) != len(data):
        raise NoMessage("what is attached to it is of another length")
    parts, at = [], 0
    for length in lengths:
        parts.append(data[at : at + length])
        at += length
    return parts


def prove(transport: Transport, key: bytes, *, dialled: bool) -> bool:
    """Return whether both ends know the key. dialled: this end has called the other.

    Each signs what both have drawn, under its own name: nothing can be played back. Raises OSError
    (TimeoutError), EOFError or NoMessage for one who does not answer, or not in this way.
    """
    own = secrets.token_bytes(32)
    transport.send({"nonce": own}, patience=_PATIENCE)
    other = transport.receive(_PATIENCE)[0].get("nonce")
    if not isinstance(other, bytes) or len(other) != len(own) or other == own:
        raise NoMessage("it begins in another way")
    called, caller = (other, own) if dialled else (own, other)
    signed = {who: hmac.digest(key, who + called + caller, "sha256") for who in (b"up", b"down")}
    transport.send({"proof": signed[b"up" if dialled else b"down"]}, patience=_PATIENCE)
    proof = transport.receive(_PATIENCE)[0].get("proof")
    expected = signed[b"down" if dialled else b"up"]
    return isinstance(proof, bytes) and hmac.compare_digest(proof, expected)
