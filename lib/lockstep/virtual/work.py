"""One call of an operation, to be computed later: on real memory, with PyTorch's CPU kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from . import fused

ACROSS = ("new_", "_like")  # what reads shapes only begins or ends so


class NotModelled(NotImplementedError):
    """Something that a GPU can do and the virtual one does not; the message names it."""


class NotOffered(NotModelled, AttributeError):
    """A name of torch.cuda that the virtual device does not have."""


_COMPUTED = {
    "_scaled_dot_product_flash_attention_for_cpu": fused.attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": fused.attention_backward,
    "_fused_rms_norm_backward": fused.rms_norm_backward,
}


# A processor without AVX512 takes PyTorch a minute for a product of 2048 × 2048 numbers of 16 bits.
_MULTIPLIES_16_BITS = "AVX512" in torch.backends.cpu.get_cpu_capability()
_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "convolution"}


def _in_float32(func: Any) -> Callable[..., torch.Tensor]:
    """The product of `func`: of 16-bit numbers in float32 and then rounded, as a GPU does it."""

    def compute(*args: Any, **kwargs: Any) -> torch.Tensor:
        tensors = [one for one in args if isinstance(one, torch.Tensor)]
        if tensors[0].dtype not in (torch.bfloat16, torch.float16):
            return func(*args, **kwargs)
        wide = [one.float() if isinstance(one, torch.Tensor) else one for one in args]
        return func(*wide, **kwargs).to(tensors[0].dtype)

    return compute


_LIKE = {  # the arguments that these lay their results out like
    "_scaled_dot_product_flash_attention_for_cpu": (0,),
    "_scaled_dot_product_flash_attention_for_cpu_backward": (1, 2, 3),
}


class Op:
    """An operation as its schema describes it."""

    def __init__(self, func: Any) -> None:
        schema = func._schema
        self.func = func
        self.name: str = func.overloadpacket.__name__
        self.compute = _COMPUTED.get(self.name, func)  # what makes its values
        is_product = self.name in _PRODUCTS and func._overloadname == "default"
        if is_product and not _MULTIPLIES_16_BITS:
            self.compute = _in_float32(func)
        self.like = _LIKE.get(self.name, ())
        self.namespace: str = func.namespace
        self.is_view = self.name == "_unsafe_view" or any(
            one.alias_info is not None and not one.alias_info.is_write for one in schema.returns
        )
        self.written = [
            place
            for place, one in enumerate(schema.arguments)
            if (one.alias_info is not None and one.alias_info.is_write)
            # The schema does not say that it updates these.
            or (self.name == "native_batch_norm" and one.name.startswith("running_"))
        ]
        self.names = [one.name for one in schema.arguments]
        # Whether what it writes to is not read.
        self.only_writes = self.name in ("copy_", "fill_", "zero_") or any(
            one.kwarg_only and one.alias_info is not None and one.alias_info.is_write
            for one in schema.arguments
        )
        self.returns_written = bool(schema.returns) and all(
            one.alias_info is not None and one.alias_info.is_write for one in schema.returns
        )
        self.returns_nothing = not schema.returns
        self.is_random = torch.Tag.nondeterministic_seeded in func.tags
        self.needs_values = bool(
            {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output} & set(func.tags)
        )
        self.only_allocates = self.name.startswith(("empty", "new_empty"))
        self.reads_shapes_only = self.name.startswith(ACROSS[0]) or self.name.endswith(ACROSS[1])

    def __str__(self) -> str:
        return f"{self.namespace}::{self.name}"


@dataclass(eq=False)
class Computation:
    """A call: `run` does all of it; `read` and then `land` do it in two, for races.

    args, kwargs: with memory in place of tensors of the device. made: memory of what it returns.
    written: places of the arguments that it writes to. before: the state of the random generator
    that it begins from.
    """

    call: Callable[..., Any]
    args: Sequence[Any]
    kwargs: dict[str, Any]
    made: Sequence[torch.Tensor] = ()
    written: Sequence[int | str] = ()
    before: torch.Tensor | None = None
    results: list[tuple[torch.Tensor, torch.Tensor]] | None = field(default=None)

    def again(self) -> Computation:
        """The same call, to be computed once more."""
        return Computation(self.call, self.args, self.kwargs, self.made, self.written, self.before)

    def run(self) -> None:
        if self.results is None:
            self.results = self._compute(self.args, self.kwargs)
        self.land()

    def read(self) -> None:
        """Compute from what is in memory now, and leave memory as it is."""
        if self.results is not None:
            return
        args, kwargs = list(self.args), dict(self.kwargs)
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        for where in self.written:
            holder: Any = args if isinstance(where, int) else kwargs
            holder[where] = _copied(holder[where], copies)
        self.results = [*copies, *self._compute(args, kwargs)]

    def land(self) -> None:
        for memory, value in self.results or ():
            memory.copy_(value)
        self.results = []

    def _compute(
        self, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        if self.before is None:
            returned = self.call(*args, **kwargs)
        else:
            with generator_at(self.before):
                returned = self.call(*args, **kwargs)
        return list(zip(self.made, flat(returned), strict=True)) if self.made else []


def _copied(value: Any, copies: list[tuple[torch.Tensor, torch.Tensor]]) -> Any:
    if isinstance(value, torch.Tensor):
        copies.append((value, value.clone()))
        return copies[-1][1]
    if isinstance(value, list | tuple):
        return [_copied(one, copies) for one in value]
    return value


def flat(value: Any) -> list[torch.Tensor]:
    """The tensors of what an operation returns."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [tensor for one in value for tensor in flat(one)]
    return []


class generator_at:
    """While inside, the CPU's generator is at this state; `after` is where it got to."""

    def __init__(self, state: torch.Tensor) -> None:
        self.state = self.after = state

    def __enter__(self) -> generator_at:
        self._own = torch.default_generator.get_state()
        torch.default_generator.set_state(self.state)
        return self

    def __exit__(self, *_: object) -> None:
        self.after = torch.default_generator.get_state()
        torch.default_generator.set_state(self._own)
