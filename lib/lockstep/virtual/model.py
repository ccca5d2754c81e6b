"""The model of the virtual GPU: a few named constants, and what they say of kernels.

Nothing here knows torch. All times are nanoseconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ..models.data_sheets import DATA_SHEETS

# Rows and columns of the result that one SM computes at a time: NVIDIA's library takes what fits.
LARGE_TILES = (
    (128, 320), (320, 128), (128, 256), (256, 128), (192, 192), (128, 192), (192, 128), (96, 192),
    (192, 96), (128, 128), (96, 128), (128, 96),
)  # fmt: skip
SMALL_TILES = (  # where those give few SMs work
    (128, 64), (96, 64), (64, 96), (64, 64), (64, 32), (64, 16), (64, 8),
)  # fmt: skip
TENSOR_CORES = 1e14  # FLOP/s: what is slower is computed without them
ELEMENTS_OF_BLOCK = 1024  # elements that one block of an elementwise kernel works on
BLOCKS_OF_SM = 8  # how many such blocks an SM holds at a time


@dataclass(frozen=True)
class Machine:
    """A GPU and its host in few constants; `source` says where they are from.

    Of the host, in ns: dispatch, what an operation needs before its launch, and more of that:
    matmul, for a product, attention, for one that is all of it, several and each_tensor, for one of
    many tensors (an optimizer's), backward, for one in a backward pass; view, an operation without
    a launch, and allocate, one that only makes a tensor; module, a call of an nn.Module, optimizer,
    a step of one, and parameter, each tensor of that; launch, the launching call; graph_launch, a
    graph's, for each node; synchronise, a call that finds all done; event, a call that records one
    or lets a stream wait for it; context, `with stream(…)`. depth: launches that wait in a queue
    before the next one blocks.

    Of the device, in ns: latency, from a launch's begin until an idle device begins, and gap,
    between kernels of a stream (graph_latency, graph_gap: in a graph, and graph_gap_more before any
    but the least); kernel, the least that one takes (product, reduction: of such a kernel); across,
    what a reduction needs more whose blocks must meet; cold, what a kernel on some of the SMs waits
    for operands that have left the L2 cache; k_step, what a product needs for 64 of its inner
    dimension, however few its tiles are; split, to add up the parts of one whose inner dimension
    several SMs share. Without tensor cores: single, the least that a product takes, and single_step
    for 64 of its inner dimension, of which `unsplit` are on one SM; bias, what adding one takes.
    collective, the least that one takes. notice, what a stream needs to see that what it waits for
    has come: so the next kernel of another stream is first.

    flops: FLOP/s of products by dtype; vector: of all else. memory, pinned, pageable, link: bytes/s
    of device memory, of copies between it and the host's, and of bus bandwidth between GPUs. many:
    the part of `memory` that a kernel on many tensors reaches. l2: bytes/s of what fits into the L2
    cache, cached bytes; written: at which a product's last tiles get there. burst: how much faster
    than `flops`, which a GPU keeps up, it computes a single product. kept: bytes that may be used
    until something has left it. capacity: bytes of device memory. sms: streaming multiprocessors;
    channels: of them, those that a collective takes. clock: Hz, for `_sleep`. priorities: of
    streams, the least and the greatest.
    """

    name: str
    source: str
    flops: Mapping[str, float]
    vector: float
    memory: float
    capacity: int
    sms: int
    link: float
    dispatch: float = 2_800.0
    matmul: float = 5_100.0
    attention: float = 30_000.0
    several: float = 3_100.0
    each_tensor: float = 450.0
    backward: float = 31_000.0
    view: float = 1_200.0
    allocate: float = 2_400.0
    module: float = 5_000.0
    context: float = 11_000.0
    optimizer: float = 28_000.0
    parameter: float = 650.0
    launch: float = 3_800.0
    latency: float = 6_210.0
    gap: float = 1_150.0
    graph_latency: float = 6_000.0
    graph_launch: float = 8.2
    graph_gap: float = 30.0
    graph_gap_more: float = 500.0
    synchronise: float = 3_700.0
    event: float = 3_700.0
    kernel: float = 1_060.0
    product: float = 2_300.0
    single: float = 3_400.0
    bias: float = 12_500.0
    reduction: float = 2_600.0
    across: float = 3_400.0
    cold: float = 950.0
    k_step: float = 75.0
    split: float = 1_700.0
    single_step: float = 400.0
    unsplit: int = 512
    many: float = 0.92
    l2: float = 7e12
    written: float = 2.6e12
    burst: float = 1.05
    cached: float = 40e6
    kept: float = 50e6
    pinned: float = 55.3e9
    pageable: float = 24.3e9
    collective: float = 10_400.0
    notice: float = 1_200.0
    channels: int = 24
    clock: float = 1.98e9
    depth: int = 1024
    priorities: tuple[int, int] = (0, -5)

    # ── What kernels need ────────────────────────────────────────────────────────────────────

    def multiply(
        self, m: int, n: int, k: int, dtype: str, batch: int = 1
    ) -> tuple[float, float, int]:
        """(ns, share of the SMs, tiles) of `batch` products (m×k)·(k×n).

        Tiles of the result come in waves of one an SM; a last wave with few tiles takes as long as
        a full one ("tile quantisation"), and keeps the SMs that it leaves idle: products on two
        streams were hardly quicker than on one. Of the large tiles those that take least; where
        they would leave SMs idle, smaller ones. Without tensor cores a long inner dimension is
        split, so that all SMs have a part of each product; its tiles are not counted (0).
        """
        rate = self.flops.get(dtype, self.vector) / self.sms
        if not self.has_tensor_cores(dtype):
            steps = math.ceil(min(max(k, 1), self.unsplit) / 64) * self.single_step
            parts = batch * math.ceil(m / 64) * math.ceil(n / 64) * math.ceil(k / self.unsplit)
            work = 2e9 * batch * m * n * k / (rate * self.sms)
            return self.single + steps + work, min(max(parts, 1) / self.sms, 1.0), 0
        steps = math.ceil(max(k, 1) / 64) * self.k_step
        best = (math.inf, 0, 0.0)
        for rows, columns in (*LARGE_TILES, *SMALL_TILES):
            if (rows, columns) in SMALL_TILES and best[1] >= self.sms:
                break
            tiles = max(batch * math.ceil(m / rows) * math.ceil(n / columns), 1)
            waves = math.ceil(tiles / self.sms)
            each = max(2e9 * rows * columns * k / (rate * self.burst), steps)
            if min(m, n) <= 128 and each > 3 * self.split:  # its inner dimension is split
                each = each / max(min(self.sms // tiles, 4), 1) + self.split
            if waves * each < best[0] * 0.96:  # of those that take about as long, the largest
                # An SM writes its last tile when nothing is left to compute beside that.
                written = 1e9 * 2 * min(rows * columns * self.sms, batch * m * n) / self.written
                best = (waves * each, tiles, written)
        work, tiles, written = best
        return self.product + work + written, min(tiles / self.sms, 1.0), tiles

    def has_tensor_cores(self, dtype: str) -> bool:
        return self.flops.get(dtype, self.vector) > TENSOR_CORES

    def gap_in_graph(self, work: float) -> float:
        """ns before a kernel of a graph, which the least ones do not need."""
        return self.graph_gap + self.graph_gap_more * min(max(work - 1_500, 0) / 1_500, 1.0)

    def elementwise(self, elements: int) -> float:
        """The share of the SMs that a kernel over so many elements fills."""
        blocks = math.ceil(max(elements, 1) / ELEMENTS_OF_BLOCK)
        return min(max(math.ceil(blocks / BLOCKS_OF_SM), 1) / self.sms, 1.0)

    def traffic(self, nbytes: float, many: bool = False) -> float:
        """ns to read or write so many bytes of device memory, or of what the cache still has."""
        memory = self.memory * (self.many if many else 1)
        return 1e9 * nbytes / (self.l2 if nbytes <= self.cached else memory)

    def __str__(self) -> str:
        fastest = max(self.flops, key=lambda dtype: self.flops[dtype])
        return (
            f"{self.name}: {self.sms} SMs, {self.flops[fastest] / 1e12:.0f} TFLOP/s in {fastest}, "
            f"{self.memory / 1e12:.2f} TB/s, {self.capacity / 1e9:.0f} GB; a launch takes the host "
            f"{(self.dispatch + self.launch) / 1e3:.1f} µs, of a product "
            f"{(self.dispatch + self.matmul + self.launch) / 1e3:.1f} µs, a kernel "
            f"{self.kernel / 1e3:.2f} µs or more ({self.source})"
        )


def _rates(bf16: float, tf32: float, single: float, double: float) -> Mapping[str, float]:
    """FLOP/s of products; torch does not use TF32 for float32 unless it is asked to."""
    known = {"bfloat16": bf16, "float16": bf16, "float32": single, "float64": double, "tf32": tf32}
    return MappingProxyType(known)


# What of an H200 is recorded, tests/virtual_fit.py reads from data/traces, data/sweeps and
# data/virtual (of the programs there that are not compared), and says how; the rest is NVIDIA's
# data sheet. The other machines have the H200's host and latencies, and of their data sheets' peaks
# the part that the H200 reaches. Of A100 and B200 `link` is the H200's in proportion to NVLink's
# peak (600 and 1800 for 900 GB/s).
_REACHED, _REACHED_MEMORY = 790 / DATA_SHEETS["H200"].bf16, 4.3 / DATA_SHEETS["H200"].memory
_SHEET = "NVIDIA's data sheet, times what an H200 reaches of its own"


def _of_sheet(name: str, capacity: float, sms: int, link: float) -> Machine:
    """capacity: GB. link: GB/s."""
    sheet = DATA_SHEETS[name]
    rates = (sheet.bf16, sheet.tf32, sheet.single, sheet.double)
    reached = _rates(*(1e12 * _REACHED * rate for rate in rates))
    return Machine(
        name, _SHEET, reached, sheet.single * 1e12, sheet.memory * 1e12 * _REACHED_MEMORY,
        int(capacity * 1e9), sms, link * 1e9,
    )  # fmt: skip


H200 = Machine(
    "H200",
    "recordings of 4 H200s, else NVIDIA's data sheet",
    _rates(790e12, 395e12, 48e12, 67e12 * _REACHED),
    vector=67e12,
    memory=4.3e12,
    capacity=141_000_000_000,
    sms=132,
    link=320e9,
)
MACHINES: Mapping[str, Machine] = MappingProxyType(
    {
        machine.name: machine
        for machine in (
            H200,
            _of_sheet("H100", 80, 132, 320),
            _of_sheet("A100", 80, 108, 213),
            _of_sheet("B200", 180, 148, 640),
        )
    }
)
