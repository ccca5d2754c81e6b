"""torch.cuda's names for devices, streams, events and memory, on the virtual GPU.

Each does what torch.cuda's does, raises what that raises, and costs the host what it costs there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

from ..trace import Kind
from .happens_before import Clock
from .kernels import Kernel
from .schedule import Marker
from .simulator import Device
from .stream_table import DEFAULT_STREAM, StreamHandle, program_line
from .tensor import DEVICE_TYPE, Dispatch
from .work import NotOffered


def active() -> Device:
    if Dispatch.active is None:
        raise RuntimeError("no virtual GPU is on: call lockstep.cuda() first")
    return Dispatch.active.device


def _same(device: Device, what: str) -> None:
    if Dispatch.active is not None and device is not active():
        raise RuntimeError(f"this {what} belongs to another virtual GPU than the one that is on")


# ── Devices ──────────────────────────────────────────────────────────────────────────────────


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return True


def init() -> None:
    pass


def device_count() -> int:
    return 1


def current_device() -> int:
    return 0


def set_device(device: Any) -> None:
    _index(device)


def get_device_name(device: Any = None) -> str:
    _index(device)
    return f"virtual {active().machine.name}"


def get_device_properties(device: Any = None) -> Any:
    """name, total_memory and multi_processor_count, of what torch.cuda's has."""
    _index(device)
    machine = active().machine
    return SimpleNamespace(
        name=get_device_name(), total_memory=machine.capacity, multi_processor_count=machine.sms
    )


@contextlib.contextmanager
def device(device: Any) -> Iterator[None]:
    _index(device)
    yield


def _index(device: Any) -> None:
    """There is one device a process, whatever a rank calls it."""
    if isinstance(device, torch.device | str) and torch.device(device).type not in (
        DEVICE_TYPE,
        "cuda",
    ):
        raise ValueError(f"Expected a cuda device, but got: {device}")


def manual_seed(seed: int) -> None:
    gpu = active()
    if gpu.capture is not None and gpu.current in gpu.capture.streams:
        raise RuntimeError(  # in PyTorch 2.11's words
            "Cannot call CUDAGeneratorImpl::set_current_seed during CUDA graph capture. If you "
            "need this call to be captured, please file an issue."
        )
    gpu.state = torch.Generator().manual_seed(int(seed)).get_state()


manual_seed_all = manual_seed


# ── Streams ──────────────────────────────────────────────────────────────────────────────────


class Stream(StreamHandle):
    """A queue of work on the device; `priority`: a lower number goes first, down to -5."""

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
        if kwargs:
            raise NotOffered(f"the virtual GPU does not model Stream({', '.join(kwargs)}=…)")
        _index(device)
        gpu = active()
        super().__init__(gpu, gpu.add_stream(gpu.streams.take(priority)))

    @classmethod
    def _of(cls, number: int) -> Stream:
        stream = cls.__new__(cls)
        StreamHandle.__init__(stream, active(), number)
        return stream

    @property
    def number(self) -> int:
        """Which it is. Raises RuntimeError where another virtual GPU is on than the stream's."""
        _same(self._device, "stream")
        return self._number

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return active().machine.priorities

    @property
    def device(self) -> torch.device:
        return torch.device(DEVICE_TYPE, 0)

    @property
    def device_index(self) -> int:
        return 0

    @property
    def priority(self) -> int:
        return active().streams.states[self.number].priority

    @property
    def cuda_stream(self) -> int:
        return 0 if self._number == DEFAULT_STREAM else self._number

    stream_id = cuda_stream

    def wait_event(self, event: Event) -> None:
        event.wait(self)

    def wait_stream(self, stream: Stream) -> None:
        self.wait_event(stream.record_event())

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def query(self) -> bool:
        gpu = active()
        gpu.refuse_in_capture("cudaStreamQuery", self.number)
        gpu.leave_backward()
        gpu.spend("cudaStreamQuery", gpu.machine.event, Kind.LAUNCH)
        return gpu.answer(*gpu.record(self.number))

    def synchronize(self) -> None:
        active().synchronise([self.number], "cudaStreamSynchronize")

    def __enter__(self) -> Stream:
        gpu = active()
        gpu.leave_backward()
        self.__dict__.setdefault("_before", []).append(gpu.current)
        gpu.current = self.number
        return self

    def __exit__(self, *_: object) -> None:
        gpu = active()
        gpu.leave_backward()
        gpu.current = self.__dict__["_before"].pop()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.is_of(self._device, self._number)

    def __hash__(self) -> int:
        return hash(("virtual stream", self._number))

    def __repr__(self) -> str:
        return f"<virtual cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"


class Event:
    """A point of a stream: others can wait for it, and with `enable_timing` it knows its time."""

    def __init__(
        self,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> None:
        if interprocess or external:
            which = "interprocess" if interprocess else "external"
            raise NotOffered(f"the virtual GPU does not model Event({which}=True)")
        self.enable_timing = enable_timing
        self._device = active()
        self._recorded: tuple[Marker, Clock] | None = None
        self._stream = DEFAULT_STREAM

    @property
    def _at(self) -> tuple[Marker, Clock] | None:
        _same(self._device, "event")
        return self._recorded

    def record(self, stream: Stream | None = None) -> None:
        gpu = active()
        gpu.leave_backward()
        gpu.spend("cudaEventRecord", gpu.machine.event, Kind.LAUNCH)
        _same(self._device, "event")
        self._stream = gpu.current if stream is None else stream.number
        self._recorded = gpu.record(self._stream)

    def wait(self, stream: Stream | None = None) -> None:
        if self._at is None:  # as CUDA has it: what was never recorded is done
            return
        gpu = active()
        gpu.leave_backward()
        gpu.spend("cudaStreamWaitEvent", gpu.machine.event, Kind.LAUNCH)
        gpu.wait(gpu.current if stream is None else stream.number, *self._at)

    def query(self) -> bool:
        if self._at is None:
            return True
        gpu = active()
        gpu.refuse_in_capture("cudaEventQuery", self._stream)
        gpu.spend("cudaEventQuery", gpu.machine.event, Kind.LAUNCH)
        return gpu.answer(*self._at)

    def synchronize(self) -> None:
        if self._at is not None:
            active().refuse_in_capture("cudaEventSynchronize", self._stream)
            active().wait_for([self._at], "cudaEventSynchronize")

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds of the device from this event to the other."""
        if not (self.enable_timing and end_event.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._at is None or end_event._at is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        if not (self.query() and end_event.query()):
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        (first, _), (last, _) = self._at, end_event._at
        assert first.time is not None and last.time is not None
        return (last.time - first.time) / 1e6

    def __repr__(self) -> str:
        return f"<virtual cuda.Event {'recorded' if self._recorded else 'uninitialized'}>"


class StreamContext:
    """`with stream(s):` what is launched inside goes to `s`; None changes nothing."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            gpu = active()
            gpu.host += gpu.machine.context
            self.stream.__enter__()

    def __exit__(self, *_: object) -> None:
        if self.stream is not None:
            self.stream.__exit__()


stream = StreamContext


def set_stream(stream: Stream | None) -> None:
    if stream is not None:
        active().current = stream.number


def current_stream(device: Any = None) -> Stream:
    _index(device)
    return Stream._of(active().current)


def default_stream(device: Any = None) -> Stream:
    _index(device)
    return Stream._of(DEFAULT_STREAM)


def synchronize(device: Any = None) -> None:
    """The host waits for all streams."""
    _index(device)
    gpu = active()
    gpu.synchronise([*gpu.streams.states], "cudaDeviceSynchronize")


def _sleep(cycles: int) -> None:
    """A kernel on the current stream that does nothing for so many cycles."""
    gpu = active()
    work = max(1e9 * cycles / gpu.machine.clock, gpu.machine.kernel)
    kernel = Kernel("spin", work, 1 / gpu.machine.sms, 0.0, Kind.COMPUTE, (), line=program_line())
    gpu.launch(kernel, gpu.current, "cuda::_sleep")


# ── Memory ───────────────────────────────────────────────────────────────────────────────────


def memory_allocated(device: Any = None) -> int:
    return active().allocator.allocated


def max_memory_allocated(device: Any = None) -> int:
    return active().allocator.peak_allocated


def memory_reserved(device: Any = None) -> int:
    return active().allocator.reserved


def max_memory_reserved(device: Any = None) -> int:
    return active().allocator.peak_reserved


def reset_peak_memory_stats(device: Any = None) -> None:
    memory = active().allocator
    memory.peak_allocated, memory.peak_reserved = memory.allocated, memory.reserved


def empty_cache() -> None:
    active().allocator.empty_cache()


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """(bytes that are free on the device, all bytes)."""
    memory = active().allocator
    return memory.capacity - memory.reserved, memory.capacity
