"""The most that GPUs do in a second, by NVIDIA's data sheets: dense, without sparsity."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DataSheet:
    """10¹² FLOP a second in bf16 (and fp16), tf32, float32 and double; memory: TB/s.

    driver: the name by which the driver calls this GPU, and no variant of it.
    """

    name: str
    driver: str
    bf16: float
    tf32: float
    single: float
    double: float
    memory: float

    @property
    def flops(self) -> dict[str, float]:
        """FLOP a second by PyTorch's name of a type; no trace tells if float32 runs as tf32."""
        bf16 = self.bf16 * 1e12
        return {"BFloat16": bf16, "Half": bf16, "Double": self.double * 1e12}


DATA_SHEETS = {
    sheet.name: sheet
    for sheet in (
        DataSheet("H200", "NVIDIA H200", 989.5, 494.7, 67, 67, 4.8),
        DataSheet("H100", "NVIDIA H100 80GB HBM3", 989.5, 494.7, 67, 67, 3.35),
        DataSheet("A100", "NVIDIA A100-SXM4-80GB", 312, 156, 19.5, 19.5, 2.039),
        DataSheet("B200", "NVIDIA B200", 2250, 1100, 75, 37, 7.7),
    )
}


def data_sheet(gpu: str) -> DataSheet | None:
    """The data sheet of a GPU by the name that a trace has; None where it is not known."""
    return next((one for one in DATA_SHEETS.values() if one.driver == gpu), None)
