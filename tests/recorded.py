"""The recorded traces of `data/traces`, one folder each."""

from pathlib import Path

DATA = Path(__file__).parents[1] / "data" / "traces"
FOREIGN = DATA / "foreign"
# These have fewer than the five collectives that clocks are compared by, or a clock that jumps.
_MISALIGNED = (
    DATA / "data-parallel" / "fsdp2",
    DATA / "tensor-parallel" / "in-pieces",
    DATA / "tensor-parallel" / "serial",
    FOREIGN / "ddp-tutorial-series-multigpu_torchrun-x2",
    FOREIGN / "tensor_parallelism-fsdp_tp_example-x4",
    FOREIGN / "tensor_parallelism-tensor_parallel_example-x2",
    FOREIGN / "tensor_parallelism-tensor_parallel_example-x4",
)
MISALIGNED = tuple(folder for folder in _MISALIGNED if folder.is_dir())
ALIGNED = sorted({path.parent for path in DATA.rglob("rank*.json.gz")} - set(MISALIGNED))
IDS = [str(folder.relative_to(DATA)) for folder in ALIGNED]
