"""The allocator's timeline, from snapshots in the format that PyTorch writes."""

import os
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lockstep.base.provenance import Provenance
from lockstep.trace import TraceError
from lockstep.trace.read.memory_snapshot import EARLIER, Alive, OutOfMemory, memory

MIB = 1 << 20
TORCH = {"filename": "/venv/site-packages/torch/nn/modules/linear.py", "line": 5, "name": "forward"}
CPP = {"filename": "/build/c10/alloc.cpp", "line": 9, "name": "malloc"}


def event(action, addr, size, line=None, **more):
    frames = [CPP, TORCH]
    if line:
        frames.append({"filename": "/home/me/train.py", "line": line, "name": "step"})
    what = {"action": action, "addr": addr, "size": size, "stream": 0, "frames": frames}
    return {**what, **more}


def freed(addr, size):
    return [event("free_requested", addr, size), event("free_completed", addr, size)]


def segment(address, total, *blocks, device=0):
    held = [
        {"address": at, "size": size, "requested_size": size, "state": state, "frames": []}
        for at, size, state in blocks
    ]
    return {"device": device, "address": address, "total_size": total, "stream": 0, "blocks": held}


def snapshot(events, *segments):
    return {"segments": list(segments), "device_traces": [events], "allocator_settings": {}}


TRAINING = snapshot(
    [
        event("segment_alloc", 0, 20 * MIB, 1),
        event("alloc", 0, 6 * MIB, 10),
        event("alloc", 6 * MIB, 4 * MIB, 20),
        event("free_requested", 6 * MIB, 4 * MIB),
        event("alloc", 10 * MIB, 5 * MIB, 10),
        event("free_completed", 6 * MIB, 4 * MIB),
        *freed(10 * MIB, 5 * MIB),
    ],
    segment(0, 20 * MIB, (0, 6 * MIB, "active_allocated"), (6 * MIB, 14 * MIB, "inactive")),
)


def test_it_counts_what_tensors_hold_what_streams_still_use_and_what_is_reserved():
    found = memory(TRAINING)
    assert (found.allocated // MIB).tolist() == [0, 0, 6, 10, 6, 11, 11, 6, 6]
    assert (found.active // MIB).tolist() == [0, 0, 6, 10, 10, 15, 11, 11, 6]
    assert (found.reserved // MIB).tolist() == [0, *[20] * 8]
    assert found.peak == 5 and found.fragmentation == 9 * MIB
    assert found.mismatch == {"allocated": 0, "active": 0, "reserved": 0} and not found.notes
    assert found.time.tolist() == list(range(9)) and not found.timed


def test_at_the_peak_stands_what_was_alive_by_the_line_outside_of_torch():
    assert memory(TRAINING).at_peak == (Alive("train.py:10 step", "", 2, 11 * MIB),)
    hidden = snapshot([event("alloc", 0, 512, category="gradient")])
    (alive,) = memory(hidden).at_peak
    assert alive.category == "gradient" and "outside of torch" in alive.where


def test_what_is_older_than_the_history_is_counted_from_the_begin():
    found = memory(
        snapshot(
            [*freed(0, 3 * MIB), event("alloc", 0, MIB, 10), event("segment_free", 99 * MIB, MIB)],
            segment(0, 8 * MIB, (0, MIB, "active_allocated"), (MIB, 2 * MIB, "active_allocated")),
        )
    )
    assert (found.allocated // MIB).tolist() == [5, 2, 2, 3, 3]
    assert (found.reserved // MIB).tolist() == [9, 9, 9, 9, 8]
    assert not any(found.mismatch.values())
    assert found.at_peak == (Alive(EARLIER, "", 2, 5 * MIB),)
    assert "2 allocations are older than the history" in str(found)


def test_expandable_segments_are_reckoned_from_the_end():
    events = [event("segment_map", 4 * MIB, 2 * MIB), event("segment_unmap", 0, MIB)]
    found = memory(snapshot(events, segment(0, 8 * MIB, (0, 8 * MIB, "inactive"))))
    assert (found.reserved // MIB).tolist() == [7, 9, 8]
    assert "expandable" in str(found)


def test_events_that_do_not_lead_to_the_end_are_reported():
    events = [event("segment_alloc", 0, 8 * MIB), event("alloc", 0, 2 * MIB, 10)]
    found = memory(snapshot(events, segment(0, 8 * MIB, (0, 8 * MIB, "inactive"))))
    assert found.mismatch == {"allocated": 2 * MIB, "active": 2 * MIB, "reserved": 0}
    assert "the events leave 2.00 MiB more allocated than the snapshot holds" in str(found)


def test_running_out_of_memory_is_told():
    oom = {"action": "oom", "size": 5 * MIB, "device_free": MIB, "stream": 0, "frames": []}
    found = memory(snapshot([event("segment_alloc", 0, MIB), event("alloc", 0, MIB), oom]))
    assert found.out_of_memory == (OutOfMemory(2, 5 * MIB, MIB, MIB, MIB),)
    assert "out of memory after 2 events: 5.00 MiB asked for, 1.00 MiB free" in str(found)


def test_times_are_nanoseconds_since_the_first_event():
    events = [event("alloc", at, 8, time_us=1_700_000_000_000_000 + 3 * at) for at in (0, 5)]
    found = memory(snapshot(events))
    assert found.timed and found.time.tolist() == [0, 0, 15_000]


def test_a_snapshot_of_several_gpus_asks_which_one():
    two = {
        "device_traces": [[event("alloc", 0, 8)], [event("alloc", 0, 16)]],
        "segments": [
            segment(0, 32, (0, 8, "active_allocated")),
            segment(0, 64, (0, 16, "active_allocated"), device=1),
        ],
    }
    with pytest.raises(TraceError, match=r"\[0, 1\]: choose one"):
        memory(two)
    found = memory(two, device=1)
    assert found.allocated.tolist() == [0, 16] and not any(
        found.mismatch[what] for what in ("allocated", "active")
    )
    with pytest.raises(TraceError, match="no history of GPU 2"):
        memory(two, device=2)


class Attack:
    def __reduce__(self):
        return os.mkdir, ("was here",)


def test_a_pickle_that_is_a_program_is_refused_and_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "snapshot.pickle"
    file.write_bytes(pickle.dumps({**TRAINING, "segments": [Attack()]}))
    with pytest.raises(TraceError, match=r"snapshot\.pickle wants to load 'posix\.mkdir'"):
        memory(file)
    assert not (tmp_path / "was here").exists()


def test_a_file_is_read_and_stamped(tmp_path):
    file = tmp_path / "snapshot.pickle"
    file.write_bytes(pickle.dumps(TRAINING))
    assert memory(file).allocated.tolist() == memory(TRAINING).allocated.tolist()
    assert memory(str(file)).stamp == Provenance("recorded", "snapshot.pickle")
    assert memory(file, stamp=Provenance("recorded", "H200")).stamp.source == "H200"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (pickle.dumps(TRAINING)[:300], "not a pickle, or is cut off"),
        (b"", "not a pickle, or is cut off"),
        (b"{}", "not a pickle, or is cut off"),
        (pickle.dumps([1, 2]), "not a snapshot"),
        (pickle.dumps({"device_traces": [[]], "segments": []}), "has no history"),
        (pickle.dumps(snapshot([{"action": "alloc"}])), "not as PyTorch writes it"),
        (pickle.dumps(snapshot([7])), "not as PyTorch writes it"),
    ],
)
def test_broken_files_are_refused(tmp_path, content, says):
    file = tmp_path / "snapshot.pickle"
    file.write_bytes(content)
    with pytest.raises(TraceError, match=says):
        memory(file)
    with pytest.raises(TraceError, match=r"gone\.pickle cannot be read"):
        memory(tmp_path / "gone.pickle")


def test_it_draws_itself_with_words_and_a_stamp():
    drawn = memory(TRAINING, stamp=Provenance("recorded", "one H200")).draw()
    assert drawn.alt.startswith("Memory of GPU 0 over time. GPU 0: 11.00 MiB allocated at the peak")
    bundle = drawn._repr_mimebundle_()
    assert "recorded · one H200" in bundle["text/plain"] and bundle["image/png"]
    assert "train.py:10 step" in memory(TRAINING)._repr_mimebundle_()["text/html"]


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 99)), max_size=40), st.integers(0, 40))
def test_a_history_that_lost_its_begin_leads_to_the_same_end(moves, lost):
    events, held = [], dict[int, int]()
    for address, size in moves:
        if address in held:
            events += freed(address, held.pop(address))
        else:
            held[address] = size
            events.append(event("alloc", address, size, 1 + address))
    blocks = [(at, size, "active_allocated") for at, size in held.items()]
    whole = memory(snapshot([{"action": "snapshot"}, *events], segment(0, 999, *blocks)))
    kept = events[lost:]
    rest = memory(snapshot([{"action": "snapshot"}, *kept], segment(0, 999, *blocks)))
    assert not any(whole.mismatch.values()) and not any(rest.mismatch.values())
    count = len(kept)
    assert rest.active[-count - 1 :].tolist() == whole.active[-count - 1 :].tolist()
    assert rest.allocated[-count - 1 :].tolist() == whole.allocated[-count - 1 :].tolist()
    assert sum(one.bytes for one in whole.at_peak) == whole.allocated.max()
