"""Kineto files in the shapes in which other people publish theirs, made anew with known answers.

`old_recorder` is what PyTorch 2.0 to 2.6 writes with some releases of Kineto: launches and kernels
have their correlation for an External id, so that only the place of a launch tells which operator
made it. Times are whole microseconds, since the epoch.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kineto_files import START, event, head, kernel, write

US = 1_000
SENT = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)"
REDUCED = "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)"
GEMM = "volta_sgemm_128x32_nt"


def old_recorder(
    folder: Path,
    *,
    ranks: int = 2,
    rounds: int = 8,
    facts: str = "annotation",
    correlation: int = 41_000,
    external: int = 400,
    stride: int = 1,
    seed: int = 0,
) -> list[Path]:
    """One file a rank. Each round: two products, an all-to-all of 6,144 floats (its kernel's name
    does not say so), a product, an all-reduce; the two end on all ranks within 2 µs.

    facts: where sizes stand: in the "annotation" nccl:… or in the "operator" record_param_comms.
    correlation, external: the first numbers of each sort; stride: between operators' numbers.
    """
    draw = random.Random(seed)
    ready = [20_000 * US] * ranks
    plan: list[list[tuple[str, int, int]]] = [[] for _ in range(ranks)]  # name, start, duration
    for _ in range(rounds):
        for name, before in ((SENT, 2), (REDUCED, 1)):
            for rank in range(ranks):
                for _ in range(before):
                    last = draw.randint(20, 60) * US
                    plan[rank].append((GEMM, ready[rank], last))
                    ready[rank] += last + draw.randint(0, 9) * US
            end = max(ready) + 40 * US
            for rank in range(ranks):
                late = draw.randint(0, 2) * US
                plan[rank].append((name, ready[rank], end + late - ready[rank]))
                ready[rank] = end + late + draw.randint(1, 9) * US
    about = {"style": "whole", "gpu": "Tesla V100-SXM2-32GB"}
    return [
        write(
            folder / f"worker{rank}.json",
            _rank(plan[rank], facts, correlation + 7 * rank, external, stride),
            head(rank, ranks, groups=[], **about),
        )
        for rank in range(ranks)
    ]


def _rank(
    plan: list[tuple[str, int, int]], facts: str, correlation: int, external: int, stride: int
) -> Iterator[str]:
    number = external - stride

    def on_thread(category: str, name: str, at: int, last: int, **args: Any) -> str:
        nonlocal number
        number += stride
        args = {"External id": number, **args}
        return event(category, name, START + at, last, style="whole", **args)

    at = 1_000 * US
    whole = plan[-1][1] + plan[-1][2] - at
    yield event("user_annotation", "ProfilerStep#12", START + at, whole, style="whole")
    for count, (name, begin, last) in enumerate(plan):
        at += 70 * US
        joined = {"correlation": correlation + count, "External id": correlation + count}
        sized = {"Input Dims": [[6144]], "Input type": ["float"]}
        operation = {SENT: "all_to_all", REDUCED: "all_reduce"}.get(name, "")
        if operation:
            said = {"Collective name": operation, "In msg nelems": 6144, "dtype": "Float"}
            said |= {"Out msg nelems": 6144} if facts == "operator" else {}
            said = said if facts == "operator" else {"Input Dims": [[], []]}
            yield on_thread("cpu_op", "record_param_comms", at, 60 * US, **said)
            # On the way a copy is made, by an operator inside of the recording one.
            yield on_thread("cpu_op", "aten::copy_", at + 1 * US, 9 * US)
            yield on_thread("user_annotation", f"nccl:{operation}", at + 11 * US, 40 * US, **sized)
        else:
            yield on_thread("cpu_op", "aten::mm", at, 60 * US, **sized)
        call = {"style": "whole", **joined}
        yield event("cuda_runtime", "cudaLaunchKernel", START + at + 20 * US, 9 * US, **call)
        stream = 84 if operation else 7
        yield kernel(name, START + begin, last, stream=stream, style="whole", **joined)
        if operation:
            copied = {k: v + 5_000_000 for k, v in joined.items()}
            call = {"style": "whole", **copied}
            yield event("cuda_runtime", "cudaLaunchKernel", START + at + 4 * US, 3 * US, **call)
            yield kernel("copy", START + begin, 9 * US, stream=7, style="whole", **copied)
