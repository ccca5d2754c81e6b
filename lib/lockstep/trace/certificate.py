"""The certificate of a common clock: how good it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..base.formatting import microseconds
from ..base.provenance import Provenance, simulated
from ..figures.table import table
from .intervals import Times


@dataclass(frozen=True)
class Certificate:
    """The quality of a common clock. Times are in nanoseconds.

    reference: the rank whose clock all others were set to. matches: collectives that were
    compared; disagreeing: those among them whose ends are over 100 µs apart, which were left out.
    spread: 95 % of the others end on all ranks within this time. offsets: by how much a rank's
    clock was ahead of the reference's when it showed `at`; drift: by how much it gained on it, in
    parts per million, missing where that was not significant. violations: collectives which one
    rank leaves before the last has come, as nobody can. resolution: no waiting time below it may be
    reported. evidence: in words.
    """

    reference: int
    matches: int
    disagreeing: int
    spread: int
    offsets: Mapping[int, int]
    drift: Mapping[int, float]
    at: Mapping[int, int]
    violations: int
    resolution: int
    evidence: str
    stamp: Provenance | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        if not self.matches:
            return f"One clock: {self.evidence}."
        offsets = [self.offsets[rank] / 1e3 for rank in self.offsets if rank != self.reference]
        moved = (
            f"offsets from {min(offsets):+,.1f} to {max(offsets):+,.1f} µs against rank "
            f"{self.reference}, {self._drift()}"
        )
        return (
            f"One clock: {self.evidence}. 95 % of {self.matches:,} collectives end on all ranks "
            f"within {microseconds(self.spread, 1)} µs ({self.disagreeing:,} disagree); {moved}; "
            f"{self.violations:,} violate causality. "
            f"No waiting time below {microseconds(self.resolution, 1)} µs is reported."
        )

    def ahead(self, rank: int, times: Times) -> Times:
        """Nanoseconds by which a rank's clock was ahead of the reference's when it showed these."""
        gained = 1e-6 * self.drift.get(rank, 0.0) * (times - self.at.get(rank, 0))
        return self.offsets[rank] + np.rint(gained).astype(np.int64)

    def _drift(self) -> str:
        largest = max(self.drift.values(), key=abs, default=0.0)
        return f"drift up to {abs(largest):.2f} ppm" if largest else "no drift"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        rows = [
            (f"rank {rank}", f"{offset / 1e3:+,.1f}", f"{self.drift.get(rank, 0.0):+.2f}")
            for rank, offset in self.offsets.items()
        ]
        bundle = table(
            str(self),
            ("", "offset in µs", "drift in ppm"),
            rows,
            stamp=self.stamp or simulated("made by hand"),
        )._repr_mimebundle_()
        return {**bundle, "text/plain": str(self)}
