"""Traces of other people: their shapes, their numbering, and what they leave out."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import broken
import pytest
from kineto_files import START, event, head, kernel, write
from lockstep.trace import Kind, Trace, TraceError
from painted import COLOURS, differences, painted
from shapes import REDUCED, SENT, old_recorder


def load(path: Path, events: list[str], about: dict | None = None) -> Trace:
    return Trace.load(write(path / "rank0.json", events, about), cache=False)


# ── An External id that is the correlation ───────────────────────────────────────────────────


@pytest.mark.parametrize("facts", ["annotation", "operator"])
def test_a_launch_inside_of_an_operator_says_what_the_kernel_does(facts, tmp_path):
    old_recorder(tmp_path, facts=facts)
    trace = Trace.load(tmp_path, cache=False)
    found = {
        (trace.names[trace.name[row]], trace.known[trace.collective[row]])
        for row in trace.where(Kind.COMMUNICATION)
    }
    told = {(name, one.operation, one.bytes_in, one.evidence) for name, one in found}
    assert told == {
        (SENT, "all_to_all", 24_576, "launch"),
        (REDUCED, "all_reduce", 24_576, "launch"),
    }
    one_clock = trace.align()
    assert one_clock.certificate.matches == 16
    assert one_clock.certificate.spread <= 3_000
    assert all(one.bus_bandwidth > 0 for one in one_clock.collectives() if one.bytes)


@pytest.mark.parametrize("facts", ["annotation", "operator"])
def test_no_numbering_makes_communication_of_compute(facts, tmp_path):
    draw = random.Random(4)
    for _ in range(12):
        first = draw.randint(1, 60)  # so that operators' numbers are kernels' correlations, too
        (path,) = old_recorder(
            tmp_path,
            ranks=1,
            facts=facts,
            correlation=first,
            external=draw.randint(max(1, first - 40), first + 40),
            stride=draw.choice([1, 1, 2, 3]),
        )
        assert differences(path) == []


def test_an_external_id_counts_only_where_its_operator_ran_at_the_launch(tmp_path):
    says = {"Collective name": "allreduce", "In msg nelems": 8, "dtype": "Float"}
    events = [
        event("cpu_op", "record_param_comms", START, 50, **{"External id": 9}, **says),
        event("cuda_runtime", "launch", START + 10, 5, tid=1, correlation=1, **{"External id": 9}),
        event("cuda_runtime", "launch", START + 70, 5, correlation=2, **{"External id": 9}),
        kernel("at once", START + 100, 10, correlation=1, **{"External id": 9}),
        kernel("later", START + 200, 10, correlation=2, **{"External id": 9}),
        kernel("before the recording began", START, 10, correlation=3, **{"External id": 9}),
        kernel("its correlation", START, 10, correlation=9, **{"External id": 9}),
    ]
    trace = load(tmp_path, events)
    told = {trace.names[trace.name[row]] for row in trace.where(Kind.COMMUNICATION)}
    assert told == {"at once", "before the recording began"}
    assert {one.evidence for one in trace.known} == {"external id"}


# ── Ranks whose device's work is not there ───────────────────────────────────────────────────


def ran(**more: object) -> list[str]:
    """A step with an operator of 50 µs, its launch and its kernel, the last of 20 µs."""
    return [
        event("user_annotation", "ProfilerStep#3", START, 100_000),
        event("cpu_op", "aten::mm", START, 50_000),
        event("cuda_runtime", "cudaLaunchKernel", START + 10_000, 5_000, correlation=1),
        kernel("gemm", START + 20_000, 20_000, correlation=1, **more),
    ]


@pytest.mark.parametrize(
    ("lost", "why"),
    [
        (["kernel"], "makes 1 call that launches something"),
        (["kernel", "cuda_runtime"], "other ranks have some"),
    ],
)
def test_a_rank_that_lost_its_kernels_is_left_out_and_said_first(lost, why, tmp_path):
    write(tmp_path / "rank0.json", ran(), head(0, 2))
    kept = [one for one in ran() if not any(f'"cat": "{category}"' in one for category in lost)]
    write(tmp_path / "rank1.json", kept, head(1, 2))
    found = Trace.load(tmp_path, cache=False).breakdown()
    assert found.of(0).compute == 20_000
    with pytest.raises(TraceError, match=f"rank 1 has no kernels.*{why}"):
        found.of(1)
    assert why in str(found).splitlines()[0]
    assert why in found._repr_mimebundle_()["text/html"]


@pytest.mark.parametrize(
    "category", ["mtia_ccp_events", "mtia_insight", "cuda_profiler_range", "hpu_op", "FEE", ""]
)
@pytest.mark.parametrize("question", ["breakdown", "critical_path", "kernels", "launches"])
def test_slices_of_an_unknown_device_are_no_idle_time(category, question, tmp_path):
    """MTIA, Habana, NVIDIA's range profiler, viztracer; XLA's profiler writes no category."""
    work = [event(category, f"op {at}", START + at, 10, pid=9, tid=8) for at in range(7)]
    trace = load(tmp_path, [event("cpu_op", "aten::mm", START, 50), *work])
    which = category or "none"
    assert f"7 slices of categories that are not known here ({which})" in trace.notes[0]
    with pytest.raises(TraceError, match=rf"no kernels.*7 slices .*\({which}\)"):
        getattr(trace, question)()


def test_a_cpu_rank_beside_a_gpu_is_said_to_be_that_of_the_cpu(tmp_path):
    events = [event("cpu_op", "aten::mm", START, 50)]
    said = str(load(tmp_path, events).breakdown())
    assert "its machine has a GPU (NVIDIA H200)" in said
    events.append(event("user_annotation", "gloo:all_reduce", START + 50, 10))
    for with_gloo, gpu in ((events, "NVIDIA H200"), (events[:1], None)):
        assert "its machine" not in str(load(tmp_path, with_gloo, head(gpu=gpu)).breakdown())


def test_each_gpu_of_a_process_has_its_own_breakdown(tmp_path):
    """Two GPUs that compute by turns are each busy for half the time, and none for all of it."""
    steps = [event("user_annotation", "ProfilerStep#3", START, 100_000)]
    work = [kernel("gemm", START + at * 10_000, 10_000, device=at % 2) for at in range(10)]
    trace = load(tmp_path, steps + work)
    found = trace.breakdown()
    for gpu in (0, 1):
        assert found.of(0, device=gpu).compute == found.of(0, 3, device=gpu).compute == 50_000
        assert found.of(0, device=gpu).length == 100_000
        assert f"0, GPU {gpu}  1" in str(found)
    with pytest.raises(TraceError, match="several GPUs: say which, device= one of 0, 1"):
        found.of(0)
    with pytest.raises(TraceError, match="no GPU 2"):
        found.of(0, device=2)
    assert "its 2 GPUs count together" in str(trace.launches())


@pytest.mark.parametrize(
    "runtime", ["xpu_runtime", "mtia_runtime", "privateuse1_runtime", "privateuse1_driver"]
)
def test_other_makers_runtimes_launch(runtime, tmp_path):
    events = [one.replace("cuda_runtime", runtime) for one in ran()]
    spent = load(tmp_path, events).breakdown().of(0)
    assert (spent.host_bound, spent.dependency, spent.compute) == (15_000, 5_000, 20_000)


# ── Broken files ─────────────────────────────────────────────────────────────────────────────


def answer(path: Path) -> tuple[list[dict[str, int]], set[str]]:
    """What the breakdown says of each step, and every word that comes with it."""
    trace = Trace.load(path, cache=False)
    found = trace.breakdown()
    for question in (trace.critical_path, trace.kernels, trace.launches, trace.collectives):
        with contextlib.suppress(TraceError):
            str(question())
    said = {*trace.notes, *found.notes, *found.unseen.values(), *found.doubts}
    said |= {f"of GPU {one.device}" for one in found.totals}
    colours = ("length", *COLOURS)
    return [{name: getattr(one, name) for name in colours} for one in found.steps], said


def test_a_broken_file_gives_right_numbers_or_says_so(tmp_path):
    """Right is what a painter says of the same file, or what the whole file gave."""
    (whole,) = old_recorder(tmp_path, ranks=1, rounds=3)
    right, said_of_whole = answer(whole)
    count, wrong = 0, []
    for what, name, content in broken.kinds(whole.read_bytes()):
        count += 1
        path = tmp_path / name
        path.write_bytes(content)
        try:
            numbers, said = answer(path)
        except TraceError as error:
            if name not in str(error) and "rank 0" not in str(error):
                wrong.append(f"{what}: whose? {error}")
            continue
        except Exception as error:
            wrong.append(f"{what}: {type(error).__name__}: {error}")
            continue
        if numbers == right or said - said_of_whole:
            continue
        with contextlib.suppress(Exception):
            if numbers == painted(path):
                continue
        wrong.append(f"{what}: silently {numbers}")
    assert count > 400
    assert not wrong, "\n".join(wrong)
