"""The shapes and types of operators' inputs, as the profiler wrote them (record_shapes=True)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from .slices import Column, Slices, TraceError

# PyTorch's name of a type → bytes of an element, and its names in C++.
_TYPES: dict[str, tuple[int, tuple[str, ...]]] = {
    "Bool": (1, ("bool",)),
    "Byte": (1, ("unsigned char",)),
    "Char": (1, ("signed char", "char")),
    "Short": (2, ("short", "short int")),
    "UInt16": (2, ("unsigned short",)),
    "Half": (2, ("c10::Half",)),
    "BFloat16": (2, ("c10::BFloat16",)),
    "Int": (4, ("int",)),
    "UInt32": (4, ("unsigned int",)),
    "Float": (4, ("float",)),
    "ComplexHalf": (4, ("c10::complex<c10::Half>",)),
    "Long": (8, ("long", "long int", "long long")),
    "UInt64": (8, ("unsigned long",)),
    "Double": (8, ("double",)),
    "ComplexFloat": (8, ("c10::complex<float>",)),
    "ComplexDouble": (16, ("c10::complex<double>",)),
}
_IN_C = {in_c: name for name, (_, names) in _TYPES.items() for in_c in names}
_FLOAT8 = re.compile(r"(c10::)?float8_", re.IGNORECASE)
_NUMBERS = re.compile(r"-?\d+")


@dataclass(frozen=True)
class Input:
    """One input of an operator: a tensor, several of them (`tensors`), or a plain value.

    shape: () for a plain value, too. type: PyTorch's name in C++, "" unknown. value: a plain value
    as text, "" where it is a tensor or not recorded.
    """

    shape: tuple[int, ...] = ()
    type: str = ""
    value: str = ""
    tensors: tuple[tuple[int, ...], ...] = ()

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def item(self) -> int:
        """Bytes of an element, 0 where the type is none of a tensor, or unknown."""
        return item_size(torch_dtype(self.type))

    @property
    def numbers(self) -> list[int]:
        """Return the numbers of a value such as "[2, 2]"."""
        return [int(one) for one in _NUMBERS.findall(self.value)]

    def __str__(self) -> str:
        if self.tensors:
            return f"({', '.join(map(_text, self.tensors))})"
        return _text(self.shape)


def torch_dtype(name: str) -> str:
    """PyTorch's name of a type for the name that C++ gives it; others stay as they are."""
    return _IN_C.get(name, name)


def item_size(dtype: str) -> int:
    """Bytes of an element of a type, by PyTorch's name; 0 where it is unknown."""
    return 1 if _FLOAT8.match(dtype) else _TYPES.get(dtype, (0,))[0]


def inputs_in(args: dict[str, Any]) -> tuple[Input, ...] | None:
    """The inputs of an operator by its args; None where the profiler did not record them."""
    shapes = args.get("Input Dims")
    if not isinstance(shapes, list):
        return None
    types = args.get("Input type")
    values = args.get("Concrete Inputs")
    return tuple(
        _input(shape, _at(types, place), _at(values, place)) for place, shape in enumerate(shapes)
    )


def shapes_of(trace: Slices, operators: Column) -> dict[int, str]:
    """Row → shapes of the tensors that went in, as "[8, 4] [4]"; reads the files again.

    Raises TraceError where no operator has shapes, and where the files are gone.
    """
    found = {}
    for row, args in trace.args_of(operators):
        if (inputs := inputs_in(args)) is not None:
            found[row] = " ".join(str(one) for one in inputs if one.shape or one.tensors)
    refuse_without_shapes(found, operators)
    return found


def refuse_without_shapes(found: Any, operators: Column) -> None:
    """Raises TraceError where there are operators, and of none a shape."""
    if len(operators) and not found:
        raise TraceError(
            "the operators of these traces have no shapes: record them with record_shapes=True"
        )


def _input(shape: Any, kind: Any, value: Any) -> Input:
    kind = kind if isinstance(kind, str) else ""
    value = value if isinstance(value, str) else ""
    if not isinstance(shape, list):
        return Input(type=kind, value=value)
    if shape and all(isinstance(one, list) for one in shape):
        return Input(type=kind, tensors=tuple(_lengths(one) for one in shape))
    return Input(_lengths(shape), kind, value)


def _lengths(shape: Sequence[Any]) -> tuple[int, ...]:
    return tuple(one for one in shape if isinstance(one, int) and one >= 0)


def _at(values: Any, place: int) -> Any:
    return values[place] if isinstance(values, list) and place < len(values) else ""


def _text(shape: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"
