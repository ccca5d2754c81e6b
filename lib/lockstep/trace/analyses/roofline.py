"""A roofline: how far operators are from the least time that the machine allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...base.formatting import in_one_line, milliseconds, percent
from ...base.provenance import Provenance
from ...figures.table import Table
from ...models.data_sheets import data_sheet
from ..shapes import torch_dtype
from ..slices import Slices, TraceError
from .rates import Rate, rates
from .wording import Answer

_TOP = 15


@dataclass(frozen=True, slots=True)
class Roof:
    """One operator with inputs of one shape and type, all calls together. Times in nanoseconds.

    time: that its kernels ran. roof: the least that its FLOP or its bytes take; bound: by which,
    "arithmetic" or "memory".
    """

    operator: str
    shapes: str
    dtype: str
    calls: int
    time: int
    roof: float
    bound: str

    @property
    def lost(self) -> float:
        """Nanoseconds above the roof; negative where the bytes came from a cache, say."""
        return self.time - self.roof

    @property
    def share(self) -> float:
        """The roof's part of the time: 1 is as fast as the machine allows."""
        return self.roof / self.time if self.time else 0.0


@dataclass(frozen=True)
class Roofline(Answer):
    """Operators whose work is known, those that lose the most time first.

    notes: the machine's figures, and what is left out.
    """

    operators: tuple[Roof, ...]
    notes: tuple[str, ...]
    stamp: Provenance

    def _tables(self) -> list[Table]:
        top = self.operators[:_TOP]
        columns = ["operator", "shapes", "calls", "bound by", "time", "roof", "of the roof", "lost"]
        rows = [
            [
                *(in_one_line(one.operator), in_one_line(one.shapes), f"{one.calls:,}", one.bound),
                *(milliseconds(one.time), milliseconds(round(one.roof)), percent(one.share)),
                milliseconds(round(one.lost)),
            ]
            for one in top
        ]
        caption = f"roofline, {len(top)} of {len(self.operators)} operators and shapes · ms"
        return [self._table(caption, columns, rows)]


def roofline(
    trace: Slices, flops: Mapping[str, float] | None = None, bandwidth: float | None = None
) -> Roofline:
    """Compare the time of operators with the least that their FLOP and bytes take; reads the files
    again.

    Work is that of `rates`: matrix products, convolutions and attention have FLOP and bytes, others
    only bytes, each input and output once. flops: FLOP a second by PyTorch's name of a type, as
    {"BFloat16": 989e12}. bandwidth: bytes a second of the GPU's memory. What is not given is of
    NVIDIA's data sheet (`lockstep.models.data_sheets`), if the trace names a GPU that it has.

    Operators of a type whose FLOP/s are not known are left out, and a note says so (float32: no
    trace tells if it was tf32). Raises TraceError where neither the caller nor a data sheet says
    what the machine does, where no operator's work is known, and as `rates` does.
    """
    if flops is None or bandwidth is None:
        sheet_flops, sheet_bandwidth, source = _of_sheet(trace)
        flops, bandwidth = flops or sheet_flops, bandwidth or sheet_bandwidth
    else:
        source = "the caller"
    found = rates(trace)
    if not found.operators:
        raise TraceError("of no operator the work is known: record with record_shapes=True")
    known = [one for one in found.operators if not one.flops or torch_dtype(one.dtype) in flops]
    roofs = [_roof(one, flops.get(torch_dtype(one.dtype), 0), bandwidth) for one in known]
    roofs.sort(key=lambda one: -one.lost)
    time = sum(one.time for one in roofs)
    of_types = ", ".join(f"{name} {each / 1e12:,.4g} TFLOP/s" for name, each in flops.items())
    notes = [f"roof by {source}: {of_types}, {bandwidth / 1e12:,.4g} TB/s"]
    if unknown := sorted({torch_dtype(one.dtype) for one in set(found.operators) - set(known)}):
        notes.append(
            f"left out: operators in {', '.join(unknown)}, of which the FLOP/s are not known: give "
            f'them, as flops={{"{unknown[0]}": 67e12}}'
        )
    notes.append(
        f"the table covers {percent(time / max(found.time, 1), 1)} of the kernels' "
        f"{milliseconds(found.time)} ms; bytes are the fewest that must move, and what a cache "
        "still has may come faster"
    )
    return Roofline(tuple(roofs), tuple(notes), trace.provenance)


def _roof(one: Rate, flops: float, bandwidth: float) -> Roof:
    arithmetic = 1e9 * one.flops / flops if one.flops else 0.0
    memory = 1e9 * one.bytes / bandwidth
    bound = "arithmetic" if arithmetic > memory else "memory"
    about = (one.operator, one.shapes, one.dtype, one.calls, one.time)
    return Roof(*about, max(arithmetic, memory), bound)


def _of_sheet(trace: Slices) -> tuple[dict[str, float], float, str]:
    """FLOP/s by type, bytes a second, and whose they are."""
    gpus = sorted({str(about.get("gpu") or "") for about in trace.about.values()})
    sheet = data_sheet(gpus[0]) if len(gpus) == 1 else None
    if sheet is None:
        named = ", ".join(one for one in gpus if one) or "the trace does not name its GPU"
        raise TraceError(
            f"no data sheet for this machine ({named}): say what it does in a second, as "
            'roofline(flops={"BFloat16": 989e12}, bandwidth=4.8e12)'
        )
    return sheet.flops, sheet.memory * 1e12, f"NVIDIA's data sheet of the {sheet.name}"
