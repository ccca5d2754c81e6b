"""`lockstep trace`: the summary, the page and the trace for Perfetto, from a shell."""

import base64
import csv
import gzip
import json
import re
from html import escape
from pathlib import Path

import pytest
from kineto_files import event, head, kernel, write
from lockstep.__main__ import main
from lockstep.trace import Trace

DATA = Path(__file__).parents[1] / "data" / "traces"
START = 1_000_000_000


def test_the_summary_names_who_is_slow_and_what_it_did(capsys):
    assert main(["trace", str(DATA / "slow-rank"), "--skip", "1"]) == 0
    said = capsys.readouterr().out
    titles = ["recorded · NVIDIA H200 × 4 · PyTorch 2.11.0+cu130 · 2026-11-21"]
    titles += ["What was read", "Clock"]
    titles += ["Where the time went", "Collectives", "Critical path", "Launches", "Kernels"]
    lines = said.splitlines()
    assert [line for line in lines if line in titles[1:]] == titles[1:]
    assert lines[0] == titles[0] and said.count(titles[0]) == 1
    assert lines[1].startswith("Communication holds the steps back: ")
    assert "is waiting for the rank that comes last: rank 1 came last 9 times" in lines[2]
    assert lines[3].startswith("Look at what rank 1 does before it comes: nvjet")
    assert "breakdown without step" in said
    assert "rank 1 came last 9 times" in said
    assert "most of it is on rank 1 (99 %)" in said


def test_a_page_and_a_trace_for_perfetto(tmp_path, capsys):
    page, merged = tmp_path / "page.html", tmp_path / "merged.json.gz"
    folder = str(DATA / "tensor-parallel-graph")
    assert main(["trace", folder, "--html", str(page), "--perfetto", str(merged)]) == 0
    said = capsys.readouterr().out
    html = page.read_text(encoding="utf-8")
    assert "One clock: ends of synchronising collectives" in html
    assert escape(said.splitlines()[-1]) in html
    scene = re.search(r'<script type="text/plain">(.*?)</script>', html)
    assert scene and json.loads(gzip.decompress(base64.b64decode(scene[1])))["path"]
    events = json.loads(gzip.decompress(merged.read_bytes()))["traceEvents"]
    assert {one["pid"] for one in events} == {0, 1, 2, 3}


def test_clocks_that_cannot_be_aligned_are_said_and_the_rest_is_answered(tmp_path, capsys):
    for rank in (0, 1):
        launch = event("cuda_runtime", "cudaLaunchKernel", START, 1_000, correlation=1)
        gemm = kernel("sgemm", START + 5_000, 7_000, correlation=1)
        write(tmp_path / f"rank{rank}.json", [launch, gemm], head(rank, 2))
    assert main(["trace", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "\nnot aligned: " in said
    assert said.count("no answer: not aligned, see above") == 3  # collectives, path, cause
    assert "sgemm" in said


@pytest.mark.parametrize("what", ["nothing", "empty", "broken"])
def test_what_cannot_be_read(tmp_path, capsys, what):
    folder = tmp_path / "folder"
    if what != "nothing":
        folder.mkdir()
    if what == "broken":
        (folder / "rank0.json").write_text("no trace")
    assert main(["trace", str(folder)]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("lockstep trace: ")
    assert "folder" in output.err


@pytest.mark.parametrize(
    ("option", "name", "instead"),
    [
        ("--html", "no/page.html", "its folder does not exist; create it first"),
        ("--html", "folder", "it is a folder; name a file"),
        ("--perfetto", "folder", "it is a folder; name a file"),
        ("--csv", "file", "it is a file; name a folder"),
    ],
)
def test_what_cannot_be_written(tmp_path, capsys, option, name, instead):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    assert main(["trace", str(DATA / "experts"), option, str(tmp_path / name)]) == 2
    said = f"lockstep trace: {tmp_path / name} cannot be written: {instead}\n"
    assert capsys.readouterr().err == said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_answers_as_json_and_csv(tmp_path, capsys):
    folder = str(DATA / "slow-rank")
    assert main(["trace", folder, "--skip", "1", "--json", "--csv", str(tmp_path / "csv")]) == 0
    report = json.loads(capsys.readouterr().out)
    trace = Trace.load(folder)
    spent = trace.breakdown(skip=1).of(2)
    (row,) = (r for r in report["answers"]["breakdown"] if (r["rank"], r["step"]) == (2, None))
    assert (row["compute"], row["exposed"]) == (spent.compute, spent.exposed)
    waited = sum(one["waited"] for one in report["answers"]["collectives"])
    assert waited == trace.collectives().waiting
    on_path = sum(one["time"] for one in report["answers"]["critical_path"])
    assert on_path == sum(trace.critical_path().by_kind.values())
    assert len(report["headline"]) == 3 and report["refused"] == {}
    for name, rows in report["answers"].items():
        with (tmp_path / "csv" / f"{name}.csv").open(newline="", encoding="utf-8") as file:
            assert len(list(csv.DictReader(file))) == len(rows) > 0


def test_json_says_what_has_no_answer(tmp_path, capsys):
    for rank in (0, 1):
        write(tmp_path / f"rank{rank}.json", [kernel("gemm", START, 7_000)], head(rank, 2))
    assert main(["trace", str(tmp_path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report["refused"]) == {"collectives", "critical_path"}
    assert report["answers"]["kernels"][0]["total"] == 14_000


def test_what_has_changed_since_an_earlier_trace_is_said(capsys):
    before, after = (str(DATA / f"data-parallel-{when}") for when in ("before", "after"))
    assert main(["trace", after, "--before", before]) == 0
    said = capsys.readouterr().out
    work, operators = said.split("\nChanges in work\n")[1].split("\nChanges in operators\n")
    assert "of a rank's step: " in work
    assert re.search(r"gone +gradients +1 +0 ", operators)
    assert re.search(r"new +allreduce_ .*AccumulateGrad +0 +3 ", operators)
    assert main(["trace", after, "--before", f"{after}/nothing"]) == 2
    assert "nothing" in capsys.readouterr().err


def test_nodes_of_graphs_are_rows(capsys):
    assert main(["trace", str(DATA / "tensor-parallel-graph"), "--more", "--json"]) == 0
    nodes = json.loads(capsys.readouterr().out)["answers"]["graph_nodes"]
    assert len(nodes) == 4 * 96
    assert {one["replays"] for one in nodes} == {3}
