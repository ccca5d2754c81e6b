"""The size of a job: how many ranks each host has, and by which backend they talk."""

from __future__ import annotations

from ..base.formatting import counted, ranks_count
from .errors import LaunchError
from .nodes.base import Hosts
from .options import Options

_MOST_RANKS = 200


def size(options: Options, hosts: Hosts) -> tuple[tuple[int, ...], str, str]:
    """Return how many ranks each host has, their backend, and a note where that may surprise.

    Raises LaunchError for what this machine, or the other hosts, cannot have.
    """
    count = hosts.count
    asked = options.nproc_per_node
    of_each = asked.split(",") if isinstance(asked, str) else [asked]
    if len(of_each) == 1:
        of_each *= count
    elif len(of_each) != count:
        raise LaunchError(
            f"nproc_per_node={asked!r} has numbers for {len(of_each)} hosts, but there "
            f"{'is 1' if count == 1 else f'are {count}'}"
        )
    each = tuple(_nproc(one, hosts) for one in of_each)
    if sum(each) > _MOST_RANKS:
        raise LaunchError(
            f"{ranks_count(max(each))} on each of {count} nodes are more than {_MOST_RANKS}"
        )
    return each, *_backend(options.backend, max(each), hosts)


def _nproc(asked: int | str, hosts: Hosts) -> int:
    """Return how many ranks are meant on each host.

    Raises LaunchError where that makes no sense there.
    """
    if isinstance(asked, str) and not asked.isdigit():
        words = {
            "gpu": hosts.count_gpus,
            "cpu": hosts.count_cores,
            "auto": lambda: hosts.count_gpus() or hosts.count_cores(),
        }
        if asked not in words:
            raise LaunchError(f"nproc_per_node must be a number, gpu, cpu or auto, not {asked!r}")
        nproc = words[asked]()
        if nproc == 0:
            raise LaunchError(
                f"{hosts.each_has} {hosts.no_gpu}, so nproc_per_node=gpu means "
                "no ranks at all. Give a number of ranks: they run on the CPU with gloo."
            )
        return nproc
    nproc = int(asked)
    if not 1 <= nproc <= _MOST_RANKS:
        raise LaunchError(f"nproc_per_node must be from 1 to {_MOST_RANKS}, not {nproc}")
    return nproc


def _backend(asked: str, nproc: int, hosts: Hosts) -> tuple[str, str]:
    """Return the backend that is meant, and a note for the learner where that may surprise.

    nproc: ranks on each host. Raises LaunchError where it cannot be had there.
    """
    if asked == "gloo":
        return "gloo", ""
    gpus, has = hosts.count_gpus(), hosts.each_has
    if asked == "nccl" and gpus < nproc:
        there = {0: hosts.no_gpu, 1: "1 GPU"}.get(gpus, f"{gpus} GPUs")
        most = f"-n {gpus}, or " if gpus else ""
        raise LaunchError(
            f"{has} {there}, and NCCL needs one for each of the {nproc} ranks. "
            f"Use {most}--backend gloo: the same calls on the CPU."
        )
    if gpus >= nproc:
        return "nccl", ""
    if gpus == 0:
        return "gloo", ""
    few = f"{has} {counted(gpus, 'GPU')}, fewer than the {nproc} ranks"
    return "gloo", f"{few}: they use gloo on the CPU, and see no GPU"
