"""What four forked ranks cost without any launcher: a process to run and to ask.

It imports what the forkserver imports and has one thread. For each line it reads ("fork" or
"reduce") it forks four children, waits until they are gone, and prints how many seconds that
took. "fork": the children leave at once. "reduce": they make a gloo group and reduce four floats.
"""

from __future__ import annotations

import gc
import importlib
import os
import socket
import sys
import time

from lockstep.launch.engines.base import torchrun_environment
from lockstep.launch.place import Place
from lockstep.launch.worker.forkserver import PRELOADED

RANKS = 4


def reduce(rank: int, listener: socket.socket, done: int, leave: int) -> None:
    import torch
    import torch.distributed as dist

    here = Place(0, RANKS, RANKS, master=("127.0.0.1", listener.getsockname()[1]))
    os.environ.update(torchrun_environment(rank, here))
    torch.set_num_threads(1)
    store = None
    if rank == 0:
        store = dist.TCPStore(
            "127.0.0.1",
            int(os.environ["MASTER_PORT"]),
            RANKS,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
    dist.init_process_group("gloo")
    x = torch.arange(4.0) + rank
    dist.all_reduce(x)
    # Nobody leaves before all have their values: a rank that is gone is an error to its peers.
    os.write(done, b"+" if x.tolist() == [6.0, 10.0, 14.0, 18.0] else b"-")
    os.read(leave, 1)
    del store


def once(what: str) -> float:
    began = time.perf_counter()
    listener = socket.create_server(("127.0.0.1", 0))
    done, done_end = os.pipe()
    leave, leave_end = os.pipe()
    children = []
    for rank in range(RANKS):
        pid = os.fork()
        if pid == 0:
            os.close(leave_end)
            try:
                if what == "reduce":
                    reduce(rank, listener, done_end, leave)
            finally:
                os._exit(0)
        children.append(pid)
    listener.close()
    os.close(done_end)
    answers = b""
    while answer := os.read(done, RANKS):
        answers += answer
        if len(answers) == RANKS:
            break
    for end in (done, leave, leave_end):
        os.close(end)
    for pid in children:
        os.waitpid(pid, 0)
    if what == "reduce" and answers != b"+" * RANKS:
        raise RuntimeError(f"a rank failed: {answers!r}")
    return time.perf_counter() - began


for name in PRELOADED:
    importlib.import_module(name)
gc.collect()
gc.freeze()  # as the forkserver does: the collector then leaves the shared pages alone
for line in sys.stdin:
    print(once(line.strip()), flush=True)
