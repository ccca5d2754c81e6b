"""One clock for all ranks, and a certificate of how good it is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Certificate:
    """What is known of a common clock."""
