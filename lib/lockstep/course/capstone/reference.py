"""The losses that the capstone's program must give: the same model on one process, written plainly.

All tokens of all ranks are one batch, and each expert works on the tokens that the router gives it.
"""

from __future__ import annotations

from typing import Any


def losses(steps: int, ranks: int, large: bool) -> list[float]:
    """The mean loss of each step, computed in float64 from the same float32 weights and samples.

    Called where torch may be imported: on a rank.
    """
    import torch
    import torch.nn.functional as nn

    S, P, C, E, layers = 64, 64, 16, 12, 2
    T, D, F = (4096, 512, 1024) if large else (1024, 128, 256)

    torch.manual_seed(0)
    shapes: dict[str, tuple[int, ...]] = {"in": (P, D), "out": (D, C)}
    for layer in range(layers):
        shapes |= {f"{layer}.qkv": (D, 3 * D), f"{layer}.router": (D, E)}
        shapes |= {f"{layer}.shared1": (D, F), f"{layer}.shared2": (F, D)}
        shapes |= {f"{layer}.expert1": (E, D, F), f"{layer}.expert2": (E, F, D)}
    weights = {
        name: (torch.randn(shape) / shape[-2] ** 0.5).double().requires_grad_()
        for name, shape in shapes.items()
    }
    velocity = {name: torch.zeros_like(weight) for name, weight in weights.items()}

    def forward(x: Any) -> Any:
        x = x @ weights["in"]
        for layer in range(layers):
            w = {name[2:]: one for name, one in weights.items() if name.startswith(f"{layer}.")}
            q, k, v = (nn.layer_norm(x, (D,)) @ w["qkv"]).view(-1, 1, S, 3 * D).chunk(3, -1)
            x = x + nn.scaled_dot_product_attention(q, k, v, is_causal=True).view(-1, D)
            h = nn.layer_norm(x, (D,))
            gate, expert = (h @ w["router"] - torch.arange(E) / 6).softmax(1).max(1)
            y = torch.relu(h @ w["shared1"]) @ w["shared2"]
            for e in range(E):
                mine = (expert == e).nonzero()[:, 0]
                out = torch.relu(h[mine] @ w["expert1"][e]) @ w["expert2"][e]
                y = y.index_add(0, mine, gate[mine, None] * out)
            x = x + y
        return nn.layer_norm(x, (D,)) @ weights["out"]

    found = []
    for step in range(steps):
        draws = [torch.Generator().manual_seed(1000 * step + rank) for rank in range(ranks)]
        x = torch.cat([torch.randn(T, P, generator=draw) for draw in draws])
        loss = nn.cross_entropy(forward(x.double()), x.abs().argmax(1).remainder(C))
        loss.backward()
        found.append(float(loss))
        with torch.no_grad():
            for name, weight in weights.items():
                velocity[name] = 0.9 * velocity[name] + weight.grad
                weight -= 0.05 * velocity[name]
                weight.grad = None
    return found
