"""How the ranks of a program that makes its own group find each other: in a file without a name.

`init_process_group()` without arguments goes by `env://`: it would meet in a TCPStore at
MASTER_ADDR and MASTER_PORT, which any user of the machine can read and write. The ranks of one
machine have a file in common that nobody else can open.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl, urlparse

_SAID = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def meet_in_file(path: str) -> None:
    """From now on let `env://` mean the file at `path`, as long as a program changes nothing.

    A program that sets another rank, world size or address for itself means what it says.
    """
    from torch.distributed import FileStore, PrefixStore

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
        store = PrefixStore(f"env {times}", FileStore(path, int(os.environ["WORLD_SIZE"])))
        yield store, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    handlers["env"] = in_file
