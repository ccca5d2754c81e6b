"""Ports on which nobody listens, for the servers that tests start."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int) -> list[int]:
    """Return ports of this machine on which nobody listens.

    They lie below those that the kernel gives to outgoing connections: one of those could be taken
    between this look and the start of the server.
    """
    first = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 32768
    found: list[int] = []
    with contextlib.ExitStack() as stack:
        while len(found) < count:
            port = random.randrange(first // 2, first)
            with contextlib.suppress(OSError):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
                found.append(port)
    return found
