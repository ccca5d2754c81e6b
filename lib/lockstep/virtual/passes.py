"""What kernels take that go over memory, and what attention takes: tables and formulas.

All numbers are an H200's with PyTorch 2.11, from the kernels that PyTorch's profiler saw in the
sweeps of `tests/operator_sweeps.py`; other machines are as much slower as their memory is, and in
attention as their products are. Times are ns; a time "an element" is one of all SMs together.
"""

from __future__ import annotations

import bisect
import functools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from .model import H200, Machine

REDUCTIONS = {  # which of the measured ones takes as long
    **dict.fromkeys(("sum", "mean", "any", "all", "prod"), "sum"),
    **dict.fromkeys(("norm", "linalg_vector_norm"), "norm"),
    **dict.fromkeys(("amax", "amin"), "amax"),
    **dict.fromkeys(("argmax", "argmin", "max", "min"), "argmax"),
    **dict.fromkeys(("var", "std"), "var"),
}
# How much longer than a sum a reduction of all elements takes: of two bytes each, and of four.
_OF_ALL = {
    "sum": (1.0, 1.0), "norm": (1.1, 1.1), "amax": (1.4, 1.05), "argmax": (2.3, 2.3),
    "var": (2.3, 2.3),
}  # fmt: skip
_ROWS = {  # an operation along the last dimension: how many kernels
    "_softmax": 1, "_safe_softmax": 1, "_log_softmax": 1, "native_layer_norm": 1,
    "_fused_rms_norm": 1, "_softmax_backward_data": 2, "_log_softmax_backward_data": 1,
    "native_layer_norm_backward": 2, "_fused_rms_norm_backward": 2,
}  # fmt: skip
_TALL = 65_536  # rows of which a norm's weights have their gradients from one kernel
UNSEEN = 400.0  # between the two to four kernels of attention, which are one here
_ROWS_OF = ("embedding", "index_select", "index")
_ELEMENT = 1e-3  # ns: the unit of what follows, times an element
_COMPUTED = {
    "gelu": 1.35, "gelu_backward": 1.85, "silu": 1.05, "tanh": 0.85, "native_dropout": 1.6,
}  # fmt: skip
_PLACES = 700.0  # ns that it takes to begin where each element's place is worked out
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
    if name in _ROWS:
        columns = _columns(name, first, args)
        dims, last = args[2 if "backward" in name else 1], max(first.dim(), 1) - 1
        if "softmax" in name and dims % (last + 1) != last:
            return slower * 590.0 * columns, _ROWS[name]  # a thread goes along a column
        rows = first.numel() / columns
        lasts = _measured(machine, name, first, columns, rows)
        if "norm_backward" in name and rows > _TALL:
            lasts += 15_000 + machine.traffic(2 * first.nbytes)
        elif "norm_backward" in name:
            weights = name.replace("backward", "weights")
            lasts += _measured(machine, weights, first, columns, rows)
        return lasts, _ROWS[name]
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
        out = made[0]
        if name == "index_select" and args[1] % max(first.dim(), 1) == first.dim() - 1:
            each = (1.8 + 0.55 * first.element_size()) * _ELEMENT
            return max(machine.kernel + slower * each * out.numel(), slower * 3_900), 1
        rows = out.numel() / max(out.shape[-1] if out.dim() else 1, 1)
        read = out.nbytes if first.nbytes > machine.cached / 4 else 0
        a_row = 0.62 * max(out.nbytes / max(rows, 1) / 2048, 1.0)
        return machine.kernel + max(machine.traffic(out.nbytes + read), slower * a_row * rows), 1
    if name == "gather":
        each = (2.6 + 0.85 * first.element_size()) * _ELEMENT
        return max(machine.kernel + slower * each * made[0].numel(), slower * 4_500), 1
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
    dims = args[2 if "backward" in name else 1]
    if "norm" in name:
        return max(math.prod(dims), 1)
    return max(int(first.shape[dims]), 1) if first.dim() else 1


@functools.cache
def table(name: str) -> Mapping[str, Sequence[Any]]:
    """Return an operation's times on H200s, by the size of an element or the number of ranks."""
    text = Path(__file__).with_name("measured.json").read_text(encoding="utf-8")
    return json.loads(text)[name]


@functools.cache
def _points(name: str, size: int) -> Mapping[int, Sequence[tuple[int, int]]]:
    """(rows, ns) by columns, of an operation on elements of so many bytes, as an H200 took them."""
    found: dict[int, list[tuple[int, int]]] = {}
    for columns, rows, ns in table(name)["2" if size == 2 else "4"]:
        found.setdefault(columns, []).append((rows, ns))
    return found


def _measured(
    machine: Machine, name: str, given: torch.Tensor, columns: float, rows: float
) -> float:
    """ns of an operation on rows × columns, in a straight line between those that were measured,
    and in proportion to what is beyond the largest. What the smallest takes is no traffic."""
    size = given.element_size()
    points = _points(name.replace("_safe_", "_"), size)
    least = min(some[0][1] for some in points.values())
    times = [(at, between(some, max(rows, some[0][0]))) for at, some in points.items()]
    lasts = max(size / 4, 1) * between(times, max(columns, times[0][0]))
    return least + H200.memory / machine.memory * max(lasts - least, 0.0)


def between(points: Sequence[tuple[float, float]], at: float) -> float:
    places, values = zip(*points, strict=True)
    if at >= places[-1]:
        return float(values[-1] * at / places[-1])
    place = bisect.bisect_right(places, at)
    low, high = places[place - 1], places[place]
    part = (at - low) / (high - low)
    return float(values[place - 1] + part * (values[place] - values[place - 1]))


def _reduction(
    machine: Machine, name: str, given: torch.Tensor, made: torch.Tensor, args: Sequence[Any],
    nbytes: float,
) -> float:  # fmt: skip
    kind, moving = REDUCTIONS[name], machine.traffic(nbytes)
    results, elements = max(made.numel(), 1), given.numel()
    slower = H200.memory / machine.memory
    if results == 1:
        longer = _OF_ALL[kind][given.element_size() > 2]
        more = 0.5 * slower * (longer - 1) * _ELEMENT * elements
        least = machine.reduction * (1.5 if longer > 2 else 1.0)
        return least + (machine.across if elements > 1 << 16 else 0) + moving + more
    dims = args[2 if "norm" in name else 1] if len(args) > 1 else None
    dims = [dims] if isinstance(dims, int) else dims or [-1]
    each = elements / results  # elements of a result
    along = given.dim() - 1 in [one % given.dim() for one in dims]
    columns, rows = (each, results) if along else (results, each)
    return _measured(machine, f"{kind} dim {int(along)}", given, columns, rows)


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
    each, begin = _COMPUTED.get(name, 0.0), 0.0
    if name == "native_dropout":
        each, begin = (2.8 if out.element_size() > 2 and nbytes > machine.cached else each), _PLACES
    moving = max(moving, slower * each * _ELEMENT * out.numel()) + begin
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
        begin = _PLACES if nbytes <= machine.cached else 0.0
        moving = max(moving, near * _uneven(machine, out) * out.numel() + begin)
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
    wide = first[0].element_size() > 2
    if name.startswith("_fused_"):
        nbytes *= 1.11 * (1 - 0.5 / len(lists))  # gradients are read, and not written
    moving = machine.traffic(nbytes, many=True) / launches
    block = (0.013 if wide else 0.02) * largest * nbytes / max(sum(one.nbytes for one in first), 1)
    if "adam" in name and name.startswith("_fused_"):
        moving = max(moving, 5.2 * _ELEMENT * sum(one.numel() for one in first) / launches)
    return launches * (machine.kernel + math.hypot(block, moving)), launches


def attention(
    machine: Machine, query: torch.Tensor, key: torch.Tensor, causal: bool, dropout: float,
    masked: bool, backward: bool,
) -> float:  # fmt: skip
    """Attention in one kernel: cuDNN's in half precision, else the memory-efficient one.

    A block has 128 rows of queries (64 of float32) of one head, goes over all keys, and an SM has
    one block at a time. Of a causal one a block has half the keys, and the longest come last.
    Backward passes make the scores again, and twice as many products.
    """
    batch, heads, length, width = query.shape
    keys = key.shape[2]
    faster = H200.flops["bfloat16"] / machine.flops.get("bfloat16", H200.flops["bfloat16"])
    if query.dtype == torch.float32:
        blocks = batch * heads * math.ceil(length / 64) / machine.sms
        least, each = 110.0 * keys, (65.0 if width <= 64 else 97.0) * keys
        turns = blocks * (0.5 + 32 / keys) + 0.75 if causal else math.ceil(blocks)
        forward = 2_500 + max(least, each * turns)
        if not backward:
            return faster * forward
        beside = 6_000 + machine.traffic(6 * query.nbytes) + 3 * 3.2 * _ELEMENT * query.numel()
        return faster * forward * (2.35 if width <= 64 else 3.1) + beside
    if length == 1:  # one row of queries: the keys and values are read once
        return 4_500 + machine.traffic(2 * key.nbytes)
    blocks = batch * heads * math.ceil(length / 128) / machine.sms
    turns = max(math.ceil(blocks), 1) if blocks < 16 else blocks
    if causal:
        halves = blocks * (0.5 + 64 / keys) + 0.65 + 0.02 * blocks + 100 / keys
        turns = min(max(halves, 1.0), turns)
    each, block = {1: (9.0, 800), 2: (12.3, 1100)}.get(math.ceil(width / 64), (22.0, 2000))
    slower = 1.8 if masked else 1.0
    if dropout:
        slower = 1.4 if backward else 2.45
    forward = turns * (block + keys * each * slower)
    if not backward:
        return faster * (2_600 + forward)
    again = 2.55 if width <= 64 else 2.85
    return faster * (4_000 + again * forward) + machine.traffic(8 * query.nbytes)
