"""A program ends as it ends under torchrun. `make endings` runs all of this many times."""

import os
import signal
from dataclasses import replace
from typing import Any

import endings
import pytest
from ending_programs import PROGRAMS, Program, rests
from endings import MORE, Expected, Lane

LIMIT = 60.0  # seconds; one compiles, which has taken more than ten on a busy machine
CASES = [
    pytest.param(name, form, marks=[pytest.mark.long] if rests(program, number, form) else [])
    for number, (name, program) in enumerate(PROGRAMS.items())
    for form in program.forms
]


@pytest.fixture(scope="module")
def lane():
    with Lane() as lane:
        yield lane


@pytest.mark.parametrize(("name", "form"), CASES)
def test_ends_as_under_torchrun(lane, name, form):
    outcome = lane.run(PROGRAMS[name], form, "warm", LIMIT)
    assert Expected.of(PROGRAMS[name]).differences(outcome) == [], outcome.said
    assert outcome.left == ()


# ── Would it be seen? ────────────────────────────────────────────────────────────────────────


def test_hang_is_seen(lane):
    forever = Program("import threading\nthreading.Event().wait()\n")
    outcome = lane.run(forever, "cell", "warm", limit=0.5)
    assert outcome.code is None and outcome.left == ()
    assert Expected.of(forever).differences(outcome) == ["it hangs"]


def test_launcher_that_does_not_come_back_is_ended(lane, monkeypatch):
    assert lane.run(PROGRAMS["sys.exit(0)"], "cell", "warm", LIMIT).code == 0  # it is up
    pause = Program(
        "import os, psutil\ndriver = psutil.Process(os.getppid()).parent()\ndriver.suspend()\n"
    )
    monkeypatch.setattr(endings, "STARTING", 1.0)
    outcome = lane.run(pause, "cell", "warm", limit=0.5)
    assert outcome.code is None and "did not come back" in outcome.said
    assert not any(line.startswith("process") for line in outcome.left)


def test_what_outlives_torchrun_is_named_and_ended(lane, tmp_path):
    pid = tmp_path / "pid"
    leaving = Program(
        "import os, subprocess\n"
        "if os.environ['RANK'] == '0':\n"
        "    child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        f"    print(child.pid, file=open({str(pid)!r}, 'w'))\n"
    )
    outcome = lane.run(leaving, "script", "torchrun", LIMIT)
    assert outcome.code == 0 and outcome.left == ("process sleep 600",)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), signal.SIGCONT)


def test_every_difference_is_named(lane):
    program = PROGRAMS["atexit and open files"]
    outcome = lane.run(program, "script", "warm", LIMIT)
    expected = Expected.of(program)
    first, second = outcome.stdout
    changed: dict[str, dict[str, Any]] = {
        "exit code 1 instead of 0": {"code": 1},
        "it hangs": {"code": None},
        f"rank 0 printed {first[:-1]!r} instead of {first!r}": {"stdout": (first[:-1], second)},
        f"rank 1 printed {'~' + second!r} instead of ": {"stdout": (first, f"~{second}")},
        "files that are missing: unflushed-1": {
            "files": {k: v for k, v in outcome.files.items() if k != "unflushed-1"}
        },
        "files that torchrun does not leave: more": {"files": outcome.files | {"more": "0"}},
        "files with another content: unflushed-0": {"files": outcome.files | {"unflushed-0": "0"}},
    }
    for difference, change in changed.items():
        (found,) = expected.differences(replace(outcome, **change))
        assert found.startswith(difference)


def test_what_varies_under_torchrun_is_not_expected(lane):
    outcome = lane.run(PROGRAMS["sys.exit(0)"], "script", "warm", LIMIT)
    first = replace(outcome, files={"log": "1", "model": "2", "sometimes": "3"})
    second = replace(first, code=-6, stdout=("", ""), files={"log": "4", "model": "2"})
    expected = Expected.common([first, second])
    assert expected.differences(first) == expected.differences(second) == []
    assert expected.differences(replace(second, files={"log": "5", "model": "2"})) == []
    assert expected.differences(replace(second, files={"log": "4", "model": "5"})) != []
    assert expected.differences(replace(second, files={"model": "2"})) != []
    assert expected.differences(replace(first, files=first.files | {"more": "1"})) != []
    assert expected.differences(replace(first, code=1)) != []


def test_counts_may_be_larger_as_far_as_is_said(lane):
    outcome = lane.run(Program('print("~threads", 7)\nprint("text")\n'), "cell", "warm", LIMIT)
    expected = Expected.common([outcome, replace(outcome, stdout=("~threads 6\ntext\n",) * 2)])
    for threads, alike in {7: True, 7 + MORE["threads"]: True, 8 + MORE["threads"]: False}.items():
        run = replace(outcome, stdout=(f"~threads {threads}\ntext\n",) * 2)
        assert (expected.differences(run) == []) is alike
    other = replace(outcome, stdout=("~threads 7\nother\n", "~descriptors 7\ntext\n"))
    assert len(expected.differences(other)) == 2


def test_floods_are_compared_to_their_end(lane):
    flood = Program("import sys\nsys.stdout.write('x' * 150_000 + '\\n' + 'y' * 150_000)\n")
    runs = [lane.run(flood, form, "warm", LIMIT) for form in ("script", "world")]
    expected = Expected.common(runs)
    assert [len(text) for text in runs[1].stdout] == [300_001] * 2
    (first, _) = runs[0].stdout
    other = replace(runs[0], stdout=(first, f"{first[:200_000]}.{first[200_001:]}"))
    assert [text[:14] for text in expected.differences(other)] == ["rank 1 printed"]
