"""A first job on the cluster of the profile: what is there, and what is wrong."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import platformdirs

from ..base.formatting import counted
from .cluster import profile
from .cluster.slurm import Slurm
from .errors import LaunchError
from .job import JobInterrupted
from .run import torchrun


def check_cluster(cluster: Slurm, say: Callable[[str], None], *, keep: bool) -> bool:
    """Run a rank on each node (or on each GPU) and say what it finds; return whether all is well.

    keep: write the profile of this cluster once Slurm has given its nodes. Raises OSError where
    it cannot be written.
    """
    folder = platformdirs.user_state_path("lockstep")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder, prefix="hello-") as file:
        try:
            job = torchrun(
                probe,
                file.name,
                nproc_per_node="gpu" if cluster.gpus_per_node else 1,
                on=cluster,
                timeout=120,
                may_fail=True,
            )
        except (LaunchError, JobInterrupted) as error:
            say(str(error))
            return False
    if keep:
        say(f"wrote {profile.write(cluster)}")
    if not job.ok:
        say(job.report)
        return False
    troubles = []
    for rank, found in enumerate(job.results):
        if not found["shared"]:
            troubles.append(f"{found['node']} does not see {folder} as this host does")
        if found["sum"] != job.nproc:
            troubles.append(f"the ranks' sum is {found['sum']:g} on rank {rank}, not {job.nproc}")
    for trouble in dict.fromkeys(troubles):
        say(trouble)
    if not troubles:
        say(f"all is well: {job.stamp}")
    return not troubles


def probe(file: str) -> dict[str, Any]:
    """Return, on a rank, where it is, what is there, and whether it reaches the others."""
    import torch
    import torch.distributed as dist

    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    total = torch.ones(1, device=device)
    dist.all_reduce(total)
    node = os.environ.get("SLURMD_NODENAME") or platform.node()
    gpus = counted(torch.cuda.device_count(), "GPU")
    print(f"hello from {node}, {gpus}, Python {platform.python_version()}")
    return {"node": node, "shared": Path(file).exists(), "sum": float(total)}
