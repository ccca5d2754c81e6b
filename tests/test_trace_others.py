"""Traces of other people: their shapes, their numbering, and what they leave out."""

from __future__ import annotations

import contextlib
import json
import random
import re
import tarfile
import zipfile
from pathlib import Path

import broken
import pytest
from kineto_files import START, event, head, kernel, metadata, write
from lockstep.trace import Kind, Trace, TraceError, summary
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
    drawn = found._repr_mimebundle_()["text/html"]
    assert 0 <= drawn.find("rank 1 has no kernels") < drawn.find("<table")
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
    assert f"7 slices of unknown categories ({which})" in trace.notes[0]
    with pytest.raises(TraceError, match=rf"no kernels.*7 slices .*\({which}\)"):
        getattr(trace, question)()


@pytest.mark.parametrize(
    ("category", "process", "whose"),
    [
        ("mtia_ccp_events", "MTIA 9", "Meta's MTIA"),
        ("cuda_profiler_range", "python", "CUPTI's range profiler"),
        ("hpu_op", "HPU 0", "Gaudi"),
        ("mlu_user_annotation", "MLU 0", "Cambricon"),
        ("FEE", "MainProcess", "VizTracer"),
        ("", "/device:TPU:0", "XLA's profiler"),
        ("", "game", "of a device, or of another program"),
    ],
)
def test_a_refusal_says_whose_slices_they_are(category, process, whose, tmp_path):
    work = [event(category, f"op {at}", START + at, 10, pid=9, tid=8) for at in range(7)]
    trace = load(tmp_path, [metadata("process_name", 9, 0, name=process), *work])
    with pytest.raises(TraceError, match=rf"{whose}.*, which cannot be read yet"):
        trace.breakdown()


def test_an_intel_gpu_is_read(tmp_path):
    """Kineto's plugin for XPUs writes kernels, copies and calls of SYCL's runtime."""
    work = [
        event("xpu_runtime", "urEnqueueKernelLaunch", START, 1_000, correlation=1),
        event("kernel", "gemm", START + 5_000, 7_000, pid=0, tid=99, device=0, correlation=1),
        event("gpu_memcpy", "Memcpy M2D", START + 20_000, 3_000, pid=0, tid=99, correlation=2),
    ]
    spent = load(tmp_path, work).breakdown().of(0)
    assert (spent.compute, spent.copies, spent.host_bound) == (7_000, 3_000, 1_000)


@pytest.mark.parametrize(
    ("said", "what"),
    [
        ({"rocprofiler-sdk-tool": []}, "rocprofv3"),
        ({"schema": "1.1", "nodes": []}, "an execution trace"),
        ({"segments": [], "device_traces": []}, "a snapshot of the allocator"),
        ({"version": "2.5", "pg_config": {}, "entries": []}, "flight recorder"),
        ({"name": "x"}, 'it has no "traceEvents"'),
    ],
)
def test_json_that_is_often_taken_for_a_trace_is_named(said, what, tmp_path):
    (tmp_path / "rank0.json").write_text(json.dumps(said))
    with pytest.raises(TraceError, match=f"is JSON, but not a trace: .*{what}"):
        Trace.load(tmp_path)


@pytest.mark.parametrize("kind", ["zip", "tar", "tar.gz"])
def test_an_archive_is_refused_by_name(kind, tmp_path):
    inside = write(tmp_path / "rank0.json", ran(), head())
    path = tmp_path / f"traces.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.write(inside, "rank0.json")
    else:
        with tarfile.open(path, "w:gz" if kind == "tar.gz" else "w") as archive:
            archive.add(inside, "rank0.json")
    with pytest.raises(TraceError, match=rf"traces\.{kind} is a {kind[:3]} archive: unpack it"):
        Trace.load(path)


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
        assert re.search(rf"\n0, GPU {gpu} +1 ", str(found))
    with pytest.raises(TraceError, match="several GPUs: choose one with device=, of 0, 1"):
        found.of(0)
    with pytest.raises(TraceError, match="no GPU 2"):
        found.of(0, device=2)
    assert "its 2 GPUs are counted together" in str(trace.launches())


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


@pytest.mark.parametrize("family", broken.FAMILIES)
def test_a_broken_file_gives_right_numbers_or_says_so(family, tmp_path):
    """Right is what a painter says of the same file, or what the whole file gave."""
    (whole,) = old_recorder(tmp_path, ranks=1, rounds=3)
    right, said_of_whole = answer(whole)
    wrong = []
    for what, name, content in broken.kinds(whole.read_bytes(), family):
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
    assert not wrong, "\n".join(wrong)


# ── The headline ─────────────────────────────────────────────────────────────────────────────


def program(*, gaps: int = 0, late: int = 0, talk: int = 0, copy: int = 0) -> list[str]:
    """Ten rounds of a product of 100 µs; before each launch `gaps` ns pass; then a copy, a transfer
    that was launched at once, and `late` ns of nothing before the next, which was launched, too."""
    events, now, number = [], START, 0
    for _ in range(10):
        now += gaps
        work = (("gemm", 100_000, 7), ("Memcpy", copy, 7), ("ncclKernel", talk, 8))
        for name, last, stream in work:
            if last:
                number += 1
                call = {"correlation": number}
                events.append(event("cuda_runtime", "cudaLaunchKernel", now - 2, 1, **call))
                ran = kernel(name, now, last, stream=stream, **call)
                is_copy = name == "Memcpy"
                events.append(ran.replace('"kernel"', '"gpu_memcpy"') if is_copy else ran)
                now += last
        now += late
        number += 1
        call = {"correlation": number}
        events.append(event("cuda_runtime", "cudaLaunchKernel", now - late, 1, **call))
        events.append(kernel("gemm", now, 10, **call))
    first = event("user_annotation", "ProfilerStep#1", START, now - START)
    return [first, *events]


@pytest.mark.parametrize(
    ("what", "first", "last"),
    [
        ({}, "Computation holds the steps back: it takes 100.0 % of the time", "kernels()"),
        ({"gaps": 100_000}, "The host holds the steps back: for 50.0 % of the", "launches()"),
        ({"late": 100_000}, "Dependencies hold the steps back: for 50.0 % of", "critical_path()"),
        ({"talk": 100_000}, "Communication holds the steps back: 50.0 % of the", "all ranks"),
        ({"copy": 100_000}, "Copies hold the steps back: for 50.0 % of the time", "pinned"),
    ],
)
def test_three_sentences_say_what_holds_the_step_back(what, first, last, tmp_path):
    write(tmp_path / "rank0.json", program(**what))
    _, sections, _ = summary.summarise(tmp_path)
    said = sections[0][1].splitlines()
    assert len(said) == 3 and said[0].startswith(first) and last in said[2]


def test_a_headline_says_first_what_is_missing(tmp_path):
    for rank, events in enumerate((program(gaps=100_000), [event("cpu_op", "aten::mm", START, 9)])):
        write(tmp_path / f"rank{rank}.json", events, head(rank, 2))
    _, sections, _ = summary.summarise(tmp_path)
    assert sections[0][1].startswith("rank 1 has no kernels in the trace, although other ranks")
    (tmp_path / "rank0.json").unlink()
    write(tmp_path / "rank1.json", [event("mtia_ccp_events", "dma", START, 9)], head(1, 2))
    _, sections, _ = summary.summarise(tmp_path)
    assert sections[0][1].startswith("What holds the steps back cannot be said: rank 1 has no")


def test_questions_of_several_ranks_align_by_themselves(tmp_path):
    old_recorder(tmp_path)
    trace = Trace.load(tmp_path, cache=False)
    by_hand = trace.align()
    assert trace.certificate is None
    for question in ("collectives", "critical_path"):
        mine, other = getattr(trace, question)(), getattr(by_hand, question)()
        certificate = str(by_hand.certificate)
        assert mine.notes == (*other.notes, certificate)
        assert certificate in str(mine) and certificate not in str(other)
    assert trace.collectives().waiting == by_hand.collectives().waiting
    assert trace.collectives().trace is trace.collectives().trace  # aligned once


def test_numbers_end_below_each_other_and_paths_name_kernels(tmp_path):
    trace = load(tmp_path, program(gaps=30_000))
    head_line, rule, row = str(trace.breakdown()).splitlines()[1:4]
    assert len(row) == len(head_line) == len(rule)
    assert "the longest: compute gemm" in str(trace.critical_path())
    assert "/" in str(trace.launches())
    assert str(trace.launches()).count(str(trace.stamp)) == 1


def test_without_a_gpu_there_are_no_empty_tables(tmp_path):
    trace = load(tmp_path, [event("cpu_op", "aten::mm", START, 50)], head(gpu=None))
    assert str(trace.launches()) == "nothing was launched on a GPU"
    assert str(trace.kernels()) == "nothing ran on a GPU"
