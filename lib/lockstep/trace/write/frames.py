"""A trace as a data frame of pandas, for questions that nobody has foreseen."""

from __future__ import annotations

from typing import Any

from ..slices import Kind, Slices


def to_pandas(trace: Slices) -> Any:
    """A pandas DataFrame, names and kinds as categories. Raises ImportError without pandas."""
    import pandas as pd

    assert len(set(trace.names)) == len(trace.names), "names of a trace are distinct"
    columns: dict[str, Any] = trace.columns()
    columns["name"] = pd.Categorical.from_codes(columns["name"], list(trace.names))
    labels = [kind.label for kind in Kind]
    columns["kind"] = pd.Categorical.from_codes(columns["kind"], labels)
    return pd.DataFrame(columns)
