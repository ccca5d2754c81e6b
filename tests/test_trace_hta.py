"""Our breakdown beside Holistic Trace Analysis: equal where that is right, else why it is not."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import pytest
from kineto_files import event, head, kernel, training, write
from lockstep.trace import Trace

logging.getLogger("hta").setLevel(logging.CRITICAL)
START = 1_000_000_000  # ns after the file's base


def hta(folder: Path):
    """Per rank: microseconds of compute and of idle, and overlap in percent."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from hta.trace_analysis import TraceAnalysis

        analysis = TraceAnalysis(trace_dir=str(folder))
        times = analysis.get_temporal_breakdown(visualize=False).set_index("rank")
        overlap = analysis.get_comm_comp_overlap(visualize=False).set_index("rank")
    return times["compute_time(us)"], times["idle_time(us)"], overlap["comp_comm_overlap_pctg"]


def ours(folder: Path):
    """The same of our own, exact: nanoseconds, and overlap in percent."""
    parts = Trace.load(folder, cache=False).breakdown().totals
    return (
        {part.rank: part.compute for part in parts},
        {part.rank: part.idle for part in parts},
        {part.rank: 100 * (part.overlap or 0) for part in parts},
    )


Launched = tuple[str, int, int, int, dict[str, Any]]  # name, start, duration, stream, args


def file(folder: Path, kernels: list[Launched], steps=()):
    """Trace of rank 0: kernels on the GPU, annotated steps beside."""
    events = [event("user_annotation", f"ProfilerStep#{n}", at, long) for n, at, long in steps]
    events += [
        event("cuda_runtime", "cudaLaunchKernel", at - 100_000, 1_000, correlation=n + 1)
        for n, (_, at, *_) in enumerate(kernels)
    ]
    events += [
        kernel(name, at, long, stream=stream, correlation=n + 1, **args)
        for n, (name, at, long, stream, args) in enumerate(kernels)
    ]
    write(folder / "rank0.json", events, head())


GEMM, NCCL = "sgemm_128x128_nn", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)"


def test_equal_where_times_are_whole_microseconds_and_names_say_everything(tmp_path):
    at = START + 100_000
    kernels: list[Launched] = [(GEMM, at + 50_000 * n, 30_000, 7, {}) for n in range(6)]
    kernels += [(NCCL, at + 20_000 + 100_000 * n, 40_000, 20, {}) for n in range(3)]
    file(tmp_path, kernels)
    theirs, own = hta(tmp_path), ours(tmp_path)
    assert theirs[0][0] * 1_000 == own[0][0] == 180_000
    assert theirs[2][0] == pytest.approx(own[2][0], abs=0.005) == 50.0
    # HTA begins at the first kernel, we at the first event, a launch 100 µs before.
    assert theirs[1][0] * 1_000 == own[1][0] - 100_000


def test_hta_rounds_times_down_to_microseconds_first(tmp_path):
    kernels: list[Launched] = [(GEMM, START + 10_000 * n, 1_900, 7, {}) for n in range(100)]
    file(tmp_path, kernels)
    assert ours(tmp_path)[0][0] == 190_000
    assert hta(tmp_path)[0][0] == 100  # instead of 190


def test_hta_leaves_out_the_last_step(tmp_path):
    steps = [(n, START + 1_000_000 * n, 1_000_000) for n in range(3)]
    kernels: list[Launched] = [(GEMM, at + 200_000, 300_000, 7, {}) for _, at, _ in steps]
    file(tmp_path, kernels, steps)
    assert ours(tmp_path)[0][0] == 900_000
    assert hta(tmp_path)[0][0] == 600


def test_hta_knows_communication_by_its_name_alone(tmp_path):
    name = "void one_shot_exchange<float>(float*)"
    said = {"Collective name": "allreduce", "In msg nelems": 1024, "Out msg nelems": 1024}
    said |= {"dtype": "Float", "Group size": 1, "Process Group Ranks": "[0]"}
    at = START + 100_000
    file(tmp_path, [(GEMM, at, 50_000, 7, {}), (name, at + 60_000, 50_000, 20, said)])
    assert ours(tmp_path)[0][0] == 50_000
    assert hta(tmp_path)[0][0] == 100


def test_a_run_of_two_ranks_within_what_rounding_explains(tmp_path):
    training(tmp_path, ranks=2, events=4_000)
    theirs, own = hta(tmp_path), ours(tmp_path)
    rows = Trace.load(tmp_path, cache=False)
    for rank in (0, 1):
        kernels = len(rows.where(rank=rank))
        assert theirs[0][rank] * 1_000 <= own[0][rank] <= theirs[0][rank] * 1_000 + 2_000 * kernels
