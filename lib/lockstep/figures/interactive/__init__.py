"""Models to play with: all-reduces step by step, what communication costs, pipelines, overlap,
sharding, ring attention, a layer on several ranks."""

from .parts import parts
from .player import collective
from .sliders import FORMULAS, MESSAGE, cost, layer, overlap, pipeline, ring_attention, sharding

__all__ = [
    "FORMULAS",
    "MESSAGE",
    "collective",
    "cost",
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

    for model in (parts, collective, cost, pipeline, overlap, sharding, ring_attention, layer):
        display(model())
