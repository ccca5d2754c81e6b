"""The source of an H200's constants: `python tests/virtual_fit.py` reads the recordings anew.

`flops` lies between what the recorded MLP's products reach and 8192³ products beside a collective,
which take 1.55 ms each where the GPU's power limit holds them back. What is not read here
(product, k_step, split, cold, single, single_step, unsplit, bias, reduction, across; l2, cached,
kept, many; event, context, module, optimizer, parameter, backward, several,
each_tensor) was set by hand, until the step times of the `others` of `virtual/steps-h200.json` and
`virtual/steps-h200-2.json` came near, of two machines. The host's are those of the first, whose
host was the quicker one. `python tests/timed_programs.py` shows the programs that are compared,
on which nothing is fitted. The tables of `lockstep.virtual.passes` were set by hand, too, by the
kernels of `virtual/operators-h200.json`.
"""

from __future__ import annotations

import json

import numpy as np
from lockstep import recorded
from lockstep.models.cost import fit_collective
from lockstep.trace import Kind, Trace
from lockstep.virtual.model import H200

Fitted = dict[str, float]


def fitted() -> Fitted:
    """Constants of an H200 by name, in the units of `Machine`, from the course's recordings."""
    eager = Trace.load(recorded("traces/tensor-parallel-eager").path)
    graph = Trace.load(recorded("traces/tensor-parallel-graph").path)
    starved = Trace.load(recorded("traces/starved").path)
    found: Fitted = {}

    found["launch"] = _median(eager, "cudaLaunchKernel", "cuLaunchKernelEx")
    found["synchronise"] = float(min(_lengths(starved, "cudaDeviceSynchronize")))
    found["latency"] = min(_waits(eager, rank) for rank in eager.ranks)
    found["gap"] = _gap(eager)
    calls = graph.where(Kind.LAUNCH)
    graphs = [row for row in calls if graph.names[graph.name[row]] == "cudaGraphLaunch"]
    found["graph_latency"] = float(
        np.median([_first(graph, row) - graph.start[row] for row in graphs])
    )
    found["kernel"] = float(np.percentile(eager.duration[eager.where(Kind.COMPUTE)], 5))
    found["collective"] = float(np.median(graph.duration[graph.where(Kind.COMMUNICATION)]))

    content = recorded("virtual/steps-h200.json").content
    host = {name: row["host_seconds"] * 1e9 for name, row in content["others"].items()}
    device = {name: row["seconds"] * 1e9 for name, row in content["others"].items()}
    found["dispatch"] = device["200 add_"] / 200 - found["launch"]
    found["matmul"] = (device["200 mm"] - device["200 add_"]) / 200
    found["view"], found["allocate"] = device["500 view"] / 500, device["500 empty"] / 500
    captured = [
        times["200 add_, captured"] - times["50 add_, captured"] for times in (device, host)
    ]
    found["graph_gap"] = captured[0] / 150 - found["kernel"]
    found["graph_launch"] = captured[1] / 150
    moved = device["add_ of 512 MiB float32, 10 times"] / 10 - found["kernel"] - found["gap"]
    found["memory"] = 2 * (512 << 20) / moved * 1e9
    found["pinned"] = (256 << 20) / device["a copy in of 256 MiB"] * 1e9
    copies = [row for row in starved.where(Kind.COPY) if "HtoD" in starved.names[starved.name[row]]]
    rates = [starved.args(int(row))["bytes"] / starved.duration[row] for row in copies]
    found["pageable"] = float(np.median(rates)) * 1e9
    sweeps = {}
    for n in (2, 4):
        rows = json.loads(recorded(f"sweeps/h200-x{n}.json").path.read_text())["sweeps"]
        some = rows["all_reduce"]
        sweeps[n] = ([row["bytes"] for row in some], [row["seconds"] for row in some])
    found["link"] = fit_collective("all_reduce", sweeps).bandwidth
    return found


_WORK = (Kind.COMPUTE, Kind.COMMUNICATION, Kind.COPY, Kind.SET)


def _lengths(trace: Trace, *names: str) -> list[int]:
    rows = trace.where(Kind.LAUNCH)
    return [int(trace.duration[row]) for row in rows if trace.names[trace.name[row]] in names]


def _median(trace: Trace, *names: str) -> float:
    return float(np.median(_lengths(trace, *names)))


def _kernel_calls(trace: Trace, rank: int) -> list[int]:
    rows = trace.where(Kind.LAUNCH, rank=rank)
    return [row for row in rows if "LaunchKernel" in trace.names[trace.name[row]]]


def _first(trace: Trace, call: int) -> int:
    """Return when what a call launched began."""
    mine = (trace.correlation == trace.correlation[call]) & (trace.rank == trace.rank[call])
    return int(trace.start[mine & np.isin(trace.kind, _WORK)].min())


def _waits(trace: Trace, rank: int) -> float:
    """The median time from a launch's begin to its kernel's."""
    return float(
        np.median([_first(trace, row) - trace.start[row] for row in _kernel_calls(trace, rank)])
    )


def _gap(trace: Trace) -> float:
    """Return the usual gap between two kernels of a stream, where none waits for the host."""
    gaps = []
    for rank in trace.ranks:
        rows = trace.where(*_WORK, rank=rank)
        rows = rows[np.argsort(trace.start[rows])]
        gaps.append(trace.start[rows[1:]] - trace.end[rows[:-1]])
    every = np.concatenate(gaps)
    return float(np.median(every[(every > 0) & (every < 2_000)]))


def main() -> None:
    print(f"{'constant':16}{'recorded':>14}{'in use':>14}")
    for name, value in fitted().items():
        print(f"{name:16}{value:14,.6g}{getattr(H200, name):14,.6g}")


if __name__ == "__main__":
    main()
