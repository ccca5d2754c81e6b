"""Links in and between notebooks, which the build makes."""

import re
from pathlib import Path

import nbformat
import pytest
from lockstep.author import build
from lockstep.author.source import core, read
from lockstep.course import links
from lockstep.course.syllabus import LABS

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\]\((?P<file>[\w./]+\.ipynb)?(?:#cell-id=(?P<cell>[\w-]+))?\)")
FILES = [links.file_name(lab) for lab in LABS]


def source(lab) -> Path:
    return ROOT / "solutions" / "source" / f"{lab.number}_{lab.name}.py"


@pytest.mark.parametrize("lab", LABS, ids=FILES)
@pytest.mark.parametrize(("folder", "form"), [("labs", build.lab), ("solutions", build.solution)])
def test_every_link_leads_to_a_file_or_a_cell_that_is_there(lab, folder, form) -> None:
    cells = form(source(lab)).cells
    texts = [cell.source for cell in cells if cell.cell_type == "markdown"]
    found = [match for text in texts for match in LINK.finditer(text) if any(match.groups())]
    there = {f"../{name}/{file}" for name in ("labs", "solutions") for file in FILES} | {*FILES}
    assert {match["file"] for match in found} - {None} <= there
    assert {match["cell"] for match in found} - {None} <= {cell.id for cell in cells}
    headings = re.findall(r"^## ", "\n".join(texts), re.MULTILINE)
    assert len([match for match in found if match["cell"]]) == len(headings) > 3
    other = {"labs": "solutions", "solutions": "labs"}[folder]
    assert f"../{other}/{links.file_name(lab)}" in {match["file"] for match in found}


@pytest.mark.parametrize("at", range(len(LABS)), ids=FILES)
def test_title_and_end_of_the_core_lead_to_the_labs_beside(at: int) -> None:
    lab, beside = LABS[at], [*LABS[max(at - 1, 0) : at], *LABS[at + 1 : at + 2]]
    cells = build.lab(source(lab)).cells
    inside = core(read(source(lab)))
    last = [cell.id for cell in inside if cell.cell_type == "markdown"][-1]
    for cell in (cells[0], next(cell for cell in cells if cell.id == last)):
        said = cell.source.splitlines()[-1]
        files = re.findall(r"\]\((\w+\.ipynb)\)", said)
        assert files == [links.file_name(one) for one in beside]


def test_labs_that_are_named_are_links_but_for_the_lab_itself_code_and_headings() -> None:
    text = (
        "## Before lab 00\nLab 00 and lab 01, not lab 77, `lab 00` and [lab 00](x.ipynb): "
        "`solutions/`\n```\nlab 00\n```"
    )
    assert links.linked(text, LABS[1]) == (
        f"## Before lab 00\n[Lab 00]({FILES[0]}) and lab 01, not lab 77, `lab 00` and "
        f"[lab 00](x.ipynb): [`solutions/`](../solutions/{FILES[1]})\n```\nlab 00\n```"
    )


def test_sections_that_go_further_have_a_line_of_their_own() -> None:
    texts = {"a": "# Title\n## One [1]\n### Part", "b": "## Further: two\n\nmore"}
    assert links.table_of_contents(links.sections(texts)) == (
        "**Sections:** [One 1](#cell-id=a)\n\n**Further:** [two](#cell-id=b)"
    )


def test_an_exercise_that_goes_further_is_addressed_by_what_unfolds_it(tmp_path, monkeypatch):
    """JupyterLab goes to no cell that is folded away."""
    cells = [
        nbformat.v4.new_markdown_cell("### Exercise 1: plain", id="plain-text"),
        nbformat.v4.new_code_cell("plain", id="plain"),
        nbformat.v4.new_markdown_cell("## Further: more", id="more-text"),
        nbformat.v4.new_markdown_cell("### Further exercise: deep", id="deep-text"),
        nbformat.v4.new_code_cell("deep", id="deep"),
    ]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "98_folded.ipynb")
    monkeypatch.setattr(links, "LABS", tmp_path)
    assert links.exercise_address("98", "plain") == "#cell-id=plain-text"
    assert links.exercise_address("98", "deep") == "#cell-id=more-text"
    assert links.exercise_address("98", "nowhere") == ""
