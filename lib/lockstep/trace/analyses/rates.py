"""The rates of kernels: FLOP/s and bytes a second of operators, bandwidths of copies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ...base.formatting import in_one_line, milliseconds, percent
from ...base.provenance import Provenance
from ...figures.table import Table
from ..joins import launched_in, on_device
from ..shapes import Input, inputs_in, refuse_without_shapes
from ..slices import NONE, Column, Kind, Slices
from ..unseen import refuse_unseen
from .wording import Answer, shortened


@dataclass(frozen=True, slots=True)
class Rate:
    """The kernels of one operator with inputs of one shape and type, all calls together.

    time: nanoseconds that its kernels ran, one after the other. calls, kernels: how many. flops: of
    the mathematics, a multiplication and an addition counting 2. bytes: of its inputs and its
    output, each once: no kernel can move fewer through a cache that began empty.
    """

    operator: str
    shapes: str
    dtype: str
    calls: int
    kernels: int
    time: int
    flops: int
    bytes: int

    @property
    def teraflops(self) -> float:
        """10¹² FLOP a second."""
        return self.flops / self.time / 1e3 if self.time else 0.0

    @property
    def intensity(self) -> float:
        """FLOP a byte: the most that is possible, as the bytes are the fewest."""
        return self.flops / self.bytes if self.bytes else 0.0

    @property
    def bandwidth(self) -> float:
        """GB/s, at least."""
        return self.bytes / self.time if self.time else 0.0


@dataclass(frozen=True, slots=True)
class CopyRate:
    """Copies (or memsets) of one sort, as "Memcpy HtoD (Pinned -> Device)". time: nanoseconds."""

    name: str
    count: int
    time: int
    bytes: int
    smallest: int
    largest: int

    @property
    def bandwidth(self) -> float:
        """GB/s of all together."""
        return self.bytes / self.time if self.time else 0.0


@dataclass(frozen=True)
class Rates(Answer):
    """Operators whose work is known, those with the most GPU time first; copies by sort.

    time: nanoseconds of all kernels. notes: what is left out.
    """

    operators: tuple[Rate, ...]
    copies: tuple[CopyRate, ...]
    time: int
    notes: tuple[str, ...]
    stamp: Provenance

    def _tables(self) -> list[Table]:
        top = self.operators[:_TOP]
        operators = self._table(
            f"what kernels achieve, {len(top)} of {len(self.operators)} operators and shapes · ms",
            ["operator", "shapes", "calls", "time", "TFLOP/s", "FLOP per byte", "GB/s"],
            [
                [
                    *(in_one_line(one.operator), in_one_line(one.shapes), f"{one.calls:,}"),
                    *(milliseconds(one.time), f"{one.teraflops:,.1f}" if one.flops else "none"),
                    *(f"{one.intensity:,.1f}", f"{one.bandwidth:,.0f}"),
                ]
                for one in top
            ],
        )
        copies = self._table(
            "copies · ms",
            ["copy", "count", "time", "MB", "GB/s", "smallest to largest, bytes"],
            [
                [
                    *(shortened(one.name), f"{one.count:,}", milliseconds(one.time)),
                    *(f"{one.bytes / 1e6:,.3f}", f"{one.bandwidth:,.1f}"),
                    f"{one.smallest:,} to {one.largest:,}",
                ]
                for one in self.copies
            ],
        )
        return [one for one in (operators, copies) if one.rows] or [operators]


_TOP = 15


def rates(trace: Slices) -> Rates:
    """Return the rates that kernels and copies reach; reads the files again.

    An operator's kernels are those launched while it was the innermost on its thread. FLOPs by the
    formulas of PyTorch's torch.utils.flop_counter (matrix products, convolutions, attention;
    causal masks count in full); bytes are those of its inputs and output, each once. Of
    elementwise operators there are only bytes. Copies say their bytes themselves.

    Raises TraceError where there are neither shapes (record_shapes=True) nor copies, where the
    files are gone, and for a trace without what the devices did (see `unseen`).
    """
    refuse_unseen(trace)
    rows = on_device(trace)
    copies = np.isin(trace.kind[rows], (Kind.COPY, Kind.SET))
    kernels = rows[~copies]
    around = launched_in(trace, kernels, trace.kind == Kind.OPERATOR)
    time = int(trace.duration[kernels].sum())
    found, with_shapes = _operators(trace, kernels[around != NONE], around[around != NONE])
    copied = _copies(trace, rows[copies])
    if not copied:
        refuse_without_shapes(with_shapes, around)
    known = sum(one.time for one in found)
    note = (
        f"the table covers {percent(known / max(time, 1), 1)} of the kernels' "
        f"{milliseconds(time)} ms: the work of other operators does not follow from shapes, "
        "or no operator launched them"
        if with_shapes
        else "the operators have no shapes (record_shapes=True), so their work is not known"
    )
    return Rates(found, copied, time, (note,), trace.provenance)


def _operators(trace: Slices, kernels: Column, around: Column) -> tuple[tuple[Rate, ...], bool]:
    """And whether any operator has shapes."""
    operators, of_kernel = np.unique(around, return_inverse=True)
    count = np.bincount(of_kernel, minlength=len(operators))
    time = np.zeros(len(operators), np.int64)
    np.add.at(time, of_kernel, trace.duration[kernels])
    of_row = dict(
        zip(operators.tolist(), zip(count.tolist(), time.tolist(), strict=True), strict=True)
    )
    sums: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0] * 5)
    with_shapes = False
    for row, args in trace.args_of(operators):
        inputs = inputs_in(args)
        with_shapes = with_shapes or inputs is not None
        name = trace.names[trace.name[row]]
        done = work_of(name, inputs or ())
        if done is not None:
            tensors = [one for one in inputs or () if one.shape]
            key = name, " ".join(map(str, tensors)), tensors[0].type if tensors else ""
            for at, value in enumerate((1, *of_row[row], *done)):
                sums[key][at] += value
    found = [Rate(*key, *values) for key, values in sums.items()]
    return tuple(sorted(found, key=lambda one: -one.time)), with_shapes


def _copies(trace: Slices, rows: Column) -> tuple[CopyRate, ...]:
    sizes: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for row, args in trace.args_of(rows):
        size = args.get("bytes", args.get("size"))
        if isinstance(size, int) and size >= 0:
            sizes[trace.names[trace.name[row]]].append((size, int(trace.duration[row])))
    found = []
    for name, each in sizes.items():
        size = [one for one, _ in each]
        time = sum(took for _, took in each)
        found.append(CopyRate(name, len(each), time, sum(size), min(size), max(size)))
    return tuple(sorted(found, key=lambda one: -one.time))


# ── What operators have to do ────────────────────────────────────────────────────────────────


def work_of(operator: str, inputs: Sequence[Input]) -> tuple[int, int] | None:
    """(FLOPs, bytes) of an operator by its inputs; None where they are not known."""
    name = operator.removeprefix("aten::")
    try:
        if name in _PRODUCTS:
            return _PRODUCTS[name](inputs)
        if name == "copy_":  # reads the second, writes the first
            return 0, _bytes(*inputs[:2])
        if name.rstrip("_") in _ELEMENTWISE:
            return _elementwise(inputs)
    except (IndexError, ValueError):  # shapes that do not fit the operator
        pass
    return None


def _matmul(place: int) -> Callable[[Sequence[Input]], tuple[int, int]]:
    """… × m × k times … × k × n, the first of which stands at `place`; before it what is added."""

    def work(inputs: Sequence[Input]) -> tuple[int, int]:
        a, b = inputs[place], inputs[place + 1]
        *batch, m, k = a.shape
        n = b.shape[-1]
        if b.shape[-2] != k:
            raise ValueError
        out = prod(batch) * m * n
        return 2 * out * k, _bytes(*inputs[: place + 2]) + out * a.item

    return work


def _convolution(inputs: Sequence[Input], at: tuple[int, int, int, int]) -> tuple[int, int]:
    """at: the places of padding, stride, dilation and groups."""
    x, weight = inputs[0], inputs[1]
    padding, stride, dilation, groups = (inputs[place].numbers for place in at)
    sizes = weight.shape[2:]
    out = x.shape[0] * weight.shape[0]
    for axis, (length, width) in enumerate(zip(x.shape[2:], sizes, strict=True)):
        reach = _of_axis(dilation, axis) * (width - 1) + 1
        out *= (length + 2 * _of_axis(padding, axis) - reach) // _of_axis(stride, axis) + 1
    if groups and x.shape[1] != weight.shape[1] * groups[0]:
        raise ValueError  # a transposed one, whose weights stand the other way
    return 2 * out * prod(weight.shape[1:]), _bytes(x, weight) + out * x.item


def _of_axis(numbers: list[int], axis: int) -> int:
    return numbers[axis if len(numbers) > 1 else 0]


def _convolution_backward(inputs: Sequence[Input]) -> tuple[int, int]:
    grad, x, weight = inputs[:3]
    wanted = inputs[10].value.split(",")[:2] if len(inputs) > 10 else []
    passes = sum("True" in one for one in wanted) or 2
    flops = passes * 2 * grad.elements * prod(weight.shape[1:])
    return flops, _bytes(grad, x, weight) + _bytes(x, weight)


def _attention(first: int, heads: int, products: int) -> Callable[[Any], tuple[int, int]]:
    """first: the place of the queries, before keys and values. heads: the axis of heads, 1 or 2.
    products: matrix products in all, each as large as queries times keys."""

    def work(inputs: Sequence[Input]) -> tuple[int, int]:
        query, key, value = inputs[first : first + 3]
        batch, one, other, width = query.shape
        head, length = (one, other) if heads == 1 else (other, one)
        keys = key.shape[2 if heads == 1 else 1]
        if key.shape[-1] != width or value.shape[-1] != width:
            raise ValueError
        moved = _bytes(query, key, value) + query.elements * query.item
        if first:  # a backward pass reads the gradient and the output, and writes three gradients
            moved += _bytes(query, query, key, value) - query.elements * query.item
        return products * 2 * batch * head * length * keys * width, moved

    return work


def _elementwise(inputs: Sequence[Input]) -> tuple[int, int]:
    tensors = [one for one in inputs if one.shape and one.item]
    axes = max((len(one.shape) for one in tensors), default=0)
    if not tensors or any(one.tensors for one in inputs):
        raise ValueError
    padded = [(1,) * (axes - len(one.shape)) + one.shape for one in tensors]
    out = prod(max(lengths) for lengths in zip(*padded, strict=True))
    return 0, _bytes(*tensors) + out * tensors[0].item


def _bytes(*inputs: Input) -> int:
    return sum(one.elements * one.item for one in inputs if one.shape)


_CUDNN, _MIOPEN = (2, 3, 4, 5), (3, 4, 5, 6)  # where MIOpen's has a bias, too
_PRODUCTS: dict[str, Callable[[Sequence[Input]], tuple[int, int]]] = {
    "mm": _matmul(0),
    "bmm": _matmul(0),
    "addmm": _matmul(1),
    "addmm_": _matmul(1),
    "baddbmm": _matmul(1),
    "_scaled_mm": _matmul(0),
    "cudnn_convolution": lambda inputs: _convolution(inputs, _CUDNN),
    "miopen_convolution": lambda inputs: _convolution(inputs, _MIOPEN),
    "convolution_backward": _convolution_backward,
    "_flash_attention_forward": _attention(0, heads=2, products=2),
    "_efficient_attention_forward": _attention(0, heads=2, products=2),
    "_flash_attention_backward": _attention(1, heads=2, products=5),
    "_efficient_attention_backward": _attention(1, heads=2, products=5),
    "_scaled_dot_product_cudnn_attention": _attention(0, heads=1, products=2),
    "_scaled_dot_product_cudnn_attention_backward": _attention(1, heads=1, products=5),
}
# Operators with one (large) output, of the shape to which their inputs are broadcast.
_ELEMENTWISE = frozenset(
    (
        *("add", "sub", "mul", "div", "neg", "abs", "sqrt", "rsqrt", "exp", "log", "pow", "relu"),
        *("gelu", "silu", "sigmoid", "tanh", "clamp", "square", "reciprocal", "cos", "sin"),
        *("addcmul", "addcdiv", "lerp", "maximum", "minimum", "where", "masked_fill"),
        *("gelu_backward", "silu_backward", "sigmoid_backward", "tanh_backward"),
        *("threshold_backward", "native_layer_norm", "_softmax", "_log_softmax"),
    )
)
