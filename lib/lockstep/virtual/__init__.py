"""A virtual GPU: torch.cuda's streams, events and memory for those who have no GPU.

`cuda = lockstep.cuda()` is torch.cuda where there is a GPU, and a module with the same names where
there is none, or on request (`lockstep.cuda(virtual=True)`, LOCKSTEP_VIRTUAL=1). Programs stay the
same: ordinary PyTorch on tensors of `lockstep.device()`, or of the device "cuda".

    with lockstep.virtual.device("H200") as cuda:  # or cuda = lockstep.cuda(), for good
        side = cuda.Stream()
        ...
        print(lockstep.virtual.races())
        lockstep.virtual.trace().breakdown()

What it is
----------
Every operation on a tensor of the device is *launched*, not run. The host has a clock of its own,
which moves by what an operation costs the host (`model.Machine`), never by the time that this
process really takes: so results are the same on every machine. The launch lands in the queue of a
stream, and nothing more happens. When the host wants to know something (`synchronize`, an event's
`query`, `item`, a copy to the CPU, `print`, a queue that is full), the device is *played* in
virtual time as far as that needs: streams begin what is next in them, kernels share the SMs and the
memory's bandwidth, copies have an engine for each direction (`schedule`). The host's clock is then
at the later of the two.

Values are real, and computed by PyTorch's CPU kernels when the device is played. Tensors lie in
real memory that is given out as PyTorch's caching allocator does (`memory`), so an address that is
used again holds what was there. What reads too early reads what is there.

Races
-----
Two operations race if both use the same memory, one writes, and no stream order, event or wait of
the host orders them (`happens_before`, vector clocks). That depends on the program and not on
times: a race that the times hide is one, too. Each is reported with both lines and a repair
(`races()`). And each shows in a number: until the first of the two has been played, its end (or, if
it only reads, its start) is held back for the second, so that they come in the wrong order, on
every run. The timeline shows the operation that took so long. What raced reads when it begins and
writes when it ends; all else cannot tell, and is computed in place at its end. So a program without
races gives, bit for bit, what the same operations give on the CPU, and a wrong one gives a wrong
number not now and then but always. Where holds would wait for each other, the oldest is dropped,
and what has been played before the second is launched stays as it was: then the report says that
the number is right by luck.

An answer of `query` orders what the program does after it, unless the program drops the answer.

Autograd does what it does on a GPU: an operation of the backward pass runs on the stream of its
forward operation; the pass orders its own operations; it begins after what its caller's stream
has, and that stream waits for its end.

Memory over time
----------------
`cuda.memory._record_memory_history()`, `_snapshot()` and `_dump_snapshot(file)` give what PyTorch's
give, in virtual time; `lockstep.Trace.memory` shows it. Backward passes have no Python frames
there, as on a GPU, where they run in a thread of their own.

Graphs and collectives
----------------------
A captured graph runs nothing until it is replayed, then at the addresses of its capture, for one
launch (`graphs`). Collectives and messages travel for real between the ranks, whose clocks agree on
when they end; streams, `Work.wait` and batches of messages are as ProcessGroupNCCL's
(`collectives`).

Whose time it is
----------------
`model` has a machine's constants and says where each is from: an H200's are from recordings of this
course where these tell them, the rest, and the H100's, A100's and B200's, from data sheets. Every
trace is stamped *simulated*. `costs` and `passes` say what operations take: attention, softmax,
norms, reductions, losses, indexing, strided access and optimizers by what 3,163 single operations
took an H200 in `data/virtual/operators-h200.json` and its second part; of norms, softmax and
reductions `measured.json` has the times themselves. What has no model is named "(time unknown:
estimated from bytes)", and the stamp says what part of the device's time that is, from one percent
on. Not modelled: most of what caches do, most kernels that PyTorch launches several of for one
operation, clocks that fall under load, the cost of an event on the device, threads of the host,
other GPUs' work on shared links. So times are estimates. `python tests/timed_programs.py` and
`python tests/drawn_times.py` show them beside an H200's, and by how much a second run of the H200's
differed. On 63 drawn programs that nobody had looked at before the model was done they are 5.1 %
off (median), nine in ten 14.1 %, the worst 64 %. Where the host's own Python takes the time (42
such) they are 21 % off (median), nine in ten 38 %, once it is known what a launch took there; two
runs on that machine differed by 27 % (median).

What it cannot do raises `NotModelled`, which names it: sparse and quantised tensors, changes of a
tensor's shape in place, IPC, external streams and events, random numbers that depend on values,
what DDP needs of a `Work`. torch.compile knows nothing of this device. And a process that has had
a virtual GPU can run no backward pass on a real one, which then says so.

`values=False` makes a device of times only, for tensors of any size.

Modules: `model` (constants), `schedule` (time), `happens_before` (what is ordered), `race_detector`
(what is not, in words), `dependencies` (what needs whose results), `memory`, `memory_history`,
`work` (a call that is computed later), `fused` (what a GPU does in one kernel), `costs` (of
operations), `passes` (of those over memory), `simulator` (all of it together), `tensor` (PyTorch's
side), `streams`, `graphs` and `cuda_memory` (torch.cuda's names, which `cuda` gathers),
`collectives`, `switch` (on and off).
Nothing here imports torch before the device is used.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..trace import Trace
    from .model import MACHINES
    from .race_detector import Races
    from .simulator import Device
    from .switch import device, switch_on
    from .tensor import gpu
    from .work import NotModelled

__all__ = [
    "MACHINES",
    "NotModelled",
    "device",
    "gpu",
    "is_on",
    "joined",
    "needs",
    "perf_counter",
    "races",
    "switch_on",
    "trace",
]


def is_on() -> bool:
    """Whether this process has a virtual GPU that is switched on."""
    return _device() is not None


def trace() -> Trace:
    """Return what this process's host and virtual GPU did so far; plays all that was launched.

    Raises RuntimeError where none is on.
    """
    return _needed().trace()


def joined(traces: Iterable[Trace]) -> Trace:
    """One trace of several ranks' traces; their clocks are one."""
    from ..trace import Trace

    every = list(traces)
    stamp = every[0].stamp if every else None
    return Trace.from_slices((one for trace in every for one in trace), stamp=stamp)


def races() -> Races:
    """The races that were launched so far; `print` says all of them. Raises as `trace` does."""
    return _needed().races()


def needs() -> dict[int, set[int]]:
    """Return, for each launch so far, the launches whose results it needs, by correlation in the
    trace: see `dependencies`. Raises as `trace` does."""
    return _needed().dependencies.needs


def perf_counter() -> float:
    """Seconds on the host's clock: the virtual one where a virtual GPU is on, else the real one."""
    on = _device()
    return time.perf_counter() if on is None else on.host / 1e9


def _device() -> Device | None:
    known = sys.modules.get(f"{__name__}.tensor")
    on = known.Dispatch.active if known is not None else None
    return on.device if on is not None else None


def _needed() -> Device:
    on = _device()
    if on is None:
        raise RuntimeError("no virtual GPU is on: call lockstep.cuda(virtual=True) first")
    return on


_HOMES = {
    "MACHINES": "model",
    "NotModelled": "work",
    "device": "switch",
    "gpu": "tensor",
    "switch_on": "switch",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
