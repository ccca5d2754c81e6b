"""The places of the course's files: `labs/`, `solutions/` and `data/`."""

from pathlib import Path

_PACKED = Path(__file__).parents[1] / "packed"  # in a wheel; setup.py puts it there

MATERIAL = _PACKED if _PACKED.is_dir() else Path(__file__).parents[3]  # else: a checkout
LABS, SOLUTIONS, DATA = (MATERIAL / name for name in ("labs", "solutions", "data"))
