"""Several runs, or repeats of one, in a folder: told apart, and never mixed."""

from __future__ import annotations

import json

import pytest
from kineto_files import event, head, kernel, write
from lockstep.__main__ import main
from lockstep.trace import Trace, TraceError

START = 1_000_000_000
LATER = 10_000_000_000


def rank_file(path, rank, at=0, world=2, name="gemm", long=1_000_000):
    launch = event("cuda_runtime", "cudaLaunchKernel", START + at, 1_000, correlation=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    run = [launch, kernel(name, START + at + 2_000, long, correlation=1)]
    write(path, run, head(rank, world))


def names(trace):
    return {trace.names[one] for one in trace.name} - {"cudaLaunchKernel"}


def windows(folder, offset=0):
    """Three windows of two ranks, as a profiler with repeat=3 writes them."""
    for window in range(3):
        for rank in range(2):
            at = window * LATER + rank * offset
            name = f"host_{77 + rank}.{window}{rank}.pt.trace.json"
            rank_file(folder / name, rank, at, name=f"gemm {window}")


@pytest.mark.parametrize("offset", [0, 5 * LATER])
def test_windows_of_one_run_in_a_folder(tmp_path, offset):
    windows(tmp_path, offset)
    with pytest.raises(TraceError, match=r"both of rank 0: .*Trace.runs"):
        Trace.load(tmp_path, cache=False)
    runs = Trace.runs(tmp_path, cache=False)
    assert list(runs) == ["#1", "#2", "#3"]
    for window, trace in enumerate(runs.values()):
        assert trace.ranks == (0, 1) and names(trace) == {f"gemm {window}"}
        assert trace.args(int(trace.where(rank=1)[0]))["correlation"] == 1


def test_folders_inside_of_a_folder(tmp_path):
    for run in ("iteration_10", "iteration_20"):
        for rank in range(2):
            rank_file(tmp_path / run / f"rank{rank}_trace.json", rank, name=run)
    rank_file(tmp_path / "other" / "deep" / "one.json", 0, world=1)
    runs = Trace.runs(tmp_path, cache=False)
    assert list(runs) == ["iteration_10", "iteration_20", "other/deep"]
    assert names(runs["iteration_20"]) == {"iteration_20"}
    with pytest.raises(TraceError, match=r"load one of the folders .*iteration_10, iteration_20"):
        Trace.load(tmp_path)
    assert list(Trace.runs(tmp_path / "iteration_10", cache=False)) == [""]


def test_a_file_that_is_shorter_than_others_ends_no_run(tmp_path):
    for name, at, long in (("a", 0, 9_000_000), ("b", 1_000, 1_000), ("c", 500_000, 1_000)):
        run = [kernel("gemm", START + at, long)]
        write(tmp_path / f"{name}.json", run, head(None))  # which do not say their rank
    assert [trace.ranks for trace in Trace.runs(tmp_path, cache=False).values()] == [(0, 1, 2)]


def test_files_that_may_belong_to_any_run_are_refused(tmp_path):
    rank_file(tmp_path / "a.json", 0)
    rank_file(tmp_path / "b.json", 0, 100)
    rank_file(tmp_path / "c.json", 1)
    with pytest.raises(TraceError, match="it is not clear which files were recorded together"):
        Trace.runs(tmp_path, cache=False)


def test_jobs_of_different_sizes_are_not_mixed(tmp_path):
    rank_file(tmp_path / "a.json", 0, world=1)
    rank_file(tmp_path / "b.json", 1, world=2)
    with pytest.raises(TraceError, match="different jobs"):
        Trace.runs(tmp_path, cache=False)


def test_nothing_there(tmp_path):
    with pytest.raises(TraceError, match="there is no trace in"):
        Trace.runs(tmp_path)


def test_the_command_asks_which_run_is_meant(tmp_path, capsys):
    windows(tmp_path)
    assert main(["trace", str(tmp_path)]) == 2
    assert "these are 3 runs: #1, #2, #3: choose one with --run NAME" in capsys.readouterr().err
    assert main(["trace", str(tmp_path), "--run", "#9"]) == 2
    assert "there is no run #9; there are: #1, #2, #3" in capsys.readouterr().err
    assert main(["trace", str(tmp_path), "--run", "#2", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in report["answers"]["kernels"]] == ["gemm 1"]
