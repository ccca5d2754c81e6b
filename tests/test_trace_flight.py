"""A hang, told from the dumps of flight recorders: by hand in PyTorch's format, and by PyTorch."""

import json
import os
import pickle
import subprocess
import sys

import pytest
from lockstep.trace import TraceError
from lockstep.trace.read.flight import flight

FRAMES = [
    {"name": "all_reduce", "filename": "/venv/torch/distributed/distributed_c10d.py", "line": 9},
    {"name": "step", "filename": "/home/me/train.py", "line": 40},
]


def entry(number, operation="all_reduce", *, state="completed", size=(8,), group="0", record=None):
    return {
        "frames": FRAMES,
        "record_id": number - 1 if record is None else record,
        "pg_id": int(group),
        "process_group": (group, "default_pg" if group == "0" else "undefined"),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": f"nccl:{operation}",
        "time_created_ns": 1_795_000_000_000_000_000 + 1_000 * number,
        "input_sizes": [list(size)],
        "input_dtypes": ["Float"],
        "output_sizes": [list(size)],
        "output_dtypes": ["Float"],
        "state": state,
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": state == "completed",
        "timeout_ms": 600_000,
        "is_p2p": operation.startswith(("send", "recv")),
    }


def dump(folder, rank, entries, ranks=(0, 1, 2), name="nccl_trace_rank_{}"):
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(ranks))}}
    groups["1"] = {"name": "1", "desc": "undefined", "ranks": "[0, 1]"}
    what = {"version": "2.10", "pg_config": groups, "pg_status": {}, "entries": entries}
    (folder / name.format(rank)).write_bytes(pickle.dumps(what, protocol=2))


def test_it_names_the_rank_that_never_called(tmp_path):
    for rank in (0, 2):
        dump(tmp_path, rank, [entry(1), entry(2), entry(3, state="started", size=(4, 4))])
    dump(tmp_path, 1, [entry(1), entry(2)])
    found = flight(tmp_path)
    assert found.verdict == (
        "Ranks 0, 2 wait in all_reduce #3 of float32[4, 4] on the default group (train.py:40) for "
        "rank 1, which never called it. Every rank of a group must call the same collectives in "
        "the same order."
    )
    (missing,) = found.missing
    assert (missing.waiting, missing.missing) == ((0, 2), (1,))
    assert [found.entered[rank].call.number for rank in found.ranks] == [3, 2, 3]
    assert [found.completed[rank].call.number for rank in found.ranks] == [2, 2, 2]
    assert not found.mismatches and not found.stuck and not found.notes
    lines = str(found).splitlines()
    assert lines[2].startswith("rank 1: last called all_reduce #2") and "(running)" in lines[1]


def test_it_says_where_ranks_called_different_things(tmp_path):
    dump(tmp_path, 0, [entry(1, state="started")], ranks=(0, 1))
    dump(tmp_path, 1, [entry(1, "_all_gather_base", state="started")], ranks=(0, 1))
    assert flight(tmp_path).verdict.startswith(
        "The ranks are in different collectives: as call #1 on the default group, "
        "rank 0 called all_reduce, rank 1 called all_gather_into_tensor."
    )
    dump(tmp_path, 1, [entry(1, size=(9,), state="started")], ranks=(0, 1))
    assert "rank 0 passed float32[8], rank 1 passed float32[9]" in str(flight(tmp_path))
    dump(tmp_path, 1, [entry(1, state="started")], ranks=(0, 1))
    found = flight(tmp_path)
    assert not found.mismatches and [one.call.number for one in found.stuck] == [1]
    assert "All ranks have entered all_reduce #1" in found.verdict


def test_only_the_members_of_a_group_are_missed(tmp_path):
    dump(tmp_path, 0, [entry(1), entry(1, group="1", state="scheduled", record=1)])
    for rank in (1, 2):
        dump(tmp_path, rank, [entry(1)])
    found = flight(tmp_path)
    assert found.missing[0].missing == (1,) and "on group 1 [0, 1]" in found.verdict
    assert "(queued)" in str(found)


def test_a_rank_without_a_dump_is_absent(tmp_path):
    for rank in (0, 1):
        dump(tmp_path, rank, [entry(1, state="started")])
    found = flight(tmp_path)
    assert found.absent == (2,) and found.verdict.startswith("Rank 2 left no dump")


def test_a_full_recorder_that_forgot_a_group_is_not_blamed(tmp_path):
    late = entry(9, group="1", state="started", record=0)
    dump(tmp_path, 0, [late])
    dump(tmp_path, 1, [entry(70, record=2_069)])
    dump(tmp_path, 2, [entry(1)])
    found = flight(tmp_path)
    assert not found.missing or found.missing[0].entry.call.group.is_default
    assert "rank 1: the recorder was full" in str(found)


def test_done_everywhere_is_no_hang_and_messages_have_no_number(tmp_path):
    for rank in (0, 1):
        dump(tmp_path, rank, [entry(1), entry(1, "send 0->1", state="started")], ranks=(0, 1))
    found = flight(tmp_path)
    assert "nothing hangs" in found.verdict and found.entered[0].call.operation == "all_reduce"
    assert found._repr_mimebundle_()["text/plain"] == str(found)


def test_retired_means_done_for_gloo_which_says_no_state_and_not_for_nccl(tmp_path):
    scheduled = {**entry(1, state="scheduled"), "retired": True}
    dump(tmp_path, 0, [{**scheduled, "profiling_name": "gloo:all_reduce"}], ranks=(0,))
    assert flight(tmp_path).completed[0].call.number == 1
    dump(tmp_path, 0, [scheduled], ranks=(0,))
    assert flight(tmp_path).completed[0] is None


def test_other_files_are_left_alone_and_broken_ones_refused(tmp_path):
    with pytest.raises(TraceError, match="holds no dumps"):
        flight(tmp_path)
    with pytest.raises(TraceError, match="is not a folder"):
        flight(tmp_path / "gone")
    dump(tmp_path, 0, [entry(1)], ranks=(0,))
    (tmp_path / "notes.txt").write_text("hello")
    assert flight(tmp_path).ranks == (0,)
    dump(tmp_path, 0, [entry(1)], ranks=(0,), name="other_{}")
    with pytest.raises(TraceError, match="nccl_trace_rank_0 and other_0 are both of rank 0"):
        flight(tmp_path)
    (tmp_path / "other_0").unlink()
    for content, says in (
        (pickle.dumps(os.mkdir), r"wants to load 'posix\.mkdir'"),
        (pickle.dumps({"entries": [1] * 99})[:-40], "cut off"),
        (b'{"entries": [', "not JSON, or is cut off"),
        (b'{"version": "2.10"}', "no list `entries`"),
        (pickle.dumps({"entries": [{"record_id": 0}]}), "not as PyTorch writes it"),
    ):
        (tmp_path / "nccl_trace_rank_1").write_bytes(content)
        with pytest.raises(TraceError, match=f"nccl_trace_rank_1.*{says}"):
            flight(tmp_path)


HANG = """
import os, sys
import torch, torch.distributed as dist
from torch._C import _distributed_c10d as c10d
rank, folder = int(sys.argv[1]), sys.argv[2]
store = dist.FileStore(f"{folder}/store", 2)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
dist.all_reduce(torch.ones(8))
if rank == 0:
    work = dist.all_reduce(torch.ones(2, 3), async_op=True)
text = c10d._dump_fr_trace_json(True, False)
text = text.encode() if isinstance(text, str) else text
open(f"{folder}/json/rank{rank}.json", "wb").write(text)
open(f"{folder}/pickle/trace_{rank}", "wb").write(c10d._dump_fr_trace(True, True, False))
store.set(f"dumped {rank}", "")
store.wait(["dumped 0", "dumped 1"])
os._exit(0)
"""


def test_real_dumps_of_two_ranks_in_both_formats(tmp_path):
    for kind in ("json", "pickle"):
        (tmp_path / kind).mkdir()
    environment = {**os.environ, "TORCH_FR_BUFFER_SIZE": "100", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen([sys.executable, "-c", HANG, str(rank), str(tmp_path)], env=environment)
        for rank in (0, 1)
    ]
    assert [one.wait(timeout=60) for one in ranks] == [0, 0]
    assert json.loads((tmp_path / "json" / "rank0.json").read_text())["entries"]
    for kind in ("json", "pickle"):
        found = flight(tmp_path / kind)
        (missing,) = found.missing
        assert (missing.waiting, missing.missing) == ((0,), (1,))
        assert str(missing.entry) == "all_reduce #2 of float32[2, 3] on the default group"
        assert [found.entered[rank].call.number for rank in (0, 1)] == [2, 1]
        assert "do not say which ranks are in a group" in found.notes[0]
