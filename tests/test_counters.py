"""What ncu says of kernels, as the recording of counters reads it."""

import pytest
from experiments.counters import PHASES, known, rows_of
from experiments.experiment import ExperimentFailed
from lockstep import recorded

SAID = '''\
==PROF== Connected to process 12
"ID","Kernel Name","Stream","1 Id:Domain:Push/Pop_Range","dram__bytes_read.sum","lts__t_bytes.sum"
"","","","","byte","byte"
"0","gemm<a, b>","7","""expert"" ""aten::addmm""","1,234","56.5"
"1","sort","7","""route"" ""aten::argsort""","7",""
'''


def test_kernels_their_ranges_and_their_counters_are_read():
    first, second = rows_of(SAID)
    assert (first["name"], first["ranges"]) == ("gemm<a, b>", ["expert"])
    assert (first["dram__bytes_read.sum"], first["lts__t_bytes.sum"]) == (1234.0, 56.5)
    assert second["ranges"] == ["route"] and "lts__t_bytes.sum" not in second


def test_what_is_no_table_is_said_with_ncus_own_words():
    with pytest.raises(ExperimentFailed, match="ERR_NVGPUCTRPERM"):
        rows_of("==ERROR== ERR_NVGPUCTRPERM - no permission\n")


def test_only_counters_that_this_ncu_has_are_asked_for():
    listed = ["dram__bytes_read  Counter  byte", "", "gpu__time_duration  Counter  ns"]
    assert known(listed) == ["gpu__time_duration.sum", "dram__bytes_read.sum"]


def test_the_recording_has_each_kernel_in_its_range_and_the_operations_counted_by_hand():
    found = recorded("traces/experts-counters.json").content
    for kernels in (found["caches_emptied"], found["caches_kept"]):
        assert [len(one["ranges"]) for one in kernels] == [1] * 22
        done = [one["sm__ops_path_tensor_src_bf16_dst_fp32.sum"] for one in kernels]
        assert sorted(done)[-2:] == [2 * 8192 * 1024 * 4096] * 2
    assert found["profiler"]["ranges"] == sorted(PHASES)  # and not the one by NVTX around it
    assert len(found["profiler"]["kernels"]) == 22
