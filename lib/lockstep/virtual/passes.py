"""What kernels take that go over memory, and what attention takes: tables and formulas.

All numbers are an H200's with PyTorch 2.11, from the kernels that PyTorch's profiler saw in the
sweeps of `tests/operator_sweeps.py`; other machines are as much slower as their memory is, and in
attention as their products are. Times are ns; a time "an element" is one of all SMs together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .model import H200, Machine

Points = Mapping[int, tuple[float, float]]

# By columns: the least that a kernel over rows takes, and what each row adds where they are many.
_SOFTMAX: Points = {
    64: (1300, 0.139), 256: (1800, 0.38), 768: (3700, 1.37), 1024: (4300, 1.58),
    2048: (7800, 4.5), 4096: (2800, 12.9), 8192: (4200, 31.4), 8193: (3500, 15.9),
    16384: (5300, 31.7),
    50257: (13200, 84),
}  # fmt: skip
_SOFTMAX_FLOAT: Points = {
    64: (1300, 0.148), 256: (1600, 0.49), 768: (3100, 1.53), 1024: (3700, 1.98),
    2048: (6400, 4.2), 4096: (2800, 13.0), 8192: (4200, 33.7), 8193: (4000, 17.5),
    12000: (5000, 26), 16384: (5900, 42.3),
    50257: (14300, 200),
}  # fmt: skip
_LOG_SOFTMAX: Points = {
    64: (1300, 0.139), 256: (1800, 0.35), 1000: (2900, 1.25), 2048: (5500, 4.0), 4096: (2800, 12.0),
    8192: (4000, 26.2), 8193: (3200, 12.0), 16384: (5300, 24.0), 32000: (10000, 58),
    50257: (13200, 67),
}  # fmt: skip
_LOG_SOFTMAX_FLOAT: Points = {
    64: (1300, 0.148), 256: (1600, 0.48), 1000: (2400, 1.98), 2048: (5500, 4.2), 4096: (2800, 13.0),
    8192: (4000, 29), 8193: (4000, 23), 12000: (5000, 33), 16384: (5900, 42), 32000: (10000, 101),
    50257: (14300, 183),
}  # fmt: skip
_LAYER_NORM: Points = {
    64: (2300, 1.14), 256: (2300, 1.26), 768: (2800, 2.04), 1024: (2900, 2.33), 2048: (4000, 3.5),
    4096: (6100, 5.95), 8192: (10400, 13.0),
}  # fmt: skip
_LAYER_NORM_FLOAT: Points = {
    64: (2500, 1.52), 256: (2500, 1.75), 768: (3100, 2.8), 1024: (3100, 3.07), 2048: (4200, 5.2),
    4096: (6400, 10.6), 8192: (10800, 25.2),
}  # fmt: skip
_RMS_NORM: Points = {
    64: (1600, 0.65), 256: (1600, 0.66), 768: (2000, 1.15), 1024: (2000, 1.3), 2048: (2800, 2.4),
    4096: (4300, 4.65), 8192: (7200, 9.5),
}  # fmt: skip
_RMS_NORM_FLOAT: Points = {
    64: (1800, 0.76), 256: (1800, 0.97), 768: (2200, 1.85), 1024: (2300, 2.14), 2048: (2600, 4.3),
    4096: (3600, 10.4), 8192: (5700, 24.0),
}  # fmt: skip
_NORM_BACKWARD: Points = {
    64: (1600, 0.81), 256: (1600, 0.95), 768: (1900, 1.75), 1024: (2000, 1.97), 2048: (2500, 3.6),
    4096: (3700, 7.75), 8192: (6000, 19.5),
}  # fmt: skip
_NORM_BACKWARD_FLOAT: Points = {
    64: (1600, 0.8), 256: (1600, 1.0), 768: (1900, 2.3), 1024: (2000, 2.87), 2048: (2600, 8.5),
    4096: (3800, 18.7), 8192: (6100, 37.7),
}  # fmt: skip
_OVER_ROWS: Points = {  # a reduction over so many rows: what it takes besides its bytes
    64: (0, 200), 128: (0, 600), 512: (0, 5400), 1024: (0, 3600), 4096: (0, 5000), 8192: (0, 12000),
    16384: (0, 17000), 32768: (0, 29000), 262144: (0, 95000),
}  # fmt: skip

_FORWARD = {
    "_softmax": (_SOFTMAX, _SOFTMAX_FLOAT),
    "_safe_softmax": (_SOFTMAX, _SOFTMAX_FLOAT),
    "_log_softmax": (_LOG_SOFTMAX, _LOG_SOFTMAX_FLOAT),
    "native_layer_norm": (_LAYER_NORM, _LAYER_NORM_FLOAT),
    "_fused_rms_norm": (_RMS_NORM, _RMS_NORM_FLOAT),
}
REDUCTIONS = {  # how much longer than a sum: of floats of two bytes, and of four
    **dict.fromkeys(("sum", "mean", "any", "all", "prod"), (1.0, 1.0)),
    **dict.fromkeys(("norm", "linalg_vector_norm"), (1.1, 1.1)),
    **dict.fromkeys(("amax", "amin"), (1.4, 1.05)),
    **dict.fromkeys(("argmax", "argmin", "max", "min", "var", "std"), (2.3, 2.3)),
}
UNSEEN = 400.0  # between two kernels of a graph, which the profiler counts for neither
TABLED = (
    *_FORWARD, *REDUCTIONS, "_softmax_backward_data", "_log_softmax_backward_data", "logsumexp",
    "native_layer_norm_backward", "_fused_rms_norm_backward", "nll_loss_forward",
    "nll_loss_backward",
)  # fmt: skip
_ROWS_OF = ("embedding", "index_select", "index")
_ELEMENT = 1e-3  # ns: the unit of what follows, times an element
_COMPUTED = {"gelu": 1.35, "gelu_backward": 1.85, "silu": 1.05, "native_dropout": 1.7}
_SECTOR, _SECTORS = 32, 4.9e12  # bytes that are read at least; bytes/s of such reads
_CHUNK, _CHUNKS = 65536, 320  # elements of a block of a kernel on many tensors; blocks of a launch
_TENSORS = {1: 110, 2: 64, 3: 48, 4: 36}  # of a launch, by the number of lists
_ALIKE = ("fill_", "zero_", "ones_like", "zeros_like", "full_like", "ones", "zeros", "full")
_PLAIN = (
    *_ALIKE, "copy_", "clone", "_to_copy", "cat", "stack", "native_dropout", "where", "normal_",
    "uniform_", "bernoulli_", "random_", "randn", "rand", "randint", "arange", "scalar_tensor",
    "native_dropout_backward", "masked_fill", "masked_fill_", "slice_backward",
    "rand_like", "randn_like", "threshold_backward", "tril", "triu", "full", "randperm", "eye",
)  # fmt: skip


def time(
    machine: Machine, func: Any, given: Sequence[torch.Tensor], made: Sequence[torch.Tensor],
    args: Sequence[Any], nbytes: float,
) -> tuple[float, int] | None:  # fmt: skip
    """(ns, kernels) of an operation on memory; None for one that nobody has timed."""
    name = func.overloadpacket.__name__
    if name.startswith(("_foreach_", "_fused_")) and not name.startswith("_fused_rms_norm"):
        return _several(machine, name, given, made, args, nbytes)
    slower = H200.memory / machine.memory
    made = made or given[:1]  # before its values are there, nobody knows how much it makes
    first = given[0] if given else made[0] if made else torch.empty(0, device="meta")
    wide = first.element_size() > 2
    if name in _FORWARD:
        columns = _columns(name, first, args)
        if name.endswith("softmax") and args[1] % max(first.dim(), 1) != max(first.dim(), 1) - 1:
            return slower * 590.0 * columns, 1  # a thread goes along a column
        rows = first.numel() / columns
        return slower * _rows(
            _FORWARD[name][wide], rows, columns, 1.3 if "norm" in name else 1.7
        ), 1
    if name.endswith("softmax_backward_data"):
        columns = _columns(name, first, args)
        longer = 1.35 if columns * first.element_size() > 3e4 else 1.0
        if columns <= 1024 and not wide:
            longer = 1.4
        took = machine.kernel + 600 + machine.traffic(nbytes) * longer
        if name.startswith("_log"):
            return took, 1
        return took + machine.kernel + machine.traffic(nbytes), 2  # a product of the two first
    if name.endswith(("layer_norm_backward", "rms_norm_backward")):
        columns = max(math.prod(args[2]), 1)
        rows = args[1].numel() / columns
        points = (_NORM_BACKWARD, _NORM_BACKWARD_FLOAT)[wide]
        weights = 1600 + 3.3 * rows + machine.traffic(2 * first.nbytes) / slower
        if rows > 65536:  # another kernel
            weights = 15_000 + machine.traffic(2 * first.nbytes) / slower
        return slower * (_rows(points, rows, columns) + weights), 2
    if name in REDUCTIONS and made:
        return _reduction(machine, name, first, made[0], args, nbytes), 1
    if name == "logsumexp":
        return _logsumexp(machine, first), 9
    if name == "nll_loss_forward":
        return slower * min(5_000 + 9.5 * first.shape[0], 18_000 * max(first.shape[0] / 4096, 1)), 1
    if name == "nll_loss_backward":
        rows, filled = args[1].shape[0], machine.traffic(made[0].nbytes) * 1.25
        return machine.kernel + filled + slower * (3_000 + 1.75 * rows), 2
    if name in _ROWS_OF:
        across = name == "index_select" and args[1] % max(first.dim(), 1) == first.dim() - 1
        if not across:
            rows = made[0].numel() / max(made[0].shape[-1] if made[0].dim() else 1, 1)
            return machine.kernel + max(
                machine.traffic(2 * made[0].nbytes), slower * 0.62 * rows
            ), 1
        each = (1.9 + 0.6 * first.element_size()) * _ELEMENT
        return machine.kernel + slower * each * made[0].numel(), 1
    if name == "gather":
        each = (2.6 + 0.85 * first.element_size()) * _ELEMENT
        return machine.kernel + slower * each * made[0].numel(), 1
    if name == "embedding_dense_backward":
        count, filled = args[1].numel(), machine.traffic(made[0].nbytes) * 1.25
        if count <= 3072:
            return filled + 22_000, 2
        return filled + 75_000 + slower * 14 * _ELEMENT * first.numel(), 30
    if name == "select_backward":  # zeros, into which the part is copied
        filled, copied = machine.traffic(made[0].nbytes) * 1.28, machine.traffic(2 * first.nbytes)
        return 2 * machine.kernel + filled + copied, 2
    if name in _PLAIN or _is_pointwise(func):
        return machine.kernel + _elementwise(machine, name, given, made, nbytes), 1
    return None


def _is_pointwise(func: Any) -> bool:
    """Whether it works element by element; of what works in place the tags may not say it."""
    if torch.Tag.pointwise in func.tags:
        return True
    other = getattr(torch.ops.aten, func.overloadpacket.__name__.rstrip("_"), None)
    every = [getattr(other, one) for one in other.overloads()] if other else []
    return any(torch.Tag.pointwise in one.tags for one in every)


def _columns(name: str, first: torch.Tensor, args: Sequence[Any]) -> int:
    if "norm" in name:
        return max(math.prod(args[1]), 1)
    dim = args[2] if name.endswith("backward_data") else args[1]
    return max(int(first.shape[dim]), 1) if first.dim() else 1


def _rows(points: Points, rows: float, columns: float, power: float = 1.3) -> float:
    """More rows than there are SMs add to the least, the less the more these hide each other's
    waits (`power`)."""
    least, each = _between(points, columns)
    more = max(rows - H200.sms, 0.0) * each
    power = 1.0 if power > 1.5 and columns > 2048 else power
    return float((least**power + more**power) ** (1 / power))


def _between(points: Points, at: float) -> tuple[float, float]:
    """Between the points of a table, on logarithmic scales; in proportion outside of them."""
    known = sorted(points)
    low = max((one for one in known[:-1] if one <= at), default=known[0])
    high = known[known.index(low) + 1]
    part = math.log(max(at, 1) / low) / math.log(high / low)
    (a, b), (c, d) = points[low], points[high]
    return (a * (c / a) ** part if a else 0.0), b * (d / b) ** part


def _reduction(
    machine: Machine, name: str, given: torch.Tensor, made: torch.Tensor, args: Sequence[Any],
    nbytes: float,
) -> float:  # fmt: skip
    longer, moving = REDUCTIONS[name][given.element_size() > 2], machine.traffic(nbytes)
    results, elements = max(made.numel(), 1), given.numel()
    slower = H200.memory / machine.memory
    more = slower * (longer - 1) * _ELEMENT * elements
    least = machine.reduction * (1.5 if longer > 2 else 1.0)
    if results == 1:
        return least + (machine.across if elements > 1 << 16 else 0) + moving + 0.5 * more
    dims = args[2 if "norm" in name else 1] if len(args) > 1 else None
    dims = [dims] if isinstance(dims, int) else dims or [-1]
    if given.dim() - 1 not in [one % given.dim() for one in dims]:
        over = _between(_OVER_ROWS, elements / results)[1]
        return machine.reduction + longer * (slower * over + moving)
    if elements / results < 1024:
        return least + moving + slower * (0.12 + 0.33 * (longer - 1)) * results
    waits = 0.25 * _ELEMENT * elements if nbytes > machine.cached else 0.0
    return least + moving + slower * waits + 0.8 * more


def _logsumexp(machine: Machine, given: torch.Tensor) -> float:
    """A maximum, a subtraction, an exponential, a sum, and five kernels on the results."""
    passes = 2 * machine.traffic(given.nbytes) * 1.4 + machine.traffic(2 * given.nbytes)
    return 13_000 + passes + _uneven(machine, given) * given.numel()


def _uneven(machine: Machine, tensor: torch.Tensor) -> float:
    """ns an element where a kernel works out each element's place."""
    return (1.85 + 0.3 * tensor.element_size()) * _ELEMENT * H200.memory / machine.memory


def _elementwise(
    machine: Machine, name: str, given: Sequence[torch.Tensor], made: Sequence[torch.Tensor],
    nbytes: float,
) -> float:  # fmt: skip
    """Bytes; or places of elements, where tensors lie differently; or sectors, where neighbours
    of the result are none of what it is made from."""
    moving = machine.traffic(nbytes)
    if not made or name in _ALIKE:
        return moving * (1.28 if nbytes > machine.cached else 1.0)
    out = made[0]
    slower = H200.memory / machine.memory
    if name in ("cat", "stack"):
        scattered = not all(one.is_contiguous() for one in (*given, out))
        return max(moving, 4 * slower * _ELEMENT * out.numel() if scattered else 0.0)
    each = _COMPUTED.get(name, 0.0)
    if name == "native_dropout" and out.element_size() > 2:
        each = 2.8
    moving = max(moving, slower * each * _ELEMENT * out.numel())
    fastest = min(
        (at for at in range(out.dim()) if out.shape[at] > 1),
        key=lambda at: out.stride(at),
        default=None,
    )
    if fastest is None or not any(one.dim() for one in given):
        return moving
    sectors, uneven = 0.0, False
    for one in given:
        at = fastest - out.dim() + one.dim()
        same = one.shape == out.shape and one.stride() == out.stride()
        upcast = name in ("_to_copy", "copy_") and one.element_size() < out.element_size()
        uneven |= not same or upcast
        stride = one.stride(at) if at >= 0 and one.shape[at] > 1 else 0
        if stride * one.element_size() >= _SECTOR:
            sectors += _SECTOR * out.numel()
    uneven |= not _dense(out)
    if uneven:
        near = 0.78 if out.dim() <= 2 and nbytes <= machine.cached else 1.0
        moving = max(moving, near * _uneven(machine, out) * out.numel())
    beside = 1.16 if len(given) > 1 else 1.0  # what else is read takes sectors, too
    return max(moving, slower * 1e9 * sectors * beside / _SECTORS)


def _dense(tensor: torch.Tensor) -> bool:
    order = sorted(zip(tensor.stride(), tensor.shape, strict=True))
    expected = 1
    for stride, length in order:
        if length > 1 and stride != expected:
            return False
        expected *= length
    return True


def _several(
    machine: Machine, name: str, given: Sequence[torch.Tensor], made: Sequence[torch.Tensor],
    args: Sequence[Any], nbytes: float,
) -> tuple[float, int]:  # fmt: skip
    """One kernel on many tensors; several launches, where these have more of them than fit."""
    lists = [
        one for one in args
        if isinstance(one, list | tuple) and one and isinstance(one[0], torch.Tensor)
    ]  # fmt: skip
    first = lists[0]
    if name.startswith("_fused_"):
        lists = [one for one in lists if one[0].shape == first[0].shape]
    elif not all([t.shape for t in one] == [t.shape for t in first] for one in lists):
        elements = sum(one.numel() for one in first)
        # One kernel each; where types differ it also converts.
        each = (machine.kernel + 1_600 * (first[0].element_size() < 4)) * len(first)
        return each + max(_uneven(machine, first[0]) * elements, machine.traffic(nbytes)), len(
            first
        )
    depth = len(lists) + (len(made) > len(first) and not name.startswith("_fused_"))
    chunks = sum(math.ceil(one.numel() / _CHUNK) for one in first)
    launches = max(math.ceil(len(first) / _TENSORS.get(depth, 30)), math.ceil(chunks / _CHUNKS), 1)
    largest = max(min(one.numel(), _CHUNK) for one in first) * first[0].element_size()
    if name.startswith("_fused_"):
        nbytes *= 1.11 * (1 - 0.5 / len(lists))  # gradients are read, and not written
    moving = machine.traffic(nbytes, many=True) / launches
    block = 0.0185 * largest * nbytes / max(sum(one.nbytes for one in first), 1)
    if "adam" in name and name.startswith("_fused_"):
        moving = max(moving, 5.2 * _ELEMENT * sum(one.numel() for one in first) / launches)
    return launches * (machine.kernel + math.hypot(block, moving)), launches


def attention(
    machine: Machine, query: torch.Tensor, key: torch.Tensor, causal: bool, dropout: float,
    masked: bool, backward: bool,
) -> float:  # fmt: skip
    """Attention in one kernel: cuDNN's in half precision, else the memory-efficient one.

    A block has 128 rows of queries (64 of float32) of one head, goes over all keys, and an SM has
    one block at a time. A causal one goes over half of them, which helps where an SM has many.
    Backward passes make the scores again, and twice as many products.
    """
    batch, heads, length, width = query.shape
    keys = key.shape[2]
    faster = H200.flops["bfloat16"] / machine.flops.get("bfloat16", H200.flops["bfloat16"])
    if query.dtype == torch.float32:
        blocks = batch * heads * math.ceil(length / 64) / machine.sms
        least, each = 110.0 * keys, (65.0 if width <= 64 else 97.0) * keys
        forward = 2_500 + max(least, blocks * each * _causal(causal, blocks / 1.5, keys))
        if not backward:
            return faster * forward
        beside = 6_000 + machine.traffic(6 * query.nbytes) + 3 * 3.2 * _ELEMENT * query.numel()
        return faster * forward * (2.1 if width <= 64 else 3.0) + beside
    if length == 1:  # one row of queries: the keys and values are read once
        return 4_500 + machine.traffic(2 * key.nbytes)
    blocks = batch * heads * math.ceil(length / 128) / machine.sms
    waves = max(math.ceil(blocks), 1) if blocks < 16 else blocks
    each, block = {1: (9.0, 800), 2: (12.3, 1100)}.get(math.ceil(width / 64), (22.0, 2000))
    slower = 1.8 if masked else 1.0
    if dropout:
        slower = 1.4 if backward else 2.45
    forward = waves * (block + keys * each * slower) * _causal(causal, blocks, keys)
    if not backward:
        return faster * (2_600 + forward)
    again = 2.55 if width <= 64 else 2.85
    return faster * (4_000 + again * forward) + machine.traffic(8 * query.nbytes)


def _causal(causal: bool, blocks: float, keys: int) -> float:
    """The part of all keys' time that a causal attention takes, by the blocks of an SM."""
    return min(0.5 + 123 / keys + 0.7 / max(blocks, 0.1), 1.0) if causal else 1.0
