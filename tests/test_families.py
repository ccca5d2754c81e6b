"""A program does here, in whatever form it runs, what it did under torchrun: programs/torchrun.json
has that. `make endings` compares all of it with a torchrun that runs beside.
"""

import endings
import pytest
from ending_programs import FAMILIES, OF_FAMILIES, Program, rests
from endings import Case, Expected, Lane, Outcome, parsed, recorded, run_all, table

LIMIT = 60.0  # seconds; some compile, which has taken more than ten on a busy machine


# What programs can see of it that they run here; and why it stays so.
_FILE = "the default group meets in a file that nobody else can open, not in a store on a socket"
_FORKED = "a rank is a fork of a process that has imported torch, and goes on when its program ends"
KNOWN = {
    "a key of the default group's store that never comes": _FILE,
    "the default group's store appends and gets several keys at once": _FILE,
    "no file may be written": _FILE,
    "a rank becomes another python that joins the others late": _FILE,
    "what dies in which order at the end": _FORKED,
    "a thing on a module keeps the program's names alive": _FORKED,
    "who refers to a thing before and after a group is used": _FORKED,
    "a script's names and arguments": _FORKED,
    "the names at a script's top level, before and after": _FORKED,
    "hooks and switches of the interpreter": _FORKED,
    "everything from descriptor 3 on is closed before the group is made": (
        "rank 0 serves the store at MASTER_PORT, which torchrun's agent does"
    ),
    "faulthandler is switched on, dumps and is switched off by the program": (
        "a rank tells its stack when it is asked or crashes"
    ),
}


def marks(name: str, rests: bool) -> list[pytest.MarkDecorator]:
    known = [pytest.mark.xfail(reason=KNOWN[name], strict=True)] if name in KNOWN else []
    return [*known, pytest.mark.long] if rests else known


# `make test` runs every third program, each in one of its forms.
CASES = [
    pytest.param(
        *(family, name, form),
        id=f"{family}: {name}: {form}",
        marks=marks(name, number % 3 > 0 or rests(program, number // 3, form)),
    )
    for family, programs in FAMILIES.items()
    for number, (name, program) in enumerate(programs.items())
    for form in program.forms
    if family != "waiting"  # these sleep, so they are run together
]
# Each starts torchrun and its engine, which takes seconds.
LIVE = [
    ("calls", "script"),
    pytest.param("stores", "cell", marks=pytest.mark.long),
    pytest.param("endings", "function", marks=pytest.mark.long),
    pytest.param("groups", "cell", marks=pytest.mark.long),
    pytest.param("namespaces", "script", marks=pytest.mark.long),
    pytest.param("output", "function", marks=pytest.mark.long),
]


@pytest.fixture(scope="module")
def lane():
    with Lane() as lane:
        yield lane


def check(family: str, name: str, outcome: Outcome) -> None:
    differences = recorded()[family, name].differences(outcome)
    assert not differences and not outcome.left, "\n".join(
        [*differences, *outcome.left, outcome.said[-3000:]]
    )


@pytest.mark.long
@pytest.mark.timeout(400)
def test_programs_that_wait_long_are_never_ended():
    options = parsed(["--family", "waiting", "--lanes", "8", "--limit", f"{LIMIT}"])
    outcomes = {case: runs for case, runs in run_all(options).items() if case.name not in KNOWN}
    shown, well = table(outcomes, options)
    assert well, shown


@pytest.mark.parametrize(("family", "name", "form"), CASES)
def test_does_what_it_did_under_torchrun(lane, family, name, form):
    check(family, name, lane.run(FAMILIES[family][name], form, "warm", LIMIT))


@pytest.mark.parametrize(("family", "form"), LIVE)
def test_torchrun_and_its_engine_still_do_it(lane, family, form):
    programs = FAMILIES[family].items()
    name, program = next((name, program) for name, program in programs if form in program.forms)
    check(family, name, lane.run(program, "script", "torchrun", LIMIT))
    check(family, name, lane.run(program, form, "elastic", LIMIT))


def test_every_program_is_recorded_as_it_is():
    """If not: python tests/endings.py --record --family FAMILY --only PROGRAM"""
    programs = {(family, name) for family in FAMILIES for name in FAMILIES[family]}
    assert programs - recorded().keys() == set()


# ── Would it be seen? ────────────────────────────────────────────────────────────────────────

GOOD = """\
import os
import torch.distributed as dist
dist.init_process_group("gloo")
open(f"file-{dist.get_rank()}", "w").write("content")
print("~descriptors", len(os.listdir("/proc/self/fd")))
print("the same")
"""


@pytest.fixture(scope="module")
def wanted(lane):
    return Expected.common([lane.run(Program(GOOD), "script", "torchrun", LIMIT)])


@pytest.mark.parametrize("form", OF_FAMILIES)
@pytest.mark.parametrize(
    ("changed", "difference"),
    {
        GOOD: None,
        GOOD.replace("same", "other"): r"rank 0 printed '~descriptors\nthe other\n' instead of ",
        GOOD + "print(end='')\nos.write(1, b'.')\n": "rank 0 printed ",
        GOOD.replace("content", "other"): "files with another content: file-0, file-1",
        GOOD + "open('more', 'w')\n": "files that torchrun does not leave: more",
        GOOD + "raise SystemExit(dist.get_rank() * 3)\n": "exit code 3 instead of 0",
        GOOD.replace("open(", "more = [os.dup(1) for n in range(99)]\nopen("): "rank 0 has ",
        GOOD + "import threading\nthreading.Event().wait()\n": "it hangs",
    }.items(),
)
def test_a_difference_is_seen(lane, wanted, changed, difference, form):
    outcome = lane.run(Program(changed), form, "warm", 1 if difference == "it hangs" else LIMIT)
    found = wanted.differences(outcome)
    assert (
        [text[: len(difference)] for text in found[:1]] == [difference] if difference else not found
    )


def test_what_differs_from_run_to_run_is_not_recorded(lane, monkeypatch, tmp_path):
    made = {"same": Program(GOOD), "random": Program("import random\nprint(random.random())\n")}
    monkeypatch.setattr(endings, "RECORDED", tmp_path / "torchrun.json")
    monkeypatch.setitem(FAMILIES, "made", made)
    outcomes = {
        Case(name, program, "script", "warm", 2, "made"): [
            lane.run(program, "script", "warm", LIMIT) for _ in range(2)
        ]
        for name, program in made.items()
    }
    (refused,) = endings.record(outcomes)
    assert refused.startswith("made: random: rank 0 printed ")
    (kept,) = endings.recorded.__wrapped__().items()
    assert kept == (("made", "same"), Expected.common(next(iter(outcomes.values()))))
    made["same"] = Program(f"{GOOD}print('changed')\n")
    assert endings.recorded.__wrapped__() == {}
