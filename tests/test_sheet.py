"""Run sheets: they say what the lab says, and nothing is missing."""

import json
import re

import pytest
from lockstep.__main__ import main
from lockstep.base.paths import SOLUTIONS
from lockstep.course import labs  # noqa: F401
from lockstep.course.exercises import exercises
from lockstep.course.syllabus import LABS
from lockstep.teach import sheet


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.number)
def test_every_section_prediction_and_exercise_is_in_it(lab):
    text = sheet.sheet(lab.number)
    notebook = json.loads((SOLUTIONS / f"{lab.number}_{lab.name}.ipynb").read_text())
    asked = [
        cell["id"]
        for cell in notebook["cells"]
        if {"prediction", "guess"} & set(cell["metadata"].get("tags", []))
    ]
    assert [name for name in asked if f"**Ask** (`{name}`)" not in text] == []
    of_lab = [one.name for one in exercises() if one.lab == lab.number]
    assert [name for name in of_lab if f"**Exercise** `{name}`" not in text] == []
    found = sheet.published(lab)
    titles = [
        line.removeprefix("## ")
        for cell in notebook["cells"]
        if cell["cell_type"] == "markdown"
        for line in "".join(cell["source"]).splitlines()
        if line.startswith("## ")
    ]
    assert [one.title for one in found] == ["Start", *titles]


MOST = 95  # minutes of a core


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.number)
def test_what_is_announced_is_what_the_rule_gives(lab):
    found = sheet.published(lab)
    core = sum(one.minutes for one in found if not one.further)
    assert core <= MOST, f"{core:.1f} minutes: cut, or let more go further"
    assert lab.minutes == str(sheet.announced(core)), "the syllabus, the title and the README"
    notebook = json.loads((SOLUTIONS / f"{lab.number}_{lab.name}.ipynb").read_text())
    texts = ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "markdown"]
    said = dict(
        re.findall(r"\A## (Further: .+)\n[^#]*?\b(\d+)\sminutes", text)[0]
        for text in texts
        if text.startswith("## Further: ")
    )
    assert said == {one.title: str(sheet.announced(one.minutes)) for one in found if one.further}


def code(name: str, source: str, *tags: str, shown: str = "") -> dict:
    outputs = [{"output_type": "execute_result", "data": {"text/plain": shown}}] if shown else []
    metadata = {"tags": list(tags)}
    return {
        "cell_type": "code",
        "id": name,
        "source": source,
        "metadata": metadata,
        "outputs": outputs,
    }


def prose(source: str) -> dict:
    return {"cell_type": "markdown", "id": "text", "source": source, "metadata": {}}


def test_minutes_and_words_of_a_lab_made_by_hand():
    cells = [
        prose("# Title\n" + "word " * 179),
        prose("## One\n\n**Predict:** how many?"),
        code("one-prediction", "prediction = 2 + 1  # two, and one more", "prediction"),
        code("run", "%%torchrun --may-fail\n1"),
        code("said", "lockstep.compare(predicted=prediction, measured=3)", shown="3 and 3"),
        prose("Because. And more.\n\n**Break.** Tea."),
        code("hidden", "c = 1", "plumbing"),
        code("average", "import x\n# why\ndef average():\n    a\n    b\n    c = 1"),
        code("average-check", 'lockstep.check("average", average)'),
        prose("[two](#2) · [three](#3)\n\n## Further: two\n\nText"),
    ]
    blanks = [code("average", "import x\ndef average():\n    raise NotImplementedError")]
    first, one, further = sheet.sections(LABS[0], cells, blanks)
    assert first.minutes == 1.0
    # The exercise wants two lines that are neither given nor to be found above it.
    assert one.minutes == pytest.approx(9 / 180 + 2 + 1 + 1 + 5 + 2 / 2)
    assert one.asks == [
        sheet.Ask("one-prediction", "how many?", "2 + 1", "two, and one more", "3 and 3")
    ]
    assert one.broken == ["run"]
    assert one.exercises == ["average"]
    assert one.has_break
    assert further.further


def test_the_command(capsys, tmp_path):
    assert main(["sheet", "0"]) == 0
    assert capsys.readouterr().out.startswith("# Run sheet: 00 · Start here")
    assert main(["sheet", "00", "--to", str(tmp_path / "sheet.md")]) == 0
    assert "sum-not-mean" in (tmp_path / "sheet.md").read_text()
    assert main(["sheet", "77"]) == 2
    assert "there is no lab 77" in capsys.readouterr().err
