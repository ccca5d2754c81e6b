"""Models to play with: all-reduces step by step, what communication costs, pipelines, overlap."""

from .dials import FORMULAS, MESSAGE, cost, overlap, pipeline
from .parts import parts
from .player import collective

__all__ = ["FORMULAS", "MESSAGE", "collective", "cost", "overlap", "parts", "pipeline"]
