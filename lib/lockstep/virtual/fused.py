"""What a GPU does in one kernel and PyTorch's CPU refuses: attention with dropout, the gradients of
an RMS norm."""

from __future__ import annotations

import math
from typing import Any

import torch


def attention(
    query: Any, key: Any, value: Any, dropout_p: float = 0.0, is_causal: bool = False,
    attn_mask: Any = None, scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Return the result and, in place of the logsumexp, what dropout is drawn from."""
    call = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    if not dropout_p:
        more = {"attn_mask": attn_mask, "scale": scale}
        return call(query, key, value, 0.0, is_causal, **more)
    seed = int(torch.randint(1 << 24, ()))
    result = _by_hand(query, key, value, dropout_p, is_causal, attn_mask, scale, seed)
    return result, torch.full(query.shape[:3], float(seed))


def attention_backward(
    grad: Any, query: Any, key: Any, value: Any, out: Any, logsumexp: Any, dropout_p: float,
    is_causal: bool, attn_mask: Any = None, scale: float | None = None,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    if not dropout_p:
        call = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        more = {"attn_mask": attn_mask, "scale": scale}
        return call(grad, query, key, value, out, logsumexp, 0.0, is_causal, **more)
    seed = int(logsumexp.flatten()[0])
    with torch.inference_mode(False), torch.enable_grad():
        given = [one.clone().requires_grad_() for one in (query, key, value)]
        result = _by_hand(
            given[0], given[1], given[2], dropout_p, is_causal, attn_mask, scale, seed
        )
        return torch.autograd.grad(result, given, grad.clone())


def _by_hand(
    query: Any, key: Any, value: Any, dropout_p: float, is_causal: bool, attn_mask: Any,
    scale: float | None, seed: int,
) -> torch.Tensor:  # fmt: skip
    scores = (query @ key.transpose(-1, -2)).float() * (scale or 1 / math.sqrt(query.shape[-1]))
    if is_causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -math.inf)
    if attn_mask is not None:
        scores = scores + attn_mask
    drawn = torch.rand(scores.shape, generator=torch.Generator().manual_seed(seed))
    kept = (drawn >= dropout_p) / (1 - dropout_p)
    return (scores.softmax(-1) * kept).to(value.dtype) @ value


def rms_norm_backward(
    grad: Any, given: Any, shape: Any, rstd: Any, weight: Any, mask: Any
) -> tuple[torch.Tensor, ...]:
    scaled = grad if weight is None else grad * weight
    rows = tuple(range(given.dim() - len(shape)))
    across = tuple(range(given.dim() - len(shape), given.dim()))
    normed = given * rstd
    to_given = (scaled - normed * (scaled * normed).mean(across, keepdim=True)) * rstd
    if weight is None:
        return (to_given.to(given.dtype),)
    return to_given.to(given.dtype), (grad * normed).sum(rows).to(given.dtype)


def rms_norm_shapes(given: Any, shape: Any, weight: Any, eps: float | None) -> Any:
    """Shapes of what the kernel returns, which PyTorch knows of GPUs only."""
    rows = given.dim() - len(shape)
    rstd = given.new_empty([*given.shape[:rows], *(1 for _ in shape)], dtype=torch.float32)
    return torch.empty_like(given), rstd
