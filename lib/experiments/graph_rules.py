"""NCCL's rules in CUDA graphs, one job a rule; and ranks that part, as Lockstep reports them.

A rule's job returns what came out, or its report says why nothing did. Of ranks that part it is
noted how many seconds later the report was there, and what PyTorch's flight recorder held.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lockstep.base.machine import Machine
from lockstep.launch import torchrun

from .experiment import Experiment, Result, device_name

BACKEND = "nccl"
AT_ONCE = 6
LIMIT = 20.0  # seconds for each job
REPEATS, BATCHES = 50, 7
Values = dict[str, Any]
# By name: a function, its arguments, and the ranks' environment.
Jobs = dict[str, tuple[Callable[..., Values], dict[str, Any], dict[str, str]]]


@contextmanager
def captured(work: Callable[[], object]) -> Iterator[torch.cuda.CUDAGraph]:
    """Have a graph of this work; a group does not end while one of its calls is alive."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    yield graph
    graph.reset()


def ones(count: int = 1024) -> torch.Tensor:
    return torch.ones(count, device="cuda")


def reduced(count: int = 1024) -> torch.Tensor:
    """Return a tensor that all ranks have added up, by which they are connected."""
    x = ones(count)
    dist.all_reduce(x)
    return x


def microseconds(call: Callable[[], object]) -> float:
    """Return the median time of a call in a row of them, with the device's time in it."""
    took = []
    for _ in range(BATCHES):
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(REPEATS):
            call()
        torch.cuda.synchronize()
        took.append((time.perf_counter() - begin) / REPEATS * 1e6)
    return statistics.median(took[1:])


# ── Rules ────────────────────────────────────────────────────────────────────────────────────


def first_call(called_before: bool) -> Values:
    """Capture a collective of a group that has, or has not, been called before."""
    x, group = ones(), dist.new_group()
    if called_before:
        dist.all_reduce(ones(), group=group)
        torch.cuda.synchronize()
    with captured(lambda: dist.all_reduce(x, group=group)) as graph:
        graph.replay()
        return {"value": x[0].item()}


def eager_between_replays() -> Values:
    """Call the same communicator by turns eagerly and in a graph, on one stream; and time both."""
    x, y = ones(), ones()
    dist.all_reduce(y)
    y.fill_(1)
    with captured(lambda: dist.all_reduce(x)) as graph:
        for _ in range(3):
            graph.replay()
            dist.all_reduce(y)
        found: Values = {"value": x[0].item(), "eager": y[0].item()}
        x.zero_()
        with captured(lambda: [dist.all_reduce(x) for _ in range(16)]) as small:
            found["us"] = {"sixteen all-reduces of 4 KiB": microseconds(small.replay)}
            y.zero_()
            mixed = microseconds(lambda: (small.replay(), dist.all_reduce(y)))  # type: ignore[func-returns-value]
            found["us"]["the same, then one eager"] = mixed
    return found


def eager_beside_a_replay(crossed: bool) -> Values:
    """Replay on one stream, and call the same communicator on another, with no order between.

    crossed: rank 1 launches the two in the other order.
    """
    x, y = ones(), ones()
    dist.all_reduce(y)
    y.fill_(1)
    side = torch.cuda.Stream()

    def eager() -> None:
        with torch.cuda.stream(side):
            dist.all_reduce(y)

    with captured(lambda: dist.all_reduce(x)) as graph:
        torch.cuda.synchronize()
        both = [graph.replay, eager]
        if crossed and dist.get_rank() == 1:
            both.reverse()
        for one in both:
            one()
        torch.cuda.synchronize()
        return {"value": x[0].item(), "eager": y[0].item()}


def large(elements: int = 8 << 20) -> Values:
    """Time an all-reduce of 32 MiB, eager and in a graph."""
    x = torch.zeros(elements, device="cuda")
    dist.all_reduce(x)
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info()[0]
    with captured(lambda: dist.all_reduce(x)) as graph:
        graph.replay()
        torch.cuda.synchronize()
        held = before - torch.cuda.mem_get_info()[0]
        took = {
            "eager": microseconds(lambda: dist.all_reduce(x)),
            "graph": microseconds(graph.replay),
            "eager again": microseconds(lambda: dist.all_reduce(x)),
        }
        return {"bytes held by the graph": held, "us": took}


def two_communicators(streams: int, crossed: bool = False) -> Values:
    """Capture an all-reduce of each of two groups, on one stream or each on its own."""
    x, y = ones(), torch.full((1024,), 10.0, device="cuda")
    groups = dist.new_group(), dist.new_group()
    for group in groups:
        dist.all_reduce(ones(), group=group)
    torch.cuda.synchronize()
    calls = [
        partial(dist.all_reduce, one, group=group)
        for one, group in zip((x, y), groups, strict=True)
    ]
    if crossed and dist.get_rank() == 1:
        calls.reverse()
    sides = [torch.cuda.Stream() for _ in calls]

    def work() -> None:
        here = torch.cuda.current_stream()
        for call, side in zip(calls, sides, strict=True):
            if streams == 1:
                call()
                continue
            side.wait_stream(here)
            with torch.cuda.stream(side):
                call()
        if streams == 2:
            for side in sides:
                here.wait_stream(side)

    with captured(work) as graph:
        for _ in range(3):
            graph.replay()
        return {"x": x[0].item(), "y": y[0].item()}


def barrier_inside() -> Values:
    dist.barrier()
    torch.cuda.synchronize()
    with captured(dist.barrier) as graph:
        graph.replay()
        torch.cuda.synchronize()
    return {"value": "captured"}


def messages_inside() -> Values:
    """Send a tensor around all ranks in a graph."""
    rank, n = dist.get_rank(), dist.get_world_size()
    x, y = torch.full((4,), float(rank), device="cuda"), torch.zeros(4, device="cuda")

    def around() -> None:
        ops = [dist.P2POp(dist.isend, x, (rank + 1) % n), dist.P2POp(dist.irecv, y, (rank - 1) % n)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()

    around()
    y.zero_()
    with captured(around) as graph:
        graph.replay()
        return {"value": y[0].item()}


def asked_for_its_end() -> Values:
    """Ask a captured collective whether it is done, after a replay."""
    x = ones()
    dist.all_reduce(x)
    works: list[Any] = []

    def work() -> None:
        works.append(dist.all_reduce(x, async_op=True))
        works[0].wait()

    with captured(work) as graph:
        graph.replay()
        torch.cuda.synchronize()
        try:
            said = str(works[0].is_completed())
        except Exception as error:  # what it says is the finding
            said = f"{type(error).__name__}: {error}"[:300]
    return {"value": said}


ONE, TWO, CROSSED = {"streams": 1}, {"streams": 2}, {"crossed": True}
MIXING, REGISTER = "NCCL_GRAPH_MIXING_SUPPORT", "NCCL_GRAPH_REGISTER"
RULES: Jobs = {
    "first call of a group in a capture": (first_call, {"called_before": False}, {}),
    "the same, called once before": (first_call, {"called_before": True}, {}),
    "a barrier in a capture": (barrier_inside, {}, {}),
    "messages in a capture": (messages_inside, {}, {}),
    "a captured call is asked whether it is done": (asked_for_its_end, {}, {}),
    "eager beside a replay, two streams": (eager_beside_a_replay, {"crossed": False}, {}),
    "the same, rank 1 in the other order": (eager_beside_a_replay, CROSSED, {}),
    "two groups in a capture, one stream": (two_communicators, ONE, {}),
    "two groups in a capture, two streams": (two_communicators, TWO, {}),
    "two streams, rank 1 in the other order": (two_communicators, TWO | CROSSED, {}),
    "one stream, rank 1 in the other order": (two_communicators, ONE | CROSSED, {}),
}
TIMED: Jobs = {
    "eager between replays": (eager_between_replays, {}, {MIXING: "1"}),
    "eager between replays, no mixing": (eager_between_replays, {}, {MIXING: "0"}),
    "32 MiB, registration": (large, {}, {REGISTER: "1"}),
    "32 MiB, no registration": (large, {}, {REGISTER: "0"}),
}


# ── Ranks that part ──────────────────────────────────────────────────────────────────────────


def note(folder: Path) -> None:
    """Write down when this rank comes to where the ranks part, on the clock of all of them."""
    Path(folder, f"rank{dist.get_rank()}").write_text(str(time.perf_counter()))


def one_more_captured(folder: Path) -> Values:
    """Rank 1's graph has an all-reduce more; rank 0 is done after it."""
    x = reduced()
    more = dist.get_rank() == 1
    with captured(lambda: [dist.all_reduce(x) for _ in range(2 + more)]) as graph:
        note(folder)
        graph.replay()
        torch.cuda.synchronize()
    return {}


def one_replay_more(folder: Path) -> Values:
    """Rank 1 replays once more in its last step; all then ask for a number, and go on."""
    x = reduced()
    with captured(lambda: dist.all_reduce(x)) as graph:
        for step in range(4):
            if step == 3:
                note(folder)
            for _ in range(1 + (step == 3 and dist.get_rank() == 1)):
                graph.replay()
            x.fill_(float(x[0].item() > 0))
        dist.barrier()
        torch.cuda.synchronize()
    return {}


def own_choice(folder: Path) -> Values:
    """Each rank replays the graph that fits its own rows."""
    x = torch.ones(8, 1 << 20, device="cuda")
    for size in (8, 4):
        dist.all_reduce(x[:size])
    with (
        captured(lambda: dist.all_reduce(x)) as all_rows,
        captured(lambda: dist.all_reduce(x[:4])) as half,
    ):
        note(folder)
        (half if dist.get_rank() == 1 else all_rows).replay()
        torch.cuda.synchronize()
    return {}


def falls_back(folder: Path) -> Values:
    """Rank 1 runs the step eagerly, and for fewer layers, while rank 0 replays it."""
    x = reduced()
    with captured(lambda: [dist.all_reduce(x) for _ in range(3)]) as graph:
        graph.replay()
        torch.cuda.synchronize()
        note(folder)
        if dist.get_rank() == 1:
            for _ in range(2):
                dist.all_reduce(x)
        else:
            graph.replay()
        torch.cuda.synchronize()
    return {}


def captures_more(folder: Path) -> Values:
    """Nothing parts: rank 1 has captured once more, and all call the same afterwards."""
    x = reduced()
    with ExitStack() as graphs:
        for _ in range(1 + (dist.get_rank() == 1)):
            graph = graphs.enter_context(captured(lambda: dist.all_reduce(x)))
        note(folder)
        graph.replay()
        dist.broadcast(x, 0)
        dist.all_reduce(x)
        torch.cuda.synchronize()
        time.sleep(1)  # two copies of the record
        dist.barrier()
        torch.cuda.synchronize()
    return {"value": x[0].item()}


def graph_alive(folder: Path) -> Values:
    """The group is destroyed while a graph of its calls is alive."""
    x = reduced()
    with captured(lambda: dist.all_reduce(x)) as graph:
        graph.replay()
        torch.cuda.synchronize()
        note(folder)
        dist.destroy_process_group()
    return {"value": str(graph is None)}


PARTED = {
    "rank 1's graph has an all-reduce more": one_more_captured,
    "rank 1 replays once more": one_replay_more,
    "each rank chooses its own size": own_choice,
    "rank 1 runs fewer layers eagerly": falls_back,
    "rank 1 has captured once more, all is well": captures_more,
    "the group is destroyed, a graph is alive": graph_alive,
}


def recorder() -> list[Any]:
    """Return the flight recorder's entries of an eager, a captured and a replayed all-reduce."""
    import pickle

    x = reduced()
    with captured(lambda: dist.all_reduce(x)) as graph:
        graph.replay()
        dist.broadcast(x, 0)
        torch.cuda.synchronize()
        time.sleep(1)
        dump = torch._C._distributed_c10d._dump_nccl_trace  # type: ignore[attr-defined]
        entries = pickle.loads(dump(True, False, False))["entries"]
    return [(one["profiling_name"], one["collective_seq_id"], one["state"]) for one in entries]


def replay_costs() -> Values:
    """Time a call of `replay()` with nothing in the graph but one all-reduce of 4 B."""
    x = reduced(1)
    with captured(lambda: dist.all_reduce(x)) as graph, captured(lambda: x.add_(1)) as empty:
        found = {"all-reduce": microseconds(graph.replay), "addition": microseconds(empty.replay)}
        for name, one, times in (("addition", empty, 1000), ("all-reduce", graph, 200)):
            begin = time.perf_counter()
            for _ in range(times):
                one.replay()
            found[f"host, {name}"] = (time.perf_counter() - begin) / times * 1e6
            torch.cuda.synchronize()
    return found


def _job(function: Callable[..., Any], *given: Any, n: int, env: Any = None, **named: Any) -> Any:
    """Run ranks; returns results by rank, or what the report says of a job that failed."""
    try:
        job = torchrun(
            function, *given, **named,
            nproc_per_node=n, backend=BACKEND, show=False, env=env, timeout=LIMIT, may_fail=True,
        )  # fmt: skip
    except Exception:  # the other jobs are still wanted
        return {"verdict": traceback.format_exc(), "ranks": {}}
    if job.ok:
        return job.results
    said = {}
    for one in job.failures:
        where = one.frames[-1][2] if one.frames else ""
        message = f"{one.type_name}: {one.message}".strip(": ")[:400]
        said[one.rank] = {"kind": one.kind, "message": message, "call": one.call, "in": where}
    return {"verdict": job.verdict, "ranks": said}


def rule(name: str, n: int) -> Values:
    function, named, env = (RULES | TIMED)[name]
    began = time.perf_counter()
    found = _job(function, n=n, env=env, **named)
    key = "ranks" if isinstance(found, list) else "failed"
    return {key: found, "environment": env, "seconds": time.perf_counter() - began}


def parted(name: str, n: int) -> Values:
    """Return what was reported of ranks that part, and how many seconds later."""
    with tempfile.TemporaryDirectory() as folder:
        found = _job(PARTED[name], Path(folder), n=n)
        over = time.perf_counter()
        at = [float(file.read_text()) for file in sorted(Path(folder).iterdir())]
    key = "ranks" if isinstance(found, list) else "failed"
    return {key: found, "seconds": over - max(at) if at else None}


def run(machine: Machine, nproc: int) -> Iterator[Result]:
    file = f"graphs/rules-{device_name(machine)}-x{nproc}.json"
    what = f"NCCL's rules in CUDA graphs on {nproc} ranks, and what is reported of ranks that part"
    content: Values = {"world_size": nproc, "rules": {}, "parted": {}}
    for name in TIMED:  # one at a time
        content["rules"][name] = rule(name, nproc)
    content["replay_us"] = _job(replay_costs, n=nproc)
    content["flight_recorder"] = _job(recorder, n=nproc)
    yield Result(file, what, content)
    with ThreadPoolExecutor(AT_ONCE) as jobs:
        reports = jobs.map(partial(parted, n=nproc), PARTED)
        others = jobs.map(partial(rule, n=nproc), RULES)
        content["parted"] = dict(zip(PARTED, reports, strict=True))
        yield Result(file, what, content)
        content["rules"] |= dict(zip(RULES, others, strict=True))
    yield Result(file, what, content)


EXPERIMENT = Experiment(
    "graph-rules",
    "NCCL's rules in CUDA graphs, and what is reported of ranks that part",
    minutes=2,
    run=run,
    least=2,
    writes={
        "graphs/rules-*.json": (
            "world_size",
            "rules",
            "parted",
            "replay_us",
            "flight_recorder",
        ),
    },
)
