"""Models to play with: all-reduces step by step, what communication costs, pipelines, overlap,
ring attention, a layer on several ranks."""

from .parts import parts
from .player import collective
from .sliders import FORMULAS, MESSAGE, cost, layer, overlap, pipeline, ring_attention

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
]
