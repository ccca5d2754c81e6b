"""The capstone of lab 14: a program that is slow on purpose, run, judged and compared.

`programs` has the slow one, the mended one and their eight differences, `reference` the losses that
both must give, `card` what a run is told by, and whether a change counts, `overlap` what could be
hidden, `mllog` a run's log lines.
"""

from .card import Card, Change, change, run
from .programs import FAULTS, MENDED, SLOW, copy, with_faults

__all__ = ["FAULTS", "MENDED", "SLOW", "Card", "Change", "change", "copy", "run", "with_faults"]
