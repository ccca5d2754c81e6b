"""The kinds of slices and of communications, by the evidence that a Kineto file gives.

Kinds come from the event's category. Only a kernel can be communication on a GPU, and it is one if

1. its own metadata names a collective (PyTorch ≥ 2.3),
2. or an operator which records a collective (`record_param_comms`, an operation of symmetric
   memory) launched it, by the place of the launch or else by the External id: see `recorders`,
3. or its *function's* name, without template arguments and parameters, is one that a communication
   library gives to its kernels. An operator or Python function of such a name is none.

On the CPU it is the annotation "gloo:…" that ProcessGroupGloo sets around the work.
"""

from __future__ import annotations

import re
from math import prod
from typing import Any

from ...shapes import Input, inputs_in, item_size, torch_dtype
from ...slices import NONE, Kind

_CATEGORIES = {
    "cpu_op": Kind.OPERATOR,
    "python_function": Kind.PYTHON,
    "user_annotation": Kind.ANNOTATION,
    "nvtx": Kind.ANNOTATION,
    "cuda_runtime": Kind.LAUNCH,
    "cuda_driver": Kind.LAUNCH,
    "hip_runtime": Kind.LAUNCH,
    "hip_driver": Kind.LAUNCH,
    "xpu_runtime": Kind.LAUNCH,
    "xpu_driver": Kind.LAUNCH,
    "mtia_runtime": Kind.LAUNCH,
    "privateuse1_runtime": Kind.LAUNCH,
    "privateuse1_driver": Kind.LAUNCH,
    "kernel": Kind.COMPUTE,
    "gpu_memcpy": Kind.COPY,
    "gpu_memset": Kind.SET,
    "gpu_user_annotation": Kind.GPU_ANNOTATION,
    "cuda_sync": Kind.WAIT,
    "xpu_sync": Kind.WAIT,
    # Known, and no work: the profiler's own time, and moments.
    "overhead": Kind.OTHER,
    "trace": Kind.OTHER,
    "cpu_instant_event": Kind.OTHER,
    "cuda_event": Kind.OTHER,
    "external_correlation": Kind.OTHER,
}
# The profiler's own, and what servers call one pass of a batch: vLLM "execute_context_1(888)_
# generation_2(2)", SGLang "step[DECODE bs=32]", ATOM "prefill[bs=2 tok=16384]".
_STEP = re.compile(
    r"ProfilerStep\s*#\s*\d+"
    r"|execute_(\d+_)?context_\d+(\(.*\))?_generation_\d+(\(.*\))?"
    r"|step\[[A-Z_]+\b.*\]|(prefill|decode|mixed)\[bs=.*\]"
)
_ON_CPU = re.compile(r"gloo:\w")

_LIBRARIES = re.compile(
    r"\bnccl(Sym|Symk)?(Dev)?(Kernel|Func)"  # NCCL; RCCL on AMD gives the same names
    r"|\bmsccl(pp)?(Kernel|::|_)"
    r"|\bnvshmem"
    r"|\b(deep_ep|ep)::(intranode|internode|internode_ll)::|\bdeep_ep::\w*(dispatch|combine)"
    r"|\bmultimem_(all|one_shot|reduce)|\b(one|two)_shot_all_reduce|\bsymm_mem\b"
    r"|\bsymmetric_memory::\w*(barrier|put|get|signal|all_|reduce_scatter)"
    r"|\bcross_device_reduce|\bquickreduce::"
    r"|\btrtllm_\w*(allreduce|alltoall)|\ballreduce_fusion_kernel|\boneShotAllreduce"
    r"|\btwoShotAllreduce|\ball_?reduce_(one|two)_?shot",
    re.IGNORECASE,
)
# In this order: "reduce" is also part of "all_reduce".
_OPERATIONS = (
    (re.compile(r"(multimem|oneshot|twoshot|monitored)*allreduce|crossdevicereduce"), "all_reduce"),
    (re.compile(r"(multimem)?allgather"), "all_gather"),
    (re.compile(r"(multimem)?reducescatter"), "reduce_scatter"),
    (re.compile(r"alltoall"), "all_to_all"),
    (re.compile(r"broadcast"), "broadcast"),
    (re.compile(r"(monitored)?barrier"), "barrier"),
    (re.compile(r"reduce(oop|coalesced)?(?![a-z])"), "reduce"),
    (re.compile(r"gather(?![a-z])"), "gather"),
    (re.compile(r"scatter(?![a-z])"), "scatter"),
    (re.compile(r"send(?![a-z])"), "send"),
    (re.compile(r"recv(anysource)?(?![a-z])"), "recv"),
)
_IN_KERNELS = re.compile(
    r"(AllReduce|AllGather|ReduceScatter|AllToAll|Broadcast|CrossDeviceReduce|Reduce)",
    re.IGNORECASE,
)


def kind(category: str, name: str) -> Kind:
    """Return the kind of an event that is no communication kernel; OTHER for unknown categories."""
    found = _CATEGORIES.get(category.lower(), Kind.OTHER)
    if found is Kind.ANNOTATION and _STEP.fullmatch(name):
        return Kind.STEP
    if found is Kind.ANNOTATION and _ON_CPU.match(name):
        return Kind.COMMUNICATION
    return found


def is_known(category: str) -> bool:
    """Whether this reader knows what slices of a category are."""
    return category.lower() in _CATEGORIES


def is_communication(kernel: str) -> bool:
    """Whether a communication library calls its kernels like this one."""
    return bool(_LIBRARIES.search(_function(kernel)))


def records_collective(operator: str) -> bool:
    """Whether what an operator of this name launches *itself* is communication."""
    if operator == "record_param_comms":
        return True
    return operator.startswith(("symm_mem::", "nccl:")) and operation(operator) != ""


def operation(name: str) -> str:
    """One name for what PyTorch calls "_allgather_base", "allreduce_", "nccl:send 0->1", …

    "" for what is none.
    """
    bare = re.sub(r"^(nccl|gloo|mpi|ucc|xccl):|^(c10d|symm_mem|_c10d_functional)::", "", name)
    squeezed = bare.lower().replace("_", "")
    for pattern, normal in _OPERATIONS:
        if pattern.match(squeezed):
            return normal
    return ""


def operation_of_kernel(kernel: str) -> str:
    """Return a communication kernel's operation by its name; "" where the name does not say.

    NCCL's SendRecv is either side of a send, or an all-to-all; an expert-parallel dispatch waits
    for tokens, not for ranks: neither is guessed.
    """
    found = _IN_KERNELS.search(_function(kernel).replace("_", ""))
    return operation(found[1]) if found else ""


def bytes_of(elements: int, dtype: str) -> int:
    """Bytes of a message, NONE where elements or type are unknown."""
    size = item_size(dtype)
    return elements * size if elements >= 0 and size else NONE


def bytes_of_inputs(args: dict[str, Any]) -> tuple[int, str]:
    """Bytes and type of an operator's first tensor (or list of tensors), from its recorded shapes.

    (NONE, "") where the profiler did not record shapes.
    """
    first, *_ = inputs_in(args) or (Input(),)
    dtype = torch_dtype(first.type)
    elements = sum(map(prod, first.tensors)) if first.tensors else first.elements
    return bytes_of(elements, dtype), dtype if item_size(dtype) else ""


def _function(kernel: str) -> str:
    plain = kernel.replace("(anonymous namespace)", "anonymous")
    return re.split(r"[<(]", plain, maxsplit=1)[0]
