"""What ranks print without measure: it is cut, kept in bounded files, and never ends a job."""

import os
import resource
import sys
from pathlib import Path

import pytest
import torch.distributed as dist
from lockstep import Job, torchrun
from lockstep.launch import output
from lockstep.launch.output import Output

LINE = 10  # bytes of each line that the tests print


def numbered(first: int, count: int) -> bytes:
    return b"".join(b"%9d\n" % number for number in range(first, first + count))


def fed(size: int) -> Output:
    """The output of a rank that has printed lines of `size` bytes in all, and ended."""
    shown = Output(0)
    lines = numbered(0, size // LINE)
    for at in range(0, size, 65_536):
        shown.feed(lines[at : at + 65_536])
    shown.close()
    return shown


def note(shown: Output) -> str:
    (found,) = [line for line in shown.lines if line.startswith("…")]
    return found


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """Where floods are kept; small ones, here."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(output, "FILE_BYTES", 500_000)
    monkeypatch.setattr(output, "FOLDER_BYTES", 2_000_000)
    return tmp_path / "cache" / "lockstep" / "output"


def test_a_flood_is_cut_and_kept_whole(folder):
    def flood():
        if dist.get_rank() == 1:
            sys.stdout.write("".join(f"{number:9}\n" for number in range(40_000)))
        return "done"

    job = torchrun(flood, nproc_per_node=2, show=False)
    assert job.results == ["done", "done"]
    shown = job.outputs[1]
    assert shown.lines[0] == f"{0:9}" and shown.lines[-1] == f"{39_999:9}"
    assert len(str(job)) < 300_000
    assert note(shown) == f"… 0.3 MB are not shown; all of it is in {shown.path}"
    assert shown.path.read_bytes() == numbered(0, 40_000)
    assert shown.path.stat().st_mode & 0o077 == 0, "others could read it"
    assert (job.outputs[0].path, list(folder.iterdir())) == (None, [shown.path])


@pytest.mark.parametrize("lines", [50_000, 50_001, 54_000, 55_001, 1_000_000])
def test_of_a_longer_flood_the_beginning_and_the_end_are_kept(lines):
    shown = fed(lines * LINE)
    kept = shown.path.read_bytes()
    beginning, end = kept[:500_000], kept[500_000:]
    assert beginning == numbered(0, 50_000)
    beyond = (lines - 50_000) * LINE
    if beyond <= output.TAIL_BYTES:
        assert kept == numbered(0, lines)
    else:
        left_out, _, end = end.removeprefix(b"\n").partition(b"\n")
        assert left_out.decode() == f"… {(beyond - 50_000) / 1e6:.1f} MB are left out here"
        assert end == numbered(lines - 5_000, 5_000)
    what = "the first 0.5 MB and the end are" if beyond else "all of it is"
    assert note(shown).endswith(f"; {what} in {shown.path}")


def test_a_flood_without_lines_shows_its_beginning_too():
    shown = Output(0)
    shown.feed(b"begin" + b"." * 200_000 + b"end")
    assert shown.text.startswith("begin...") and shown.text.endswith("...end")


def test_all_files_together_have_a_bound_and_the_oldest_go(folder):
    folder.mkdir(parents=True)
    for year in range(2000, 2010):
        (folder / f"{year}0101-000000-rank0-x.log").write_bytes(b"x" * 400_000)
    newest = fed(600_000).path
    left = sorted(path.name[:4] for path in folder.iterdir())
    assert left == ["2007", "2008", "2009", newest.name[:4]]


def test_files_that_are_being_written_are_neither_removed_nor_outgrown(folder):
    ranks = [Output(rank) for rank in range(5)]
    for shown in ranks:
        shown.feed(numbered(0, 20_000))
    for shown in ranks:
        shown.feed(numbered(20_000, 20_000))
        shown.close()
    assert [note(shown).partition("; ")[2] for shown in ranks] == [
        *(f"all of it is in {shown.path}" for shown in ranks[:4]),
        f"not kept: {folder} is full (2.0 MB)",
    ]
    assert all(shown.path.stat().st_size == 400_000 for shown in ranks[:4])
    assert fed(400_000).path is not None  # they are closed now: the oldest goes
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 2_000_000


@pytest.mark.parametrize("where", ["a file", "no home"])
def test_where_no_file_can_be_made_the_note_says_why(tmp_path, monkeypatch, where):
    if where == "a file":
        (tmp_path / "cache").write_text("")
        why = "Not a directory"
    else:
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setenv("HOME", "/proc/nowhere")
        why = "No such file or directory"
    shown = fed(400_000)
    assert note(shown) == f"… 0.3 MB are not shown; not kept: {why}"
    assert shown.path is None
    assert (shown.lines[0], shown.lines[-1]) == (f"{0:9}", f"{39_999:9}")


def test_a_limit_on_the_size_of_files_is_told_and_leaves_no_file(folder):
    limit = resource.RLIMIT_FSIZE
    before = resource.getrlimit(limit)
    resource.setrlimit(limit, (300_000, before[1]))
    try:
        shown = fed(400_000)
    finally:
        resource.setrlimit(limit, before)
    assert note(shown) == "… 0.3 MB are not shown; not kept: File too large"
    assert list(folder.iterdir()) == []


def test_what_comes_too_fast_for_a_terminal_is_told():
    shown = Output(0)
    shown.feed(numbered(0, 10_000))
    assert len(shown.new_lines()) == 10_000
    for first in (10_000, 20_000):
        shown.feed(numbered(first, 10_000))
    lines = shown.new_lines()
    assert lines[0] == f"… 0.1 MB are not shown; all of it is in {shown.path}"
    assert lines[1:] == numbered(20_000, 10_000).decode().splitlines()
    assert shown.new_lines() == []


def endless() -> None:
    data = numbered(0, 10_000)
    while True:
        os.write(1, data)


def test_a_rank_that_prints_for_ever_meets_the_time_limit():
    job: Job = torchrun(endless, nproc_per_node=2, timeout=3, may_fail=True, show=False)
    assert "time limit of 3 s" in job.report
    assert all(shown.path.stat().st_size < 600_000 for shown in job.outputs)
    assert torchrun(dist.get_rank, nproc_per_node=2, show=False).results == [0, 1]


def test_a_cell_that_prints_for_ever_meets_the_time_limit(run):
    code = "while True: print('again')"
    shown = run(f"%%torchrun -n 2 --timeout 1 --may-fail\n{code}")
    assert "The time limit of 1 s has passed." in shown.shown
    assert "are not shown" in shown.shown
