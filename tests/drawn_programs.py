"""Programs drawn at random from operators, shapes, dtypes, eager or captured, and streams.

`drawn(seed)` gives the same programs everywhere: nothing but the seed decides. Some of them,
`FITTED`, may be looked at while the virtual GPU's model is made; others, `KEPT` and `LATER`, are
compared with it and nothing else. The modules `operator_sweeps` (what constants are fitted on) and
`record_times` (on a GPU) belong to this one, which imports nothing but torch.
"""

from __future__ import annotations

import random as pseudorandom
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Step = Callable[[], object]
Make = Callable[[Any], Step]
Rng = pseudorandom.Random
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
SIZE = {"bf16": 2, "fp16": 2, "fp32": 4}


@dataclass(frozen=True)
class Part:
    """What a step does on one stream. grad: whether it has a backward pass."""

    text: str
    make: Make
    grad: bool = False


@dataclass(frozen=True)
class Drawn:
    make: Make
    captured: bool
    streams: int
    family: str


# ── Tensors ──────────────────────────────────────────────────────────────────────────────────


def filled(*shape: int, dtype: str = "bf16", grad: bool = False) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=DTYPES[dtype]).requires_grad_(grad)


def places(count: int, below: int, *more: int) -> torch.Tensor:
    """Indices, the same ones everywhere."""
    generator = torch.Generator().manual_seed(count)
    return torch.randint(below, (count, *more), generator=generator).to("cuda")


def forward_only(call: Callable[[], object]) -> Step:
    def step() -> None:
        with torch.no_grad():
            call()

    return step


def with_backward(call: Callable[[], torch.Tensor], *leaves: torch.Tensor) -> Step:
    """A forward pass, and a backward pass that begins with a gradient that is there."""
    gradient = torch.ones_like(call()).detach()

    def step() -> None:
        for leaf in leaves:
            leaf.grad = None
        call().backward(gradient)

    return step


def of_module(module: nn.Module, *given: torch.Tensor, training: bool, **more: Any) -> Step:
    module.train(training)

    def call() -> Any:
        result = module(*given, **more)
        return result[0] if isinstance(result, tuple) else result

    return with_backward(call, *module.parameters()) if training else forward_only(call)


# ── Operators ────────────────────────────────────────────────────────────────────────────────


def attention(
    cuda: Any, batch: int, heads: int, length: int, width: int, dtype: str, causal: bool,
    grad: bool = False, queries: int = 0, dropout: float = 0.0,
) -> Step:  # fmt: skip
    """queries: their number, where it is not the keys'."""
    q = filled(batch, heads, queries or length, width, dtype=dtype, grad=grad)
    k, v = (filled(batch, heads, length, width, dtype=dtype, grad=grad) for _ in range(2))

    def call() -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=causal)

    return with_backward(call, q, k, v) if grad else forward_only(call)


def along(
    cuda: Any, call: Callable[..., Any], shape: Sequence[int], dtype: str, grad: bool = False
) -> Step:
    """A function of one tensor."""
    x = filled(*shape, dtype=dtype, grad=grad)
    return with_backward(partial(call, x), x) if grad else forward_only(partial(call, x))


def norm(cuda: Any, kind: str, rows: int, columns: int, dtype: str, grad: bool = False) -> Step:
    made = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}[kind]
    module = made(columns, device="cuda", dtype=DTYPES[dtype])
    x = filled(rows, columns, dtype=dtype, grad=grad)
    if not grad:
        return forward_only(lambda: module(x))
    return with_backward(lambda: module(x), x, *module.parameters())


def cross_entropy(
    cuda: Any, rows: int, classes: int, dtype: str, grad: bool, upcast: bool = False
) -> Step:
    x = filled(rows, classes, dtype=dtype, grad=grad)
    words = places(rows, classes)

    def call() -> torch.Tensor:
        return functional.cross_entropy(x.float() if upcast else x, words)

    return with_backward(call, x) if grad else forward_only(call)


def logsumexp(cuda: Any, rows: int, classes: int, dtype: str, upcast: bool) -> Step:
    x = filled(rows, classes, dtype=dtype)
    return forward_only(lambda: torch.logsumexp(x.float() if upcast else x, -1))


def embedding(
    cuda: Any, words: int, width: int, count: int, dtype: str, grad: bool = False
) -> Step:
    table = filled(words, width, dtype=dtype, grad=grad)
    where = places(count, words)
    call = partial(functional.embedding, where, table)
    return with_backward(call, table) if grad else forward_only(call)


def indexed(cuda: Any, kind: str, rows: int, columns: int, count: int, dtype: str) -> Step:
    """Rows or single elements by their indices."""
    x = filled(rows, columns, dtype=dtype)
    if kind == "gather":
        where = places(rows, columns, count)
        return forward_only(lambda: x.gather(1, where))
    where = places(count, columns if kind == "columns" else rows)
    if kind == "columns":
        return forward_only(lambda: x.index_select(1, where))
    if kind == "rows":
        return forward_only(lambda: x.index_select(0, where))
    return forward_only(lambda: x[where])


def rearranged(
    cuda: Any, shape: Sequence[int], order: Sequence[int], dtype: str, added: bool = False
) -> Step:
    """A copy in another order of dimensions, or an addition to such a view."""
    x = filled(*shape, dtype=dtype)
    view = x.permute(*order)
    if added:
        y = torch.ones(view.shape, device="cuda", dtype=DTYPES[dtype])
        return forward_only(lambda: y + view)
    return forward_only(lambda: view.contiguous())


def part_of(cuda: Any, rows: int, columns: int, kind: str, dtype: str) -> Step:
    """A copy of every other row or column, or of a third of the columns."""
    x = filled(rows, columns, dtype=dtype)
    view = {"rows": x[::2], "columns": x[:, ::2], "third": x[:, : columns // 3]}[kind]
    return forward_only(lambda: view.contiguous())


def few_rows(
    cuda: Any, rows: int, width: int, wide: int, count: int, dtype: str, kind: str = "linear"
) -> Step:
    """Products of few rows with so many matrices, up and down again."""
    down = kind == "product"
    shapes = [(width, wide) if number % 2 else (wide, width) for number in range(count)]
    weights = [filled(*(shape[::-1] if down else shape), dtype=dtype) for shape in shapes]
    biases = [filled(shape[0], dtype=dtype) if kind == "bias" else None for shape in shapes]
    given = filled(rows, width, dtype=dtype)

    def call() -> None:
        x = given
        for weight, bias in zip(weights, biases, strict=True):
            x = x @ weight if down else functional.linear(x, weight, bias)

    return forward_only(call)


def optimizer(
    cuda: Any, kind: str, form: str, tensors: int, elements: int, dtype: str, mixed: bool = False
) -> Step:
    """A step of an optimizer. mixed: every other tensor is a vector, as biases are."""
    made = []
    for number in range(tensors):
        small = mixed and number % 2
        made.append(filled(1024 if small else elements, dtype=dtype, grad=True))
        made[-1].grad = torch.ones_like(made[-1]).detach()
    more: dict[str, Any] = {form: True}
    if kind == "momentum":
        kind, more = "SGD", {**more, "momentum": 0.9}
    elif kind != "SGD":
        more["capturable"] = True
    return getattr(torch.optim, kind)(made, 1e-3, **more).step


def clipped(cuda: Any, tensors: int, elements: int, dtype: str) -> Step:
    made = [filled(elements, dtype=dtype, grad=True) for _ in range(tensors)]
    for one in made:
        one.grad = torch.ones_like(one).detach()
    return lambda: nn.utils.clip_grad_norm_(made, 1.0)


def chain(cuda: Any, elements: int, names: Sequence[str], dtype: str) -> Step:
    """Elementwise operations, one after the other."""
    given, other = filled(elements, dtype=dtype), filled(elements, dtype=dtype)
    row = filled(1024, dtype=dtype)
    calls: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "relu": torch.relu,
        "gelu": functional.gelu,
        "silu": functional.silu,
        "tanh": torch.tanh,
        "exp": torch.exp,
        "scaled": lambda x: x * 0.5,
        "plus": lambda x: x + other,
        "times": lambda x: x * other,
        "bias": lambda x: (x.view(-1, 1024) + row).view(-1),
        "where": lambda x: torch.where(x > 0, x, other),
        "fused": lambda x: torch.addcmul(x, x, other),
        "to and fro": lambda x: x.to(torch.float32 if dtype != "fp32" else torch.bfloat16).to(
            DTYPES[dtype]
        ),
        "dropout": lambda x: functional.dropout(x, 0.1),
    }

    def call() -> None:
        x = given
        for name in names:
            x = calls[name](x)

    return forward_only(call)


def joined(cuda: Any, pieces: int, rows: int, columns: int, dim: int, dtype: str) -> Step:
    some = [filled(rows, columns, dtype=dtype) for _ in range(pieces)]
    return forward_only(lambda: torch.cat(some, dim))


def copied(cuda: Any, where: str, nbytes: int) -> Step:
    here = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    if where == "within":
        other = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
        return lambda: other.copy_(here)
    there = torch.empty(nbytes, dtype=torch.uint8).pin_memory()
    if where == "in":
        return lambda: here.copy_(there, non_blocking=True)
    return lambda: there.copy_(here, non_blocking=True)


# ── Blocks ───────────────────────────────────────────────────────────────────────────────────


def mlp(cuda: Any, rows: int, width: int, layers: int, dtype: str, training: bool) -> Step:
    made: list[nn.Module] = []
    for _ in range(layers):
        made += [nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)]
    model = nn.Sequential(*made).to("cuda", DTYPES[dtype])
    return of_module(model, filled(rows, width, dtype=dtype), training=training)


class Block(nn.Module):
    """A transformer's block by hand: causal attention and an MLP, each after a layer norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.before(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.between(x))))


def block(
    cuda: Any, kind: str, batch: int, length: int, heads: int, width: int, dtype: str,
    training: bool,
) -> Step:  # fmt: skip
    x = filled(batch, length, width, dtype=dtype)
    if kind == "block":
        model: nn.Module = Block(width, heads).to("cuda", DTYPES[dtype])
        return of_module(model, x, training=training)
    if kind == "attention":
        model = nn.MultiheadAttention(width, heads, batch_first=True).to("cuda", DTYPES[dtype])
        return of_module(model, x, x, x, training=training, need_weights=False)
    model = nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True)
    return of_module(model.to("cuda", DTYPES[dtype]), x, training=training)


# ── Draws ────────────────────────────────────────────────────────────────────────────────────


def _mostly_half(rng: Rng) -> str:
    return rng.choice(("bf16", "bf16", "bf16", "fp16", "fp32"))


def _shape(rng: Rng, elements: Sequence[int], columns: Sequence[int]) -> tuple[int, int]:
    wide = rng.choice(columns)
    return max(rng.choice(elements) // wide, 8), wide


M = 1 << 20
_COLUMNS = (128, 384, 640, 768, 1024, 1536, 2048, 3072, 4096, 5120, 8192, 12288)


def _attention(rng: Rng) -> Part:
    dtype, width = _mostly_half(rng), rng.choice((64, 64, 128))
    batch, heads = rng.choice((1, 2, 4, 8)), rng.choice((8, 12, 16, 24, 32))
    length = rng.choice((256, 512, 768, 1024, 1536, 2048, 4096))
    while batch * heads * length**2 * width > (2e10 if dtype == "fp32" else 6e11):
        length //= 2
    causal, grad = rng.random() < 0.6, rng.random() < 0.4
    how = f"{'causal ' * causal}attention {batch}×{heads}×{length}×{width} {dtype}"
    make = partial(
        attention, batch=batch, heads=heads, length=length, width=width, dtype=dtype,
        causal=causal, grad=grad,
    )  # fmt: skip
    return Part(how + " with backward" * grad, make, grad)


def _softmax(rng: Rng) -> Part:
    dtype, grad = _mostly_half(rng), rng.random() < 0.3
    rows, columns = _shape(rng, (M // 4, M, 4 * M, 16 * M, 64 * M), _COLUMNS)
    name = rng.choice(("softmax", "softmax", "log_softmax"))
    make = partial(
        along, call=partial(getattr(torch, name), dim=-1), shape=(rows, columns), dtype=dtype,
        grad=grad,
    )  # fmt: skip
    return Part(f"{name} {rows}×{columns} {dtype}" + " with backward" * grad, make, grad)


def _norm(rng: Rng) -> Part:
    dtype, grad, kind = _mostly_half(rng), rng.random() < 0.4, rng.choice(("layer", "rms"))
    rows, columns = _shape(rng, (M // 4, M, 4 * M, 16 * M, 64 * M), _COLUMNS[1:-1])
    make = partial(norm, kind=kind, rows=rows, columns=columns, dtype=dtype, grad=grad)
    return Part(f"{kind} norm {rows}×{columns} {dtype}" + " with backward" * grad, make, grad)


REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": torch.sum,
    "mean": torch.mean,
    "amax": torch.amax,
    "argmax": torch.argmax,
    "norm": torch.linalg.vector_norm,
    "var": torch.var,
}


def _reduction(rng: Rng) -> Part:
    dtype, name, dim = _mostly_half(rng), rng.choice(list(REDUCTIONS)), rng.choice((0, 0, 1, 1, -9))
    rows, columns = _shape(rng, (M // 2, 4 * M, 16 * M, 64 * M), _COLUMNS)
    call = REDUCTIONS[name] if dim == -9 else partial(REDUCTIONS[name], dim=dim)
    which = "all" if dim == -9 else f"dim {dim}"
    make = partial(along, call=call, shape=(rows, columns), dtype=dtype)
    return Part(f"{name} {which} of {rows}×{columns} {dtype}", make)


def _loss(rng: Rng) -> Part:
    dtype, upcast, grad = rng.choice(("bf16", "fp32")), rng.random() < 0.4, rng.random() < 0.6
    rows, classes = rng.choice((256, 1024, 2048, 4096)), rng.choice((1000, 10000, 32000, 50257))
    upcast = upcast and dtype != "fp32"
    text = f"{rows}×{classes} {dtype}" + ".float()" * upcast
    if rng.random() < 0.3:
        make = partial(logsumexp, rows=rows, classes=classes, dtype=dtype, upcast=upcast)
        return Part(f"logsumexp {text}", make)
    make = partial(cross_entropy, rows=rows, classes=classes, dtype=dtype, grad=grad, upcast=upcast)
    return Part(f"cross entropy {text}" + " with backward" * grad, make, grad)


def _indexed(rng: Rng) -> Part:
    dtype, width = _mostly_half(rng), rng.choice((256, 512, 768, 1024, 2048, 4096))
    rows = rng.choice((1000, 10000, 32000, 50257))
    kind = rng.choice(("embedding", "embedding", "gather", "rows", "columns", "index"))
    if kind == "embedding":
        count = rng.choice((512, 2048, 8192, 32768))
        make = partial(embedding, words=rows, width=width, count=count, dtype=dtype)
        return Part(f"embedding of {count} in {rows}×{width} {dtype}", make)
    rows = min(rows, 10000) if kind == "gather" else rows
    count = {"gather": width // 2, "columns": width // 2}.get(kind, rng.choice((2048, 16384)))
    make = partial(indexed, kind=kind, rows=rows, columns=width, count=count, dtype=dtype)
    return Part(f"{kind} {count} of {rows}×{width} {dtype}", make)


def _rearranged(rng: Rng) -> Part:
    dtype = _mostly_half(rng)
    kind = rng.choice(("t", "t", "heads", "part", "added"))
    rows, columns = rng.choice((512, 1024, 2048, 4096, 8192)), rng.choice((512, 1024, 3072, 8192))
    if kind == "heads":
        batch, length = rng.choice((2, 8, 16)), rng.choice((512, 1024, 2048))
        heads, width = rng.choice((8, 16, 32)), rng.choice((64, 128))
        shape = (batch, length, heads, width)
        make = partial(rearranged, shape=shape, order=(0, 2, 1, 3), dtype=dtype)
        return Part(f"heads first of {batch}×{length}×{heads}×{width} {dtype}", make)
    if kind == "part":
        which = rng.choice(("rows", "columns", "third"))
        make = partial(part_of, rows=rows, columns=columns, kind=which, dtype=dtype)
        return Part(f"{which} of {rows}×{columns} {dtype}", make)
    make = partial(
        rearranged, shape=(rows, columns), order=(1, 0), dtype=dtype, added=kind == "added"
    )
    return Part(f"transposed {rows}×{columns} {dtype}" + " and added" * (kind == "added"), make)


def _few_rows(rng: Rng) -> Part:
    dtype = rng.choice(("bf16", "bf16", "bf16", "fp16"))
    rows, count = rng.choice((1, 1, 2, 4, 8, 16, 32)), rng.choice((8, 16, 32))
    width, wide = rng.choice((1024, 2048, 4096, 5120)), rng.choice((1024, 4096, 8192, 14336))
    kind = rng.choice(("linear", "linear", "bias", "product"))
    make = partial(few_rows, rows=rows, width=width, wide=wide, count=count, dtype=dtype, kind=kind)
    return Part(f"{count} products of {rows} rows, {width} and {wide}, {kind}, {dtype}", make)


OPTIMIZERS = ("SGD", "momentum", "Adam", "AdamW")


def _optimizer(rng: Rng) -> Part:
    kind, form = rng.choice(OPTIMIZERS), rng.choice(("foreach", "fused"))
    tensors, elements = rng.choice((8, 24, 60, 150)), rng.choice((M // 4, M, 4 * M))
    dtype, mixed = rng.choice(("fp32", "fp32", "bf16")), rng.random() < 0.5
    if tensors * elements > 256 * M:
        elements = M
    make = partial(
        optimizer, kind=kind, form=form, tensors=tensors, elements=elements, dtype=dtype,
        mixed=mixed,
    )  # fmt: skip
    half = ", half of them vectors" * mixed
    return Part(f"{form} {kind} of {tensors} tensors of {elements} {dtype}{half}", make, True)


_CHAIN = (
    "relu", "gelu", "silu", "tanh", "exp", "scaled", "plus", "times", "bias", "where", "fused",
    "to and fro", "dropout",
)  # fmt: skip


def _chain(rng: Rng) -> Part:
    dtype, elements = _mostly_half(rng), rng.choice((M // 4, M, 4 * M, 16 * M, 64 * M))
    names = [rng.choice(_CHAIN) for _ in range(rng.randint(2, 8))]
    make = partial(chain, elements=elements, names=names, dtype=dtype)
    return Part(f"{', '.join(names)} of {elements} {dtype}", make)


def _moved(rng: Rng) -> Part:
    dtype = _mostly_half(rng)
    if rng.random() < 0.4:
        rows, columns = _shape(rng, (M, 4 * M, 16 * M), _COLUMNS)
        pieces, dim = rng.choice((2, 3, 4)), rng.choice((0, 1))
        make = partial(joined, pieces=pieces, rows=rows, columns=columns, dim=dim, dtype=dtype)
        return Part(f"{pieces} of {rows}×{columns} joined along {dim} {dtype}", make)
    where, nbytes = rng.choice(("within", "in", "out")), rng.choice((M, 8 * M, 64 * M))
    return Part(f"copy {where} of {nbytes >> 20} MiB", partial(copied, where=where, nbytes=nbytes))


def _mlp(rng: Rng) -> Part:
    rows, width = rng.choice((64, 256, 1024, 4096, 8192)), rng.choice((512, 768, 1024, 2048))
    layers, training = rng.choice((1, 2, 4)), rng.random() < 0.5
    make = partial(mlp, rows=rows, width=width, layers=layers, dtype="bf16", training=training)
    how = "training" if training else "forward"
    return Part(f"{layers} MLPs of {width}, {rows} rows, {how}", make, training)


def _block(rng: Rng, kind: str) -> Part:
    batch, length = rng.choice((1, 4, 8, 16)), rng.choice((128, 256, 512, 1024, 2048))
    heads, width = rng.choice(((8, 512), (12, 768), (16, 1024), (16, 2048)))
    if batch * length > 8192:
        batch = 8192 // length
    training = rng.random() < 0.5
    dtype = rng.choice(("bf16", "bf16", "fp16"))
    make = partial(
        block, kind=kind, batch=batch, length=length, heads=heads, width=width, dtype=dtype,
        training=training,
    )  # fmt: skip
    called = {"block": "block", "attention": "nn.MultiheadAttention"}
    name = called.get(kind, "nn.TransformerEncoderLayer")
    how = "training" if training else "forward"
    return Part(f"{name} {batch}×{length}×{width}, {heads} heads, {dtype}, {how}", make, training)


FAMILIES: dict[str, Callable[[Rng], Part]] = {
    "attention": _attention,
    "softmax": _softmax,
    "norm": _norm,
    "reduction": _reduction,
    "loss": _loss,
    "indexed": _indexed,
    "rearranged": _rearranged,
    "few rows": _few_rows,
    "optimizer": _optimizer,
    "chain": _chain,
    "moved": _moved,
    "mlp": _mlp,
    "block": partial(_block, kind="block"),
    "nn.MultiheadAttention": partial(_block, kind="attention"),
    "nn.TransformerEncoderLayer": partial(_block, kind="layer"),
}


def in_turn(cuda: Any, parts: Sequence[Part]) -> Step:
    """One after the other on the current stream."""
    steps = [part.make(cuda) for part in parts]

    def step() -> None:
        for one in steps:
            one()

    return step


def beside_each_other(cuda: Any, parts: Sequence[Part]) -> Step:
    """Each on a stream of its own, which waits for the current one and is waited for."""
    steps = [part.make(cuda) for part in parts]
    sides = [cuda.Stream() for _ in parts]

    def step() -> None:
        for side in sides:
            side.wait_stream(cuda.current_stream())
        for one, side in zip(steps, sides, strict=True):
            with cuda.stream(side):
                one()
        for side in sides:
            cuda.current_stream().wait_stream(side)

    return step


def captured(cuda: Any, make: Make) -> Step:
    """The same step out of a graph."""
    step, side = make(cuda), cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        for _ in range(3):
            step()
    cuda.current_stream().wait_stream(side)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        step()

    def replay() -> None:
        graph.replay()
        _ = step  # a replay reads what the step holds, where it was at the capture

    return replay


def drawn(seed: int, count: int) -> dict[str, Drawn]:
    """So many programs by their texts, families in turn."""
    rng = Rng(seed)
    found: dict[str, Drawn] = {}
    while len(found) < count:
        family = list(FAMILIES)[len(found) % len(FAMILIES)]
        parts = [FAMILIES[family](rng)]
        in_graph, streams = rng.random() < 0.5, 1
        if parts[0].grad:
            make = partial(in_turn, parts=parts)
        else:
            streams = rng.choice((1, 1, 2, 3))
            if streams == 1:
                parts = parts * rng.choice((1, 1, 2, 4))
                make = partial(in_turn, parts=parts)
            else:
                others = [name for name in FAMILIES if name != "optimizer"]
                while len(parts) < streams:
                    part = FAMILIES[rng.choice(others)](rng)
                    if not part.grad:
                        parts.append(part)
                make = partial(beside_each_other, parts=parts)
        times = f"{len(parts)} times " * (streams == 1 and len(parts) > 1)
        texts = " | ".join(part.text for part in (parts if streams > 1 else parts[:1]))
        name = f"{times}{texts}, {'captured' if in_graph else 'eager'}"
        if name not in found:
            whole = partial(captured, make=make) if in_graph else make
            found[name] = Drawn(whole, in_graph, streams, family)
    return found


# Those of seeds 73 and 109 were kept aside, too, until they were compared: whoever looks at why one
# is missed draws others, with another seed.
FITTED = {**drawn(seed=37, count=50), **drawn(seed=73, count=50), **drawn(seed=109, count=50)}
KEPT = {name: one for name, one in drawn(seed=211, count=100).items() if name not in FITTED}
LATER = {name: one for name, one in drawn(seed=307, count=105).items() if name not in FITTED | KEPT}


if __name__ == "__main__":
    for half in (FITTED, KEPT, LATER):
        print(*half, sep="\n", end="\n\n")
