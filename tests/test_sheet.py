"""Run sheets: they say what the lab says, and nothing is missing."""

import json
import re

import pytest
from lockstep.__main__ import main
from lockstep.base.paths import SOLUTIONS
from lockstep.course import labs  # noqa: F401
from lockstep.course.exercises import exercises
from lockstep.course.judging import words
from lockstep.course.syllabus import LABS
from lockstep.teach import sheet


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.number)
def test_every_section_prediction_and_exercise_is_in_it(lab, capsys):
    assert main(["sheet", lab.number]) == 0
    text = capsys.readouterr().out
    cells = [cell for name in sorted(SOLUTIONS.glob(f"{lab.number}_*")) for cell in read(name)]
    asked = [
        cell["id"]
        for cell in cells
        if {"prediction", "guess"} & set(cell["metadata"].get("tags", []))
    ]
    assert [name for name in asked if f"**Ask** (`{name}`)" not in text] == []
    of_lab = [one.name for one in exercises() if one.lab == lab.number]
    assert [name for name in of_lab if f"**Exercise** `{name}`" not in text] == []
    found = sheet.published(lab)
    results = {ask.cell: ask.measured for one in found for ask in one.asks}
    assert [
        cell
        for cell, said in results.items()
        if not re.search(r"predicted .+ · .+|“.+” you said", said)
        and not cell.startswith("dials")  # sliders take it, and show nothing until they are moved
    ] == []
    titles = [
        line.removeprefix("## ")
        for cell in cells
        if cell["cell_type"] == "markdown"
        for line in "".join(cell["source"]).splitlines()
        if line.startswith("## ")
    ]
    ours = [one.title for one in found if one.title not in ("Start", "Going further")]
    assert ours == titles


ONE_SENTENCE = re.compile(r"[A-Za-zΑ-ω0-9](?:(?![.?!] [A-Z]).)*\.")


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.number)
def test_each_prediction_has_one_sentence_of_its_author(lab, capsys):
    """In the lab's TOML, [predictions], by the id of the cell."""
    cells = [cell for name in sorted(SOLUTIONS.glob(f"{lab.number}_*")) for cell in read(name)]
    asked = {cell["id"] for cell in cells if "prediction" in cell["metadata"].get("tags", [])}
    said = words.predictions(lab.number)
    assert said.keys() == asked
    assert [text for text in said.values() if not ONE_SENTENCE.fullmatch(text)] == []
    assert main(["sheet", lab.number]) == 0
    shown = re.findall(
        r"\*\*Ask\*\* \(`(.+?)`\): .*\n  - Say: `.+?`\. (.+)", capsys.readouterr().out
    )
    assert {name: text for name, text in shown if name in asked} == said


def test_a_guess_is_asked_by_the_whole_sentence(capsys):
    assert main(["sheet", "14"]) == 0
    assert (
        "- **Ask** (`headline-guess`): does it hold? “The largest item of a profile is where "
        in (capsys.readouterr().out)
    )


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.number)
def test_each_exercise_has_three_usual_mistakes_which_come_first(lab, capsys):
    assert main(["sheet", lab.number]) == 0
    parts = re.split(r"- \*\*Exercise\*\* `(.+?)`", capsys.readouterr().out)
    shown = {
        name: re.findall(r"^    - ([^ ]+): “", part, re.MULTILINE)
        for name, part in zip(parts[1::2], parts[2::2], strict=True)
    }
    for one in exercises():
        if one.lab == lab.number:
            said = words.of(one.lab, one.name)
            assert len(set(said.usual)) == 3, f"usual = [three mistakes] in the TOML: {one.name}"
            assert shown[one.name][:3] == list(said.usual)
            assert sorted(shown[one.name]) == sorted(said.sentences)


MOST = 90  # minutes of a sitting


def read(path) -> list[dict]:
    return json.loads(path.read_text())["cells"]


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.number)
def test_what_is_announced_is_what_the_rule_gives(lab):
    found = sheet.published(lab)
    parts = sheet.sittings(found)
    assert max(parts) <= MOST, f"{parts}: cut, or let more go further"
    by_rule = " + ".join(str(sheet.announced(part)) for part in parts)
    assert lab.minutes == by_rule, "the syllabus, the title and the README"
    path = SOLUTIONS / f"{lab.number}_{lab.name}.ipynb"
    texts = ["".join(cell["source"]) for cell in read(path)]
    assert any("**Break.** The first sitting ends here." in text for text in texts) == (
        len(parts) == 2
    )
    further = path.with_name(f"{path.stem}_further.ipynb")
    texts = ["".join(cell["source"]) for cell in read(further)] if further.exists() else []
    said = dict(
        re.findall(r"\A## (.+)\n[^#]*?\b(\d+)\sminutes", text)[0]
        for text in texts
        if text.startswith("## ")
    )
    theirs = {one.title: str(sheet.announced(one.minutes)) for one in found if one.further}
    assert said == {title: minutes for title, minutes in theirs.items() if title in said}
    assert len(said) == max(0, len(theirs) - 1)  # all but its title


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
        code("run", "%%torchrun --may-fail\n1", shown="one\nlive · failed"),
        code("well", "%%torchrun --may-fail\n1", shown="one\nlive · 2 ranks"),
        code(
            "said",
            "lockstep.compare(predicted=prediction, measured=3)",
            shown="predicted 3 · measured 3",
        ),
        prose("Because. And more.\n\n**Break.** Tea."),
        code("hidden", "c = 1", "plumbing"),
        code("average", "import x\n# why\ndef average():\n    a\n    b\n    c = 1"),
        code("average-check", 'lockstep.check("average", average)'),
        prose("# Title: going further"),
        prose("[two](#2) · [three](#3)\n\n## Two\n\nText"),
    ]
    blanks = [code("average", "import x\ndef average():\n    raise NotImplementedError")]
    first, one, more, further = sheet.sections(LABS[0], cells, blanks)
    assert first.minutes == 1.0
    # The exercise wants two lines that are neither given nor to be found above it.
    ran, again, compared = 0.5 + 2 * 0.1 + 2 * 0.05, 0.5 + 2 * 0.05, 0.5 + 0.1 + 0.05
    assert one.minutes == pytest.approx(9 / 180 + 2 + ran + again + compared + 5 + 2 * 1.5)
    assert one.asks == [
        sheet.Ask("one-prediction", "how many?", "2 + 1", "", "predicted 3 · measured 3")
    ]
    assert one.broken == ["run"]  # not what may fail and has ended well
    assert one.exercises == ["average"]
    assert one.has_break
    assert [more.further, further.further, one.further] == [True, True, False]
    assert sheet.sittings([first, one, more, further]) == [first.minutes + one.minutes]
    one.minutes, later = 60.0, sheet.Section("Two", minutes=40.0)
    assert sheet.sittings([first, one, later, further]) == [61.0, 40.0]


def test_the_command(capsys, tmp_path):
    assert main(["sheet", "0"]) == 0
    assert capsys.readouterr().out.startswith("# Run sheet: 00 · Start here")
    assert main(["sheet", "00", "--to", str(tmp_path / "sheet.md")]) == 0
    assert "sum-not-mean" in (tmp_path / "sheet.md").read_text()
    assert main(["sheet", "77"]) == 2
    assert "there is no lab 77" in capsys.readouterr().err
