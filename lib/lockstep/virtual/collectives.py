"""Collectives between the virtual GPUs of several ranks.

Values travel for real, through the ranks' own process group (gloo), when the device is played.
Streams are used as ProcessGroupNCCL uses them: what is `async_op` goes to a stream of the group,
which waits for the current one first, and for which `Work.wait` makes the current stream wait, not
the host; what is not goes to the current stream. One group's collectives run in launch order.

A collective begins on a rank when its stream comes to it. The ranks tell each other when that was:
it ends everywhere at the latest of these times, plus what it took on H200s, and later where what
else runs on a rank slows it. Until the others have
come a rank can play what happens in that least time, and not more. Not modelled: ranks that come to
the collectives of two groups in opposite orders, further apart than that. They would wait in a
circle here, which the launcher reports, where GPUs do not.

A send and its receive end together on both ranks. What `batch_isend_irecv` is given is one kernel,
as with NCCL: its messages travel at the same time, and it ends with the last of them. A message
ends at the later of the times at which its two ranks came to it, plus the least that a collective
takes, plus the time of the bytes that the busier side has to move in that kernel: all that its
sender sends, or all that its receiver receives (links carry as much in each direction). Sends and
receives outside of a batch run in launch order on the group's stream, as NCCL's do in a group that
was made with `device_id`. Not modelled: that NCCL matches messages by their order, whatever their
tags are; that it can finish a small send before its receive has begun; other messages on the same
links; a batch that receives into what it sends (here what it sends is what was there before).

Before the host itself waits for other ranks (a barrier, a collective of tensors on the CPU) all
that was launched is played; so it is when the process ends. A group that is destroyed earlier
takes its pending collectives with it: synchronise first, as NCCL wants it, too.
"""

from __future__ import annotations

import atexit
import functools
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from ..models.cost import bus_factor
from ..trace import Collective, Kind
from .happens_before import Clock
from .kernels import Kernel, Use
from .model import H200, Machine
from .passes import between, table
from .race_detector import COLLECTIVE
from .schedule import Await, Marker, Record
from .simulator import Device
from .stream_table import program_line
from .tensor import DEVICE_TYPE, Dispatch, VirtualTensor, _mapped
from .work import Computation, NotModelled, Op, flat

POINT_TO_POINT = ("send", "recv")
_CLOSE = 1e-3  # ns
_THERE, _BACK = 1 << 20, 1 << 21  # and on: tags of what two ranks tell each other of a message


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
    """The values of a c10d call, or of a batch of them: given to the process group when the kernel
    begins, there at its end. args: those of each call. `call` starts all, and returns their works.
    """

    _works: list[dist.Work] | None = None
    _staged: list[tuple[torch.Tensor, torch.Tensor]]

    def again(self) -> Communication:
        return Communication(self.call, self.args, self.kwargs, self.made, self.written)

    def run(self) -> None:
        self.land()

    def read(self) -> None:
        if self._works is not None:
            return
        self._staged = []

        def stage(tensor: torch.Tensor) -> torch.Tensor:
            self._staged.append((tensor, tensor.clone()))
            return self._staged[-1][1]

        self._works = self.call(*_mapped(self.args, stage))

    def wait(self) -> None:
        """Wait for the other ranks, if it has begun."""
        while self._works:
            self._works.pop(0).wait()  # gloo's must not be waited for twice

    def land(self) -> None:
        self.wait()
        written = {id(one) for one in self.made}
        for memory, value in self._staged:
            if id(memory) in written:
                memory.copy_(value)


def _start(calls: Sequence[Callable[..., Any]], *each: Sequence[Any]) -> list[dist.Work]:
    works = []
    for call, args in zip(calls, each, strict=True):
        returned = call(*args)
        work = returned[-1] if isinstance(returned, tuple | list) else returned
        works.append(dist.Work.unbox(work))
    return works


class Meet:
    """The moment at which all ranks of a collective have come: see `schedule.Meeting`.

    values: of the collective, which are waited for first; then the record of calls has these, and
    not how the ranks tell each other the time. Else it has that.
    """

    def __init__(self, group: Any, cost: float, values: Communication | None = None) -> None:
        self.earliest, self.moves = cost, True
        self._channel, self._values = _channel(group, values), values
        self._backend, self._ranks = group._get_backend(torch.device("cpu")), group.size()
        self._last = math.inf

    def arrive(self, time: float) -> None:
        self._came = _told(self._channel, self._ranks, time)

    def end(self, time: float) -> float:
        if self._values is not None:
            self._values.wait()
        if self.moves:
            self.moves, self._due = False, self._came() + self.earliest
        if time < self._due - _CLOSE:
            return self._due
        if math.isinf(self._last):  # what slows it may be on any rank
            self._last = _told(self._backend, self._ranks, time)()
        return self._last


def _told(channel: Any, ranks: int, time: float) -> Callable[[], float]:
    """Tell the other ranks a time; return what waits for theirs, and says the latest."""
    times = [torch.zeros(1, dtype=torch.float64) for _ in range(ranks)]
    work = channel.allgather([times], [torch.tensor([time], dtype=torch.float64)])

    def latest() -> float:
        work.wait()
        return max(one.item() for one in times)

    return latest


def _channel(group: Any, values: Communication | None) -> Any:
    """Return what ranks tell each other the time by: the record of calls has what a group is asked
    for, not what its backend is."""
    return group if values is None else group._get_backend(torch.device("cpu"))


@dataclass(frozen=True)
class Message:
    """A send or a receive. peer: a rank of the group. moves: ns of its bytes on the link."""

    sends: bool
    peer: int
    tag: int
    moves: float


class Exchange:
    """The moment at which all messages of a kernel have come through: see `schedule.Meeting`.

    The two ranks of each message tell each other when they came, and how long their side of the
    link is busy: the sender's with all that it sends, the receiver's with all that it receives.
    values: as of `Meet`.
    """

    def __init__(
        self, group: Any, messages: Sequence[Message], least: float, values: Communication | None
    ) -> None:
        self._there, self._back = _channel(group, values), group._get_backend(torch.device("cpu"))
        self._messages, self._values, self._least = messages, values, least
        self._busy = {
            way: sum(one.moves for one in messages if one.sends is way) for way in (True, False)
        }
        self.earliest, self.moves = least + max(self._busy.values()), False

    def arrive(self, time: float) -> None:
        self._works: list[dist.Work] = []
        self._told = []
        for one in self._messages:
            mine = torch.tensor([time, self._busy[one.sends]], dtype=torch.float64)
            theirs = torch.zeros(2, dtype=torch.float64)
            there, back = _THERE + one.tag, _BACK + one.tag
            if one.sends:
                works = [
                    self._there.send([mine], one.peer, there),
                    self._back.recv([theirs], one.peer, back),
                ]
            else:
                works = [
                    self._there.recv([theirs], one.peer, there),
                    self._back.send([mine], one.peer, back),
                ]
            self._works += works
            self._told.append((mine, theirs))

    def end(self, time: float) -> float:
        if self._values is not None:
            self._values.wait()
        for work in self._works:
            work.wait()
        self._works = []
        both = (torch.maximum(*pair).tolist() for pair in self._told)
        return max(came + busy for came, busy in both) + self._least


class VirtualWork(dist.Work):
    """The handle that `async_op=True` gives: `wait` makes the current stream wait, and not the
    host."""

    def __init__(self, device: Device, point: tuple[Marker, Clock] | None, kept: list[Any]) -> None:
        super().__init__()
        self._device, self._point, self._kept = device, point, kept

    def wait(self, timeout: Any = None) -> bool:
        device, point = self._device, self._launched()
        device.spend("cudaStreamWaitEvent", device.machine.event, Kind.LAUNCH)
        device.wait(device.current, *point)
        self._kept = []
        return True

    synchronize = wait  # type: ignore[assignment]

    def is_completed(self) -> bool:
        return self._device.answer(*self._launched())

    is_success = is_completed

    def _launched(self) -> tuple[Marker, Clock]:
        if self._point is None:
            raise RuntimeError("this is in a batch: wait for what batch_isend_irecv returns")
        return self._point

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


@dataclass(frozen=True)
class Call:
    """A c10d call. out, given: the tensors that it writes to, and reads; inner: its arguments with
    memory in the place of tensors."""

    op: Op
    operation: str
    known: dict[str, Any]
    out: list[VirtualTensor]
    given: list[VirtualTensor]
    inner: Sequence[Any]

    @property
    def sizes(self) -> tuple[int, int]:
        return sum(one.nbytes for one in self.given), sum(one.nbytes for one in self.out)

    @property
    def peer(self) -> int | None:
        return self.known.get("dst", self.known.get("src", self.known.get("root_rank")))


_GROUP_STREAMS: dict[tuple[int, str], GroupStream] = {}
_BATCHES: dict[str, list[Call]] = {}  # that have begun, by their groups' names


def communicate(
    dispatch: Dispatch, op: Op, args: Sequence[Any], kwargs: dict[str, Any], inner: Sequence[Any]
) -> Any:
    """Launch a collective of tensors of the device; inner: `args`, with memory in their place."""
    form = FORMS.get(op.name)
    if form is None:
        raise NotModelled(f"the virtual GPU does not model {op}")
    group = dist.ProcessGroup.unbox(next(one for one in args if _is_group(one)))
    known = dict(zip(op.names, args, strict=False)) | kwargs
    out = [] if form.out is None else _tensors(args[form.out])
    given = [] if form.given is None else _tensors(args[form.given])
    call = Call(op, form.operation, known, out, given, inner)
    batch = _BATCHES.get(group.group_name)
    if batch is None:
        work = _launch(dispatch.device, group, [call], not known.get("async_op", True))
    elif form.operation in POINT_TO_POINT:
        batch.append(call)
        work = VirtualWork(dispatch.device, None, [])  # the batch has another one
    else:
        raise NotModelled(f"the virtual GPU does not model {op} in a batch")
    boxed = dist.Work.boxed(work)
    return boxed if len(op.func._schema.returns) == 1 else (args[0], boxed)


def _launch(device: Device, group: Any, calls: Sequence[Call], waits: bool) -> VirtualWork:
    """Launch what one kernel does. waits: on the current stream, and not on the group's."""
    kernel = _kernel(device, group, calls)
    key = (id(device), group.group_name)
    if key not in _GROUP_STREAMS:
        state = device.streams.take(0, "the communication stream")
        _GROUP_STREAMS[key] = GroupStream(device.add_stream(state))
    line, current = _GROUP_STREAMS[key], device.stream_of_call()
    stream = current if waits else line.stream
    device.wait_stream(stream, current)
    captures = device.capture is not None and stream in device.capture.streams
    if line.last is not None and not captures:
        device.schedule.add(stream, Await(line.last, device.host))
    device.launch(kernel, stream, str(calls[0].op))
    point = device.record(stream)
    if not captures:
        line.last = Marker()
        device.schedule.add(stream, Record(line.last, device.host))
    line.work = VirtualWork(device, point, [(call.given, call.out) for call in calls])
    return line.work


def _kernel(device: Device, group: Any, calls: Sequence[Call]) -> Kernel:
    """The kernel of a collective, or of one or more messages."""
    machine, first = device.machine, calls[0]
    inward, outward = (sum(sizes) for sizes in zip(*(call.sizes for call in calls), strict=True))
    n, ranks = dist.get_world_size(group), tuple(dist.get_process_group_ranks(group))
    made = [one._inner for call in calls for one in call.out]
    values = None
    if device.values:
        start = partial(_start, [call.op.func for call in calls])
        values = Communication(start, [call.inner for call in calls], {}, made)
    meet: Callable[[], Meet | Exchange]
    if first.operation in POINT_TO_POINT:
        each = [(call, _moving(machine, "send", n, max(call.sizes))) for call in calls]
        messages = [
            Message(call.operation == "send", call.peer or 0, call.known.get("tag") or 0, moves)
            for call, moves in each
        ]
        meet = partial(Exchange, group, messages, machine.collective, values)
        work, crossed = meet().earliest, inward + outward
    else:
        nbytes = max(inward, outward)
        work = machine.collective + _moving(machine, first.operation, n, nbytes)
        # Each byte is read and written on both sides, and half of what is sent are flags (LL).
        crossed = 4 * nbytes * (bus_factor(first.operation, n) if n > 1 else 0.0)
        meet = partial(Meet, group, work, values)
    uses = [Use(one._memory, one._inner, False) for call in calls for one in call.given]
    uses += [Use(one._memory, one._inner, True) for call in calls for one in call.out]
    operations = {call.operation for call in calls}
    peers = {call.peer for call in calls}
    is_one = len(operations) == len(peers) == 1
    about = Collective(
        first.operation if is_one else "", str(group.group_name), ranks, bytes_in=inward,
        bytes_out=outward, evidence="metadata",
        peer=ranks[first.peer] if is_one and first.peer is not None else -1,
    )  # fmt: skip
    return Kernel(
        COLLECTIVE + " and ".join(sorted(operations, reverse=True)), work,
        min(machine.channels / machine.sms, 1.0), min(machine.traffic(crossed) / work, 1.0),
        Kind.COMMUNICATION, uses, values, line=program_line(), collective=about, meet=meet,
    )  # fmt: skip


def _moving(machine: Machine, operation: str, n: int, nbytes: float) -> float:
    """ns that bytes take beyond the least that a collective takes.

    As H200s took them, in a straight line between what was measured. Of other numbers of ranks by
    the nearest one's, as the slowest link carries more or fewer bytes; of other machines by `link`.
    """
    if n == 1:
        return 0.0
    factor, by_ranks = bus_factor(operation, n), table(operation)
    nearest = min(by_ranks, key=lambda ranks: abs(int(ranks) - n))
    more = between(by_ranks[nearest], nbytes) - H200.collective
    return factor / bus_factor(operation, int(nearest)) * more * H200.link / machine.link


def _end_batch(group: Any) -> VirtualWork | None:
    calls = _BATCHES.pop(group.group_name)
    return _launch(Dispatch.current().device, group, calls, waits=False) if calls else None


def allow_batches() -> None:
    """Have process groups answer `batch_isend_irecv` for the device; once a process, for good."""
    answers = {
        # What PyTorch asks before it batches messages; ours does as NCCL's.
        "_get_backend": lambda group: SimpleNamespace(supports_coalescing=True),
        "_start_coalescing": lambda group: _BATCHES.update({group.group_name: []}),
        "_end_coalescing": _end_batch,
    }
    for name, answer in answers.items():
        setattr(dist.ProcessGroup, name, _for_our_device(getattr(dist.ProcessGroup, name), answer))


def _for_our_device(original: Callable[..., Any], answer: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(group: Any, device: Any) -> Any:
        ours = torch.device(device).type == DEVICE_TYPE
        return answer(group) if ours else original(group, device)

    return call


def before_host_waits(device: Device, op: Op, args: Sequence[Any]) -> None:
    """The host is about to wait for other ranks: play all, so that they can go on."""
    if op.name.endswith("barrier") or op.name == "monitored_barrier_":
        device.synchronise([*device.streams.states], "cudaDeviceSynchronize", str(op))
        group = dist.ProcessGroup.unbox(next(one for one in args if _is_group(one)))
        with device.aside():
            meet = Meet(group, device.machine.collective)
            meet.arrive(device.host)
            device.host = meet.end(meet.end(device.host))
    else:
        device.play()


def play_at_exit(device: Device) -> None:
    """Finish what was launched when the process ends: other ranks may wait for it."""

    @atexit.register
    def play() -> None:
        if dist.is_available() and dist.is_initialized() and not device.schedule.idle:
            with suppress(RuntimeError):  # where the other ranks are gone, nobody waits for it
                device.play()


def _is_group(value: Any) -> bool:
    return isinstance(value, torch.ScriptObject) and "ProcessGroup" in str(value._type())


def _tensors(value: Any) -> list[VirtualTensor]:
    found = flat(value)
    if any(not isinstance(one, VirtualTensor) for one in found):
        raise RuntimeError("a collective needs all tensors on the same device")
    return found  # type: ignore[return-value]
