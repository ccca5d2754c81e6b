"""Ranks that share a GPU: NCCL refuses that on one host, and takes these to be on several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def on_one_gpu(ranks: Callable[[], Any], *, eager: bool = True) -> Callable[[], Any]:
    """`ranks` in a process group of NCCL's, which it makes itself, on the first GPU.

    eager: NCCL connects all ranks at once, as where the launcher makes the group, and not at the
    first call.
    """

    def alone() -> Any:
        import os

        import torch
        import torch.distributed as dist

        os.environ["NCCL_HOSTID"] = f"host {os.environ['RANK']}"
        os.environ["NCCL_SOCKET_IFNAME"] = "lo"
        device = torch.device("cuda", 0)
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device if eager else None)
        return ranks()

    return alone
