"""The repr of a value, cut where it gets long, at a cost that does not grow with the value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_LIMIT = 4000  # characters
_BRACKETS: dict[type, tuple[str, str]] = {
    list: ("[", "]"),
    tuple: ("(", ")"),
    set: ("{", "}"),
    frozenset: ("frozenset({", "})"),
    dict: ("{", "}"),
}


def short_repr(value: Any) -> str:
    """`repr(value)`, of which 4,000 characters are kept."""
    text = ""
    try:
        for piece in _pieces(value, set()):
            text += piece
            if len(text) > _LIMIT:
                return f"{text[:_LIMIT]}… ({_extent(value, text)})"
    except Exception as error:  # a value may well have a broken __repr__
        return f"<{type(value).__name__}; its repr() raised {type(error).__name__}: {error}>"
    return text


def _pieces(value: Any, around: set[int]) -> Iterator[str]:
    """`repr(value)` in pieces. around: the containers in which the value lies."""
    kind = type(value)
    if kind in (str, bytes, bytearray):
        yield repr(value[: _LIMIT + 1])
    elif kind not in _BRACKETS or not value:
        yield repr(value)
    elif id(value) in around:  # a list that holds itself
        yield "...".join(_BRACKETS[kind])
    else:
        around.add(id(value))
        opening, closing = _BRACKETS[kind]
        yield opening
        for at, item in enumerate(value):
            if at:
                yield ", "
            yield from _pieces(item, around)
            if kind is dict:
                yield ": "
                yield from _pieces(value[item], around)
        yield ",)" if kind is tuple and len(value) == 1 else closing
        around.discard(id(value))


def _extent(value: Any, text: str) -> str:
    if type(value) in _BRACKETS:
        return f"{len(value)} elements"
    long = type(value) in (str, bytes, bytearray)
    return f"{len(value) if long else len(text)} characters"
