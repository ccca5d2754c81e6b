"""all_reduce over message sizes by each of NCCL's protocols; called one by one, and out of a graph.

The ring is forced, so that protocols alone differ. "all_reduce" is timed as in `sweeps`: PyTorch
launches every call. "captured" are the same calls in a CUDA graph, which the GPU takes without
PyTorch: what is left of a small call's time is NCCL's own. NCCL would register the buffers of a
captured call and may then send another way; here it must not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from lockstep.base.machine import Machine

from .experiment import Experiment, Result, device_name, measured_by_torchrun
from .sweeps import Make, all_reduce, sweep

PROTOCOLS = "LL", "LL128", "Simple"
CAPTURED = 10  # calls in a graph
FEWER = 1 << 26  # of more bytes, a graph has two


def captured(make: Make) -> Make:
    """Make, instead of a call, a replay of as many calls of this size as `calls_of` says."""
    return lambda size: replay(make(size), calls_of(size))


def replay(call: Callable[[], object], calls: int) -> Callable[[], object]:
    """Return a replay of a CUDA graph of this many calls; it keeps the buffers that that uses."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):  # what NCCL sets up by the first call is not captured
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()

    def again() -> object:
        graph.replay()
        return call  # a graph holds addresses only: the buffers at them are the call's

    return again


def by_call(rows: Sequence[dict[str, float]]) -> list[dict[str, float]]:
    """Return the rows of `captured`, by call."""
    return [
        {
            key: value if key == "bytes" else value / calls_of(int(row["bytes"]))
            for key, value in row.items()
        }
        for row in rows
    ]


def calls_of(size: int) -> int:
    return CAPTURED if size <= FEWER else 2


def run(machine: Machine, nproc: int) -> list[Result]:
    results = []
    for protocol in (None, *PROTOCOLS):
        environment = {"NCCL_ALGO": "Ring", "NCCL_PROTO": protocol, "NCCL_GRAPH_REGISTER": "0"}
        content = measured_by_torchrun(__name__, nproc=nproc, environment=environment)
        content["protocol"] = protocol or "NCCL's choice"
        content["sweeps"]["captured"] = by_call(content["sweeps"]["captured"])
        name = f"protocols/{device_name(machine)}-x{nproc}"
        name += f"-{protocol.lower()}.json" if protocol else ".json"
        how = f"protocol {protocol} forced" if protocol else "the protocol as NCCL chooses"
        what = f"all_reduce by ring on {nproc} ranks, called and out of a CUDA graph, {how}"
        results.append(Result(name, what, content, environment))
    return results


EXPERIMENT = Experiment(
    "protocols",
    "all_reduce over message sizes by LL, LL128 and Simple, called and out of a CUDA graph",
    minutes=2,
    run=run,
    least=2,
    writes={
        "protocols/*.json": ("world_size", "algorithm", "protocol", "batches", "sweeps"),
    },
)


if __name__ == "__main__":  # a rank
    sweep(Path(sys.argv[1]), {"all_reduce": all_reduce, "captured": captured(all_reduce)})
