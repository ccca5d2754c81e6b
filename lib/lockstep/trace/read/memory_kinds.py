"""What an allocation is for: told from its call stack, its lifetime, and what PyTorch wrote.

Evidence only: what neither tells is unknown. `kinds_of` has the rules.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from ...base.style import GROUPS, MEMORY
from ..slices import TraceError

UNKNOWN, WEIGHTS, OPTIMIZER, GRADIENTS, ACTIVATIONS, TEMPORARY = (one.label for one in MEMORY)
KINDS = tuple(one.label for one in MEMORY)
# Words that PyTorch's profiler, and users by `_set_memory_metadata`, attach to an allocation.
_WORDS = {
    **{one: one for one in KINDS},
    "parameter": WEIGHTS,
    "optimizer_state": OPTIMIZER,
    "gradient": GRADIENTS,
    "activation": ACTIVATIONS,
    "autograd_detail": TEMPORARY,
}
Frames = Sequence[Mapping[str, Any]]


@dataclass(slots=True, eq=False)
class Allocated:
    """A piece of memory: its bytes, and after how many events it begins and ends.

    frames, freed: the frames of both events, the innermost first; None where they are not known.
    end: NONE while it is alive at the end.
    """

    size: int
    where: str
    category: str = ""
    metadata: str = ""
    frames: Frames | None = None
    freed: Frames | None = None
    begin: int = 0
    end: int = -1


class _Origin(Enum):
    WEIGHTS = auto()
    OPTIMIZER = auto()
    GRADIENTS = auto()
    FORWARD = auto()
    AGAIN = auto()  # forward again, within a backward pass: checkpointing
    BACKWARD = auto()
    OTHER = auto()
    NOT_KNOWN = auto()


_MOVES = {"convert", "_apply", "to", "to_empty", "cuda", "half", "float", "bfloat16", "double"}
_FSDP = "distributed/fsdp/_fully_shard/"


def kinds_of(allocated: Sequence[Allocated], named: Mapping[str, str]) -> list[str]:
    """The kind of each allocation; they come in the order of their begins.

    In this order: a name from `named` whose pattern matches a whole frame ("file.py:12 function")
    or the user's metadata; what PyTorch's profiler or the user's metadata says in one of its words;
    and by the innermost frame that tells something:

    - weights: made by a module's `__init__`, or moved by `Module.to` and its like; FSDP's shards
      and what it gathers.
    - optimizer: made in torch/optim, and not freed there before something else is allocated.
    - gradients: made by a backward pass, and not freed by it; the buckets of DDP and FSDP. A
      backward pass on a GPU has no Python frames.
    - activations: made by a module's forward pass or torch.nn.functional, and alive when a backward
      pass begins, or at the end; whatever the backward pass frees and has not made.
    - temporary: made by a forward or backward pass, or an optimizer, and freed by it.
    - unknown: all else, and what survives a `zero_grad` that frees others, and lives until the end:
      libraries' workspaces are made in both passes, too.

    Raises TraceError for patterns that are none, and for more than four kinds of one's own.
    """
    patterns = _patterns(named)
    if not any(one.frames for one in allocated):  # no stacks were recorded
        origins = [_Origin.NOT_KNOWN] * len(allocated)
    else:
        origins = [_origin(one.frames) for one in allocated]
    facts = _Facts(allocated, origins)
    return [
        _named(one, patterns)
        or _WORDS.get(one.metadata.strip().lower())
        or _WORDS.get(one.category.strip().lower())
        or facts.kind(one, origin)
        for one, origin in zip(allocated, origins, strict=True)
    ]


def _patterns(named: Mapping[str, str]) -> list[tuple[str, re.Pattern[str]]]:
    own = [name for name in named if name not in KINDS]
    if len(own) > len(GROUPS):
        raise TraceError(f"{len(GROUPS)} kinds of your own can be told apart, not {len(own)}")
    try:
        return [(name, re.compile(pattern)) for name, pattern in named.items()]
    except re.error as error:
        raise TraceError(f"kinds: {error.pattern!r} is no pattern: {error}") from None


def _named(one: Allocated, patterns: list[tuple[str, re.Pattern[str]]]) -> str:
    if not patterns:
        return ""
    lines = [one.where, one.metadata, *map(_line, one.frames or ())]
    return next((name for name, each in patterns if any(map(each.fullmatch, lines))), "")


def _line(frame: Mapping[str, Any]) -> str:
    file = str(frame["filename"]).replace("\\", "/").rpartition("/")[2]
    return f"{file}:{frame['line']} {frame['name']}"


def _origin(frames: Frames | None) -> _Origin:
    if frames is None:
        return _Origin.NOT_KNOWN
    in_torch = [(_in_torch(str(one["filename"])), str(one["name"])) for one in frames]
    if not in_torch:
        return _Origin.BACKWARD
    outermost = in_torch[-1][0]
    found = next(filter(None, (_of(at, *one) for at, one in enumerate(in_torch))), None)
    recomputes = outermost == "autograd/function.py" or any(
        file == "utils/checkpoint.py" and name == "unpack_hook" for file, name in in_torch
    )
    if recomputes:
        return _Origin.AGAIN if found is _Origin.FORWARD else _Origin.BACKWARD
    return found or _Origin.OTHER


def _in_torch(file: str) -> str:
    """The path within PyTorch; "" of another file."""
    file = file.replace("\\", "/")
    return (
        file[6:]
        if file.startswith("torch/")
        else file.rpartition("/torch/")[2] * ("/torch/" in file)
    )


def _of(at: int, file: str, name: str) -> _Origin | None:
    """Return what the frame tells that is `at` so many calls from the innermost."""
    if not file:
        return None
    if file.startswith("optim/"):
        return _Origin.OPTIMIZER
    if (file == "nn/modules/module.py" and name in _MOVES) or file == "nn/parameter.py":
        return _Origin.WEIGHTS
    if file.startswith("nn/modules/"):
        return _Origin.WEIGHTS if name in ("__init__", "reset_parameters") else _Origin.FORWARD
    if file == "nn/functional.py":
        return _Origin.FORWARD
    if file == "nn/parallel/distributed.py" and not at:
        # Its buckets: made at first, and again in the order in which gradients came.
        return _Origin.GRADIENTS if name in ("_ddp_init_helper", "_pre_forward") else None
    if file.startswith(_FSDP):
        if "reduce" in name:
            return _Origin.GRADIENTS
        return _Origin.WEIGHTS if "gather" in name or "_fsdp_param.py" in file else None
    is_call = file in ("autograd/graph.py", "autograd/__init__.py")
    return _Origin.BACKWARD if is_call or (file, name) == ("_tensor.py", "backward") else None


class _Facts:
    """Lifetimes against passes."""

    def __init__(self, allocated: Sequence[Allocated], origins: Sequence[_Origin]) -> None:
        begins = [one.begin for one in allocated]
        backward = (_Origin.BACKWARD, _Origin.AGAIN)
        pairs = list(zip(begins, origins, strict=True))
        # Where something else is allocated than by a backward pass, or by an optimizer.
        self._after_backward = [begin for begin, origin in pairs if origin not in backward]
        self._after_optimizer = [
            begin for begin, origin in pairs if origin is not _Origin.OPTIMIZER
        ]
        self._passes: list[int] = []  # where backward passes begin
        inside = False
        for begin, origin in pairs:
            if origin in backward and not inside:
                self._passes.append(begin)
            inside = origin in backward
        # Where freeing has frames they tell who frees; else only when it was can.
        self._tells = any(one.freed for one in allocated)
        cleared = (
            one.end
            for one in allocated
            if any(str(frame["name"]) == "zero_grad" for frame in one.freed or ())
        )
        self._cleared = max(cleared, default=0)

    def kind(self, one: Allocated, origin: _Origin) -> str:
        if origin is _Origin.WEIGHTS:
            return WEIGHTS
        if origin is _Origin.GRADIENTS:
            return GRADIENTS
        if origin is _Origin.OPTIMIZER:
            within = 0 <= one.end <= _next(self._after_optimizer, one)
            by_itself = not self._tells or _origin(one.freed) is _Origin.OPTIMIZER
            return TEMPORARY if within and by_itself else OPTIMIZER
        if origin is _Origin.BACKWARD:
            if self._by_backward(one) and one.end <= _next(self._after_backward, one):
                return TEMPORARY
            return UNKNOWN if one.end < 0 and one.begin < self._cleared else GRADIENTS
        if origin is not _Origin.NOT_KNOWN and self._by_backward(one):
            return ACTIVATIONS
        if origin in (_Origin.FORWARD, _Origin.AGAIN):
            if one.end < 0:
                return UNKNOWN if one.begin < self._cleared else ACTIVATIONS
            return ACTIVATIONS if _next(self._passes, one) < one.end else TEMPORARY
        return UNKNOWN

    def _by_backward(self, one: Allocated) -> bool:
        """Whether a backward pass frees it."""
        if one.end < 0:
            return False
        if self._tells:
            return _origin(one.freed) in (_Origin.BACKWARD, _Origin.AGAIN)
        at = bisect_left(self._passes, one.end) - 1
        if at < 0:
            return False
        over = bisect_left(self._after_backward, self._passes[at])
        return over == len(self._after_backward) or one.end <= self._after_backward[over]


def _next(places: Sequence[float], one: Allocated) -> float:
    """The first of these places after an allocation begins."""
    at = bisect_left(places, one.begin + 1)
    return places[at] if at < len(places) else float("inf")
