"""NCCL's calls come into the record from what PyTorch's flight recorder has.

`flight_nccl.json` is a dump of rank 0 of two on an H200 (PyTorch 2.11, NCCL 2.28.9, 2026-11-24)
after 26 kinds of calls, without what nothing here reads. `make test-gpu` has live ones.
"""

import copy
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lockstep.calls.record import HEADER, Group, Reader
from lockstep.launch.worker import hooks, nccl_calls
from lockstep.launch.worker.recorder import Recorder
from test_launch import launch

DUMP = json.loads((Path(__file__).parent / "flight_nccl.json").read_text())


class Rank:
    """A rank's record, and what PyTorch would answer it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.dump: dict[str, Any] = {**DUMP, "entries": []}
        self.recorder = Recorder(bytearray(HEADER.size + (1 << 17)))
        self.reader = Reader(self.recorder._memory, 0)
        monkeypatch.setattr(nccl_calls, "_dump", lambda **_: copy.deepcopy(self.dump))
        self.calls = nccl_calls.NcclCalls(self.recorder, 0, self.describe, lambda _: None)

    def describe(self, name: str, ranks: tuple[int, ...], _: Any) -> tuple[int, Group]:
        known = "default 0" if name == "0" else name
        return self.recorder.group(name, lambda: Group(known, ranks))

    def made(self, entries: list[dict[str, Any]]) -> list[str]:
        self.dump["entries"] = entries
        self.calls.copy()
        return [str(call) for call in self.reader.calls()]


@pytest.fixture
def rank(monkeypatch):
    return Rank(monkeypatch)


def test_every_kind_of_call_has_its_name_number_and_tensors(rank):
    made = rank.made(DUMP["entries"])
    f, here = "float32[6]", "on the default group"
    assert made == [
        *(f"all_reduce #{n} of {f} {here}" for n in (0, 1)),
        *(f"{what} of {f} {here}" for what in ("broadcast #2", "reduce #3", "all_gather #4")),
        f"all_gather #5 of float32[3] {here}",  # of tensors that differ, in parts
        f"all_gather_into_tensor #6 of {f} {here}",
        f"reduce_scatter #7 of float32[2, 3] {here}",
        f"reduce_scatter_tensor #8 of {f} {here}",
        f"all_to_all #9 of float32[3], [3] {here}",
        f"all_to_all #10 of {f} {here}",
        f"gather #11 of {f} {here}",
        f"scatter #12 of {f} {here}",
        f"barrier #13 {here}",
        f"send #0 to rank 1 of {f} {here}",
        f"send #1 to rank 1 of {f} {here}",
        f"recv #0 from rank 1 of {f} {here}",
        f"all_reduce_coalesced #14 of {f}, [6] {here}",
        f"all_gather #15 of int64[1] {here}",
        f"all_gather #16 of uint8[21] {here}",
        f"all_reduce #17 of bool[2] {here}",
        f"all_reduce #18 of float32[0] {here}",
        f"all_reduce #19 of {f} {here}",
        f"all_reduce #0 of {f} on group 1 [0, 1]",
        f"all_reduce #0 of {f} on group 2 [0, 1]",
        f"all_gather #20 of int64[1] {here}",
        f"broadcast #21 of int64[6] {here}",
        f"broadcast #22 of float32[20] {here}",
        f"all_reduce #23 of float32[20] {here}",
    ]
    calls = rank.reader.calls()
    assert all(call.queued and call.end == call.start for call in calls)
    assert [call.operation for call in calls if call.batched] == ["send", "recv"]
    assert calls[0].bytes == 24 and calls[20].bytes == 2
    began = DUMP["entries"][0]["time_created_ns"] / 1e9
    assert calls[0].start - time.perf_counter() == pytest.approx(began - time.time(), abs=1)


def test_a_call_is_over_when_the_gpu_has_done_it_and_is_entered_once(rank):
    entries = copy.deepcopy(DUMP["entries"][:3])
    entries[2]["state"] = "scheduled"
    moves = rank.reader.progress
    assert len(rank.made(entries)) == 3
    assert rank.reader.queued() == rank.reader.calls()[2:]
    assert len(rank.made(DUMP["entries"][:4])) == 4
    assert rank.reader.queued() == [] and rank.reader.progress != moves


def test_a_batch_is_over_with_its_last_entry(rank):
    at = next(i for i, one in enumerate(DUMP["entries"]) if one["p2p_seq_id"] == 2)
    entries = copy.deepcopy(DUMP["entries"][: at + 3])
    assert entries[-1]["profiling_name"] == "nccl:coalesced"
    rank.made(entries[:-1])
    assert [call.operation for call in rank.reader.queued()] == ["send", "recv"]
    entries[-1]["state"] = "scheduled"
    rank.made(entries)
    assert len(rank.reader.queued()) == 2
    entries[-1]["state"] = "completed"
    rank.made(entries)
    assert rank.reader.queued() == []


def test_calls_that_were_overwritten_are_counted_and_the_others_keep_their_numbers(rank):
    rank.made(DUMP["entries"][:2])
    made = rank.made(DUMP["entries"][10:14])
    assert rank.reader.dropped == 8 and not rank.reader.is_doubtful
    assert made[2:3] == ["reduce_scatter_tensor #8 of float32[6] on the default group"]
    assert rank.reader.calls()[-1].number == 11


class Captures:
    """Groups whose collectives PyTorch counts, also while it captures."""

    def __init__(self, rank: Rank, monkeypatch: pytest.MonkeyPatch):
        self.counts, self._calls = {"0": 0}, rank.calls
        monkeypatch.setattr(nccl_calls, "_counts", lambda: dict(self.counts))
        monkeypatch.setattr(nccl_calls, "_ranks_of", lambda _: (0, 1))

    def graph(self, collectives: int) -> Any:
        graph = type("Graph", (), {})()
        self._calls.begin_capture()
        self.counts["0"] += collectives
        self._calls.end_capture(graph)
        return graph


def test_captured_calls_are_no_calls_and_replays_are_told(rank, monkeypatch):
    captures = Captures(rank, monkeypatch)
    empty, held = captures.graph(0), captures.graph(3)
    for graph in (held, empty, held):
        rank.calls.replay(graph)
    after = [{**one, "collective_seq_id": one["collective_seq_id"] + 3} for one in DUMP["entries"]]
    made = rank.made(after[:2])
    here = "on the default group"
    assert made == [
        *(f"replay of graph 1 (3 collectives) #{n} {here}" for n in (0, 1)),
        *(f"all_reduce #{n} of float32[6] {here}" for n in (0, 1)),
    ]
    assert rank.reader.queued() == []


def test_lost_messages_make_the_record_doubtful(rank):
    message = next(one for one in DUMP["entries"] if one["is_p2p"])
    later = {**message, "record_id": 500, "p2p_seq_id": 90}
    rank.made([message])
    rank.made([later])
    assert rank.reader.is_doubtful


def test_where_a_program_reads_the_recorder_itself_nothing_is_forgotten(rank, monkeypatch):
    forgotten = []
    monkeypatch.setattr(nccl_calls, "function", lambda _: lambda: forgotten.append(1))
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "50")
    rank.dump["entries"] = DUMP["entries"]
    rank.calls.copy(is_over=True)
    assert not forgotten
    monkeypatch.delenv("TORCH_FR_BUFFER_SIZE")
    rank.calls.copy(is_over=True)
    assert forgotten
    rank.dump["entries"] = [{**DUMP["entries"][0], "collective_seq_id": 25}]  # from 0 again
    rank.calls.copy()
    assert len(rank.reader.calls()) == 30


@pytest.mark.parametrize(("size", "is_kept"), [(None, True), ("2000", True), ("0", False)])
def test_a_program_that_switches_the_recorder_off_is_recorded_by_hooks(size, is_kept, monkeypatch):
    monkeypatch.setattr(nccl_calls, "function", lambda _: lambda: None)
    for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"):
        monkeypatch.delenv(name, raising=False)
        if size is not None:
            monkeypatch.setitem(os.environ, name, size)
    assert nccl_calls.is_recorded() is is_kept


def with_hooks_out_of_calls() -> float:
    """A rank calls gloo as it would NCCL, whose calls have nothing of Lockstep in them."""
    x = torch.ones(1)
    dist.all_reduce(x)
    hooks._all_are_nccls = True
    hooks._step_aside()
    dist.all_reduce(x)
    dist.all_reduce(x, async_op=True).wait()
    other = 1 - dist.get_rank()
    peers = [dist.P2POp(dist.isend, x, other), dist.P2POp(dist.irecv, torch.ones(1), other)]
    for work in dist.batch_isend_irecv(peers):
        work.wait()
    dist.barrier()
    hooks._all_are_nccls = False
    hooks._step_aside()
    dist.all_reduce(x)
    return x.item()


def test_calls_are_as_they_were_while_the_hooks_are_out_of_them():
    job = launch(with_hooks_out_of_calls, nproc_per_node=2)
    assert job.results == [16.0] * 2
    assert [call.operation for call in job.calls[0]] == ["all_reduce"] * 2
