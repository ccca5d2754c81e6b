"""Writes Kineto files as PyTorch's profiler does: single events for tests, whole runs to measure.

Times are given in nanoseconds and written in microseconds, as PyTorch does since 2.3 (three
decimals, relative to baseTimeNanoseconds), 2.2 ("absolute": three decimals since the epoch, no
base) or 2.1 ("whole": whole microseconds since the epoch).
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

BASE = 1_790_857_026_000_000_000  # a multiple of three months, as Kineto's are
START = 4_388_655_824_397_875  # ns after BASE
PID = 24_306
GPUS = {"nvidia": "NVIDIA H200", "amd": "AMD Instinct MI300X"}


def number(ns: int, style: str = "relative") -> str:
    """A time as Kineto writes it, in microseconds."""
    if style == "whole":
        return str((BASE + ns) // 1000)
    ns = ns + BASE if style == "absolute" else ns
    return f"{'-' if ns < 0 else ''}{abs(ns) // 1000}.{abs(ns) % 1000:03}"


def event(
    cat: str,
    name: str,
    ts: int,
    dur: int,
    *,
    pid: Any = PID,
    tid: Any = PID,
    style: Any = "relative",
    **args: Any,
) -> str:
    """One complete event in Kineto's layout; ts and dur in nanoseconds.

    pid and tid are int or str, style is one of those above. They are Any because a dict of more
    arguments would otherwise have to be of their types, too.
    """
    dur_text = str(dur // 1000) if style == "whole" else number(dur)
    return (
        f'  {{\n    "ph": "X", "cat": {json.dumps(cat)}, "name": {json.dumps(name)}, '
        f'"pid": {json.dumps(pid)}, "tid": {json.dumps(tid)},\n'
        f'    "ts": {number(ts, style)}, "dur": {dur_text},\n'
        f'    "args": {{\n      {json.dumps(args)[1:-1]}\n    }}\n  }}'
    )


def kernel(name: str, ts: int, dur: int, *, stream: Any = 7, device: Any = 0, **more: Any) -> str:
    """A kernel on a stream."""
    style = more.pop("style", "relative")
    args = {"device": device, "stream": stream, **more}
    return event("kernel", name, ts, dur, pid=device, tid=stream, style=style, **args)


def metadata(what: str, pid: int | str, tid: int | str, **args: Any) -> str:
    return (
        f'  {{\n    "name": "{what}", "ph": "M", "ts": {number(START)}, "pid": {json.dumps(pid)}, '
        f'"tid": {json.dumps(tid)},\n    "args": {json.dumps(args)}\n  }}'
    )


def head(
    rank: int | None = 0,
    world: int = 1,
    *,
    gpu: str | None = "NVIDIA H200",
    style: str = "relative",
    groups: list[dict[str, Any]] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """What stands before the events; rank None: a file that does not say its rank."""
    properties = [{"id": 0, "name": gpu, "numSms": 132}] if gpu else []
    about: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": properties}
    if rank is not None:
        config = groups
        if config is None:
            config = [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": world}]
            config[0]["ranks"] = list(range(world))
        about["distributedInfo"] = {
            "backend": "nccl",
            "rank": rank,
            "world_size": world,
            "pg_count": len(config),
            "pg_config": config,
            "nccl_version": "2.28.9",
        }
    about["displayTimeUnit"] = "ms"
    if style == "relative":
        about["baseTimeNanoseconds"] = BASE
    return about | more


def text(events: Iterable[str], about: dict[str, Any] | None = None, *, foot: str = "") -> str:
    """A whole file, with Kineto's closing events and name. foot: more members after the events."""
    opening = json.dumps(head() if about is None else about, indent=2)[:-2]
    closing = (
        '  {\n    "ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", '
        f'"tid": "PyTorch Profiler",\n    "ts": {number(START)}, "dur": 999999.000\n  }},\n'
        '  {\n    "name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", '
        f'"ts": {number(START)}\n  }}\n'
    )
    body = "".join(f"{one},\n" for one in events)
    return f'{opening},\n  "traceEvents": [\n{body}{closing}  ],{foot}\n  "traceName": "t.json"\n}}'


def write(
    path: Path, events: Iterable[str], about: dict[str, Any] | None = None, *, foot: str = ""
) -> Path:
    """A whole file; packed where the name ends in gz."""
    content = text(events, about, foot=foot).encode()
    path.write_bytes(gzip.compress(content, 1) if path.suffix == ".gz" else content)
    return path


# ── Whole runs ───────────────────────────────────────────────────────────────────────────────


def training(
    folder: Path,
    *,
    ranks: int = 8,
    events: int = 300_000,
    maker: str = "nvidia",
    style: str = "relative",
    seed: int = 0,
) -> list[Path]:
    """One gz a rank of a data-parallel run with overlapped all-reduces, `events` events each.

    What GPUs do is simulated on one clock: an all-reduce ends on all ranks at once, when the last
    has come and the transfer is done; then each rank's clock is off by up to 3 ms.
    """
    per_layer, layers, kernels = 118, 12, 12
    steps = max(1, round(events / (per_layer * layers)))
    draw = random.Random(seed)
    offsets = [draw.randint(-3_000_000, 3_000_000) for _ in range(ranks)]
    durations = [[20_000 + draw.randint(0, 20_000) for _ in range(ranks)] for _ in range(97)]
    free, comm = [0] * ranks, [0] * ranks
    plan: list[list[tuple[int, int, int, int]]] = [[] for _ in range(ranks)]
    for layer in range(steps * layers):
        if layer % layers == 0:  # a step begins when the last one's all-reduces are over
            free = [max(pair) + 150_000 for pair in zip(free, comm, strict=True)]
        lasts = durations[layer % 97]
        begin = free
        free = [at + kernels * (last + 700) for at, last in zip(free, lasts, strict=True)]
        start = [max(pair) + 2_000 for pair in zip(free, comm, strict=True)]
        end = max(start) + 180_000
        comm = [end] * ranks
        for rank in range(ranks):
            plan[rank].append((begin[rank], lasts[rank], start[rank], end))
    paths = []
    for rank in range(ranks):
        about = head(rank, ranks, gpu=GPUS[maker], style=style)
        path = folder / f"rank{rank}.pt.trace.json.gz"
        run = _rank(plan[rank], START + 10_000_000 + offsets[rank], layers, kernels, maker, style)
        paths.append(write(path, run, about))
    return paths


def _rank(
    plan: list[tuple[int, int, int, int]],
    clock: int,
    layers: int,
    kernels: int,
    maker: str,
    style: str,
) -> Iterator[str]:
    hip = maker == "amd"
    runtime, launch = (
        ("hip_runtime", "hipLaunchKernel") if hip else ("cuda_runtime", "cudaLaunchKernel")
    )
    ranks_text = ", ".join(map(str, range(8)))
    yield metadata("process_name", PID, 0, name="python")
    yield metadata("thread_name", PID, PID, name=f"thread {PID} (python)")
    yield metadata("thread_name", PID, PID + 9, name=f"thread {PID + 9} (pt_autograd_0)")
    yield metadata("thread_name", 0, 7, name="stream 7 ")
    external = correlation = 0

    def op(name: str, ts: int, dur: int, tid: int = PID) -> str:
        nonlocal external
        external += 1
        return (
            f'  {{\n    "ph": "X", "cat": "cpu_op", "name": "{name}", "pid": {PID}, "tid": {tid},\n'
            f'    "ts": {number(ts, style)}, "dur": {number(dur)},\n    "args": {{\n      '
            f'"External id": {external},"Record function id": 0, "Sequence number": {external}, '
            f'"Fwd thread id": 0, "Concrete Inputs": ["", "", ""], "Input type": ["c10::BFloat16", '
            f'"c10::BFloat16", ""], "Input Strides": [[4096, 1], [1, 4096], []], '
            f'"Input Dims": [[8192, 4096], [4096, 4096], []], "Ev Idx": {external}\n    }}\n  }}'
        )

    def flow(ph: str, ts: int, pid: int, tid: int) -> str:
        return (
            f'  {{\n    "ph": "{ph}", "id": {correlation}, "pid": {pid}, "tid": {tid}, '
            f'"ts": {number(ts, style)},\n    "cat": "ac2g", "name": "ac2g"'
            + (', "bp": "e"\n  }' if ph == "f" else "\n  }")
        )

    def call(name: str, ts: int, tid: int) -> str:
        return (
            f'  {{\n    "ph": "X", "cat": "{runtime}", "name": "{name}", "pid": {PID}, '
            f'"tid": {tid},\n    "ts": {number(ts, style)}, "dur": 4.217,\n    "args": {{\n      '
            f'"External id": {external}, "cbid": 211, "correlation": {correlation}\n    }}\n  }}'
        )

    def work(name: str, ts: int, dur: int, stream: int, more: str = "", cat: str = "kernel") -> str:
        return (
            f'  {{\n    "ph": "X", "cat": "{cat}", "name": "{name}", "pid": 0, "tid": {stream},\n'
            f'    "ts": {number(ts, style)}, "dur": {number(dur)},\n    "args": {{\n      '
            f'"External id": {external}, "queued": 0, "device": 0, "context": 1, '
            f'"stream": {stream}, '
            f'"correlation": {correlation}, "registers per thread": 168, "shared memory": 213016, '
            f'"blocks per SM": 1.0, "warps per SM": 12.0, "grid": [132, 1, 1], '
            f'"block": [384, 1, 1], "est. achieved occupancy %": 19{more}\n    }}\n  }}'
        )

    for number_of_layer, (begin, last, comm_start, comm_end) in enumerate(plan):
        step, layer = divmod(number_of_layer, layers)
        tid = PID if layer < layers // 2 else PID + 9
        at = clock + begin - 120_000
        if layer == 0:
            until = clock + plan[min(number_of_layer + layers, len(plan)) - 1][3] - at
            yield event("user_annotation", f"ProfilerStep#{step}", at, until, style=style)
            work_at = clock + begin
            gpu = {"pid": 0, "tid": 7, "style": style, "External id": external + 1}
            yield event(
                "gpu_user_annotation", f"ProfilerStep#{step}", work_at, until - 120_000, **gpu
            )
        for one in range(kernels):
            ts = at + one * (last + 700)
            yield op("aten::linear", ts, 19_873, tid)
            yield op("aten::t", ts + 500, 2_111, tid)
            yield op("aten::transpose", ts + 900, 1_318, tid)
            yield op("aten::as_strided", ts + 1_100, 402, tid)
            yield op("aten::addmm" if one % 3 else "aten::_softmax", ts + 4_000, 14_020, tid)
            correlation += 1
            yield call(launch, ts + 9_000, tid)
            yield flow("s", ts + 9_000, PID, tid)
            name = (
                f"void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_{one}>(Params)"
                if one % 3
                else "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor"
                "<c10::BFloat16>, std::array<char*, 1ul> >(int, std::array<char*, 1ul>)"
            )
            when = clock + begin + one * (last + 700)
            yield work(name, when, last, 7)
            yield flow("f", when, 0, 7)
        ts = at + kernels * (last + 700)
        yield op("c10d::allreduce_", ts, 41_000, tid)
        external += 1
        facts = (
            '"Collective name": "allreduce", "In msg nelems": 16777216, '
            '"Out msg nelems": 16777216, '
            '"Group size": 8, "dtype": "BFloat16", "In split size": "[]", "Out split size": "[]", '
            '"Process Group Name": "0", "Process Group Description": "default_pg", '
            f'"Process Group Ranks": "[{ranks_text}]"'
        )
        yield (
            f'  {{\n    "ph": "X", "cat": "cpu_op", "name": "record_param_comms", "pid": {PID}, '
            f'"tid": {tid},\n    "ts": {number(ts + 2_000, style)}, "dur": 37.000,\n    '
            f'"args": {{\n      "External id": {external}, {facts}, '
            f'"Seq": {number_of_layer}\n    }}\n  }}'
        )
        correlation += 1
        yield call("hipExtLaunchKernel" if hip else "cudaLaunchKernelExC", ts + 20_000, tid)
        yield flow("s", ts + 20_000, PID, tid)
        name = "ncclDevKernel_Generic_1" if hip else "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
        name += "(ncclDevKernelArgsStorage<4096ul>)"
        start, dur = clock + comm_start, comm_end - comm_start
        yield work(name, start, dur, 20, f", {facts}")
        yield flow("f", start, 0, 20)
        gpu = {"pid": 0, "tid": 20, "style": style, "External id": external}
        yield event("gpu_user_annotation", "nccl:all_reduce", start, dur, **gpu)
        sync = {"stream": 7, "device": 0, "correlation": correlation, "pid": 0, "tid": 7}
        yield event("cuda_sync", "Stream Wait Event", start + dur, 1_000, style=style, **sync)
        copy = {"pid": 0, "tid": 7, "style": style, "External id": external}
        copy |= {"stream": 7, "device": 0, "correlation": correlation, "bytes": 4096}
        yield event("gpu_memcpy", "Memcpy DtoD (Device -> Device)", start - 2_000, 1_500, **copy)
