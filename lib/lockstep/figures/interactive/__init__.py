"""Models to play with: all-reduces step by step, what communication costs, pipelines, overlap,
ring attention."""

from .parts import parts
from .player import collective
from .sliders import FORMULAS, MESSAGE, cost, overlap, pipeline, ring_attention

__all__ = [
    "FORMULAS",
    "MESSAGE",
    "collective",
    "cost",
    "overlap",
    "parts",
    "pipeline",
    "ring_attention",
]
