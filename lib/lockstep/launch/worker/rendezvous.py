"""The ranks of a program that makes its own group find each other in a file without a name.

`init_process_group()` without arguments goes by `env://`: it would meet in a TCPStore at
MASTER_ADDR and MASTER_PORT, which any user of the machine can read and write. The ranks of one
machine have a file in common that nobody else can open.

A FileStore looks into its file every 10 ms, which is long where four ranks make a group in 5. So
here they look more often at first.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Iterator
from datetime import timedelta
from time import monotonic, sleep
from typing import Any
from urllib.parse import parse_qsl, urlparse

_OFTEN = 0.2  # for so many seconds ranks look every _SOON seconds
_SOON = 0.0005
_SAID = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def meet_in_file(path: str) -> None:
    """From now on let `env://` mean the file at `path`, as long as a program changes nothing.

    A program that sets another rank, world size or address for itself means what it says.
    """
    from torch.distributed import PrefixStore

    handlers = importlib.import_module("torch.distributed.rendezvous")._rendezvous_handlers
    original = handlers["env"]
    given = {name: os.environ.get(name) for name in _SAID}
    as_given = {"rank": given["RANK"], "world_size": given["WORLD_SIZE"]}
    times = 0

    def in_file(url: str, *args: Any, **kwargs: Any) -> Iterator[tuple[Any, int, int]]:
        nonlocal times
        asked = dict(parse_qsl(urlparse(url).query))
        environment = {name: os.environ.get(name) for name in _SAID}
        if environment != given or not asked.items() <= as_given.items():
            yield from original(url, *args, **kwargs)
            return
        times += 1  # a group that is made again must not find what the first one left
        store = PrefixStore(f"env {times}", store_in(path))
        yield store, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    handlers["env"] = in_file


def store_in(path: str) -> Any:
    """The store of this machine's ranks, in the file at `path`."""
    import torch.distributed as dist

    file = dist.FileStore(path, int(os.environ["WORLD_SIZE"]))
    if dist.is_nccl_available():  # its threads ask the store at any time: not one in Python
        return file
    store = _eager()(file)
    _held.append(store)
    return store


def make_default_group(backend: str, rank: int, meeting: int | None) -> None:
    """Make the default process group, unless this rank has one already.

    rank: this one. meeting: a descriptor of the file in which ranks meet; None for the store at
    MASTER_ADDR. A store on a socket would ask for the host's name at each connection, and where the
    name server does not answer that takes seconds.
    """
    import torch
    import torch.distributed as dist

    if dist.is_initialized():
        return
    options: dict[str, Any] = {}
    if meeting is not None:
        world_size = int(os.environ["WORLD_SIZE"])
        store = store_in(f"/proc/self/fd/{meeting}")
        store.set_timeout(dist.default_pg_timeout)  # as torchrun's has it
        options = {"store": store, "rank": rank, "world_size": world_size}
    if backend == "nccl":
        options["device_id"] = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(options["device_id"])
        # With device_id a send waits its turn among the group's calls: lab 02 says so, and
        # PyTorch need not in every cell.
        os.environ.setdefault("TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING", "false")
    dist.init_process_group(backend, **options)


def serve_store(listener: int) -> Any:
    """Serve the store at MASTER_ADDR and MASTER_PORT, for programs that connect to it.

    torchrun's agent serves it; here rank 0 does, on the socket that was bound for it
    before any rank existed, so nobody has to try twice.
    """
    import torch.distributed as dist

    return dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        int(os.environ["WORLD_SIZE"]),
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener,
    )


def file_of(store: Any) -> Any:
    """The FileStore behind a store of `store_in`; another store as it is."""
    return vars(store)["file"] if type(store) is _eager() else store


@functools.cache
def _eager() -> type:
    from torch.distributed import Store

    class EagerStore(Store):
        """A FileStore that looks more often while ranks meet."""

        def __init__(self, file: Any):
            super().__init__()
            self.file = file

        def set(self, key: str, value: Any) -> None:
            self.file.set(key, value)

        def get(self, key: str) -> bytes:
            limit = self.timeout  # type: ignore[attr-defined]
            self._poll([key], limit)
            self.file.set_timeout(limit)
            return self.file.get(key)

        def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
            limit = timeout or self.timeout  # type: ignore[attr-defined]
            self._poll(keys, limit)
            self.file.wait(keys, limit)

        def _poll(self, keys: list[str], limit: timedelta) -> None:
            """Look often for a moment, or until the keys are there."""
            until = monotonic() + min(_OFTEN, limit.total_seconds())
            while not self.file.check(keys) and monotonic() < until:
                sleep(_SOON)

        def check(self, keys: list[str]) -> bool:
            return self.file.check(keys)

        def add(self, key: str, amount: int) -> int:
            return self.file.add(key, amount)

        def compare_set(self, key: str, expected: str, desired: str) -> bytes:
            return self.file.compare_set(key, expected, desired)

        # C++ asks for these two by the names that it has for them.

        def deleteKey(self, key: str) -> bool:
            return self.file.delete_key(key)

        def getNumKeys(self) -> int:
            return self.file.num_keys()

    return EagerStore


_held: list[Any] = []  # C++ calls their methods as long as a group lives
