"""Single operators over sizes, on which the virtual GPU's constants are fitted: `SWEEPS`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from drawn_programs import (
    OPTIMIZERS,
    REDUCTIONS,
    M,
    Make,
    Step,
    along,
    attention,
    block,
    chain,
    clipped,
    cross_entropy,
    embedding,
    few_rows,
    filled,
    forward_only,
    indexed,
    joined,
    logsumexp,
    norm,
    optimizer,
    part_of,
    places,
    rearranged,
    with_backward,
)
from torch.nn import functional

Named = Iterator[tuple[str, Make]]


def linear(cuda: Any, rows: int, width: int, wide: int, dtype: str, bias: bool, grad: bool) -> Step:
    x, weight = (filled(*shape, dtype=dtype, grad=grad) for shape in ((rows, width), (wide, width)))
    more = filled(wide, dtype=dtype, grad=grad) if bias else None
    call = partial(functional.linear, x, weight, more)
    leaves = [one for one in (x, weight, more) if one is not None]
    return with_backward(call, *leaves) if grad else forward_only(call)


def batched(cuda: Any, batch: int, m: int, k: int, n: int, dtype: str, turned: bool) -> Step:
    a, b = (
        filled(batch, m, k, dtype=dtype),
        filled(batch, *((n, k) if turned else (k, n)), dtype=dtype),
    )
    return forward_only(lambda: torch.bmm(a, b.transpose(1, 2) if turned else b))


def masked(cuda: Any, batch: int, heads: int, length: int, width: int, dtype: str) -> Step:
    """Attention with a mask of its own."""
    q, k, v = (filled(batch, heads, length, width, dtype=dtype) for _ in range(3))
    mask = filled(length, length, dtype=dtype)
    call = functional.scaled_dot_product_attention
    return forward_only(lambda: call(q, k, v, attn_mask=mask))


def heads_of(
    cuda: Any, batch: int, heads: int, length: int, width: int, dtype: str, grad: bool
) -> Step:
    """Attention on views of one projection, as models have it."""
    x = filled(batch, length, 3, heads, width, dtype=dtype, grad=grad)

    def call() -> torch.Tensor:
        q, k, v = x.permute(2, 0, 3, 1, 4)
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    return with_backward(call, x) if grad else forward_only(call)


def plain_attention(cuda: Any, batch: int, heads: int, length: int, width: int) -> Step:
    """By hand: products of batches, and a softmax."""
    q, k, v = (filled(batch, heads, length, width) for _ in range(3))
    return forward_only(lambda: torch.softmax(q @ k.transpose(-1, -2) * 0.125, -1) @ v)


def gathered_rows_with_backward(cuda: Any, rows: int, width: int, count: int) -> Step:
    x = filled(rows, width, grad=True)
    where = places(count, rows)
    return with_backward(lambda: x.index_select(0, where), x)


def _attention() -> Named:
    def one(
        batch: int,
        heads: int,
        length: int,
        width: int,
        dtype: str = "bf16",
        causal: bool = False,
        **more: Any,
    ) -> tuple[str, Make]:
        text = f"attention {batch}×{heads}×{length}×{width} {dtype}" + " causal" * causal
        text += "".join(f" {name} {value}" for name, value in more.items())
        return text, partial(
            attention,
            batch=batch,
            heads=heads,
            length=length,
            width=width,
            dtype=dtype,
            causal=causal,
            **more,
        )

    for width in (64, 128):
        for causal in (False, True):
            for batch, heads, length in (
                (1, 8, 256),
                (8, 16, 256),
                (1, 8, 512),
                (4, 12, 512),
                (16, 16, 512),
                (1, 8, 1024),
                (2, 16, 1024),
                (8, 16, 1024),
                (1, 12, 2048),
                (4, 16, 2048),
                (1, 16, 4096),
                (4, 32, 4096),
                (1, 8, 8192),
            ):
                yield one(batch, heads, length, width, causal=causal)
            for batch, heads, length in (
                (1, 8, 256),
                (8, 16, 256),
                (4, 12, 512),
                (2, 16, 1024),
                (8, 16, 1024),
                (4, 16, 2048),
                (1, 16, 4096),
            ):
                yield one(batch, heads, length, width, causal=causal, grad=True)
        for batch, heads, length in ((8, 16, 256), (4, 16, 1024), (2, 16, 2048)):
            yield one(batch, heads, length, width, "fp16", True)
            yield one(batch, heads, length, width, "fp16", True, grad=True)
        for batch, heads, length in ((1, 8, 256), (4, 12, 512), (1, 16, 1024), (2, 16, 2048)):
            for causal in (False, True):
                yield one(batch, heads, length, width, "fp32", causal)
            yield one(batch, heads, length, width, "fp32", True, grad=True)
        for batch, heads, length in ((1, 32, 1024), (8, 32, 2048), (1, 32, 8192), (64, 32, 1024)):
            yield one(batch, heads, length, width, queries=1)
    for width in (32, 96, 256):
        yield one(2, 16, 1024, width, causal=True)
        yield one(2, 16, 1024, width, causal=True, grad=True)
    for batch, heads, length in ((8, 8, 256), (4, 16, 1024), (16, 12, 512)):
        yield one(batch, heads, length, 64, dropout=0.1)
        yield one(batch, heads, length, 64, dropout=0.1, grad=True)
        yield (
            f"masked attention {batch}×{heads}×{length}×64 bf16",
            partial(masked, batch=batch, heads=heads, length=length, width=64, dtype="bf16"),
        )
        for grad in (False, True):
            yield (
                f"heads of {batch}×{heads}×{length}×64 bf16" + " grad" * grad,
                partial(
                    heads_of,
                    batch=batch,
                    heads=heads,
                    length=length,
                    width=64,
                    dtype="bf16",
                    grad=grad,
                ),
            )
        yield (
            f"plain attention {batch}×{heads}×{length}×64",
            partial(plain_attention, batch=batch, heads=heads, length=length, width=64),
        )


_SHAPES = (
    (64, 64),
    (4096, 64),
    (262144, 64),
    (64, 256),
    (32768, 256),
    (64, 768),
    (1024, 768),
    (16384, 768),
    (64, 1024),
    (512, 1024),
    (4096, 1024),
    (32768, 1024),
    (64, 2048),
    (2048, 2048),
    (16384, 2048),
    (64, 4096),
    (512, 4096),
    (4096, 4096),
    (16384, 4096),
    (64, 8192),
    (1024, 8192),
    (8192, 8192),
    (64, 16384),
    (2048, 16384),
    (64, 50257),
    (2048, 50257),
)


def _rows() -> Named:
    for rows, columns in _SHAPES:
        for dtype in ("bf16", "fp32"):
            if rows * columns > 80 * M and dtype == "fp32":
                continue
            for grad in (False, True):
                text = f"{rows}×{columns} {dtype}" + " grad" * grad
                yield (
                    f"softmax {text}",
                    partial(
                        along,
                        call=partial(torch.softmax, dim=-1),
                        shape=(rows, columns),
                        dtype=dtype,
                        grad=grad,
                    ),
                )
                if columns < 10000:
                    yield (
                        f"layer norm {text}",
                        partial(
                            norm, kind="layer", rows=rows, columns=columns, dtype=dtype, grad=grad
                        ),
                    )
                    yield (
                        f"rms norm {text}",
                        partial(
                            norm, kind="rms", rows=rows, columns=columns, dtype=dtype, grad=grad
                        ),
                    )
    for rows, columns in ((4096, 1024), (2048, 16384), (2048, 50257), (256, 10000)):
        yield (
            f"log_softmax {rows}×{columns} bf16",
            partial(
                along, call=partial(torch.log_softmax, dim=-1), shape=(rows, columns), dtype="bf16"
            ),
        )
        yield (
            f"softmax dim 0 {rows}×{columns} bf16",
            partial(along, call=partial(torch.softmax, dim=0), shape=(rows, columns), dtype="bf16"),
        )


def _reductions() -> Named:
    for name, call in REDUCTIONS.items():
        some = ("bf16", "fp32") if name in ("sum", "amax") else ("bf16",)
        for dtype in some:
            for rows, columns in (
                (64, 4096),
                (4096, 64),
                (1024, 1024),
                (8192, 2048),
                (8192, 8192),
                (262144, 256),
                (256, 262144),
                (32768, 128),
                (128, 32768),
            ):
                for dim in (None, 0, 1):
                    used = call if dim is None else partial(call, dim=dim)
                    text = "all" if dim is None else f"dim {dim}"
                    yield (
                        f"{name} {text} {rows}×{columns} {dtype}",
                        partial(along, call=used, shape=(rows, columns), dtype=dtype),
                    )
    for rows, columns in (
        (512, 768),
        (2048, 768),
        (16384, 768),
        (96, 1536),
        (4096, 4096),
        (1024, 3072),
    ):
        yield (
            f"sum dim 0 {rows}×{columns} bf16",
            partial(along, call=partial(torch.sum, dim=0), shape=(rows, columns), dtype="bf16"),
        )


def _losses() -> Named:
    for rows in (256, 4096):
        for classes in (1000, 8192, 32000, 50257):
            for dtype in ("bf16", "fp32"):
                yield (
                    f"cross entropy {rows}×{classes} {dtype}",
                    partial(cross_entropy, rows=rows, classes=classes, dtype=dtype, grad=True),
                )
            yield (
                f"logsumexp {rows}×{classes} bf16 upcast",
                partial(logsumexp, rows=rows, classes=classes, dtype="bf16", upcast=True),
            )
            yield (
                f"logsumexp {rows}×{classes} bf16",
                partial(logsumexp, rows=rows, classes=classes, dtype="bf16", upcast=False),
            )
    yield (
        "cross entropy 512×1000 bf16",
        partial(cross_entropy, rows=512, classes=1000, dtype="bf16", grad=True),
    )


def _indexing() -> Named:
    for words, width in ((1000, 640), (32000, 512), (32000, 4096), (50257, 1024)):
        for count in (64, 1024, 16384):
            yield (
                f"embedding {count} of {words}×{width} bf16",
                partial(embedding, words=words, width=width, count=count, dtype="bf16"),
            )
        for count in (512, 8192):
            yield (
                f"embedding {count} of {words}×{width} bf16 grad",
                partial(embedding, words=words, width=width, count=count, dtype="bf16", grad=True),
            )
    yield (
        "embedding 16384 of 32000×1024 fp32",
        partial(embedding, words=32000, width=1024, count=16384, dtype="fp32"),
    )
    for kind in ("gather", "rows", "columns", "index"):
        for dtype in ("bf16", "fp32"):
            for rows, columns, count in (
                (1000, 1024, 512),
                (10000, 512, 256),
                (10000, 4096, 2048),
                (32000, 1024, 512),
            ):
                used = count if kind in ("gather", "columns") else 16 * count
                yield (
                    f"{kind} {used} of {rows}×{columns} {dtype}",
                    partial(
                        indexed, kind=kind, rows=rows, columns=columns, count=used, dtype=dtype
                    ),
                )
    yield (
        "rows with backward 4096 of 32000×1024",
        partial(gathered_rows_with_backward, rows=32000, width=1024, count=4096),
    )


def _rearranged() -> Named:
    for dtype in ("bf16", "fp32"):
        for rows, columns in (
            (256, 256),
            (1024, 1024),
            (2048, 2048),
            (4096, 4096),
            (8192, 8192),
            (512, 8192),
            (8192, 512),
            (4096, 1000),
            (16384, 1024),
            (1024, 16384),
            (65536, 64),
            (64, 65536),
        ):
            yield (
                f"transposed {rows}×{columns} {dtype}",
                partial(rearranged, shape=(rows, columns), order=(1, 0), dtype=dtype),
            )
        for rows, columns in ((1024, 1024), (4096, 4096), (8192, 2048)):
            yield (
                f"added transposed {rows}×{columns} {dtype}",
                partial(rearranged, shape=(rows, columns), order=(1, 0), dtype=dtype, added=True),
            )
        for batch, length, heads, width in (
            (2, 512, 8, 64),
            (8, 1024, 16, 64),
            (16, 2048, 16, 128),
        ):
            shape = (batch, length, heads, width)
            yield (
                f"heads first {shape} {dtype}",
                partial(rearranged, shape=shape, order=(0, 2, 1, 3), dtype=dtype),
            )
            yield (
                f"heads inside {shape} {dtype}",
                partial(rearranged, shape=shape, order=(0, 2, 3, 1), dtype=dtype),
            )
        for kind in ("rows", "columns", "third"):
            for rows, columns in ((1024, 3072), (8192, 3072), (8192, 12288)):
                yield (
                    f"{kind} {rows}×{columns} {dtype}",
                    partial(part_of, rows=rows, columns=columns, kind=kind, dtype=dtype),
                )


def _products() -> Named:
    for rows in (1, 2, 4, 8, 16, 32, 64, 128):
        for width, wide in ((1024, 1024), (2048, 8192), (4096, 4096), (4096, 14336), (8192, 8192)):
            for kind in ("linear", "bias", "product"):
                if kind == "bias" and width in (1024, 8192):
                    continue
                count = 8 if width * wide >= 8 * M else 16
                yield (
                    f"{count} few {rows}×{width}×{wide} {kind} bf16",
                    partial(
                        few_rows,
                        rows=rows,
                        width=width,
                        wide=wide,
                        count=count,
                        dtype="bf16",
                        kind=kind,
                    ),
                )
    for rows in (1, 8, 64):
        yield (
            f"8 few {rows}×4096×4096 linear fp32",
            partial(
                few_rows, rows=rows, width=4096, wide=4096, count=8, dtype="fp32", kind="linear"
            ),
        )
        yield (
            f"16 few {rows}×1024×1024 linear fp32",
            partial(
                few_rows, rows=rows, width=1024, wide=1024, count=16, dtype="fp32", kind="linear"
            ),
        )
    for rows, width, wide in (
        (64, 768, 3072),
        (256, 512, 2048),
        (256, 2048, 8192),
        (1024, 768, 3072),
        (1024, 3072, 768),
        (1024, 2048, 2048),
        (4096, 512, 2048),
        (4096, 1024, 4096),
        (4096, 4096, 1024),
        (8192, 768, 768),
        (8192, 2048, 8192),
        (8192, 8192, 2048),
        (2048, 2560, 10240),
    ):
        for grad in (False, True):
            yield (
                f"linear {rows}×{width}×{wide} bf16" + " grad" * grad,
                partial(
                    linear, rows=rows, width=width, wide=wide, dtype="bf16", bias=True, grad=grad
                ),
            )
    for rows, width, wide in ((1024, 768, 3072), (4096, 1024, 4096)):
        yield (
            f"linear {rows}×{width}×{wide} fp16",
            partial(linear, rows=rows, width=width, wide=wide, dtype="fp16", bias=True, grad=False),
        )
        yield (
            f"linear {rows}×{width}×{wide} fp32",
            partial(linear, rows=rows, width=width, wide=wide, dtype="fp32", bias=True, grad=False),
        )
    for batch, m, k, n in (
        (16, 1024, 64, 1024),
        (16, 1024, 1024, 64),
        (64, 512, 64, 512),
        (4, 8192, 128, 8192),
        (128, 256, 64, 256),
        (128, 256, 256, 64),
    ):
        yield (
            f"batch {batch}×{m}×{k}×{n} bf16",
            partial(batched, batch=batch, m=m, k=k, n=n, dtype="bf16", turned=k < n),
        )


def _optimizers() -> Named:
    for kind in OPTIMIZERS:
        for form in ("foreach", "fused"):
            for tensors, elements, dtype, mixed in (
                (8, M, "fp32", False),
                (40, M, "fp32", False),
                (100, M // 16, "fp32", False),
                (40, M, "bf16", False),
                (148, M, "fp32", True),
                (300, 1024, "fp32", False),
                (16, 8 * M, "fp32", False),
            ):
                text = f"{form} {kind} {tensors} of {elements} {dtype}" + " mixed" * mixed
                yield (
                    text,
                    partial(
                        optimizer,
                        kind=kind,
                        form=form,
                        tensors=tensors,
                        elements=elements,
                        dtype=dtype,
                        mixed=mixed,
                    ),
                )
    for tensors, elements in ((8, M), (100, M // 16), (40, 4 * M)):
        yield (
            f"clipped {tensors} of {elements} fp32",
            partial(clipped, tensors=tensors, elements=elements, dtype="fp32"),
        )


def _elementwise() -> Named:
    for name in (
        "relu",
        "gelu",
        "silu",
        "tanh",
        "exp",
        "scaled",
        "plus",
        "bias",
        "where",
        "fused",
        "to and fro",
        "dropout",
    ):
        for elements in (M // 16, M, 8 * M, 64 * M):
            for dtype in (
                ("bf16", "fp32")
                if name in ("gelu", "exp", "plus", "bias", "to and fro", "dropout")
                else ("bf16",)
            ):
                yield (
                    f"{name} {elements} {dtype}",
                    partial(chain, elements=elements, names=[name], dtype=dtype),
                )
    for elements in (M, 32 * M):
        shape = (elements,)
        yield (
            f"gelu {elements} bf16 grad",
            partial(along, call=functional.gelu, shape=shape, dtype="bf16", grad=True),
        )
        yield (
            f"relu {elements} bf16 grad",
            partial(along, call=torch.relu, shape=shape, dtype="bf16", grad=True),
        )
        yield (
            f"dropout {elements} bf16 grad",
            partial(along, call=functional.dropout, shape=shape, dtype="bf16", grad=True),
        )
    for dim in (0, 1):
        for pieces, rows, columns in ((3, 1024, 1024), (2, 8192, 4096), (4, 16384, 128)):
            yield (
                f"joined {dim} {pieces} of {rows}×{columns} bf16",
                partial(joined, pieces=pieces, rows=rows, columns=columns, dim=dim, dtype="bf16"),
            )


def _blocks() -> Named:
    for kind in ("attention", "layer", "block"):
        for training in (False, True):
            for batch, length, heads, width in (
                (4, 512, 12, 768),
                (8, 1024, 16, 1024),
                (2, 2048, 16, 2048),
            ):
                text = f"{kind} {batch}×{length}×{heads}×{width}" + " training" * training
                yield (
                    text,
                    partial(
                        block,
                        kind=kind,
                        batch=batch,
                        length=length,
                        heads=heads,
                        width=width,
                        dtype="bf16",
                        training=training,
                    ),
                )


SWEEPS: dict[str, Make] = {
    name: make
    for some in (
        _attention,
        _rows,
        _reductions,
        _losses,
        _indexing,
        _rearranged,
        _products,
        _optimizers,
        _elementwise,
        _blocks,
    )
    for name, make in some()
}


# ── Other shapes: no powers of two ───────────────────────────────────────────────────────────


def _other_rows() -> Named:
    functions = {"softmax": torch.softmax, "log_softmax": torch.log_softmax}
    for columns in (192, 320, 896, 1280, 1792, 2560, 3584, 6144, 10240):
        for rows in (48, 700_000 // columns, 6_000_000 // columns, 50_000_000 // columns):
            for dtype in ("bf16", "fp32"):
                for grad in (False, True):
                    text = f"{rows}×{columns} {dtype}" + " grad" * grad
                    for kind in ("layer", "rms"):
                        yield (
                            f"{kind} norm {text}",
                            partial(
                                norm, kind=kind, rows=rows, columns=columns, dtype=dtype, grad=grad
                            ),
                        )
                    for name, function in functions.items():
                        call = partial(function, dim=-1)
                        yield (
                            f"{name} {text}",
                            partial(
                                along, call=call, shape=(rows, columns), dtype=dtype, grad=grad
                            ),
                        )


def _other_reductions() -> Named:
    for columns in (96, 192, 320, 896, 1280, 2560, 3584, 6144, 10240):
        for elements in (700_000, 6_000_000, 24_000_000, 80_000_000):
            shape = (elements // columns, columns)
            for name, call in REDUCTIONS.items():
                for dtype in ("bf16", "fp32") if elements < 50_000_000 else ("bf16",):
                    for dim in (0, 1):
                        yield (
                            f"{name} dim {dim} {shape[0]}×{columns} {dtype}",
                            partial(along, call=partial(call, dim=dim), shape=shape, dtype=dtype),
                        )


def _other_products() -> Named:
    for rows in (1, 3, 6, 12, 24, 48, 96):
        for width, wide in ((1536, 1536), (1536, 6144), (3072, 3072), (3072, 12288), (5120, 5120)):
            for kind in ("linear", "bias", "product"):
                make = partial(
                    few_rows, rows=rows, width=width, wide=wide, count=8, dtype="bf16", kind=kind
                )
                yield f"8 few {rows}×{width}×{wide} {kind} bf16", make
    for rows in (64, 96, 200, 384, 512, 1536, 3072, 6144):
        for width, wide in ((640, 2560), (640, 640), (1280, 5120), (1536, 4608)):
            for kind, down in (("", False), (" grad", True)):
                for shape in ((width, wide), (wide, width)):
                    make = partial(
                        linear, rows=rows, width=shape[0], wide=shape[1], dtype="bf16", bias=True,
                        grad=down,
                    )  # fmt: skip
                    yield f"linear {rows}×{shape[0]}×{shape[1]} bf16{kind}", make


def _other_attention() -> Named:
    for width in (64, 128):
        for batch, heads, length in (
            (1, 10, 384), (3, 10, 384), (6, 20, 384), (2, 14, 640), (5, 20, 640), (1, 10, 896),
            (3, 20, 896), (2, 10, 1280), (5, 28, 1280), (1, 14, 1792), (3, 20, 1792), (1, 10, 3072),
            (2, 28, 3072),
        ):  # fmt: skip
            for causal in (False, True):
                for grad in (False, True):
                    for dtype in ("bf16", "fp32") if length < 1500 else ("bf16",):
                        text = f"{batch}×{heads}×{length}×{width} {dtype}"
                        make = partial(
                            attention, batch=batch, heads=heads, length=length, width=width,
                            dtype=dtype, causal=causal, grad=grad,
                        )  # fmt: skip
                        yield f"attention {text}" + " causal" * causal + " grad" * grad, make


def _other_places() -> Named:
    for dtype in ("bf16", "fp32"):
        for rows, columns in ((700, 640), (6000, 1280), (20000, 640), (20000, 3072)):
            for kind, count in (
                ("gather", columns // 2), ("columns", columns // 2), ("rows", 3000),
                ("index", 3000), ("rows", 12000), ("index", 12000),
            ):  # fmt: skip
                make = partial(
                    indexed, kind=kind, rows=rows, columns=columns, count=count, dtype=dtype
                )
                yield f"{kind} {count} of {rows}×{columns} {dtype}", make
        for rows, columns in ((768, 768), (1536, 3072), (3072, 6144), (640, 5120), (6144, 640)):
            for added in (False, True):
                make = partial(
                    rearranged, shape=(rows, columns), order=(1, 0), dtype=dtype, added=added
                )
                yield "added " * added + f"transposed {rows}×{columns} {dtype}", make
            for kind in ("rows", "columns", "third"):
                make = partial(part_of, rows=rows, columns=columns, kind=kind, dtype=dtype)
                yield f"{kind} {rows}×{columns} {dtype}", make
        for batch, length, heads, width in (
            (4, 384, 12, 64),
            (4, 1536, 12, 128),
            (12, 768, 24, 64),
        ):
            shape = (batch, length, heads, width)
            make = partial(rearranged, shape=shape, order=(0, 2, 1, 3), dtype=dtype)
            yield f"heads first {shape} {dtype}", make
        for names in (["gelu"], ["silu"], ["tanh"], ["exp"], ["plus"], ["dropout"], ["where"],
                      ["fused"], ["to and fro"], ["bias"], ["relu"], ["scaled"]):  # fmt: skip
            for elements in (M // 4, 3 * M, 6 * M, 24 * M):
                make = partial(chain, elements=elements, names=names, dtype=dtype)
                yield f"{names[0]} {elements} {dtype}", make


def _other_optimizers() -> Named:
    for kind in OPTIMIZERS:
        for form in ("foreach", "fused"):
            for tensors, elements in ((12, M // 2), (12, 3 * M), (48, M // 2), (120, M // 8)):
                for dtype in ("fp32", "bf16"):
                    for mixed in (False, True):
                        make = partial(
                            optimizer, kind=kind, form=form, tensors=tensors, elements=elements,
                            dtype=dtype, mixed=mixed,
                        )  # fmt: skip
                        text = f"{form} {kind} {tensors} of {elements} {dtype}"
                        yield text + " mixed" * mixed, make


MORE: dict[str, Make] = {
    name: make
    for some in (
        _other_rows, _other_reductions, _other_products, _other_attention, _other_places,
        _other_optimizers,
    )
    for name, make in some()
    if name not in SWEEPS
}  # fmt: skip


if __name__ == "__main__":
    print(*SWEEPS, *MORE, len(SWEEPS) + len(MORE), sep="\n")
