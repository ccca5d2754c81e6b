"""Models to play with: all-reduces step by step, what communication costs, pipelines, overlap,
sharding, ring attention, a layer and its experts on several ranks, how often to save, which
sizes to capture."""

from .parts import parts
from .player import collective
from .sliders import (
    FORMULAS,
    LADDERS,
    MESSAGE,
    checkpoints,
    cost,
    experts,
    ladder,
    layer,
    overlap,
    pipeline,
    ring_attention,
    sharding,
)

__all__ = [
    "FORMULAS",
    "LADDERS",
    "MESSAGE",
    "checkpoints",
    "collective",
    "cost",
    "experts",
    "ladder",
    "layer",
    "overlap",
    "parts",
    "pipeline",
    "ring_attention",
    "sharding",
    "show_all",
]


def show_all() -> None:
    """Show all models, each as it stands if nothing is said of it."""
    from IPython.display import display

    every = (parts, collective, cost, pipeline, overlap, sharding, ring_attention, layer)
    for model in (*every, experts, checkpoints, ladder):
        display(model())
