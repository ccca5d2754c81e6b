"""Kineto files of every sort become a trace, with nothing wrong in silence."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import kineto_files as kf
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kineto_files import BASE, PID, START, event, head, kernel, write
from lockstep.base.provenance import Provenance
from lockstep.trace import Kind, Trace, TraceError
from lockstep.trace.read.kineto import cache, files, workers
from lockstep.trace.read.kineto import text as kineto_text
from tqdm import tqdm

LIBRARY = str(Path(files.__file__).parents[4])


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr("platformdirs.user_cache_path", lambda name: folder / name)
    monkeypatch.setattr(files, "_LARGE", 600_000)
    return folder / "lockstep" / "traces"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks of 4,000 events: enough for processes and the cache, with _LARGE as it is here."""
    folder = tmp_path_factory.mktemp("run")
    kf.training(folder, ranks=2, events=4_000)
    return folder


def load(
    folder: Path, events: list[str], about: dict[str, Any] | None = None, **more: Any
) -> Trace:
    return Trace.load(write(folder / "rank0.json", events, about, **more), cache=False)


def named(trace: Trace, name: str) -> Any:
    return next(one for one in trace if one.name == name)


def count(trace: Trace, name: str) -> int:
    return sum(one.name == name for one in trace)


def same(one: Trace, other: Trace) -> bool:
    if (one.names, one.lanes, one.known) != (other.names, other.lanes, other.known):
        return False
    theirs = other.columns()
    return all(np.array_equal(values, theirs[name]) for name, values in one.columns().items())


# ── Times ────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=30, derandomize=True, deadline=None)
@given(
    ts=st.integers(0, 7_889_238 * 10**9 - 1),  # Kineto's base moves on every three months
    dur=st.integers(0, 10**12),
    style=st.sampled_from(["relative", "absolute", "whole"]),
)
@example(ts=4_450_000_000_000_011, dur=1, style="relative")  # a float of µs × 1000 is not exact
def test_times_are_exact(ts: int, dur: int, style: str, tmp_path_factory: Any) -> None:
    folder = tmp_path_factory.mktemp("times")
    trace = load(folder, [kernel("k", ts, dur, style=style)], head(style=style))
    if style == "whole":
        ts, dur = ts // 1000 * 1000, dur // 1000 * 1000
    assert (trace[0].start, trace[0].duration) == (BASE + ts, dur)


def test_a_large_float_amid_whole_numbers_is_exact(tmp_path: Path) -> None:
    first = kernel("whole", START, 1000, style="whole")
    trace = load(tmp_path, [first, kernel("k", START, 7, style="absolute")], head(style="absolute"))
    assert named(trace, "k").start == BASE + START


def test_times_since_the_epoch_are_not_added_to_a_base(tmp_path: Path) -> None:
    trace = load(tmp_path, [kernel("k", START, 7, style="absolute")], head())
    assert trace[0].start == BASE + START
    assert "the base is ignored" in trace.notes[0]


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (lambda text: text.replace('"dur": 5.000', '"dur": -5.000'), "with a negative duration"),
        (lambda text: text.replace('"dur": 5.000', '"dur": NaN'), "a number"),
        (lambda text: text.replace('"dur": 5.000', '"dur": Infinity'), "a number"),
        (lambda text: text.replace('"dur": 5.000', '"dur": null'), "a number"),
        (lambda text: text.replace('"dur": 5.000', '"dur": 1e300'), "a number"),
        (lambda text: text.replace('"dur": 5.000,', ""), "a number"),
        (lambda text: text.replace('"ts": 9.000', '"ts": -9.000'), "at a negative time"),
        (lambda text: text.replace('"ts": 9.000,', ""), "a number"),
        (lambda text: text.replace('"dur": 5.000', '"dur": 86400000000.001'), "longer than a day"),
        (lambda text: text.replace('"ts": 9.000', '"ts": 7889237000000.0'), "more than a day away"),
    ],
)
def test_impossible_times_are_left_out_and_said(broken: Any, why: str, tmp_path: Path) -> None:
    good = [kernel(f"k{at}", 10_000 + at, 1) for at in range(5)]
    trace = load(tmp_path, [broken(kernel("bad", 9_000, 5_000)), *good])
    assert sorted(one.name for one in trace) == [f"k{at}" for at in range(5)]
    assert [why in note and "1 slice" in note for note in trace.notes] == [True]


# ── Kinds ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("category", "name", "kind"),
    [
        ("cpu_op", "aten::mm", Kind.OPERATOR),
        ("cpu_op", "ncclDevKernel_AllReduce", Kind.OPERATOR),
        ("cpu_op", "c10d::allreduce_", Kind.OPERATOR),
        ("python_function", "ncclDevKernel_AllReduce", Kind.PYTHON),
        ("user_annotation", "forward", Kind.ANNOTATION),
        ("user_annotation", "ProfilerStep#12", Kind.STEP),
        ("cpu_op", "ProfilerStep#12", Kind.OPERATOR),
        ("gpu_user_annotation", "ProfilerStep#12", Kind.GPU_ANNOTATION),
        ("gpu_user_annotation", "nccl:all_reduce", Kind.GPU_ANNOTATION),
        ("user_annotation", "nccl:all_reduce", Kind.ANNOTATION),
        ("user_annotation", "gloo:all_reduce", Kind.COMMUNICATION),
        ("cuda_runtime", "cudaGraphLaunch", Kind.LAUNCH),
        ("cuda_driver", "cuLaunchKernelEx", Kind.LAUNCH),
        ("hip_runtime", "hipLaunchKernel", Kind.LAUNCH),
        ("kernel", "void at::native::reduce_kernel<512, 1>(float)", Kind.COMPUTE),
        ("kernel", "void mine<ncclDevKernel_AllReduce>(int)", Kind.COMPUTE),
        ("Kernel", "ncclKernel_AllReduce_RING_LL_Sum_float", Kind.COMMUNICATION),
        ("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", Kind.COPY),
        ("gpu_memset", "Memset (Device)", Kind.SET),
        ("cuda_sync", "Stream Wait Event", Kind.WAIT),
        ("overhead", "CUPTI buffer", Kind.OTHER),
    ],
)
def test_kind(category: str, name: str, kind: Kind, tmp_path: Path) -> None:
    trace = load(tmp_path, [event(category, name, START, 1, pid=0, tid=7, stream=7, device=0)])
    assert trace[0].kind == kind
    of_gpu = category.lower() in ("kernel", "cuda_sync") or category.startswith("gpu_")
    assert (trace.lanes[0].stream, trace.lanes[0].label) == (
        (7, "stream 7") if of_gpu else (-1, "thread 7")
    )


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        (
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "all_reduce",
        ),
        ("ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclWorkElem)", "all_gather"),
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(...)", "reduce_scatter"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL(...)", "reduce"),
        ("ncclDevKernel_Broadcast_RING_LL(...)", "broadcast"),
        ("ncclSymkDevKernel_AllReduce_AGxLL_R_sum_bf16(...)", "all_reduce"),
        ("ncclDevKernel_SendRecv(...)", ""),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", ""),
        ("void deep_ep::internode_ll::dispatch<true, 7168>(void*)", ""),
        ("void deep_ep::intranode::combine<__nv_bfloat16, 8>(int)", ""),
        ("nvshmemi_transfer_put(int)", ""),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(int)", "all_reduce"),
        (
            "void c10d::symmetric_memory::(anonymous namespace)::multimem_all_reduce_kernel<8>()",
            "all_reduce",
        ),
        (
            "void (anonymous namespace)::two_shot_all_reduce_kernel<__nv_bfloat16, 16>()",
            "all_reduce",
        ),
        (
            "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot<1>()",
            "all_reduce",
        ),
    ],
)
def test_communication_by_name(name: str, operation: str, tmp_path: Path) -> None:
    trace = load(tmp_path, [kernel(name, START, 1_000), kernel("gemm", START, 1)])
    (row,) = trace.where(Kind.COMMUNICATION)
    found = trace[row].collective
    assert (found.operation, found.evidence) == (operation, "name")
    assert "1 of 1 communications (100.0 %, 100.0 % of their time) are recognised" in trace.notes[0]
    assert any("without a known operation" in note for note in trace.notes) == (operation == "")


FACTS = {
    "Collective name": "_allgather_base",
    "In msg nelems": 100,
    "Out msg nelems": 400,
    "Group size": 4,
    "dtype": "BFloat16",
    "Process Group Name": "7",
    "Process Group Ranks": "[0, 2, 4, 6]",
}


def recorder(facts: dict[str, Any], external: int) -> str:
    return event("cpu_op", "record_param_comms", START, 9, **{"External id": external}, **facts)


@pytest.mark.parametrize("way", ["metadata", "external id", "launch", "launch's external id"])
def test_evidence_beats_the_name(way: str, tmp_path: Path) -> None:
    facts = FACTS if way == "metadata" else {}
    link = {} if way.startswith("launch") else {"External id": 31}
    # By its place, or by a number that is found although the thread is another.
    call = {"External id": 31, "tid": 5} if "external" in way else {"tid": PID}
    call["correlation"] = 5
    trace = load(
        tmp_path,
        [
            recorder(FACTS | {"Seq": 12}, 31),
            event("cuda_runtime", "cudaLaunchKernel", START, 5, **call),
            kernel("no_name_one_knows", START + 99, 50, correlation=5, **link, **facts),
            kernel("of another", START + 99, 50, correlation=6, **{"External id": 32}),
        ],
    )
    (row,) = trace.where(Kind.COMMUNICATION)
    one = trace[row]
    assert (one.name, one.sequence, one.correlation) == ("no_name_one_knows", 12, 5)
    found = one.collective
    assert found.evidence == way.removeprefix("launch's ")
    assert (found.operation, found.group, found.ranks) == ("all_gather", "7", (0, 2, 4, 6))
    assert (found.bytes_in, found.bytes_out, found.dtype) == (200, 800, "BFloat16")
    assert trace.about[0]["communication"]["by_name"] == 0
    assert trace.notes == ()


def test_metadata_decides_what_a_send_recv_kernel_is(tmp_path: Path) -> None:
    name = "ncclDevKernel_SendRecv(...)"
    sent = {"Collective name": "send", "Dst Rank": 3, "Src Rank": 1}
    received = {"Collective name": "recv", "Dst Rank": 3, "Src Rank": 1}
    exchange = {"Collective name": "all_to_allv"}
    around = event(
        "gpu_user_annotation",
        "nccl:all_to_all",
        START + 300,
        50,
        pid=0,
        tid=7,
        **{"External id": 9},
    )
    trace = load(
        tmp_path,
        [
            kernel(name, START, 50, **FACTS | sent),
            kernel(name, START + 100, 50, **FACTS | received),
            kernel(name, START + 200, 50, **FACTS | exchange),
            kernel(name, START + 300, 50),
            around,
        ],
    )
    found = [trace[row].collective for row in trace.where(Kind.COMMUNICATION)]
    operations = [(one.operation, one.peer) for one in found]
    assert operations == [("send", 3), ("recv", 1), ("all_to_all", -1), ("all_to_all", -1)]


def test_a_recorder_of_pytorch_2_1_says_it_in_its_inputs(tmp_path: Path) -> None:
    inputs = {"Concrete Inputs": ["", "58", "140", "0", "allreduce", "[]"], "Input Dims": [[8, 4]]}
    trace = load(
        tmp_path,
        [
            recorder(inputs | {"Input type": ["float"]}, 4),
            kernel("ncclKernel_SendRecv", START, 7, **{"External id": 4}),
        ],
    )
    found = named(trace, "ncclKernel_SendRecv").collective
    assert (found.operation, found.bytes_in, found.evidence) == ("all_reduce", 128, "external id")


@pytest.mark.parametrize(
    ("said", "configured", "ranks"),
    [
        ("[0, 1, ..., 7]", list(range(8)), tuple(range(8))),
        ("[0, 1, ..., 7]", "[0, 1, ..., 7]", tuple(range(8))),  # 8 ranks from 0 to 7: all of them
        ("[0, 2, ..., 14]", [0, 2, 4, 6, 8, 10, 12, 14], tuple(range(0, 16, 2))),
        ("[0, 2, ..., 14]", "[0, 2, ..., 14]", ()),
        ([0, 2, 4, 6, 8, 10, 12, 14], [], tuple(range(0, 16, 2))),
    ],
)
def test_ranks_that_are_cut_short(said: Any, configured: Any, ranks: Any, tmp_path: Path) -> None:
    facts = FACTS | {"Process Group Ranks": said, "Group size": 8}
    config = [{"pg_name": "7", "pg_desc": "", "pg_size": 8, "ranks": configured}]
    about = head(0, 16, groups=config)
    trace = load(tmp_path, [kernel("k", START, 1, **facts)], about)
    assert trace[0].collective.ranks == ranks
    assert any("the ranks of process groups are not" in note for note in trace.notes) == (not ranks)


def test_gloo_on_the_cpu(tmp_path: Path) -> None:
    shapes = {"Input Dims": [[1000, 10]], "Input type": ["c10::BFloat16"]}
    events = [
        kf.metadata("thread_name", PID, 9, name="thread 9 (pt_gloo_runloop)"),
        event("cpu_op", "c10d::allreduce_", START, 9, **shapes),
        event("user_annotation", "gloo:all_reduce", START + 5, 90, tid=9, **shapes),
        event("user_annotation", "gloo:barrier", START + 100, 90, tid=9),
    ]
    trace = load(tmp_path, events, head(0, 2, gpu=None))
    work, barrier = (trace[row] for row in trace.where(Kind.COMMUNICATION))
    assert (work.lane, work.collective.operation) == ("pt_gloo_runloop", "all_reduce")
    assert (work.collective.bytes_in, work.collective.ranks) == (20_000, (0, 1))
    assert (barrier.collective.operation, barrier.collective.bytes_in) == ("barrier", -1)
    assert str(trace.stamp) == "recorded · CPU × 1 · 2026-11-21"


# ── Lanes ────────────────────────────────────────────────────────────────────────────────────


def test_a_gpu_and_a_process_of_the_same_number_are_two_lanes(tmp_path: Path) -> None:
    events = [
        kf.metadata("thread_name", 7, 7, name="stream 7 "),
        kf.metadata("thread_name", 7, 9, name="thread 9 (pt_autograd_0)"),
        kf.metadata("process_name", 7, 0, name="python"),
        event("cpu_op", "aten::mm", START, 5, pid=7, tid=7),
        event("cpu_op", "aten::t", START, 5, pid=7, tid=9),
        kernel("gemm", START, 5, stream=7, device=7),
        kernel("gemm", START, 5, stream=20, device=7),
        event("cuda_sync", "Context Sync", START, 5, pid=7, tid=7, stream=4294967295, device=7),
    ]
    lanes = load(tmp_path, events).lanes
    assert [(lane.label, lane.stream, lane.device) for lane in lanes] == [
        ("thread main", -1, -1),
        ("pt_autograd_0", -1, -1),
        ("synchronisation", -1, 7),
        ("stream 7", 7, 7),
        ("stream 20", 20, 7),
    ]
    assert lanes[0].process == "python"


def test_threads_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for processes, labels in (
        ((1, 1), ["loop (5)", "loop (6)"]),
        ((1, 2), ["loop (1:5)", "loop (2:6)"]),
    ):
        places = [*zip(processes, (5, 6), strict=True)]
        names = [kf.metadata("thread_name", pid, tid, name="loop") for pid, tid in places]
        work = [event("cpu_op", "a", START, 5, pid=pid, tid=tid) for pid, tid in places]
        assert [lane.label for lane in load(tmp_path, names + work).lanes] == labels


def test_streams_of_several_gpus_are_told_apart(tmp_path: Path) -> None:
    trace = load(tmp_path, [kernel("k", START, 5, device=at) for at in range(2)])
    assert [lane.label for lane in trace.lanes] == ["GPU 0 stream 7", "GPU 1 stream 7"]


def test_kernels_without_a_stream(tmp_path: Path) -> None:
    no_stream = event("kernel", "by its row", START, 5, pid=0, tid=13)
    nowhere = event("kernel", "nowhere", START, 5, pid=0, tid=-1)
    trace = load(tmp_path, [kernel("k", START, 5), no_stream, nowhere])
    assert sorted(one.name for one in trace) == ["by its row", "k"]
    assert named(trace, "by its row").stream == 13
    assert [note.split(" of the GPU")[0] for note in trace.notes] == [
        "rank 0 (rank0.json): 1 slice"
    ] * 2


# ── Text ─────────────────────────────────────────────────────────────────────────────────────

NASTY = st.text(alphabet='{}[],:"\\ \n}a<é😀p', max_size=12) | st.sampled_from(
    ['}, {"ph": "X"', '"}, {"ph', "</script>", '"traceEvents": [', "}\n  ],"]
)


@settings(max_examples=30, derandomize=True, deadline=None)
@given(names=st.lists(NASTY, min_size=1, max_size=6), block=st.integers(5, 90), data=st.data())
def test_any_text_survives_being_cut_anywhere(
    names: list[str], block: int, data: Any, tmp_path_factory: Any
) -> None:
    folder = tmp_path_factory.mktemp("text")
    events = [
        kernel(name, START + at, 1, inputs=[{"a": name}, {"b": 1}], at=at)
        for at, name in enumerate(names)
    ]
    compact = data.draw(st.booleans())
    text = kf.text(
        events, head(note='"traceEvents": [ }, {"x'), foot='\n"late": [{"a":1}, {"b":2}],'
    )
    if compact:
        text = json.dumps(json.loads(text), separators=(",", ":"))
    path = folder / "rank0.json"
    path.write_text(text, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kineto_text, "BLOCK", block)
        trace = Trace.load(path, cache=False)
        row = data.draw(st.integers(0, len(names) - 1))
        args = trace.args(row)
    assert [one.name for one in trace] == names
    assert (args["at"], args["inputs"]) == (row, [{"a": names[row]}, {"b": 1}])
    assert trace.notes == ()


def test_a_name_of_10_mb_is_cut(tmp_path: Path) -> None:
    trace = load(tmp_path, [kernel("x" * 10**7, START, 1), kernel("<b>&", START + 5, 1)])
    assert [len(name) for name in trace.names] == [10_001, 4]
    assert trace.names[1] == "<b>&"
    assert "1 name of more than 10,000 characters cut" in trace.notes[0]


def test_metadata_may_follow_the_events(tmp_path: Path) -> None:
    about = head(1, 2)
    job = about.pop("distributedInfo")
    base = about.pop("baseTimeNanoseconds")
    foot = f'\n "distributedInfo": {json.dumps(job)}, "baseTimeNanoseconds": {base},'
    path = write(tmp_path / "t.json", [kernel("k", START, 1)], about, foot=foot)
    trace = Trace.load(path)
    assert (trace.ranks, trace[0].start) == ((1,), BASE + START)


def test_a_plain_list_of_events(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_text(f"[{kernel('a', START, 1)},{kernel('b', START + 5, 1)}]")
    assert [one.name for one in Trace.load(path)] == ["a", "b"]


def test_number_0_is_how_kineto_writes_that_there_is_none(tmp_path: Path) -> None:
    one = load(tmp_path, [kernel("k", START, 1, correlation=0, **{"External id": 0})])[0]
    assert (one.correlation, one.external) == (-1, -1)


def test_fields_of_another_type_are_taken_for_what_they_mean(tmp_path: Path) -> None:
    odd = kernel("k", START, 1).replace('"stream": 7', '"stream": "7", "correlation": "12"')
    odd = odd.replace('"ts": ', '"ts": "').replace(', "dur"', '", "dur"')
    one = load(tmp_path, [odd])[0]
    assert (one.stream, one.correlation, one.start) == (7, 12, BASE + START)


def test_an_event_that_is_no_json_is_left_out_and_the_others_keep_their_numbers(
    tmp_path: Path,
) -> None:
    events = [kernel("a", START, 1, at=0), "  null", '  {"ph": "X", "name": oops}']
    inside = [{"a": 1}, {"b": 2}, {"c": 3}]
    trace = load(tmp_path, [*events, kernel("b", START + 5, 1, inside=inside, at=3)])
    assert [one.name for one in trace] == ["a", "b"]
    assert trace.args(1)["at"] == 3
    assert "2 events cannot be read, the first is no. 1" in trace.notes[0]


def test_every_cut_keeps_the_complete_events_or_is_an_error(tmp_path: Path) -> None:
    events = [kernel(f"k{at}", START + at, 1, note="}, {") for at in range(4)]
    whole = kf.text(events)
    ends = [whole.index(one) + len(one) for one in events]
    path = tmp_path / "rank0.json"
    for cut in range(0, whole.index('"traceName"'), 11):
        path.write_text(whole[:cut])
        complete = sum(end <= cut for end in ends)
        if complete:
            trace = Trace.load(path, cache=False)
            assert len(trace) == complete
            assert "its end is missing" in trace.notes[0]
        else:
            with pytest.raises(TraceError, match=r"rank0\.json"):
                Trace.load(path, cache=False)


@pytest.mark.parametrize("keep", [0.3, 0.9])
def test_a_packed_file_that_is_cut_off(keep: float, tmp_path: Path) -> None:
    events = [kernel(f"k{at * 7919 % 1000}", START + at, 1) for at in range(500)]
    packed = gzip.compress(kf.text(events).encode())
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(packed[: int(len(packed) * keep)])
    trace = Trace.load(path)
    assert 0 < len(trace) < 500
    assert [one.name for one in trace] == [f"k{at * 7919 % 1000}" for at in range(len(trace))]
    assert "the packed file (gz) is cut off" in trace.notes[0]


def test_a_packed_file_that_is_damaged(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(kf.text([kernel("k", START, 1)]).encode()))
    packed[-8] ^= 255  # of the checksum
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(packed)
    assert "damaged" in " ".join(Trace.load(path).notes)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"  \n", "is empty"),
        (gzip.compress(b"", mtime=0), "is empty"),
        (b"\x80\x03not json", "cannot be read as a trace"),
        (b'{"schemaVersion": 1, "trac', "cannot be read as a trace"),
        (b'{"a": 1}', "not a trace"),
        (b'{"traceEvents": []}', "no slices among its 0 events: did the run reach a step"),
        (kf.text([]).encode(), "no slices of threads or streams"),
    ],
)
def test_what_is_no_trace(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=message) as caught:
        Trace.load(path)
    assert str(path) in str(caught.value)


def test_folders(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no file there ends with"):
        Trace.load(tmp_path)
    with pytest.raises(TraceError, match="cannot be read: No such file"):
        Trace.load(tmp_path / "missing.json")
    with pytest.raises(TraceError, match="the list of paths is empty"):
        Trace.load([])
    (tmp_path / "manifest.json").write_text("[]x".replace("[]x", '{"files": []}'))
    with pytest.raises(TraceError, match="not a trace"):
        Trace.load(tmp_path)
    write(tmp_path / "rank0.json.gz", [kernel("k", START, 1)])
    trace = Trace.load(str(tmp_path))
    assert len(trace) == 1
    assert "left out" in trace.notes[0] and "manifest.json" in trace.notes[0]
    (tmp_path / "rank1.json").write_text("")
    with pytest.raises(TraceError, match=r"rank1\.json is empty"):
        Trace.load(tmp_path)


# ── Ranks ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("names", "ranks", "note"),
    [
        (["rank-3.json", "rank_1.json"], [3, 1], "by its name"),
        (["host_0.98.json", "host_1.97.json"], [0, 1], "by the number in its name"),
        (["run10.json", "run9.json"], [1, 0], "by the order of names"),
        (["only.json"], [0], "by the order of names"),
    ],
)
def test_ranks_of_files_that_do_not_say_them(
    names: list[str], ranks: list[int], note: str, tmp_path: Path
) -> None:
    paths = [write(tmp_path / name, [kernel(name, START, 1)], head(None)) for name in names]
    trace = Trace.load(paths)
    assert {one.name: one.rank for one in trace} == dict(zip(names, ranks, strict=True))
    assert sum(note in one for one in trace.notes) == len(names)


@pytest.mark.parametrize("where", ["before", "between", "behind"])
def test_gigabytes_of_blanks_in_a_small_file_are_refused(where: str, tmp_path: Path) -> None:
    """The first of them are enough: the file goes on for ever, as far as the reader knows."""
    events = [kernel("gemm", 5_000, 1_000, correlation=1)] * 2
    whole = write(tmp_path / "rank0.json", events, head(0, 1)).read_bytes()
    at = {"before": 0, "between": whole.index(b'"gemm"'), "behind": len(whole)}[where]
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(gzip.compress(whole[:at] + b" " * (100 << 20) + b"\0", 1))
    with pytest.raises(TraceError, match=r"rank0\.json\.gz is no trace: its first .* unpack to"):
        Trace.load(path, cache=False)


def test_blanks_of_a_file_that_is_not_packed_are_passed_over(tmp_path: Path) -> None:
    path = write(tmp_path / "rank0.json", [kernel("gemm", 5_000, 1_000)], head(0, 1))
    path.write_bytes(b" " * (20 << 20) + path.read_bytes() + b"\n" * (20 << 20))
    assert count(Trace.load(path, cache=False), "gemm") == 1


def twice(events: list[str]) -> list[str]:
    return [*events, *events]


LAUNCHED = [
    event("user_annotation", "ProfilerStep#1", 1_000, 9_000),
    event("cuda_runtime", "cudaLaunchKernel", 2_000, 5, correlation=1),
    kernel("gemm", 5_000, 1_000, correlation=1),
]
NO_PHASE = LAUNCHED[2].replace('"ph": "X", ', "")
SAID: dict[str, tuple[list[str], str]] = {
    "twice": (twice(LAUNCHED), "3 slices given twice, with the same time and ids: left out"),
    "no ph": ([*LAUNCHED, NO_PHASE], '1 event without a phase ("ph") that Chrome'),
    "unknown ph": ([*LAUNCHED, LAUNCHED[2].replace('"X"', '"Q"')], "1 event without a phase"),
    "nanoseconds": (
        [
            event("cuda_runtime", "cudaLaunchKernel", 2_000_000, 5_000_000, correlation=1),
            kernel("gemm", 9_000_000, 1_000_000, correlation=1),
        ],
        "half of its calls that launch work take 5.000 ms: are its times nanoseconds?",
    ),
}


@pytest.mark.parametrize("what", SAID)
def test_what_would_change_totals_silently_is_said(what: str, tmp_path: Path) -> None:
    events, said = SAID[what]
    path = write(tmp_path / "rank0.json", events, head(0, 1))
    trace = Trace.load(path, cache=False)
    assert said in " ".join(trace.notes)
    assert count(trace, "gemm") == count(trace, "cudaLaunchKernel") == 1


def test_equal_times_are_no_repetition(tmp_path: Path) -> None:
    """Two kernels of other ids, and frames of Python, which have none."""
    frames = twice([event("python_function", "f", 2_000, 50)])
    kernels = [kernel("gemm", 5_000, 1_000, correlation=one) for one in (1, 2)]
    path = write(tmp_path / "rank0.json", [*frames, *kernels], head(0, 1))
    trace = Trace.load(path, cache=False)
    assert count(trace, "gemm") == count(trace, "f") == 2
    assert not any("twice" in one for one in trace.notes)


def test_what_a_file_says_beats_its_name(tmp_path: Path) -> None:
    trace = Trace.load(write(tmp_path / "rank1.json", [kernel("k", START, 1)], head(0, 1)))
    assert trace.ranks == (0,)
    assert trace.notes == ("rank1.json is named after rank 1, but says it is of rank 0",)


def test_two_files_of_one_rank(tmp_path: Path) -> None:
    for name in ("rank0.json", "rank0.json.gz"):
        write(tmp_path / name, [kernel("k", START, 1)])
    with pytest.raises(TraceError, match=r"rank0\.json and .*rank0\.json\.gz are both of rank 0"):
        Trace.load(tmp_path)


def test_missing_ranks_and_other_jobs(tmp_path: Path) -> None:
    paths = [
        write(tmp_path / f"{rank}.json", [kernel("k", START, 1)], head(rank, 4)) for rank in (0, 3)
    ]
    notes = Trace.load(paths).notes
    assert notes == ("ranks 1, 2 are missing: the job has 4 ranks, there are traces of 2",)
    other = write(tmp_path / "other.json", [kernel("k", START, 1)], head(1, 8))
    with pytest.raises(TraceError, match=r"0\.json is of 4 ranks and other\.json is of 8 ranks"):
        Trace.load([*paths, other])
    beyond = write(tmp_path / "beyond.json", [kernel("k", START, 1)], head(4, 4))
    with pytest.raises(TraceError, match="rank 4, but its job has 4 ranks"):
        Trace.load([*paths, beyond])
    late = write(tmp_path / "late.json", [kernel("k", START + 10**10, 1)], head(1, 4))
    assert "rank 1 begins 10.000 s after rank 0 has ended" in " ".join(
        Trace.load([*paths, late]).notes
    )


def test_about_and_stamp(tmp_path: Path) -> None:
    more: dict[str, Any] = {
        "cuda_runtime_version": 13000,
        "torch_version": "2.13.0",
        "host_name": "a",
    }
    paths = [
        write(tmp_path / f"{rank}.json", [kernel("k", START, 9)], head(rank, 2, **more))
        for rank in range(2)
    ]
    trace = Trace.load(paths)
    assert str(trace.stamp) == "recorded · NVIDIA H200 × 2 · PyTorch 2.13.0 · 2026-11-21"
    about = trace.about[1]
    assert (about["file"], about["world_size"], about["gpu"]) == ("1.json", 2, "NVIDIA H200")
    assert (about["cuda"], about["nccl"], about["host"]) == ("13.0", "2.28.9", "a")
    assert about["groups"][0]["ranks"] == [0, 1]
    mine = Provenance("simulated", "by hand")
    assert Trace.load(paths, stamp=mine).stamp == mine


# ── Processes and the cache ──────────────────────────────────────────────────────────────────


def test_a_whole_run(run: Path) -> None:
    trace = Trace.load(run, cache=False, processes=1)
    counts = {kind: len(trace.where(kind)) for kind in Kind}
    events: list[Any] = []
    for path in run.iterdir():
        events += json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    slices = [one for one in events if one["ph"] == "X" and one["cat"] != "Trace"]
    nccl = sum(one["name"].startswith("ncclDev") for one in slices)
    assert len(trace) == len(slices)
    assert counts[Kind.COMMUNICATION] == nccl > 0
    assert counts[Kind.COMPUTE] == sum(one["cat"] == "kernel" for one in slices) - nccl
    assert trace.notes == ()
    for rank in range(2):
        alone = Trace.load(run / f"rank{rank}.pt.trace.json.gz", cache=False)
        mine = trace.select(trace.where(rank=rank))
        assert np.array_equal(mine.start, alone.start)
        assert [trace.lanes[lane] for lane in np.unique(mine.lane)] == list(alone.lanes)


def test_a_script_without_a_guard_reads_in_processes(run: Path, tmp_path: Path) -> None:
    (tmp_path / "random.py").write_text("raise SystemExit('the wrong random')")
    script = tmp_path / "script.py"
    script.write_text(
        "import os, subprocess, sys\n"
        "started = []\n"
        "class Popen(subprocess.Popen):\n"
        "    def __init__(self, command, **more):\n"
        "        super().__init__(command, **more); started.append(self)\n"
        "subprocess.Popen = Popen\n"
        "sys.path.pop(0)\n"
        "from lockstep.trace import Trace\n"
        "from lockstep.trace.read.kineto import files\n"
        "files._LARGE = 600_000\n"
        f"trace = Trace.load({str(run)!r}, cache=False, processes=2)\n"
        "print(len(trace), [one.returncode for one in started])\n"
    )
    environment = {**os.environ, "PYTHONPATH": LIBRARY}
    command = [sys.executable, str(script)]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    rows = len(Trace.load(run, cache=False, processes=1))
    assert done.stdout == f"{rows} [0, 0]\n", done.stderr


def test_as_many_processes_as_cores_may_be_used(run: Path, monkeypatch: Any) -> None:
    started: list[Any] = []

    class Counted(subprocess.Popen):
        def __init__(self, *args: Any, **more: Any) -> None:
            started.append(0)
            super().__init__(*args, **more)

    monkeypatch.setattr(subprocess, "Popen", Counted)
    for cores, processes in ((1, 0), (2, 2)):  # usable cores: affinity and quotas of cgroups
        monkeypatch.setattr(workers, "usable_cores", lambda cores=cores: cores)
        started.clear()
        Trace.load(run, cache=False)
        assert len(started) == processes


@pytest.mark.parametrize("seen", [True, False])
def test_a_notebook_shows_how_many_large_files_are_read(
    run: Path, seen: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(workers, "in_notebook", lambda: seen)
    monkeypatch.setattr("tqdm.tqdm", lambda **said: tqdm(**said | {"delay": 0, "mininterval": 0}))
    Trace.load(run, cache=False, processes=2)
    assert ("2/2" in capsys.readouterr().err) is seen


def test_processes_read_the_same_and_pass_errors_on(run: Path, tmp_path: Path) -> None:
    assert same(Trace.load(run, processes=2), Trace.load(run, cache=False, processes=1))
    broken = tmp_path / "rank1.json"
    broken.write_bytes(b'{"traceEvents": [' + b" " * (files._LARGE + 1) + b"]}")
    sound = tmp_path / "rank0.json.gz"
    sound.write_bytes((run / "rank0.pt.trace.json.gz").read_bytes())
    with pytest.raises(TraceError, match=r"rank1\.json has no slices"):
        Trace.load([sound, broken], processes=2)


def test_the_cache_is_used_and_thrown_away(run: Path, tmp_path: Path, own_cache: Path) -> None:
    path = tmp_path / "rank0.json.gz"
    path.write_bytes((run / "rank0.pt.trace.json.gz").read_bytes())
    first = Trace.load(path)
    (entry,) = own_cache.iterdir()
    rest = entry / "rest.json"
    rest.write_bytes(rest.read_bytes().replace(b"aten::addmm", b"aten::cache"))
    assert "aten::cache" in Trace.load(path).names
    assert same(Trace.load(path, cache=False), first)
    os.utime(path, ns=(1, 1))  # the file is another now
    assert same(Trace.load(path), first)


@pytest.mark.parametrize("file", ["rest.json", "start.npy", "name.npy"])
@pytest.mark.parametrize("how", ["cut", "gone", "nonsense"])
def test_a_damaged_cache_is_read_anew(
    file: str, how: str, run: Path, tmp_path: Path, own_cache: Path
) -> None:
    path = tmp_path / "rank0.json.gz"
    path.write_bytes((run / "rank0.pt.trace.json.gz").read_bytes())
    first = Trace.load(path)
    (entry,) = own_cache.iterdir()
    damaged = entry / file
    content = damaged.read_bytes()
    damaged.unlink()
    if how == "cut":
        damaged.write_bytes(content[: len(content) // 2])
    elif how == "nonsense":
        damaged.write_bytes(content[:128] + b"\x7f" * (len(content) - 128))
    if (file, how) != ("start.npy", "nonsense"):  # times can be anything
        assert same(Trace.load(path), first)
        assert damaged.read_bytes() == content  # and put right


def test_without_a_cache_folder_it_works(run: Path, tmp_path: Path, monkeypatch: Any) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setattr("platformdirs.user_cache_path", lambda name: blocked / name)
    assert same(Trace.load(run), Trace.load(run, cache=False))


def test_the_cache_stays_small(
    run: Path, tmp_path: Path, own_cache: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(cache, "CACHE_LIMIT", 1)
    content = (run / "rank0.pt.trace.json.gz").read_bytes()
    entries = []
    for name in ("a.json.gz", "b.json.gz"):
        (tmp_path / name).write_bytes(content)
        Trace.load(tmp_path / name)
        entries.append({entry.name for entry in own_cache.iterdir()})
    assert [len(one) for one in entries] == [1, 1] and entries[0] != entries[1]


def test_args_come_from_the_file_and_only_from_the_same(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "rank0.json.gz"
    path.write_bytes((run / "rank0.pt.trace.json.gz").read_bytes())
    trace = Trace.load(path, cache=False)
    row = int(trace.where(Kind.COMMUNICATION)[-1])
    args = trace.args(row)
    assert args["Collective name"] == "allreduce" and args["grid"] == [132, 1, 1]
    assert args["correlation"] == trace[row].correlation
    os.utime(path, ns=(1, 1))
    with pytest.raises(TraceError, match="has changed since it was loaded"):
        trace.args(row)


@pytest.mark.parametrize(
    ("maker", "style"), [("amd", "relative"), ("nvidia", "absolute"), ("nvidia", "whole")]
)
def test_other_makers_and_ages(maker: str, style: str, tmp_path: Path) -> None:
    kf.training(tmp_path, ranks=2, events=700, maker=maker, style=style)
    trace = Trace.load(tmp_path)
    kf.training(tmp_path, ranks=2, events=700)
    usual = Trace.load(tmp_path)
    assert np.array_equal(np.sort(trace.kind), np.sort(usual.kind))
    away = 1000 if style == "whole" else 1  # which also changes the order of some
    assert np.abs(np.sort(trace.start) - np.sort(usual.start)).max() < away
    assert kf.GPUS[maker] in str(trace.stamp)


def test_only_the_files_own_list_of_events_counts(tmp_path: Path) -> None:
    decoy = f'{{"meta": {{"traceEvents": [{kernel("decoy", START, 1)}]}}, '
    path = tmp_path / "rank0.json"
    path.write_text(decoy + kf.text([kernel("k", START, 1)])[1:])
    trace = Trace.load(path, cache=False)
    assert ([one.name for one in trace], trace.notes) == (["k"], ())


def test_links_and_pipes_are_called_what_they_are(tmp_path: Path) -> None:
    for name, target in (("rank1.json", "nowhere"), ("rank2.json", "rank2.json")):
        (tmp_path / name).symlink_to(target)
        with pytest.raises(TraceError, match=f"{name} cannot be read: it is a link to {target}"):
            Trace.load(tmp_path / name)
    os.mkfifo(tmp_path / "rank3.json")
    with pytest.raises(TraceError, match="is a pipe or a device, not a file"):
        Trace.load(tmp_path / "rank3.json")
    write(tmp_path / "rank0.json", [kernel("k", START, 1)])
    notes = [note for note in Trace.load(tmp_path).notes if note.startswith("left out")]
    assert len(notes) == 3


@pytest.mark.parametrize("what", ["rank", "world_size"])
@pytest.mark.parametrize("value", [-1, 0.5, 10**8, 10**9, 10**30])
def test_numbers_of_ranks_that_cannot_be(what: str, value: float, tmp_path: Path) -> None:
    about = head(0, 4, groups=[])
    about["distributedInfo"][what] = value
    notes = " ".join(load(tmp_path, [kernel("k", START, 1)], about).notes)
    assert f"its {what} is {value}, which cannot be: ignored" in notes
