"""Processes that a cell starts by multiprocessing's "spawn" get the cell's own functions.

multiprocessing sends a function or a class as its name and the module to import it from. What a
cell or the notebook defines can be imported from nowhere, so it is sent by value.
"""

from __future__ import annotations

import types
from multiprocessing.reduction import ForkingPickler
from typing import Any

import cloudpickle


def send_by_value() -> None:
    """From now on in this process, for what is defined in its `__main__`."""
    ForkingPickler.reducer_override = _reduce  # type: ignore[method-assign]


def _reduce(_: Any, value: Any) -> Any:
    if isinstance(value, types.FunctionType | type) and value.__module__ == "__main__":
        return cloudpickle.loads, (cloudpickle.dumps(value),)
    return NotImplemented
