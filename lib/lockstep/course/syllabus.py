"""The syllabus: the labs, in the order in which they are taken.

A lab's module, `labs/labNN.py`, has its exercises.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Lab:
    """One lab: a notebook, its exercises and its checks."""

    number: str  # "00"
    name: str  # as in file names: "start_here"
    title: str
    minutes: str  # how long it takes: "35", or "60 + 55": two sittings
    needs: str  # to run live: "cpu", "1 gpu" or "2 gpus"; with less it shows recordings


LABS = (
    Lab("00", "start_here", "Start here", "35", "cpu"),
    Lab("01", "communicators", "Communicators", "55 + 70", "cpu"),
    Lab("02", "point_to_point", "Point-to-point", "70 + 60", "cpu"),
    Lab("03", "collectives", "Collectives", "90 + 35", "cpu"),
    Lab("04", "streams_and_overlap", "Streams, events, overlap", "85 + 90", "cpu"),
    Lab("05", "torch_compile", "torch.compile modes", "60 + 65", "cpu"),
    Lab("06", "cuda_graphs", "CUDA graphs", "70 + 90", "cpu"),
    Lab("07", "tracing", "Multi-GPU tracing", "85 + 85", "cpu"),
    Lab("08", "data_parallelism", "Data parallelism", "90 + 85", "cpu"),
    Lab("09", "tensor_parallelism", "Tensor, sequence and context parallelism", "90 + 90", "cpu"),
    Lab("10", "pipeline_parallelism", "Pipeline parallelism", "90 + 70", "cpu"),
    Lab("11", "compiled_graphs_across_ranks", "Compiled graphs across ranks", "75 + 90", "cpu"),
    Lab("12", "memory_and_input", "Memory and input", "75 + 85", "cpu"),
    Lab("13", "faults_and_checkpoints", "Faults, checkpoints, elastic training", "90 + 90", "cpu"),
    Lab("14", "capstone", "Capstone: a mixture-of-experts step, made fast", "70 + 75", "cpu"),
    Lab("15", "communication_at_scale", "What communication costs at scale", "55 + 75", "cpu"),
)
