"""`lockstep gate`: what grew beyond noise, and how often it errs, by simulation.

The noise is that of the course's recordings on 4 H200s: how far their steps, without the first of
each, lie from their program's mean (root mean square 2.9 %, of an expert layer up to 6.8 %).
"""

import gzip
import os
import pickle
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as xml
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from kineto_files import event, head, kernel, write
from lockstep import gate
from lockstep.__main__ import main
from lockstep.trace import Collective, Kind, Slice, Trace, TraceError
from lockstep.trace.gate import GateError
from noises import DATA, recorded, recorded_noise
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
MS = 1_000_000


def run_of(noise, *, ranks=2, compute=1.0, late=None, exposed=1.0, kernels=3):
    """A run: steps of `kernels` kernels of 1 ms in all, then an all-reduce of 0.2 ms.

    noise: one factor a step. late: (rank, how much more it computes).
    """
    group = Collective("all_reduce", "0", tuple(range(ranks)), 4, 4, "Float", evidence="metadata")
    rows = []
    for rank in range(ranks):
        now = 0
        for number, factor in enumerate(noise):
            own = 1 + late[1] if late and late[0] == rank else 1
            slowest = 1 + late[1] if late else 1
            spent = int(MS * factor * compute * own / kernels)
            wait = int(MS * factor * compute * (slowest - own))
            length = kernels * spent + wait + int(0.2 * MS * factor * exposed)
            works: list[tuple[str, int, Collective | None]] = [("gemm", spent, None)] * kernels
            works += [("ncclAllReduce", length - kernels * spent, group)]
            rows += [
                Slice(rank, "thread 1", f"ProfilerStep#{number}", now, length + 9_000, Kind.STEP)
            ]
            at = now + 1_000
            for place, (name, duration, talk) in enumerate(works):
                key = 100 * number + place
                call = ("cudaLaunchKernel", now + 10 * place, 5, Kind.LAUNCH)
                rows.append(Slice(rank, "thread 1", *call, correlation=key))
                kind = Kind.COMMUNICATION if talk else Kind.COMPUTE
                what = (name, at, duration, kind, 7)
                rows.append(Slice(rank, "stream 7", *what, correlation=key, collective=talk))
                at += duration
            now += length + 10_000
    return Trace.from_slices(rows)


def draw(seed, steps=30):
    return recorded(np.random.default_rng(seed), steps)


def grown(found):
    return {one.name for one in found.measures if one.grew}


def untold(found):
    return {one.name for one in found.measures if one.untold}


# ── What it tells, and what not ──────────────────────────────────────────────────────────────


def test_the_noise_is_what_the_text_above_says():
    off = recorded_noise()
    assert np.sqrt(np.mean(off**2)) == pytest.approx(0.029, abs=5e-4)
    assert np.abs(off).max() == pytest.approx(0.068, abs=5e-4)


def test_a_gate_with_few_steps_tells_what_is_counted_and_no_more():
    found = gate(run_of(draw(1, 5)), run_of(1.5 * draw(2, 5), kernels=4))
    assert grown(found) == {"launches"} and found.verdict == "FAILED"
    assert untold(found) == {"step time", "exposed communication"}
    said = str(found.of("step time"))
    assert "cannot be told with so few values: 5 and 5 steps; record at least 16 steps" in said
    assert "all ranks alike need longer themselves" in said  # what is seen is explained
    equal = gate(run_of(draw(1, 5)), run_of(draw(2, 5)))
    assert equal.verdict == "CANNOT TELL" and not equal.passed and not equal.failed


def test_a_drift_through_both_runs_cannot_be_compared():
    drift = np.linspace(1, 1.3, 60) * draw(1, 60)
    found = gate(run_of(drift[:30]), run_of(drift[30:]))
    said = str(found.of("step time"))
    assert "cannot be compared: inside the runs, too, it may drift (by about +1" in said
    assert found.verdict == "CANNOT TELL"


def test_a_warm_up_is_left_out_and_said():
    before, after = draw(1), 1.1 * draw(2)
    before[0] *= 10
    found = gate(run_of(before), run_of(after))
    assert "step time" in grown(found)
    assert [len(one) for one in (found.of("step time").before, found.of("step time").after)] == [
        29,
        30,
    ]
    assert "baseline: the first step took 1" in str(found) and "taken for a warm-up" in str(found)
    assert "new: the first step" not in str(found)


def test_measures_that_do_not_scatter_leave_the_others_their_level():
    """Five of ten repeats are one of 252 ways: less than half of 1 %, not than a third."""
    sides = [[run_of([more * one] * 3) for one in draw(seed, 5)] for seed, more in ((1, 1), (2, 2))]
    found = gate(*sides)
    assert found.of("step time").chance == pytest.approx(1 / 252)
    assert {"step time", "exposed communication"} <= grown(found)


def test_runs_differ_by_more_than_their_steps_do():
    """Each run has an offset of its own: only repeats can tell that."""
    rng = np.random.default_rng(2)

    def run():
        return run_of((1 + rng.normal(0, 0.02)) * recorded(rng, 20))

    several = [gate([run() for _ in range(5)], [run() for _ in range(5)]) for _ in range(30)]
    assert sum(one.failed for one in several) <= 1 and all(not untold(one) for one in several)
    slower = [run_of(1.3 * draw(seed, 20)) for seed in range(5)]
    found = gate([run() for _ in range(5)], slower)
    assert "step time" in grown(found) and found.runs == (5, 5)
    assert len(found.of("step time").before) == 5


# ── Twenty synthetic pairs, six recorded ones ────────────────────────────────────────────────

SYNTHETIC: dict[str, tuple[dict[str, Any], set[str]]] = {
    "equal": ({}, set()),
    "equal, 8 ranks": ({"ranks": 8}, set()),
    "faster by 10 %": ({"compute": 0.9}, set()),
    "less exposed": ({"exposed": 0.5}, set()),
    "fewer launches": ({"kernels": 2}, set()),
    "slower by 8 %": ({"compute": 1.08}, {"step time"}),
    "slower by 20 %": ({"compute": 1.2}, {"step time"}),
    "one rank late by 10 %": ({"late": (1, 0.1)}, {"step time", "exposed communication"}),
    "communication 50 % longer": ({"exposed": 1.5}, {"step time", "exposed communication"}),
    "one launch more": ({"kernels": 4}, {"launches"}),
}


@pytest.mark.parametrize("seed", [3, 4])
@pytest.mark.parametrize("name", SYNTHETIC)
def test_synthetic_pairs(name, seed):
    change, expected = SYNTHETIC[name]
    ranks = change.get("ranks", 2)
    before = run_of(draw(seed), ranks=ranks)
    found = gate(before, run_of(draw(seed + 50), **change))
    assert grown(found) == expected
    assert found.passed == (not expected)


# Of three steps a side no more can be told than what is counted.
RECORDED = {
    ("data-parallel-after", "slow-rank"): {"launches"},
    ("data-parallel-after", "starved"): {"launches"},
    ("data-parallel-after", "data-parallel-before"): set(),
    ("tensor-parallel-graph", "tensor-parallel-eager"): {"launches"},
    ("starved", "data-parallel-after"): set(),
    ("experts", "experts"): set(),
}


@pytest.mark.parametrize(("before", "after"), RECORDED)
def test_recorded_pairs(before, after):
    found = gate(DATA / before, DATA / after)
    assert grown(found) == RECORDED[before, after]
    assert untold(found) == {"step time", "exposed communication"}


# ── What it names ────────────────────────────────────────────────────────────────────────────


def test_it_names_the_rank_that_is_late_and_its_kernel():
    said = str(gate(DATA / "data-parallel-after", DATA / "slow-rank").of("step time"))
    assert "rank 1 itself needs longer by 1.0" in said and "of it computing" in said
    assert "in the slow part: +1.02" in said


def test_it_names_the_range_in_which_the_gpu_is_kept_waiting():
    said = str(gate(DATA / "data-parallel-after", DATA / "starved").of("step time"))
    assert "all ranks alike" in said and "host-bound" in said and "the range input: +3." in said


def test_it_blames_no_rank_where_communication_is_only_less_hidden():
    said = str(gate(DATA / "data-parallel-after", DATA / "data-parallel-before").of("step time"))
    assert "no rank itself needs much longer" in said


def test_it_names_the_kernel_of_a_new_launch():
    found = gate(run_of(draw(5)), run_of(draw(5), kernels=4))
    assert "gemm: 3 → 4 a step" in str(found.of("launches"))
    with pytest.raises(GateError, match="measured: step time, exposed communication, launches"):
        found.of("loss")


def test_without_a_gpu_operators_are_counted():
    def run(length, operators):
        for step in range(9):
            start = step * MS
            yield Slice(0, "thread 1", f"ProfilerStep#{step}", start, length, Kind.STEP)
            for place in range(operators):
                yield Slice(0, "thread 1", "aten::mm", start + 10 * place, 5, Kind.OPERATOR)

    found = gate(Trace.from_slices(run(500, 4)), Trace.from_slices(run(500, 5)))
    assert grown(found) == {"launches"}
    assert "these ranks have no GPU: their operators count as launches" in str(found)


# ── Peak memory ──────────────────────────────────────────────────────────────────────────────


def snapshot(size):
    events = [{"action": "alloc", "addr": 1, "size": size, "stream": 0, "frames": []}]
    return {"device_traces": [events], "segments": []}


def folder_of(at, length=5_000, peak=None, steps=16):
    """A run on disk: steps of two ranks."""
    at.mkdir(parents=True)
    for rank in (0, 1):
        rows = []
        for number in range(steps):
            start = 1_000_000_000 + number * 100_000
            rows += [
                event("user_annotation", f"ProfilerStep#{number}", start, 90_000),
                event("cuda_runtime", "cudaLaunchKernel", start, 1_000, correlation=number + 1),
                kernel("gemm", start + 5_000, length + 10 * number, correlation=number + 1),
            ]
        write(at / f"rank{rank}.json", rows, head(rank, 2))
        if peak:
            file = at / f"rank{rank}.pickle.gz"
            file.write_bytes(gzip.compress(pickle.dumps(snapshot(peak + rank))))
    return at


def test_peak_memory_is_that_of_the_rank_that_needs_most(tmp_path):
    before, same, more = (
        folder_of(tmp_path / name, peak=peak)
        for name, peak in (("before", 1 << 20), ("same", 1 << 20), ("more", 1 << 21))
    )
    assert gate(before, same).passed
    found = gate(before, more)
    assert grown(found) == {"peak memory"}
    assert found.of("peak memory").medians == ((1 << 20) + 1, (1 << 21) + 1)
    assert "most in rank" in str(found)


def test_peak_memory_that_scatters_is_judged_by_its_scatter(tmp_path):
    def several(side, peaks):
        for place, peak in enumerate(peaks):
            folder_of(tmp_path / side / f"run{place}", peak=peak)
        return tmp_path / side

    before = several("before", [1_000_000, 1_010_000, 990_000, 998_000, 1_003_000])
    like = several("like", [1_005_000, 995_000, 1_012_000, 1_001_000, 999_000])
    assert gate(before, like).passed
    more = several("more", [1_900_000, 1_910_000, 1_890_000, 1_895_000, 1_905_000])
    assert grown(gate(before, more)) == {"peak memory"}
    found = gate(several("few", [1_000, 1_001]), several("same", [1_001, 1_000]))
    assert untold(found) == {"peak memory"}
    assert "so few values: 2 and 2 runs; record at least 5 runs a side" in str(found)


def test_without_snapshots_memory_is_left_out_and_said(tmp_path):
    with_, without = folder_of(tmp_path / "a", peak=1 << 20), folder_of(tmp_path / "b")
    found = gate(with_, without)
    assert "beside the traces of new" in found.left_out["peak memory"]
    assert "peak memory is left out" in str(found)


# ── The command ──────────────────────────────────────────────────────────────────────────────


def test_the_command_fails_and_writes_what_ci_reads(tmp_path, capsys):
    report, markdown = tmp_path / "gate.xml", tmp_path / "summary.md"
    markdown.write_text("before\n")
    paths = [str(DATA / "data-parallel-after"), str(DATA / "slow-rank")]
    assert main(["gate", *paths, "--junit", str(report), "--markdown", str(markdown)]) == 1
    said = capsys.readouterr().out
    assert said.startswith("lockstep gate: FAILED") and "rank 1 itself" in said
    suite = xml.parse(report).getroot().find("testsuite")
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("4", "1", "1")
    judged = {
        tag: {one.get("name") for one in suite if one.find(tag) is not None}
        for tag in ("failure", "error")
    }
    assert judged == {"failure": {"launches"}, "error": {"step time", "exposed communication"}}
    text = markdown.read_text()
    assert text.startswith("before\n### lockstep gate: FAILED")
    assert "| step time | 4.257 ms | 5.296 ms | +24.4 % |" in text
    assert "recorded · NVIDIA H200" in text


@pytest.mark.parametrize("option", ["--junit", "--markdown"])
def test_what_cannot_be_written(tmp_path, capsys, option):
    folder = str(folder_of(tmp_path / "runs"))
    assert main(["gate", folder, folder, option, str(tmp_path)]) == 2
    said = f"lockstep gate: {tmp_path} cannot be written: it is a folder; name a file\n"
    assert capsys.readouterr().err == said


def test_the_command_passes_what_did_not_grow_and_nothing_of_which_it_cannot_tell(tmp_path, capsys):
    before, new = (written(tmp_path / str(seed), lengths(seed, 16)) for seed in (1, 2))
    assert main(["gate", str(before), str(new)]) == 0
    assert "lockstep gate: passed" in capsys.readouterr().out
    assert main(["gate", str(DATA / "starved"), str(DATA / "data-parallel-after")]) == 2
    assert "lockstep gate: CANNOT TELL" in capsys.readouterr().out


def test_what_traces_say_is_data_in_every_form(tmp_path):
    def run(name, number):
        for step in range(3):
            yield Slice(0, "thread 1", f"ProfilerStep#{step}", 1_000 * step, 900, Kind.STEP)
            for place in range(number):
                key = 10 * step + place
                call = ("cudaLaunchKernel", 1_000 * step, 5, Kind.LAUNCH)
                yield Slice(0, "thread 1", *call, correlation=key)
                at = 1_000 * step + 10 * (place + 1)
                yield Slice(0, "stream 7", name, at, 5, Kind.COMPUTE, 7, correlation=key)

    name = "<script>|`x`\x1b[2J\x00"
    found = gate(Trace.from_slices(run(name, 1)), Trace.from_slices(run(name, 2)))
    assert grown(found) == {"launches"}
    xml.fromstring(found.junit())
    for text in (str(found), found.markdown(), found.junit()):
        assert "\x1b" not in text and "\x00" not in text
    assert "<script>" not in found.markdown()
    assert "<script>" not in found._repr_mimebundle_()["text/html"]


@pytest.mark.parametrize(
    ("new", "said"),
    [
        ("nowhere", "nowhere"),
        ("empty", "no trace in"),
        ("other-ranks", "only runs of the same ranks can be compared"),
    ],
)
def test_what_cannot_be_compared(tmp_path, capsys, new, said):
    before = folder_of(tmp_path / "before")
    after = tmp_path / new
    if new == "empty":
        after.mkdir()
    if new == "other-ranks":
        folder_of(after)
        (after / "rank1.json").unlink()
    with pytest.raises((GateError, TraceError), match=said):
        gate(before, after)
    assert main(["gate", str(before), str(after)]) == 2
    assert capsys.readouterr().err.startswith("lockstep gate: ")


# ── What nobody planned for ──────────────────────────────────────────────────────────────────


def written(at, lengths, *, ranks=2, numbers=None, of=None, unit=1, gpus=1, silent=()):
    """A run on disk of steps of these lengths in µs.

    numbers: of the steps. of: rank → which of them it records. unit: what a file's µs are
    multiplied by. silent: ranks whose kernels are not recorded.
    """
    at.mkdir(parents=True)
    for rank in range(ranks):
        rows, start = [], 1_000_000_000 * unit
        for place, length in enumerate(lengths):
            begin, start = start, start + (length + 10_000) * unit
            if of and place not in of[rank]:
                continue
            name = f"ProfilerStep#{numbers[place] if numbers else place}"
            rows.append(event("user_annotation", name, begin, (length + 9_000) * unit))
            for gpu in range(gpus if rank not in silent else 0):
                key = 10 * place + gpu + 1
                call = ("cuda_runtime", "cudaLaunchKernel", begin, 1_000 * unit)
                rows.append(event(*call, correlation=key))
                when = (begin + 5_000 * unit, length * unit)
                rows.append(kernel("gemm", *when, device=gpu, correlation=key))
        write(at / f"rank{rank}.json", rows, head(rank, ranks))
    return at


def lengths(seed, steps=12, more=1.0):
    return [int(900_000 * one * more) for one in draw(seed, steps)]


ODD: dict[str, tuple[dict[str, Any], str]] = {
    "other-unit": ({"unit": 1_000}, r"in \S*before and 9\d\d\.\d+ ms in \S*new.* microseconds"),
    "a-silent-rank": ({"silent": (1,)}, "new: rank 1 has no kernels .* record it again"),
    "no-common-step": (
        {"of": [range(5), range(6, 12)]},
        "no step was recorded by all of ranks 0, 1",
    ),
}


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("name", ODD)
def test_what_is_no_pair_is_refused(tmp_path, name, turned):
    how, said = ODD[name]
    before, new = (
        written(tmp_path / "before", lengths(1)),
        written(tmp_path / "new", lengths(2), **how),
    )
    with pytest.raises(GateError, match=said):
        gate(*((new, before) if turned else (before, new)))


def test_a_damaged_file_is_refused(tmp_path):
    before, new = (written(tmp_path / name, lengths(3)) for name in ("before", "new"))
    file = new / "rank1.json"
    file.write_text(file.read_text()[:3_000])
    with pytest.raises(GateError, match=r"rank 1's file is damaged.*record it again"):
        gate(before, new)
    (before / "peak.pickle").write_bytes(b"no pickle")
    with pytest.raises(GateError, match=r"before: peak\.pickle is not a pickle"):
        gate(before, before)


EVEN: dict[str, dict[str, Any]] = {
    "numbers that come again": {"numbers": [0, 1, 2, 3] * 4},
    "several GPUs a rank": {"gpus": 2},
}


@pytest.mark.parametrize("name", EVEN)
def test_every_step_counts(tmp_path, name):
    paths = [written(tmp_path / str(more), lengths(4, 16, more), **EVEN[name]) for more in (1, 1.2)]
    found = gate(*paths)
    assert len(found.of("step time").before) == 16 and grown(found) == {"step time"}
    assert gate(paths[0], paths[0]).passed


def test_steps_that_some_rank_lacks_are_said(tmp_path):
    of = [range(10), range(2, 12)]
    before, new = (written(tmp_path / name, lengths(5), of=of) for name in ("before", "new"))
    found = gate(before, new)
    assert len(found.of("step time").before) == 8
    assert "new: 4 of 12 steps are left out, because a rank lacks them" in str(found)


def test_steps_that_do_something_else_are_said_and_no_alarm(tmp_path):
    """An evaluation in every tenth step; a warm-up; steps of two lengths."""
    several = lengths(6, 32)
    evaluated = [one * (4 if place % 10 == 9 else 1) for place, one in enumerate(several)]
    found = gate(
        written(tmp_path / "plain", several), written(tmp_path / "evaluated", evaluated[::-1])
    )
    assert found.passed
    assert "3 of 32 steps of new take more than 1.5 times the median, 3.588 ms at most" in str(
        found
    )
    assert "of baseline take more" not in str(found)
    two = [one * (2 if place % 2 else 1) for place, one in enumerate(several)]
    assert gate(written(tmp_path / "two", two), written(tmp_path / "turned", two[::-1])).passed
    more = written(tmp_path / "more", [int(1.7 * one) for one in two])
    assert "step time" in grown(gate(tmp_path / "two", more))


@pytest.mark.parametrize("sides", [("one", "several"), ("several", "one")])
def test_too_few_repeats_are_said_to_be_too_few(tmp_path, sides):
    for place in range(5):
        written(tmp_path / "several" / str(place), lengths(place, 3))
    written(tmp_path / "one" / "0", lengths(7, 3))
    found = gate(*(tmp_path / side for side in sides))
    said = " and ".join({"one": "1", "several": "5"}[side] for side in sides)
    assert f"cannot be told with so few values: {said} runs; record at least 5 runs" in str(found)


def test_a_level_is_a_share():
    with pytest.raises(GateError, match=r"between 0\.001 and 1"):
        gate(run_of(draw(1)), run_of(draw(2)), level=5)


# ── The example for GitHub Actions, its shell lines run as they stand in the manual ───────────

BENCH = """
import sys
from pathlib import Path
from kineto_files import event, head, kernel, write

folder = Path(sys.argv[1])
folder.mkdir(parents=True)
for rank in (0, 1):
    rows, start = [], 1_000_000_000
    for step in range(5):
        length, key = LENGTH + 100 * int(folder.name) + 10 * step, step + 1
        rows.append(event("user_annotation", f"ProfilerStep#{step}", start, length + 9_000))
        rows.append(event("cuda_runtime", "cudaLaunchKernel", start, 1_000, correlation=key))
        rows.append(kernel("gemm", start + 5_000, length, correlation=key))
        start += length + 10_000
    write(folder / f"rank{rank}.json", rows, head(rank, 2))
"""


def example(text=None):
    """The steps of the one job in a text; without one, of the manual's."""
    text = text or (ROOT / "docs" / "library.md").read_text(encoding="utf-8")
    (found,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    return yaml.safe_load(found)["jobs"]["gate"]["steps"]


def as_actions(steps, work, environment):
    """Run a job's steps as GitHub's runner does on Linux: (exit code, output, summaries).

    Each `run` is a file for `bash -e`, in the workspace, with a file of its own for its summary;
    after one that failed only steps with `if: always()` run. Of `uses` nothing is done.
    """
    temporary = Path(environment["RUNNER_TEMP"])
    shutil.rmtree(temporary, ignore_errors=True)  # it is emptied for each job
    temporary.mkdir()
    code, said, summaries = 0, "", ""
    for number, step in enumerate(steps):
        if "run" not in step or (code and step.get("if") != "always()"):
            continue
        script, summary = temporary / f"{number}.sh", temporary / f"summary{number}"
        script.write_text(step["run"])
        summary.touch()
        done = subprocess.run(
            ["bash", "-e", script],
            cwd=work,
            env={**environment, "GITHUB_STEP_SUMMARY": str(summary)},
            capture_output=True,
            text=True,
        )
        code, said = code or done.returncode, said + done.stdout + done.stderr
        summaries += summary.read_text()
    return code, said, summaries


def pull_request(tmp_path, file, before, after):
    """A clone of a repository whose main branch has a file, with a change of it checked out, and
    the environment of a job there. Its `pip` only writes down what it is asked for."""
    origin, work, tools = (tmp_path / name for name in ("origin", "work", "bin"))
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "advice.detachedHead=false"]
    in_origin = [*git, "-C", origin]
    subprocess.run([*git, "init", "-q", "-b", "main", origin], check=True)
    (origin / file).write_text(before)
    subprocess.run([*in_origin, "add", "."], check=True)
    subprocess.run([*in_origin, "commit", "-qm", "first"], check=True)
    subprocess.run([*in_origin, "switch", "-qc", "change"], check=True)
    (origin / file).write_text(after)
    subprocess.run([*in_origin, "commit", "-qam", "second"], check=True)
    subprocess.run([*git, "clone", "-q", origin, work], check=True)
    subprocess.run([*git, "-C", work, "checkout", "-q", "origin/change"], check=True)
    tools.mkdir()
    (tools / "pip").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > "{tmp_path}/pip"\n')
    (tools / "pip").chmod(0o755)
    return work, {
        **os.environ,
        "PATH": os.pathsep.join(map(str, [tools, Path(sys.executable).parent, os.environ["PATH"]])),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "lib"), str(ROOT / "tests")]),
        "CI": "true",
        "GITHUB_ACTIONS": "true",
        "GITHUB_BASE_REF": "main",
        "GITHUB_WORKSPACE": str(work),
        "RUNNER_TEMP": str(tmp_path / "_temp"),
    }


@pytest.mark.parametrize(("length", "code"), [(905_000, 0), (970_000, 1), (None, 2)])
def test_the_example_for_github_actions(tmp_path, length, code):
    changed = BENCH.replace("LENGTH", str(length)) if length else "import sys\n"
    before = BENCH.replace("LENGTH", "905_000")
    work, environment = pull_request(tmp_path, "bench.py", before, changed + "# changed\n")
    for _ in range(2):  # a machine of one's own keeps its workspace from job to job
        subprocess.run(["git", "-C", work, "clean", "-qffdx"], check=True)  # as checkout does
        found, said, summary = as_actions(example(), work, environment)
        assert found == code, said
    verb, requirement = (tmp_path / "pip").read_text().splitlines()
    assert verb == "install" and Requirement(requirement).name == "lockstep"
    if code == 2:
        assert "runs/new" in said and not (work / "gate.xml").exists()
        return
    assert ("FAILED" if code else "passed") in summary and "| step time |" in summary
    suite = junit(work / "gate.xml")
    assert suite.get("failures") == str(code)
    uploaded = [one["with"]["path"] for one in example() if "upload" in one.get("uses", "")]
    assert uploaded == ["gate.xml"]


# ── JUnit ────────────────────────────────────────────────────────────────────────────────────


def junit(source):
    """The one suite, after the rules of both common schemas.

    Apache Ant's is github.com/windyroad/JUnit-Schema, that of Jenkins junit-10.xsd of
    github.com/jenkinsci/xunit-plugin.
    """
    root = xml.parse(source).getroot()
    assert root.tag == "testsuites" and not root.attrib  # Ant's has no attributes here
    (suite,) = root
    required = {"package", "id", "name", "timestamp", "hostname", "tests", "failures", "errors"}
    assert suite.tag == "testsuite" and set(suite.attrib) == required | {"time", "skipped"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", suite.attrib["timestamp"])
    assert re.fullmatch(r"\d{0,3}(\.\d*)?", suite.attrib["time"])
    cases = suite.findall("testcase")
    tags = ["properties", *["testcase"] * len(cases), "system-out", "system-err"]
    assert [one.tag for one in suite] == tags
    for one in cases:
        assert set(one.attrib) == {"name", "classname", "time"} and float(one.attrib["time"]) >= 0
        assert len(one) <= 1  # either of these
        for what in one:
            needed = {"skipped": {"message"}}.get(what.tag, {"type", "message"})
            assert what.tag in ("failure", "error", "skipped")
            assert set(what.attrib) == needed and not len(what)
    for tag, name in (("failure", "failures"), ("skipped", "skipped"), ("error", "errors")):
        assert int(suite.attrib[name]) == len(suite.findall(f"testcase/{tag}"))
    assert int(suite.attrib["tests"]) == len(cases)
    return suite


def test_junit_follows_its_schemas(tmp_path):
    """Whatever is in it: failures, what is left out, and peak memory."""
    runs = [folder_of(tmp_path / f"run{peak}", peak=peak) for peak in (1 << 20, 1 << 21)]
    pairs = [
        (DATA / "data-parallel-after", DATA / "slow-rank"),
        (DATA / "starved", DATA / "data-parallel-after"),
        runs,
    ]
    for place, (before, after) in enumerate(pairs):
        file = tmp_path / f"{place}.xml"
        file.write_text(gate(before, after).junit(), encoding="utf-8")
        suite = junit(file)
        assert suite.find("system-out").text.startswith("lockstep gate: ")
