"""The place of a host's ranks in a job."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """Says which ranks of a job are a node's, and where the ranks of all nodes meet.

    first: the node's first rank. count: how many are here; world_size: everywhere. node, nodes:
    its number and how many there are. master: address and port of the
    store, (…, 0) for a port of the node's own choice. interface: of the network for messages
    between ranks; "" for the loopback.
    """

    first: int
    count: int
    world_size: int
    node: int = 0
    nodes: int = 1
    master: tuple[str, int] = ("127.0.0.1", 0)
    interface: str = ""
