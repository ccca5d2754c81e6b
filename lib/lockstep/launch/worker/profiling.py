"""A rank's profile: everything torch.profiler sees while the job runs, in one file a rank."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def profiled(folder: str | None, rank: int) -> Iterator[None]:
    """Record what happens inside into `folder/rankN.json.gz`; nothing if `folder` is None.

    CPU and, where this process sees one, GPU; with the tensors' shapes, without Python's stack.
    Nothing is written where the job raises: its trace would end in the middle. What Kineto has to
    say shows with KINETO_LOG_LEVEL=2 in the job's variables.
    """
    if folder is None:
        yield
        return
    # Kineto reads this when its first profile begins; by itself it prints two lines for each.
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    import torch
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    profiler = profile(activities=activities, record_shapes=True)
    with warnings.catch_warnings():  # PyTorch 2.11 says that a second cycle would clear the first
        warnings.filterwarnings("ignore", ".*Profiler clears events")
        profiler.start()
    try:
        yield
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()  # what the GPU still does belongs to the job
    except RuntimeError as error:
        if "Couldn't swap" in str(error):
            error.add_note(
                "torch.profiler refers to tensors whose shapes it records, and PyTorch swaps none "
                "of these; without --trace (or trace=) the same program can. Profile it in the "
                "program itself, from after this call on."
            )
        raise
    finally:
        profiler.stop()
    profiler.export_chrome_trace(str(Path(folder) / f"rank{rank}.json.gz"))
