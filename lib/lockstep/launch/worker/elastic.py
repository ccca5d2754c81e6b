"""The elastic agent's process: PyTorch's own, with a store that listens on loopback only."""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import Any

import torch.distributed as dist
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous.api import RendezvousInfo, RendezvousStoreInfo
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

from .process import die_with_parent


class LoopbackRendezvous(StaticTCPRendezvous):
    """One agent meets itself. torchrun's own store would listen on every interface."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1", 0, rank=0, world_size=1, run_id="lockstep", timeout=60)

    def next_rendezvous(self) -> RendezvousInfo:
        # A new store for each attempt, as PyTorch's handlers do: ranks that come again would
        # find the addresses of the dead in the old one.
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen(1024)
        port = listener.getsockname()[1]
        store = dist.TCPStore(
            "127.0.0.1",
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
        return RendezvousInfo(store, 0, 1, RendezvousStoreInfo("127.0.0.1", port))


def main(options: dict[str, Any]) -> int:
    spec = WorkerSpec(
        role="default",
        local_world_size=options["nproc_per_node"],
        entrypoint=sys.executable,
        args=("-u", "-m", f"{__package__}.rank"),
        rdzv_handler=LoopbackRendezvous(),
        max_restarts=options["max_restarts"],
        monitor_interval=0.1,
        master_addr="127.0.0.1",
    )
    logs = DefaultLogsSpecs(log_dir=os.path.join(options["directory"], "logs"))
    agent = LocalElasticAgent(spec, logs, start_method="spawn", exit_barrier_timeout=5)
    try:
        result = agent.run()
    except ChildFailedError:
        return 1  # the notebook has heard of it from the rank itself
    return 1 if result.is_failed() else 0


if __name__ == "__main__":
    die_with_parent()
    sys.exit(main(json.loads(sys.argv[1])))
