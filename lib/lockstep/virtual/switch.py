"""Switching the virtual GPU on and off in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy
import torch
from torch.nn import functional
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from . import collectives, cuda, fused
from .model import H200, MACHINES, Machine
from .simulator import Device, environment_rank
from .tensor import DEVICE_TYPE, Dispatch, VirtualTensor, gpu

_LIBRARY = torch.library.Library("aten", "IMPL")
_INDEXED = (torch.Tensor.__getitem__, torch.Tensor.__setitem__)
_PLAIN_ATTENTION = functional.scaled_dot_product_attention
_ready = False


class _Backend(ModuleType):
    """The module torch.virtual: what PyTorch asks of a kind of device."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        if Dispatch.active is not None:
            cuda.manual_seed_all(seed)


class _Names(TorchFunctionMode):
    """Programs that say "cuda" mean the virtual GPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _PLAIN_ATTENTION:
            return _attention(*args, **kwargs)
        if func is functional.multi_head_attention_forward:  # no mode sees what that calls
            functional.scaled_dot_product_attention = _attention  # type: ignore[assignment]
            try:
                return _self_attention(args, kwargs) or func(*args, **kwargs)
            finally:
                functional.scaled_dot_product_attention = _PLAIN_ATTENTION
        if func is functional.rms_norm and isinstance(args[0], VirtualTensor):
            return _rms_norm(*args, **kwargs)
        if func is functional.dropout and isinstance(args[0], VirtualTensor):
            return _dropout(*args, **kwargs)
        if func in (torch.tensor, torch.as_tensor) and _is_here(kwargs.get("device")):
            return _from_data(func, args, kwargs)
        if func in _INDEXED and isinstance(args[0], VirtualTensor):
            args = (args[0], _index(args[1]), *args[2:])
        if func is torch.Tensor.cuda:
            later = kwargs.get("non_blocking", False)
            return args[0].to(gpu(), non_blocking=later)
        if func is torch.Tensor.to and len(args) > 1 and _is_cuda(args[1]):
            args = (args[0], gpu(), *args[2:])
        if _is_cuda(kwargs.get("device")):
            kwargs = {**kwargs, "device": gpu()}
        if str(kwargs.get("device")) == "meta" and Dispatch.active is not None:
            Dispatch.active.means_meta = True
            try:
                return func(*args, **kwargs)
            finally:
                Dispatch.active.means_meta = False
        return func(*args, **kwargs)


def _index(index: Any) -> Any:
    """PyTorch makes tensors of lists on the tensor's device, where their values would be lost."""
    nested = isinstance(index, list) and any(isinstance(one, list) for one in index)
    if isinstance(index, tuple) or nested:  # PyTorch takes both for one index a dimension
        return tuple(map(_tensor, index))
    return _tensor(index)


def _tensor(index: Any) -> Any:
    if isinstance(index, list):
        return torch.tensor(index, device="cpu", dtype=None if index else torch.long)
    return torch.from_numpy(index) if isinstance(index, numpy.ndarray) else index


def _is_here(device: Any) -> bool:
    return _is_cuda(device) or str(device).partition(":")[0] == DEVICE_TYPE


def _from_data(func: Any, args: Any, kwargs: Any) -> Any:
    """torch.tensor copies to the device where no mode sees it."""
    grad = kwargs.get("requires_grad", False)
    made = func(*args, **{**kwargs, "device": "cpu", "requires_grad": False}).to(gpu())
    return made.requires_grad_() if grad else made


def _attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, **more: Any,
) -> Any:  # fmt: skip
    """In one kernel, as on a GPU, where PyTorch's CPU has one."""
    here = isinstance(query, VirtualTensor) and query.dim() == 4
    masked = attn_mask is not None and (attn_mask.dtype is torch.bool or attn_mask.requires_grad)
    if not here or masked or more.get("enable_gqa") or query.dtype is torch.float64:
        return _PLAIN_ATTENTION(query, key, value, attn_mask, dropout_p, is_causal, **more)
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=more.get("scale")
    )[0]


def _self_attention(args: Any, more: Any) -> Any:
    """As PyTorch's fast path of nn.MultiheadAttention: without copies; None where it has none."""
    query, key, value, width, heads, weight, bias = args[:7]
    wanted = more.get("need_weights", True) or more.get("attn_mask") is not None
    masked = more.get("key_padding_mask") is not None or more.get("is_causal")
    given = query.transpose(0, 1)  # as it was given to the module
    if (
        not (query is key is value) or query.dim() != 3 or torch.is_grad_enabled() or wanted
        or masked or more.get("training", True) or bias is None or any(args[7:10])
        or not given.is_contiguous()
    ):  # fmt: skip
        return None
    batch, length, _ = given.shape
    parts = functional.linear(given, weight, bias).view(batch, length, 3, heads, width // heads)
    result = _attention(*parts.permute(2, 0, 3, 1, 4)).transpose(1, 2).reshape(given.shape)
    return functional.linear(result, *args[11:13]).transpose(0, 1), None


def _rms_norm(
    given: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None
) -> Any:
    return torch.ops.aten._fused_rms_norm(given, [*normalized_shape], weight, eps)[0]


def _dropout(given: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    if inplace or not training or not 0 < p < 1 or given.numel() == 0:
        return functional.dropout(given, p, training, inplace)
    return torch.native_dropout(given, p, True)[0]


def _is_cuda(device: Any) -> bool:
    if isinstance(device, str):
        return device == "cuda" or device.startswith("cuda:")
    return isinstance(device, torch.device) and device.type == "cuda"


def _prepare() -> None:
    """Tell PyTorch of a kind of device called "virtual"; once a process, and for good."""
    global _ready
    if _ready:
        return
    from torch.optim import optimizer
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    # Only so that there is such a name: to C++ the tensors are others (see VirtualTensor).
    _setup_privateuseone_for_python_backend(DEVICE_TYPE, _Backend(f"torch.{DEVICE_TYPE}"))
    # `impl` itself refuses, as PyTorch has only a GPU take this for one operation.
    library: Any = _LIBRARY.m
    library.impl("_fused_rms_norm", "Meta", fused.rms_norm_shapes)
    # Optimizers then take several tensors in one operation, as they do on a GPU.
    if VirtualTensor not in optimizer._foreach_supported_types:
        optimizer._foreach_supported_types.append(VirtualTensor)
    torch.autograd._engine_run_backward = explained(torch.autograd._engine_run_backward)
    if torch.distributed.is_available():
        collectives.allow_batches()
    _ready = True


def explained(run_backward: Callable[..., Any]) -> Callable[..., Any]:
    """PyTorch's own way of running a backward pass, which says why it fails on a real GPU.

    Once a kind of device is registered, and for good, PyTorch takes it for the process's only
    accelerator, and finds no streams for the nodes of CUDA's tensors (pytorch/pytorch #161129).
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return run_backward(*args, **kwargs)
        except RuntimeError as error:
            if "opt_ready_stream" not in str(error):
                raise
            raise RuntimeError(
                "this process has had a virtual GPU, and from then on PyTorch runs no backward "
                "pass on a real one here (pytorch/pytorch #161129): run it in a process of its "
                "own, for example by lockstep.torchrun, or restart the kernel"
            ) from error

    return run


class _On:
    """The parts that are switched on; `off` leaves nothing of them but the kind of device."""

    def __init__(self, machine: Machine, values: bool) -> None:
        _prepare()
        self._before = Dispatch.active
        self.dispatch = Dispatch(Device(machine, environment_rank(), values=values))
        if torch.distributed.is_available():
            self.dispatch.communicate = collectives.communicate
            self.dispatch.before_host_waits = collectives.before_host_waits
            collectives.play_at_exit(self.dispatch.device)
        self._names = _Names()
        self._names.__enter__()
        # What Python itself takes for these is more than for an operation. A backward pass has no
        # such modes, and modules are called in it where their outputs are computed again.
        self._entered: list[bool] = []  # for each module that is running
        self._hooks = (
            register_module_forward_pre_hook(lambda *_: self._enter_module(machine.module)),
            register_module_forward_hook(lambda *_: self._leave_module(), always_call=True),
            register_optimizer_step_pre_hook(
                lambda optimizer, *_: self._busy(
                    machine.optimizer
                    + machine.parameter * sum(len(one["params"]) for one in optimizer.param_groups)
                )
            ),
        )
        self.dispatch.__enter__()
        Dispatch.active = self.dispatch

    def off(self) -> None:
        try:
            self.dispatch.device.leave_backward()
            self.dispatch.device.play()
        finally:
            Dispatch.active = self._before
            self.dispatch.__exit__(None, None, None)
            self._names.__exit__(None, None, None)
            for hook in self._hooks:
                hook.remove()

    def _enter_module(self, nanoseconds: float) -> None:
        self._busy(nanoseconds)
        self._entered.append(self._names not in _get_current_function_mode_stack())
        if self._entered[-1]:
            self._names.__enter__()

    def _leave_module(self) -> None:
        if self._entered.pop():
            self._names.__exit__(None, None, None)

    def _busy(self, nanoseconds: float) -> None:
        if Dispatch.active is self.dispatch:
            self.dispatch.device.host += nanoseconds


def machine_of(name: str | Machine) -> Machine:
    if isinstance(name, Machine):
        return name
    if name not in MACHINES:
        raise ValueError(f"there is no virtual {name!r}; there are: {', '.join(MACHINES)}")
    return MACHINES[name]


def switch_on(machine: str | Machine = H200, *, values: bool = True) -> ModuleType:
    """The virtual GPU of this process from now on, as a module like torch.cuda."""
    if Dispatch.active is None:
        _On(machine_of(machine), values)
    return cuda


@contextlib.contextmanager
def device(machine: str | Machine = H200, *, values: bool = True) -> Iterator[ModuleType]:
    """A new virtual GPU while inside, as a module like torch.cuda; see the package's text.

    machine: a `Machine`, or the name of one: "H200", "H100", "A100", "B200". values=False: only
    times are made, so that tensors may be as large as the GPU's memory; what asks for a value
    raises NotModelled.

    Raises ValueError for a machine that is not known.
    """
    on = _On(machine_of(machine), values)
    try:
        yield cuda
    finally:
        on.off()
