"""Ranks whose device did something that is not in the trace."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from ..base.formatting import percent
from .joins import launch_of, named, on_device
from .slices import NONE, Column, Kind, Slices, TraceError, once

# cudaLaunchKernelExC, cuLaunchKernelEx, hipExtModuleLaunchKernel, cudaGraphLaunch, cudaMemcpyAsync…
# but not cudaLaunchHostFunc, which leaves nothing on the device.
LAUNCHES = re.compile("Launch(?!HostFunc)|Memcpy|Memset", re.IGNORECASE)
# Those whose kernels the trace must have. Memsets often leave no record, host functions none.
_KERNELS = re.compile(r"^(cu|cuda|hip)([A-Z]\w*)?Launch(?!HostFunc)")
_CAPTURES = re.compile("^(cu|cuda|hip)Stream(Begin|End)Capture")
_FEW = 0.01  # of the launching calls: kernels that may be missing without a word
_CUT = 0.05  # the same for the last calls, whose kernels the recording's end cuts off


@once
def unseen(trace: Slices) -> dict[int, str]:
    """Rank → why nothing can be said of its device, in a sentence; only such ranks.

    What they did on their CPU is no answer to what their device did, so no time of theirs may be
    told. A rank that computes on its CPU is none of these: it launches nothing, no other rank has a
    device, and all of its slices are known.
    """
    device = on_device(trace)
    with_device = np.unique(trace.rank[device])
    with_kernels = np.unique(trace.rank[device[_are_kernels(trace, device)]])
    missing = lost_kernels(trace)
    found = {}
    for rank in trace.ranks:
        if rank in with_device and rank not in with_kernels and missing[rank].calls:
            found[rank] = (
                f"rank {rank} has copies, but no kernels in the trace, although it makes "
                f"{missing[rank].all:,} calls that launch kernels: these were not recorded, or are "
                "cut off"
            )
        elif rank not in with_device:
            rows = trace.where(rank=rank)
            if why := _why(trace, rank, trace.kind[rows], bool(len(with_device))):
                found[rank] = f"rank {rank} has no kernels in the trace, although {why}"
    return found


def refuse_unseen(trace: Slices) -> None:
    """Raises TraceError where nothing ran on any device, and a rank's is not in the trace."""
    if (silent := unseen(trace)) and not len(on_device(trace)):
        raise TraceError("; ".join(silent.values()))


class Lost(NamedTuple):
    """Launching calls of a rank: those whose kernels are not in the trace, of all."""

    calls: int
    all: int

    @property
    def share(self) -> float:
        return self.calls / self.all if self.all else 0.0


@once
def lost_kernels(trace: Slices) -> dict[int, Lost]:
    """Rank → how many of its launching calls have no kernel in the trace, although it was running.

    Not counted: what a graph captured; the last few calls, if the recording's end has cut off their
    kernels; and all of a rank, if as many of its kernels have no call, so that these may be theirs.
    """
    device = on_device(trace)
    kernels = device[_are_kernels(trace, device)]
    alone = kernels[launch_of(trace, kernels) == NONE]
    launching = named(trace, _KERNELS)
    found = {}
    for rank in trace.ranks:
        every = trace.where(Kind.LAUNCH, rank=rank)
        every = every[np.argsort(trace.start[every], kind="stable")]
        calls = every[launching[trace.name[every]] & (capture_of(trace, every) == NONE)]
        calls = calls[trace.correlation[calls] != NONE]
        own = trace.correlation[device[trace.rank[device] == rank]]
        ran = np.isin(trace.correlation[calls], own)
        cut = len(ran) - 1 - int(np.flatnonzero(ran).max(initial=-1))
        lost = int((~ran).sum()) - (cut if cut <= 1 + _CUT * len(ran) else 0)
        found[rank] = Lost(lost if lost > (trace.rank[alone] == rank).sum() else 0, len(ran))
    return found


def lossy(trace: Slices) -> dict[int, str]:
    """Rank → a sentence: ranks of which kernels are missing, so that what ran looks like idling."""
    return {
        rank: f"rank {rank}: the kernels of {lost.calls:,} of {lost.all:,} launching calls "
        f"({percent(lost.share)}) are missing in the trace, so that its idle time is not known"
        for rank, lost in lost_kernels(trace).items()
        if lost.share > _FEW and rank not in unseen(trace)
    }


def _are_kernels(trace: Slices, rows: Column) -> Column:
    return np.isin(trace.kind[rows], (Kind.COMPUTE, Kind.COMMUNICATION))


def capture_of(trace: Slices, calls: Column) -> Column:
    """For all calls of one rank by their start: the number of the capture of a graph that each was
    made in, or NONE."""
    # After the first of Begin, End, Begin, … a graph is captured, after the second none is.
    seen = np.cumsum(named(trace, _CAPTURES)[trace.name[calls]])
    captures: Column = np.where(seen % 2 == 1, seen // 2, NONE)
    return captures


def damaged(trace: Slices) -> dict[int, str]:
    """Rank → a sentence: ranks whose file is damaged, so that what it lost looks like idle time."""
    return {
        rank: f"rank {rank}'s file is damaged, and what was lost looks like idle time: "
        f"{'; '.join(damage)}"
        for rank, about in trace.about.items()
        if (damage := about.get("damage"))
    }


def doubtful(trace: Slices) -> dict[int, str]:
    """Rank → a sentence: ranks taken for CPU-only whose machine has a GPU."""
    silent = unseen(trace)
    with_device = np.unique(trace.rank[on_device(trace)])
    return {
        rank: f"rank {rank} has no kernels and no launches in the trace, although its machine "
        f"has a GPU ({gpu}): what follows is about its CPU; record with "
        "ProfilerActivity.CUDA to see the GPU"
        for rank in trace.ranks
        if rank not in with_device
        and rank not in silent
        and (gpu := trace.about.get(rank, {}).get("gpu"))
        and not (trace.kind[trace.where(rank=rank)] == Kind.COMMUNICATION).any()
    }


# What the categories of Kineto's other devices, and of other programs, stand for.
_STRANGERS = (
    (re.compile("mtia", re.IGNORECASE), "of Meta's MTIA accelerator"),
    (re.compile("hpu", re.IGNORECASE), "of Intel's Gaudi (HPU)"),
    (re.compile("mlu", re.IGNORECASE), "of Cambricon's MLU"),
    (re.compile("npu|ascend", re.IGNORECASE), "of an Ascend NPU"),
    (re.compile("xpu", re.IGNORECASE), "of an Intel GPU (XPU)"),
    (re.compile("glow", re.IGNORECASE), "of Glow"),
    (
        re.compile("cuda_profiler_range", re.IGNORECASE),
        "of CUPTI's range profiler, which measures counters in place of kernels",
    ),
    (re.compile("FEE$"), "of VizTracer, which traces Python"),
)


def _whose(trace: Slices, rank: int, categories: set[str]) -> str:
    """Say whose slices of unknown categories are, as far as they and names of processes tell."""
    for mark, whose in _STRANGERS:
        if any(mark.search(one) for one in categories):
            return whose
    processes = {lane.process for lane in trace.lanes if lane.rank == rank}
    if any(one.startswith(("/device:", "/host:")) for one in processes):
        return "of XLA's profiler (JAX, TensorFlow, PyTorch/XLA)"
    return "of a device, or of another program"


def _why(trace: Slices, rank: int, kinds: Column, others: bool) -> str:
    unread = trace.about.get(rank, {}).get("unread", {})
    if unread:
        which = ", ".join(list(unread)[:5])
        many = f"{sum(unread.values()):,}"
        where = f"{many} slices of unknown categories ({which})"
        return f"it has {where}: {_whose(trace, rank, set(unread))}, which cannot be read yet"
    launching = named(trace, LAUNCHES)
    called = trace.where(Kind.LAUNCH, rank=rank)
    if count := int(launching[trace.name[called]].sum()):
        calls = "1 call that launches" if count == 1 else f"{count:,} calls that launch"
        return f"it makes {calls} something: what ran was not recorded, or is cut off"
    if others and not (kinds == Kind.COMPUTE).any():
        return "other ranks have some: what ran was not recorded, or is cut off"
    return ""
