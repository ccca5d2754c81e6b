"""Traces: what every rank did and when, from any source, in one table."""

from .slices import Collective, Kind, Lane, Slice, TraceError
from .steps import Step
from .trace import Trace

__all__ = ["Collective", "Kind", "Lane", "Slice", "Step", "Trace", "TraceError"]
