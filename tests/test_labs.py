"""The notebooks come from their sources, and wrong answers are caught.

Each notebook is executed once: the solutions in test_notebooks.py, the labs in test_browser.py.
"""

import ast
import itertools
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import lockstep
import nbformat
import pytest
import torch
import verdicts
from lockstep.author import build
from lockstep.author.rules import FEWEST_WRONG_ANSWERS, verify
from lockstep.author.source import notebooks
from lockstep.course import exercises as checks
from lockstep.course.judging.catalogue import SourceError, answers
from lockstep.course.labs import lab02
from lockstep.course.links import FURTHER
from lockstep.course.syllabus import LABS

ROOT = Path(__file__).parents[1]
ANSWERS = ROOT / "solutions" / "source"
SOURCES = sorted(ANSWERS.glob("*.py"))
ids = [source.stem for source in SOURCES]
names = sorted(path.stem for path in (ROOT / "labs").glob("*.ipynb"))
NOTEBOOKS = [(ANSWERS / f"{name.removesuffix(FURTHER)}.py", name) for name in names]
EXERCISES = [
    pytest.param(one, id=one.name, marks=[pytest.mark.long] * verdicts.rests(one))
    for one in checks.exercises()
]


def tags(cell) -> list[str]:
    return cell.metadata.get("tags", [])


def text(cell) -> str:
    parts = [o.get("text") or o.get("data", {}).get("text/plain", "") for o in cell.outputs]
    return "".join(parts)


def shows(notebook, identity: str) -> bool:
    """Whether a cell's last line is one that shows something, or some line prints."""
    (cell,) = [cell for cell in notebook.cells if cell.id == identity]
    if cell.source.startswith("%%torchrun"):
        return True
    code = re.sub(r"^%.*$", "", cell.source, flags=re.MULTILINE)
    last = ast.parse(code).body[-1]
    prints = re.search(r"^(?:print|lockstep\.(?:table|chart|compare|claim))\(", code, re.MULTILINE)
    return prints is not None or (isinstance(last, ast.Expr) and ".close()" not in code)


def test_every_source_is_a_lab_and_every_lab_has_a_source():
    assert ids == [f"{lab.number}_{lab.name}" for lab in LABS]
    assert names == [name for source in SOURCES for name in notebooks(source)]


STAMP = re.compile(r"^(live|recorded|published|simulated) · .", re.MULTILINE)
NEEDS = {"cpu": "CPU", "1 gpu": "1 GPU", "2 gpus": "2 GPUs"}


@pytest.mark.parametrize("lab", LABS, ids=ids)
def test_the_readme_and_the_labs_head_say_what_the_syllabus_says(lab):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (row,) = re.findall(rf"^\| \[{lab.number} .*", readme, re.MULTILINE)
    link = f"[{lab.number} {lab.title}](labs/{lab.number}_{lab.name}.ipynb)"
    assert row.startswith(f"| {link} | {lab.minutes} min | {NEEDS[lab.needs]}")
    assert len(re.findall(r"\(labs/\d\d_\w+\.ipynb\)", readme)) == len(LABS)
    source = SOURCES[LABS.index(lab)]
    title = build.labs(source)[source.stem].cells[0].source
    two = f"Two sittings, {lab.minutes.replace(' + ', ' and ')}"
    minutes = two if "+" in lab.minutes else lab.minutes
    assert title.startswith(f"# {lab.number} · {lab.title}\n\n**{minutes} minutes · needs: ")
    assert NEEDS[lab.needs] in title.splitlines()[2]


def test_a_new_lab_is_one_line_of_the_syllabus_and_its_own_module(tmp_path):
    shutil.copytree(ROOT / "lib" / "lockstep", tmp_path / "lockstep")
    course = tmp_path / "lockstep" / "course"
    syllabus = (course / "syllabus.py").read_text()
    last = f'    Lab("{LABS[-1].number}"'
    line = '    Lab("99", "extra", "One more", "5", "cpu"),\n'
    (course / "syllabus.py").write_text(syllabus.replace(last, line + last))
    (course / "labs" / "lab99.py").write_text(
        "from ..exercises import exercise\n"
        "exercise('extra', lab='99', hints=('1', '2', '3'))(lambda answer, draw: None)\n"
    )
    code = "import lockstep; print(lockstep.check('extra', 1), lockstep.progress('99'), sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "LOCKSTEP_PROGRESS": "off"},
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith("PASS · extra\n99 One more"), done.stdout + done.stderr


@pytest.mark.parametrize(("source", "name"), NOTEBOOKS, ids=names)
def test_the_lab_is_what_its_source_says(source, name):
    stored = (ROOT / "labs" / f"{name}.ipynb").read_text(encoding="utf-8")
    assert nbformat.writes(build.labs(source)[name]) + "\n" == stored, "run make notebooks"
    cells = [cell for cell in nbformat.reads(stored, 4).cells if cell.cell_type == "code"]
    assert cells
    assert all(cell.outputs == [] and cell.execution_count is None for cell in cells)


@pytest.mark.parametrize(("source", "name"), NOTEBOOKS, ids=names)
def test_a_solution_is_what_its_source_says_and_shows_results(source, name):
    stored = nbformat.read(ROOT / "solutions" / f"{name}.ipynb", 4)
    built = build.solutions(source)[name].cells
    assert [c.source for c in stored.cells] == [c.source for c in built]
    cells = [cell for cell in stored.cells if cell.cell_type == "code"]
    silent = [cell.id for cell in cells if not cell.outputs and "unpublished" not in tags(cell)]
    assert [name for name in silent if shows(stored, name)] == []
    drawn = [c for c in cells if any("image/png" in o.get("data", {}) for o in c.outputs)]
    assert [c.id for c in drawn if not STAMP.search(text(c))] == []
    checks = [cell for cell in cells if "lockstep.check(" in cell.source]
    assert checks or name.endswith("_further")
    assert all(text(cell).startswith("PASS") for cell in checks)


@pytest.mark.timeout(300)  # twenty answers to StoreGroup, some of which wait, took 90 s alone
@pytest.mark.parametrize("exercise", EXERCISES)
def test_each_wrong_answer_is_caught_by_its_own_hint(exercise):
    wrong = answers(ANSWERS, "wrong", exercise.lab).get(exercise.name, [])
    assert len({answer.name for answer in wrong}) >= FEWEST_WRONG_ANSWERS
    for answer in verdicts.tried(exercise.lab, exercise.name, wrong):
        # Other numbers than these are the business of `make judge`, which says how often. A busy
        # machine may hide what shows by time, and then another mistake is named; none ever passes.
        for _ in range(3):
            outcome = lockstep.check(exercise.name, answer.value(), seed=0)
            assert outcome.verdict == "TRY AGAIN", (answer.name, str(outcome))
            if outcome.mistake == answer.name:
                break
        assert outcome.mistake == answer.name, str(outcome)


@pytest.mark.parametrize("more", [0.0, 0.0002, 0.001], ids=lambda more: f"{1e6 * more:.0f}us")
def test_no_two_mistakes_make_the_same_of_the_round_trips_of_one_way(more):
    """more: what a round trip takes besides its late reply, s."""
    draw = random.Random(0)
    for _ in range(100):
        trips = [late + more for late in lab02._late_replies(draw)[1]]
        made = {
            name: [guess(trips) for guess in guesses]
            for name, guesses in {**lab02._STATISTICS, "right": (lab02._one_way,)}.items()
        }
        for one, other in itertools.combinations(made, 2):
            for a, b in itertools.product(made[one], made[other]):
                assert abs(a - b) > 0.13 * max(a, b), (one, other, trips)


@pytest.mark.parametrize(
    "begins",
    [lambda r, n: r % 2, lambda r, n: r < n // 2, lambda r, n: r == 0, lambda r, n: r == n - 1],
    ids=["odd", "first-half", "first", "last"],
)
def test_who_begins_cannot_be_said_by_one_number_in_any_swap(begins):
    for seed in range(200):
        trials = list(lab02._swaps(random.Random(seed)))
        pairs = [(t.nproc, *pair) for t in trials for pair in enumerate(t.partner)]
        assert any(begins(a, n) == begins(b, n) for n, a, b in pairs), seed


def test_not_a_number_is_no_median():
    def one_way(nbytes, repeats):
        import torch.distributed as dist

        x = torch.zeros(nbytes, dtype=torch.uint8)
        for _ in range(repeats + 1):
            for sender in (0, 1):
                dist.send(x, 1 - sender) if dist.get_rank() == sender else dist.recv(x, sender)
        return float("nan")

    outcome = lockstep.check("one_way", one_way)
    assert (outcome.verdict, outcome.mistake) == ("TRY AGAIN", "not-the-median"), str(outcome)


def test_who_asks_torch_cuda_for_a_gpu_that_is_not_there_is_told_so_by_every_build():
    """Each build of PyTorch, and each call, has its own words for that."""

    def synchronizes(cuda, work, repeats):
        torch.cuda.synchronize()

    def as_built_for_cuda(cuda, work, repeats):
        raise RuntimeError("Found no NVIDIA driver on your system. Please check that you have …")

    for timed in (synchronizes, as_built_for_cuda):
        assert lockstep.check("timed", timed).mistake == "torch-cuda"


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.parametrize("exercise", EXERCISES)
def test_each_right_answer_in_another_way_is_accepted(exercise, seed):
    right = answers(ANSWERS, "right", exercise.lab).get(exercise.name, [])
    for answer in verdicts.tried(exercise.lab, exercise.name, right):
        outcome = lockstep.check(exercise.name, answer.value(), seed=seed)
        assert outcome.verdict == "PASS", f"{answer.name}: {outcome}"


# ── What sources are refused, what is published ──────────────────────────────────────────────

TINY = """\
# %% id="start" tags=["parameters"]
# %load_ext lockstep
import lockstep

NPROC = 2

# %% [markdown] id="first"
# ## 1 · First

# %% id="share-prediction" tags=["prediction"]
before = 1
# your number, between 0 and 1
prediction = min(
    0.25, before
)

# %% id="usual-prediction" tags=["prediction"]
prediction = 3

# %% id="claim-guess" tags=["guess"]
guess = "depends"

# %% id="average"
one = 1
# BEGIN SOLUTION
average = one
# END SOLUTION

# %% id="average-check"
lockstep.check("average", average)

# %% [markdown] id="second"
# ## 2 · Second

# %% id="ranks"
# %%torchrun -n {NPROC} --into job
inside = 6
inside * 7

# %% id="shown"
for rank in range(NPROC):
    print([value for value in [job[rank]] if value])
"""
TINY_WRONG = """\
from math import sqrt

# %% average: two
average = sqrt(4)

# %% average: three
average = sqrt(9)


# %% average: four
def average():
    return sqrt(16)
"""
REFUSED = {  # what is replaced in TINY or in TINY_WRONG, by what, and what the error says
    "no id": (' id="start"', "", "00_tiny.py, .*load_ext.*needs an id"),
    "an id twice": ('id="average-check"', 'id="start"', "the id 'start' is used twice"),
    "markers": ("# END SOLUTION\n", "", "1 BEGIN markers and 0 END markers"),
    "no parameters": (' tags=["parameters"]', "", "00_tiny.py: no cell is tagged parameters"),
    "no check registered": ('id="average"', 'id="mean"', "exercise mean: lab 00 registers no"),
    "never checked": ('lockstep.check("average", average)', "1", "average: no later cell checks"),
    "an exercise lacks": (
        "# BEGIN SOLUTION\naverage = one\n# END SOLUTION",
        "average = one",
        r"00_tiny.py has exercises \[\], its checks are \['average'\]",
    ),
    # what is asked for
    "a number in the lab": (
        '"usual-prediction" tags=["prediction"]',
        '"usual-prediction"',
        r'cell usual-prediction: a cell that sets prediction needs tags=\["prediction"\]',
    ),
    "a tag without its value": (
        'guess = "depends"',
        'prediction = "depends"',
        "a cell tagged guess ends with the solution's value, guess = …",
    ),
    "a value that is not the last": (
        "prediction = 3\n",
        "prediction = 3\nafter = 1\n",
        "solution's value",
    ),
    "an answer in the comment above": (
        "prediction = 3\n",
        "# three ranks wait\nprediction = 3\n",
        "cell usual-prediction: the lab would say 'three ranks wait'",
    ),
    "an answer above that": (
        "before = 1\n",
        "before = 1  # a quarter of it\n",
        "cell share-prediction: the lab would say 'a quarter of it'",
    ),
    # texts
    "a question with no cell for its answer": (
        "# ## 2 · Second",
        "# ## 2 · Second\n#\n# **Predict:** how many?",
        "00_tiny.py, text second: it asks for a prediction, but no cell below takes it",
    ),
    "a reading that learners do not have": (
        "# ## 1 · First",
        "# ## 1 · First\n#\n# The reading says so.",
        "00_tiny.py, text first: learners have no reading",
    ),
    # sections
    "read from another section": (
        "print([value",
        "print(average, [value",
        r"cell shown: reads average, which its section \(2 · Second\) does not bind before",
    ),
    "read inside of a function only": ("[value for", "[average for", "cell shown: reads average"),
    "read before it is bound": ("inside = 6", "inside += 6", "cell ranks: reads inside"),
    "read by a magic": ("-n {NPROC}", "-n {average}", "cell ranks: reads average"),
    "bound in the ranks only": ("if value]", "if inside]", "cell shown: reads inside"),
    "goes on from nowhere": (
        "# ## 2 · Second",
        "# ## 2 · Second\n#\n# (Goes on from section 3.)",
        "00_tiny.py, section 2 · Second: Goes on from section 3, which is not before",
    ),
    # length, and what goes further
    "too many cells": (
        '# %% id="shown"\n',
        "".join(f'# %% id="more-{at}"\n1\n\n' for at in range(80)) + '# %% id="shown"\n',
        "00_tiny.py: its core has 90 cells, and the limit is 80",
    ),
    "a long core without a break": (
        '# %% id="shown"\n',
        "".join(f'# %% id="more-{at}"\n1\n\n' for at in range(40)) + '# %% id="shown"\n',
        r"00_tiny.py: a core of 50 cells needs one line that begins with \"\*\*Break",
    ),
    "an exercise of the core that goes further": (
        '# %% [markdown] id="first"\n# ## 1 · First',
        '# %% [markdown] id="more"\n# # More\n\n# %% [markdown] id="first"\n# ## First',
        "exercise average: its check says further=False, but it stands below the lab itself",
    ),
    "a title inside of a cell": (
        "# ## 2 · Second",
        "# The end.\n#\n# # More",
        "text second: a title must be the first line of a notebook",
    ),
    "a third title": (
        '# %% [markdown] id="second"\n# ## 2 · Second',
        '# %% [markdown] id="more"\n# # More\n\n# %% [markdown] id="second"\n# # Again',
        "text second: a title must be the first line of a notebook",
    ),
    "further that goes on from a section": (
        '# %% [markdown] id="second"\n# ## 2 · Second',
        '# %% [markdown] id="more"\n# # More\n\n# %% [markdown] id="second"\n# ## Second\n#\n'
        "# Goes on from section 1.",
        "text second: the further notebook stands on its own",
    ),
    "a name for two things": (
        "inside = 6\ninside * 7\n",
        'inside = 6\n\n# %% id="again"\n# %%torchrun -n {NPROC} --into job\n7\n',
        "cell again: binds job, as cell ranks does, and other cells read it",
    ),
    # answers
    "two wrong answers": (
        "# %% average: four\ndef average():\n    return sqrt(16)\n",
        "",
        "exercise average: it needs 3 answers or more in wrong/00.py",
    ),
    "a header that says no mistake": (
        "# %% average: four",
        "# %% average",
        "wrong/00.py, line 10: a header is # %% exercise: name, not # %% average$",
    ),
    "two mistakes": (": four", ": two", "average: it needs 3 answers or more in wrong/00.py"),
    "an answer to nothing": (
        "def average():",
        "def averages():",
        "wrong/00.py, line 10: what follows does not define average",
    ),
    "an answer to another lab": (
        "# %% average: four\ndef average():",
        "# %% average: four\naverage = 4\n\n\n# %% mean: four\ndef mean():",
        "wrong/00.py: mean is no exercise of 00_tiny.py",
    ),
}


def written(folder: Path, old: str = "", new: str = "", name: str = "00_tiny.py") -> Path:
    """TINY with its answers in a folder of sources; `old` is replaced by `new` in both."""
    (folder / "wrong").mkdir(parents=True)
    (folder / "wrong" / "00.py").write_text(TINY_WRONG.replace(old, new) if old else TINY_WRONG)
    (folder / name).write_text(TINY.replace(old, new) if old else TINY)
    return folder / name


def test_a_source_that_keeps_to_the_rules_is_taken(tmp_path):
    verify(written(tmp_path / "plain"))
    reads = "print(average, [value"
    carried = 'print(lockstep.carry_on("average"), [value'
    verify(written(tmp_path / "carried", "print([value", carried))
    source = written(tmp_path / "onward", "print([value", reads)
    text = source.read_text().replace("2 · Second", "2 · Second\n#\n# Goes on from section 1.")
    source.write_text(text)
    verify(source)


def test_what_goes_further_is_a_notebook_of_its_own_with_the_first_cells(tmp_path):
    source = written(tmp_path, "# ## 2 · Second", "# # More")
    verify(source)
    for form in build.labs, build.solutions:
        lab, more = (
            [cell.id for cell in form(source)[name].cells]
            for name in ("00_tiny", "00_tiny_further")
        )
        head = [cell.id for cell in notebooks(source)["00_tiny"] if cell.id in more]
        assert more[: 1 + len(head)] == ["second", *head] and "parameters" in " ".join(
            tag for cell in form(source)["00_tiny_further"].cells for tag in tags(cell)
        )
        assert "average" in lab and "average" not in more and "shown" in more


def test_what_is_folded(tmp_path):
    source = written(tmp_path)
    plumbing = source.read_text().replace('id="shown"', 'id="shown" tags=["plumbing"]')
    source.write_text(plumbing)
    for form in build.labs, build.solutions:
        metadata = {cell.id: dict(cell.metadata) for cell in form(source)["00_tiny"].cells}
        assert metadata["shown"] == {"tags": ["plumbing"], "jupyter": {"source_hidden": True}}
        assert metadata["first"] == metadata["average"] == {}


@pytest.mark.parametrize("case", REFUSED)
def test_a_source_that_breaks_a_rule_is_refused(case, tmp_path):
    old, new, says = REFUSED[case]
    assert (TINY + TINY_WRONG).count(old) == 1
    with pytest.raises(SourceError, match=says):
        verify(written(tmp_path, old, new))


def test_what_the_lab_says_and_what_the_solution_says(tmp_path):
    source = written(tmp_path)
    blank, complete = (
        {cell.id: cell.source for cell in form(source)["00_tiny"].cells}
        for form in (build.labs, build.solutions)
    )
    asked = {  # by id: in the lab, in the solution
        "share-prediction": (
            "before = 1\nprediction = None  # your number, between 0 and 1",
            "before = 1\nprediction = min(\n    0.25, before\n)",
        ),
        "usual-prediction": ("prediction = None  # your number", "prediction = 3"),
        "claim-guess": (
            'guess = None  # "holds", "does not hold" or "depends"',
            'guess = "depends"',
        ),
        "average": (
            "one = 1\nraise NotImplementedError  # your code",
            "one = 1\naverage = one",
        ),
    }
    assert {identity: (blank[identity], complete[identity]) for identity in asked} == asked
    assert {i: text for i, text in blank.items() if i not in asked} == {
        i: text for i, text in complete.items() if i not in asked
    }


@pytest.mark.parametrize("kind", ["wrong", "right"])
def test_answers_are_programs_of_their_own(kind, tmp_path):
    source = written(tmp_path)
    number = source.name[:2]
    assert answers(tmp_path, "right", number) == {}
    (tmp_path / "wrong").rename(tmp_path / kind)
    found = answers(tmp_path, kind, number)
    assert {name: [one.name for one in named] for name, named in found.items()} == {
        "average": ["two", "three", "four"]
    }
    lines = TINY_WRONG.splitlines()
    for code in (one.code for one in found["average"]):
        own = {at: line for at, line in enumerate(code.splitlines()) if line}
        assert own == {at: lines[at] for at in own}  # so a traceback names the file's lines
        assert code.count("average") == 2  # the header and the definition: no other answer
        assert "import sqrt" in code


def test_notebooks_of_one_lab(tmp_path, capsys):
    written(tmp_path / "solutions" / "source", name="00_start_here.py")
    (tmp_path / "labs").mkdir()
    with pytest.raises(SourceError, match=r"has no source: .*01_communicators.py is missing"):
        build.main(tmp_path)
    with pytest.raises(SourceError, match="there is no lab 7; there are: 00, 01, "):
        build.main(tmp_path, ["00", "7"])
    assert not list(tmp_path.rglob("*.ipynb")) and capsys.readouterr().out == ""
    build.main(tmp_path, ["00"])
    paths = ["labs/00_start_here.ipynb", "solutions/00_start_here.ipynb"]
    assert capsys.readouterr().out == f"wrote {' and '.join(paths)}\n"
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.ipynb")) == paths
    blank, complete = (nbformat.read(tmp_path / path, 4).cells for path in paths)
    assert [text(cell) for cell in blank if cell.cell_type == "code"] == [""] * 8
    assert text(complete[-1]) == "[42]\n[42]\n"


def test_texts_are_written_anew_without_a_run_and_code_is_not(tmp_path):
    source = written(tmp_path / "solutions" / "source", name="00_start_here.py")
    (tmp_path / "labs").mkdir()
    build.main(tmp_path, ["00"])
    paths = [tmp_path / folder / "00_start_here.ipynb" for folder in ("labs", "solutions")]
    before = [path.read_text() for path in paths]
    source.write_text(source.read_text().replace("1 · First", "1 · The first"))
    build.main(tmp_path, ["00"], texts=True)
    assert [path.read_text() for path in paths] == [
        one.replace("1 · First", "1 · The first") for one in before
    ]
    source.write_text(source.read_text().replace("inside * 7", "inside * 8"))
    after = [path.read_text() for path in paths]
    with pytest.raises(SourceError, match="cell ranks: its code is new; use make notebooks"):
        build.main(tmp_path, ["00"], texts=True)
    assert [path.read_text() for path in paths] == after


def test_the_command_names_a_lab_that_is_not_there():
    command = [sys.executable, "-m", "lockstep.author.build", "7"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("make notebooks: there is no lab 7; there are: 00, ")


@pytest.mark.parametrize("source", SOURCES, ids=ids)
def test_the_sources_break_no_rule(source):
    verify(source)


def test_what_is_published():
    rich = {"text/html": "<b>4</b>", "text/plain": "4", "image/png": "AAAA", "text/latex": "4"}
    display = nbformat.v4.new_output("display_data", rich)
    picture = nbformat.v4.new_output("display_data", {"text/html": "<b>", "image/png": "AAAA"})
    stream = nbformat.v4.new_output("stream", text="5\n")
    shown = {  # by id: tags, outputs
        "rich": (["mine"], [display]),
        "picture": ([], [picture]),
        "stream": ([], [stream]),
        "silent": ([], []),
        "varies": (["varies"], [stream]),
        "machine": (["unpublished"], [stream, display]),
    }
    notebook = nbformat.v4.new_notebook()
    for identity, (named, outputs) in shown.items():
        metadata = {"tags": named, "execution": {"iopub.status.idle": "now"}, "papermill": {}}
        notebook.cells.append(
            nbformat.v4.new_code_cell("1", id=identity, metadata=metadata, outputs=outputs)
        )
    notebook.cells[0].outputs[0]["transient"] = {"display_id": "1"}
    cells = {cell.id: cell for cell in build.published(notebook).cells}
    assert {identity: tags(cell) for identity, cell in cells.items()} == {
        "rich": ["mine", "nbval-ignore-output"],
        "picture": ["nbval-ignore-output"],
        "stream": [],
        "silent": [],
        "varies": ["varies", "nbval-ignore-output"],
        "machine": ["unpublished", "nbval-ignore-output"],
    }
    assert [output.data for output in cells["rich"].outputs + cells["picture"].outputs] == [
        {"text/plain": "4", "image/png": "AAAA"},
        {"image/png": "AAAA"},
    ]
    assert cells["stream"].outputs == cells["varies"].outputs == [stream]
    assert cells["machine"].outputs == []
    assert all(set(cell.metadata) == {"tags"} for cell in cells.values())
    nbformat.validate(notebook)


def test_a_check_never_raises():
    assert lockstep.check("average", None).verdict == "NOT YET"
    assert lockstep.check("average", 5).verdict == "TRY AGAIN"
    assert lockstep.check("no such exercise", None).verdict == "NOT YET"
