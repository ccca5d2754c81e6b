"""Collectives between the virtual GPUs of several ranks.

Values travel for real, through the ranks' own process group (gloo), when the device is played.
Streams are used as ProcessGroupNCCL uses them: what is `async_op` goes to a stream of the group,
which waits for the current one first, and for which `Work.wait` makes the current stream wait, not
the host; what is not goes to the current stream. One group's collectives run in launch order.

A collective begins on a rank when its stream comes to it. The ranks tell each other when that was:
it ends everywhere at the latest of these times, plus what it costs by `lockstep.cost`. Until the
others have come a rank can play what happens in that least time, and not more. Not modelled: ranks
that come to the collectives of two groups in opposite orders, further apart than that. They would
wait in a circle here, which the launcher reports, where GPUs do not.

Before the host itself waits for other ranks (a barrier, a collective of tensors on the CPU) all
that was launched is played; so it is when the process ends. A group that is destroyed earlier
takes its pending collectives with it: synchronise first, as NCCL wants it, too.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from ..models.cost import bus_factor
from ..trace import Collective, Kind
from .happens_before import Clock
from .kernels import Kernel, Use
from .model import NCCL_SMS
from .race_detector import COLLECTIVE
from .schedule import Await, Marker, Record
from .simulator import Device
from .tensor import Dispatch, VirtualTensor, _mapped
from .work import Computation, NotModelled, Op, flat

_TAG = 1 << 20  # of the messages that say when a send or a receive began


@dataclass(frozen=True)
class Form:
    """operation: what it is; out, given: which arguments it writes to, and reads."""

    operation: str
    out: int | None
    given: int | None


FORMS = {
    "allreduce_": Form("all_reduce", 0, 0),
    "broadcast_": Form("broadcast", 0, 0),
    "reduce_": Form("reduce", 0, 0),
    "allgather_": Form("all_gather", 0, 1),
    "_allgather_base_": Form("all_gather", 0, 1),
    "reduce_scatter_": Form("reduce_scatter", 0, 1),
    "_reduce_scatter_base_": Form("reduce_scatter", 0, 1),
    "alltoall_base_": Form("all_to_all", 0, 1),
    "alltoall_": Form("all_to_all", 0, 1),
    "gather_": Form("gather", 0, 1),
    "scatter_": Form("scatter", 0, 1),
    "send": Form("send", None, 0),
    "recv_": Form("recv", 0, None),
}


class Communication(Computation):
    """The values of a collective: given to the process group when it begins, there at its end."""

    _sent: Any = None

    def again(self) -> Communication:
        return Communication(self.call, self.args, self.kwargs, self.made, self.written)

    def run(self) -> None:
        self.land()

    def read(self) -> None:
        staged: list[tuple[torch.Tensor, torch.Tensor]] = []

        def stage(tensor: torch.Tensor) -> torch.Tensor:
            staged.append((tensor, tensor.clone()))
            return staged[-1][1]

        returned = self.call(*_mapped(self.args, stage), **self.kwargs)
        work = returned[-1] if isinstance(returned, tuple | list) else returned
        self._sent = dist.Work.unbox(work), staged

    def land(self) -> None:
        work, staged = self._sent
        work.wait()
        written = {id(one) for one in self.made}
        for memory, value in staged:
            if id(memory) in written:
                memory.copy_(value)


class Meet:
    """The moment at which all ranks of a collective have come: see `schedule.Meeting`."""

    def __init__(self, group: Any, peer: int | None, tag: int, cost: float) -> None:
        self.earliest = cost
        self._group, self._peer, self._tag = group, peer, tag

    def arrive(self, time: float) -> None:
        mine = torch.tensor([time], dtype=torch.float64)
        if self._peer is None:
            count = dist.get_world_size(self._group)
            self._times = [torch.zeros(1, dtype=torch.float64) for _ in range(count)]
            self._works = [self._group.allgather([self._times], [mine])]
        else:
            theirs = torch.zeros(1, dtype=torch.float64)
            self._times = [mine, theirs]
            self._works = [
                self._group.send([mine], self._peer, self._tag),
                self._group.recv([theirs], self._peer, self._tag),
            ]

    def end(self) -> float:
        for work in self._works:
            work.wait()
        return max(one.item() for one in self._times) + self.earliest


class VirtualWork(dist.Work):
    """The handle that `async_op=True` gives: `wait` makes the current stream wait, and not the
    host."""

    def __init__(self, device: Device, point: tuple[Marker, Clock], kept: list[Any]) -> None:
        super().__init__()
        self._device, self._point, self._kept = device, point, kept

    def wait(self, timeout: Any = None) -> bool:
        device = self._device
        device.spend("cudaStreamWaitEvent", device.machine.event, Kind.LAUNCH)
        device.wait(device.current, *self._point)
        self._kept = []
        return True

    synchronize = wait  # type: ignore[assignment]

    def is_completed(self) -> bool:
        return self._device.is_done(*self._point)

    def is_success(self) -> bool:
        return self.is_completed()

    def get_future(self) -> Any:
        raise NotModelled("the virtual GPU does not model Work.get_future(), which DDP needs")


@dataclass
class GroupStream:
    """The stream of a group, and where the last of its collectives ends.

    work: what the last call returns; C++ forgets that it is a VirtualWork if Python lets go of it.
    """

    stream: int
    last: Marker | None = None
    work: VirtualWork | None = None


_GROUP_STREAMS: dict[tuple[int, str], GroupStream] = {}


def communicate(
    dispatch: Dispatch, op: Op, args: Sequence[Any], kwargs: dict[str, Any], inner: Sequence[Any]
) -> Any:
    """Launch a collective of tensors of the device; inner: `args`, with memory in their place."""
    device = dispatch.device
    form = FORMS.get(op.name)
    if form is None:
        raise NotModelled(f"the virtual GPU does not model {op}")
    group = dist.ProcessGroup.unbox(next(one for one in args if _is_group(one)))
    known = dict(zip(op.names, args, strict=False)) | kwargs
    waits = not known.get("async_op", True)
    out = [] if form.out is None else _tensors(args[form.out])
    given = [] if form.given is None else _tensors(args[form.given])
    kernel = _kernel(device, op, form, group, known, out, given, inner)

    key = (id(device), group.group_name)
    if key not in _GROUP_STREAMS:
        _GROUP_STREAMS[key] = GroupStream(device.new_stream(0, "the communication stream"))
    line, current = _GROUP_STREAMS[key], device.stream_of_call()
    stream = current if waits else line.stream
    device.wait_stream(stream, current)
    captures = device.capture is not None and stream in device.capture.streams
    if line.last is not None and not captures:
        device.schedule.add(stream, Await(line.last, device.host))
    device.launch(kernel, stream, str(op))
    point = device.record(stream)
    if not captures:
        line.last = Marker()
        device.schedule.add(stream, Record(line.last, device.host))
    line.work = VirtualWork(device, point, [*args])
    work = dist.Work.boxed(line.work)
    return work if len(op.func._schema.returns) == 1 else (args[0], work)


def _kernel(
    device: Device, op: Op, form: Form, group: Any, known: dict[str, Any],
    out: list[VirtualTensor], given: list[VirtualTensor], inner: Sequence[Any],
) -> Kernel:  # fmt: skip
    machine = device.machine
    n = dist.get_world_size(group)
    sizes = [sum(one.nbytes for one in some) for some in (given, out)]
    operation = form.operation
    moved = (bus_factor(operation, n) if n > 1 else 0.0) * max(sizes)
    work = machine.collective + 1e9 * moved / machine.link
    peer = known.get("dst", known.get("src"))
    root = known.get("root_rank", peer)
    ranks = tuple(dist.get_process_group_ranks(group))
    tag = _TAG + int(known.get("tag", 0) or 0)
    uses = [Use(one._memory, one._inner, False) for one in given]
    uses += [Use(one._memory, one._inner, True) for one in out]
    values = Communication(op.func, inner, {}, [one._inner for one in out])
    about = Collective(
        operation, str(group.group_name), ranks, bytes_in=sizes[0], bytes_out=sizes[1],
        peer=ranks[root] if root is not None else -1, evidence="metadata",
    )  # fmt: skip
    return Kernel(
        f"{COLLECTIVE}{operation}", work, min(NCCL_SMS / machine.sms, 1.0),
        min(machine.traffic(2 * moved) / work, 1.0), Kind.COMMUNICATION, uses,
        values if device.values else None, line=device.line(), collective=about,
        meet=_meeting(group, peer, tag, work),
    )  # fmt: skip


def _meeting(group: Any, peer: int | None, tag: int, cost: float) -> Callable[[], Meet]:
    return lambda: Meet(group, peer, tag, cost)


def before_host_waits(device: Device, op: Op, args: Sequence[Any]) -> None:
    """The host is about to wait for other ranks: play all, so that they can go on."""
    if op.name.endswith("barrier") or op.name == "monitored_barrier_":
        device.synchronise([*device.streams], "cudaDeviceSynchronize", str(op))
        group = dist.ProcessGroup.unbox(next(one for one in args if _is_group(one)))
        with device.aside():
            meet = Meet(group, None, 0, device.machine.collective)
            meet.arrive(device.host)
            device.host = meet.end()
    else:
        device.play()


def play_at_exit(device: Device) -> None:
    """Finish what was launched when the process ends: other ranks may wait for it."""
    atexit.register(_play, device)


def _play(device: Device) -> None:
    if dist.is_available() and dist.is_initialized() and not device.schedule.idle:
        device.play()


def _is_group(value: Any) -> bool:
    return isinstance(value, torch.ScriptObject) and "ProcessGroup" in str(value._type())


def _tensors(value: Any) -> list[VirtualTensor]:
    found = flat(value)
    if any(not isinstance(one, VirtualTensor) for one in found):
        raise RuntimeError("a collective needs all tensors on the same device")
    return found  # type: ignore[return-value]
