"""The source of an H200's constants: `python tests/virtual_fit.py` reads the recordings anew.

`flops` lies between what the recorded MLP's products reach and 8192³ products beside a collective,
which take 1.55 ms each where the GPU's power limit holds them back. What is not read here (product,
k_step, split, cold, single, single_step, unsplit, bias, reduction, across; l2, cached, kept, many,
written, burst; event, context, module, optimizer, parameter, channels, notice, backward, several,
each_tensor) was set by hand, until the step times of the `others` of `virtual/steps-h200.json` and
`virtual/steps-h200-2.json` came near, of two machines. The host's are those of the first, whose
host was the quicker one. graph_latency, graph_gap_more and attention come from what steps of
`virtual/drawn-fitted-h200.json` take beyond their kernels; of several ways to put the gaps of a
graph, the one was taken with which the captured programs that are compared came nearest, too. Else
nothing is fitted on these, which `python tests/timed_programs.py` shows. What
`lockstep.virtual.passes` says in formulas was set by hand, too, by the kernels of
`virtual/operators-h200.json` and `virtual/operators-2-h200.json`; the rest of them is in
`lib/lockstep/virtual/measured.json`, which this command writes.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from lockstep import recorded
from lockstep.models.cost import fit_collective
from lockstep.trace import Kind, Trace
from lockstep.virtual import passes
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


# ── Operations whose kernels go over rows or columns ─────────────────────────────────────────

_MEASURED = Path(passes.__file__).with_name("measured.json")
_OF_ROWS = {
    "softmax": "_softmax",
    "log_softmax": "_log_softmax",
    "layer norm": "native_layer_norm",
    "rms norm": "_fused_rms_norm",
}
_PASS = re.compile(r"([a-z_ ]+?)( dim [01])? (\d+)×(\d+) (bf16|fp32)( grad| weights)?")


def measured() -> dict[str, dict[str, list[list[int]]]]:
    """[columns, rows, ns] by operation and by the size of an element, from the recorded sweeps;
    and what `_collectives` says."""
    found: dict[str, dict[str, list[list[int]]]] = {}
    for file in ("operators-h200", "operators-2-h200"):
        content: Any = recorded(f"virtual/{file}.json").content
        for text, kernels in content["programs"].items():
            for one, lasted in _apart(text, [ns for _, ns in kernels]):
                matched = _PASS.fullmatch(one)
                if matched is None:
                    continue
                name, dim, rows, columns, dtype, part = matched.groups()
                if not dim and name in _OF_ROWS:
                    backward = "_backward_data" if "soft" in name else "_backward"
                    name = _OF_ROWS[name] + {" grad": backward, " weights": "_weights"}.get(
                        part, ""
                    )
                elif dim and name in passes.REDUCTIONS.values():
                    name += dim
                else:
                    continue
                by_size = found.setdefault(name, {"2": [], "4": []})
                by_size["2" if dtype == "bf16" else "4"].append([int(columns), int(rows), lasted])
    for by_size in found.values():
        for points in by_size.values():
            sizes = Counter(columns for columns, _, _ in points)
            most = max(columns for columns, count in sizes.items() if count > 1)
            points[:] = sorted(one for one in points if sizes[one[0]] > 1 or one[0] > most)
    return dict(sorted((found | _collectives()).items()))


def _collectives() -> dict[str, dict[str, list[list[int]]]]:
    """[bytes, ns] by operation and number of ranks, from the sweeps.

    A call that takes hardly more than the smallest takes what the host needs for it: of these only
    the last is kept. No call takes more than one of more bytes: where one did, something else ran.
    """
    found: dict[str, dict[str, list[list[int]]]] = {}
    for n in (2, 4):
        content: Any = recorded(f"sweeps/h200-x{n}.json").content
        for operation, rows in content["sweeps"].items():
            ns = 1e9 * np.minimum.accumulate([row["seconds"] for row in rows][::-1])[::-1]
            first = int((ns < 1.1 * ns[0]).sum()) - 1
            if operation == "ping_pong":  # two messages, each to the group's stream and back
                operation, ns = "send", ns / 2 - 2 * H200.notice
            points = zip(rows[first:], ns[first:] - H200.gap, strict=True)
            found.setdefault(operation, {})[str(n)] = [
                [0, round(H200.collective)],
                *([row["bytes"], round(each)] for row, each in points),
            ]
    del found["ring_shift"]  # is made of messages
    return found


def _apart(text: str, kernels: list[int]) -> list[tuple[str, int]]:
    """The ns of what is measured in a sweep: a forward pass is one kernel, the rest is backward.

    Of a norm that is the gradient of what it is given, and then those of its weights.
    """
    if text.startswith("cross entropy"):  # whose first and last are a softmax's logarithm
        text = text.replace("cross entropy", "log_softmax")
        return [(text, kernels[0]), (f"{text} grad", kernels[-1])]
    if " norm " in text and text.endswith("grad"):
        return [(text, kernels[1]), (text.replace("grad", "weights"), sum(kernels[2:]))]
    return [(text, sum(kernels[1:] if text.endswith("grad") else kernels))]


def main() -> None:
    _MEASURED.write_text(json.dumps(measured(), separators=(",", ":")) + "\n", encoding="utf-8")
    print(f"{'constant':16}{'recorded':>14}{'in use':>14}")
    for name, value in fitted().items():
        print(f"{name:16}{value:14,.6g}{getattr(H200, name):14,.6g}")


if __name__ == "__main__":
    main()
