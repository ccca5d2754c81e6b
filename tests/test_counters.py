"""What ncu says of kernels, as the recording of counters reads it."""

import pytest
from lockstep.record.counters import known, rows_of
from lockstep.record.experiment import ExperimentFailed

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
