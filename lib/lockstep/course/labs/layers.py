"""What whole layers give, forward and backward, in NumPy: what lab 09's answers must give."""

from __future__ import annotations

from typing import Any

import numpy as np


def mlp(x: Any, w1: Any, b1: Any, w2: Any, b2: Any, grad: Any) -> tuple[Any, ...]:
    """y = relu(x w1ᵀ + b1) w2ᵀ + b2, and the gradients of all five for y's gradient."""
    z = x @ w1.T + b1
    h, slope = np.maximum(z, 0), (grad @ w2) * (z > 0)
    return h @ w2.T + b2, slope @ w1, slope.T @ x, slope.sum(0), grad.T @ h, grad.sum(0)


def cross_entropy(logits: Any, target: list[int], grad: Any) -> tuple[Any, Any]:
    """Each token's loss, and the gradient of its logits for the loss's."""
    e = np.exp(logits - logits.max(1, keepdims=True))
    total = e.sum(1, keepdims=True)
    loss = np.log(total[:, 0]) + logits.max(1) - logits[np.arange(len(target)), target]
    return loss, (e / total - np.eye(logits.shape[1])[target]) * grad[:, None]


def block(x: Any, gain: Any, w1: Any, w2: Any, grad: Any, factor: float) -> tuple[Any, ...]:
    """y = factor · relu(norm(x) · gain · w1ᵀ) · w2ᵀ, and the gradients of x, gain, w1 and w2."""
    size = np.sqrt((x**2).mean(-1, keepdims=True))
    rows = x / size
    h = (rows * gain) @ w1.T
    slope = factor * (grad @ w2) * (h > 0)
    h = factor * np.maximum(h, 0)
    back = slope @ w1
    inner = back * gain
    return (
        h @ w2.T,
        inner / size - x * (inner * x).mean(-1, keepdims=True) / size**3,
        (back * rows).sum((0, 1)),
        np.einsum("bsf,bsd->fd", slope, rows * gain),
        np.einsum("bsd,bsf->df", grad, h),
    )


def partial(q: Any, k: Any, v: Any, sees: Any) -> tuple[Any, Any, Any]:
    """The triple (m, l, o) of these keys; sees: which ones, by query."""
    scores = np.where(sees, q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5, -np.inf)
    m = scores.max(-1)
    p = np.exp(scores - np.where(np.isinf(m), 0, m)[..., None])
    return m, p.sum(-1), p @ v


def attention(q: Any, k: Any, v: Any, sees: Any) -> Any:
    _, total, o = partial(q, k, v, sees)
    return o / total[..., None]
