"""Values as plain data: what a rank is given, what it ended up with, and how the two differ.

A tensor becomes its dtype, its shape and its numbers; a built-in value is built anew (a namedtuple
as a tuple); of anything else there is its type and a text. So no object of an answer is ever asked
whether it is right.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import zip_longest
from typing import Any

_MOST_SHOWN = 60  # characters of a value in a sentence
_DEEPEST = 6  # lists in lists


@dataclass(frozen=True)
class Tensor:
    """numbers: all elements, in order. strided: made as a transposed view with gaps, which is not
    contiguous."""

    dtype: str
    shape: tuple[int, ...]
    numbers: tuple[Any, ...]
    strided: bool = False

    @classmethod
    def of(
        cls,
        numbers: Any,
        dtype: str = "float32",
        shape: tuple[int, ...] | None = None,
        *,
        strided: bool = False,
    ) -> Tensor:
        flat = tuple(numbers)
        return cls(dtype, (len(flat),) if shape is None else shape, flat, strided)

    def __str__(self) -> str:
        return f"{_a(self.dtype)} tensor of shape {list(self.shape)}"


@dataclass(frozen=True)
class Number:
    """As what is right: this number, as a float, an int, a fraction, or a tensor of one element."""

    value: float

    def __str__(self) -> str:
        return f"{self.value:.8g}"


@dataclass(frozen=True)
class Other:
    """Something that is neither a tensor nor built in: the name of its type, and a text."""

    kind: str
    text: str = ""

    def __str__(self) -> str:
        return _a(self.kind)


# ── On a rank ────────────────────────────────────────────────────────────────────────────────


def make(value: Any) -> Any:
    """Make what a rank is given: tensors for `Tensor`, in lists, tuples and dicts, too."""
    if isinstance(value, Tensor):
        return _made(value)
    if isinstance(value, list | tuple):
        return type(value)(make(one) for one in value)
    if isinstance(value, dict):
        return {key: make(one) for key, one in value.items()}
    return value


def _made(value: Tensor) -> Any:
    import torch

    flat = torch.tensor(value.numbers, dtype=getattr(torch, value.dtype))
    if not value.strided:
        return flat.reshape(value.shape).clone()  # a tensor of its own: Dynamo guards views' bases
    last_first = flat.new_zeros(*reversed(value.shape), 2)[..., 0]  # every other element
    view = last_first.permute(*reversed(range(len(value.shape))))
    view.copy_(flat.reshape(value.shape))
    return view


def see(value: Any, depth: int = 0) -> Any:
    """A value as plain data."""
    import numpy
    import torch

    if isinstance(value, torch.Tensor):
        if value.device.type == "virtual":  # to look would let the host wait: plays do it
            return Other("tensor of the virtual GPU", str(list(value.shape)))
        plain = value.detach().resolve_conj().resolve_neg().cpu()
        dtype = str(plain.dtype).removeprefix("torch.")
        return Tensor(dtype, tuple(plain.shape), tuple(plain.flatten().tolist()))
    if isinstance(value, numpy.generic) or (isinstance(value, numpy.ndarray) and not value.ndim):
        value = value.item()
    kind = type(value)
    if value is None or kind in (bool, int, float, complex, Fraction, str, bytes):
        return value
    if isinstance(value, str):  # of a class of its own, as members of an Enum are
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if depth < _DEEPEST:
        if isinstance(value, list):
            return [see(one, depth + 1) for one in list.__iter__(value)]
        if isinstance(value, tuple):
            return tuple(see(one, depth + 1) for one in tuple.__iter__(value))
        if isinstance(value, dict):
            return {see(k, depth + 1): see(one, depth + 1) for k, one in dict.items(value)}
    return Other(kind.__name__)


def tensors_in(value: Any) -> Iterator[Any]:
    """The tensors that a value is or holds."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from tensors_in(one)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))


# ── In the notebook ──────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Difference:
    """kind: "type", "dtype", "shape" or "value". place: where in the whole it is, as text.
    at: of a number, its place among all numbers."""

    kind: str
    got: Any
    right: Any
    place: str = ""
    at: int = 0


def same(got: Any, right: Any) -> bool:
    """Whether a value is what it should be: type, dtype, shape and numbers."""
    return difference(got, right) is None


def difference(got: Any, right: Any, place: str = "") -> Difference | None:
    """The first difference, one of type, dtype or shape before one of values."""
    found = list(differences(got, right, place))
    return next((one for one in found if one.kind != "value"), found[0] if found else None)


def differences(got: Any, right: Any, place: str = "", start: int = 0) -> Iterator[Difference]:
    """All differences. start: how many numbers come before these in the whole."""
    if isinstance(got, Fraction) and isinstance(right, Number | float):
        got = float(got)
    if isinstance(right, Number):
        if isinstance(got, Tensor) and len(got.numbers) == 1:
            got = got.numbers[0]
        if type(got) not in (int, float):
            yield Difference("type", got, right, place)
        elif not _close(got, right.value):
            yield Difference("value", got, right.value, place)
    elif isinstance(right, Tensor):
        if not isinstance(got, Tensor):
            yield Difference("type", got, right, place)
        elif got.dtype != right.dtype:
            yield Difference("dtype", got, right, place)
        elif got.shape != right.shape:
            yield Difference("shape", got, right, place)
        else:
            for at, (one, other) in enumerate(zip(got.numbers, right.numbers, strict=True)):
                where = f"{place}[{_index(at, right.shape)}]" if right.shape else place
                if not _close(one, other, 1e-9 if right.dtype == "float64" else 1e-5):
                    yield Difference("value", one, other, where, start + at)
    elif isinstance(right, list | tuple):
        if not isinstance(got, list | tuple):
            yield Difference("type", got, right, place)
        elif len(got) != len(right):
            yield Difference("shape", got, right, place)
        else:
            for at, (one, other) in enumerate(zip(got, right, strict=True)):
                yield from differences(one, other, f"{place}[{at}]", start)
                start += len(numbers_in(other))
    elif type(got) is not type(right):
        yield Difference("type", got, right, place)
    elif isinstance(right, float):
        if not _close(got, right):
            yield Difference("value", got, right, place)
    elif got != right:
        yield Difference("value", got, right, place)


def _close(got: Any, right: Any, within: float = 1e-5) -> bool:
    """within: the part of a number by which two of them may differ. A float32 keeps 6e-8 of it."""
    if isinstance(got, float) or isinstance(right, float):
        return math.isclose(got, right, rel_tol=within) or (got != got and right != right)
    return bool(got == right)


def _index(at: int, shape: tuple[int, ...]) -> str:
    """The index of element number `at`: "1, 0"."""
    parts: list[int] = []
    for length in reversed(shape):
        at, within = divmod(at, length)
        parts.append(within)
    return ", ".join(map(str, reversed(parts)))


def numbers_in(value: Any) -> list[Any]:
    """All numbers (and texts) of a value, in order, whatever holds them."""
    if isinstance(value, Tensor):
        return list(value.numbers)
    if isinstance(value, Number):
        return [value.value]
    if isinstance(value, list | tuple):
        return [number for one in value for number in numbers_in(one)]
    if isinstance(value, dict):
        return [number for pair in value.items() for number in numbers_in(pair)]
    return [value]


def alike(got: Any, guess: Any) -> bool:
    """Whether a value has the numbers that are guessed, in whatever they are held."""
    have, want = numbers_in(got), numbers_in(guess)
    return len(have) == len(want) and all(
        _close(one, other) if _numeric(one) and _numeric(other) else one == other
        for one, other in zip(have, want, strict=True)
    )


def _numeric(value: Any) -> bool:
    return type(value) in (int, float, Fraction)


def narrowed(one: Difference) -> Difference:
    """Return the first difference within two dicts that have the same keys."""
    while isinstance(one.got, dict) and isinstance(one.right, dict):
        if one.got.keys() != one.right.keys():
            break
        key = next(key for key in one.right if not same(one.got[key], one.right[key]))
        within = difference(one.got[key], one.right[key], f"{one.place}[{key!r}]")
        assert within is not None
        one = within
    return one


def show_both(got: Any, right: Any) -> tuple[str, str]:
    """Two values in a sentence: where both are cut before they differ, from there on."""
    texts = show(got), show(right)
    if texts[0] != texts[1]:
        return texts
    whole = repr(got), repr(right)
    if whole[0] == whole[1]:
        return texts
    pairs = enumerate(zip_longest(*whole))
    first = max(0, next(at for at, (one, other) in pairs if one != other) - _MOST_SHOWN // 2)
    return "…" + _short(whole[0][first:]), "…" + _short(whole[1][first:])


def show(value: Any) -> str:
    """A value in a sentence."""
    if type(value) is float:
        return f"{value:.8g}"
    if isinstance(value, Tensor):
        inner = ", ".join(map(show, value.numbers))
        if len(inner) > _MOST_SHOWN:
            inner = inner[:_MOST_SHOWN].rpartition(",")[0] + ", …"
        return f"[{inner}]" if len(value.shape) == 1 else f"{value}: [{inner}]"
    if isinstance(value, list):
        return _short("[" + ", ".join(map(show, value)) + "]")
    if isinstance(value, tuple):
        return _short("(" + ", ".join(map(show, value)) + ")")
    if isinstance(value, Number | Other):
        return str(value)
    return _short(repr(value))


def kind(value: Any) -> str:
    """Say what sort of thing a value is: "a float", "None"."""
    if isinstance(value, Tensor | Other):
        return str(value)
    if isinstance(value, Number):
        return "a number"
    if value is None:
        return "None"
    name = type(value).__name__
    size = f" of {len(value)}" if isinstance(value, list | tuple | dict) else ""
    return f"{_a(name)}{size}"


def told(one: Difference) -> tuple[str, str]:
    """What came and what should have come, in a sentence, where they are no two numbers: of lists
    of another length both, else of which sort they are."""
    if one.kind == "shape" and not isinstance(one.right, Tensor):
        return show_both(one.got, one.right)
    return kind(one.got), kind(one.right)


def _a(name: str) -> str:
    return f"{'an' if name[0] in 'aeiouAEIOU' or name == 'ndarray' else 'a'} {name}"


def _short(text: str) -> str:
    return text if len(text) <= 2 * _MOST_SHOWN else text[: 2 * _MOST_SHOWN] + "…"
