"""Links in and between notebooks, which the build makes."""

import functools
import re

import nbformat
import pytest
from lockstep.author import build
from lockstep.course import links
from lockstep.course.syllabus import LABS
from test_labs import NOTEBOOKS, SOURCES, names

LINK = re.compile(r"\]\((?P<file>[\w./]+\.ipynb)?(?:#cell-id=(?P<cell>[\w-]+))?\)")
labs_of, solutions_of = functools.cache(build.labs), functools.cache(build.solutions)
FILES = [links.file_name(lab) for lab in LABS]


@pytest.mark.parametrize(("source", "name"), NOTEBOOKS, ids=names)
@pytest.mark.parametrize(("folder", "form"), [("labs", labs_of), ("solutions", solutions_of)])
def test_every_link_leads_to_a_file_or_a_cell_that_is_there(source, name, folder, form) -> None:
    cells = form(source)[name].cells
    texts = [cell.source for cell in cells if cell.cell_type == "markdown"]
    found = [match for text in texts for match in LINK.finditer(text) if any(match.groups())]
    files = [f"{one}.ipynb" for one in names]
    there = {f"../{above}/{file}" for above in ("labs", "solutions") for file in files} | {*files}
    assert {match["file"] for match in found} - {None} <= there
    assert {match["cell"] for match in found} - {None} <= {cell.id for cell in cells}
    headings = re.findall(r"^## ", "\n".join(texts), re.MULTILINE)
    assert len([match for match in found if match["cell"]]) == len(headings) > 3
    other = {"labs": "solutions", "solutions": "labs"}[folder]
    assert f"../{other}/{name}.ipynb" in {match["file"] for match in found}


@pytest.mark.parametrize("at", range(len(LABS)), ids=FILES)
def test_title_and_end_lead_to_the_notebooks_beside(at: int) -> None:
    beside = [*LABS[max(at - 1, 0) : at], *LABS[at + 1 : at + 2]]
    found = labs_of(SOURCES[at])
    for name, notebook in found.items():
        texts = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
        others = [f"{one}.ipynb" for one in found if one != name]
        for said in (texts[0].splitlines()[-1], texts[-1].splitlines()[-1]):
            files = re.findall(r"\]\((\w+\.ipynb)\)", said)
            assert sorted(files) == sorted([*others, *(links.file_name(one) for one in beside)])


def test_labs_that_are_named_are_links_but_for_the_lab_itself_code_and_headings() -> None:
    text = (
        "## Before lab 00\nLab 00 and lab 01, not lab 77, `lab 00` and [lab 00](x.ipynb): "
        "`solutions/`, the further notebook\n```\nlab 00\n```"
    )
    assert links.linked(text, LABS[1], FILES[1].removesuffix(".ipynb")) == (
        f"## Before lab 00\n[Lab 00]({FILES[0]}) and lab 01, not lab 77, `lab 00` and "
        f"[lab 00](x.ipynb): [`solutions/`](../solutions/{FILES[1]}), the [further notebook]"
        "(01_communicators_further.ipynb)\n```\nlab 00\n```"
    )


def test_sections_have_a_line_of_links() -> None:
    texts = {"a": "# Title\n## One [1]\n### Part", "b": "## Two\n\nmore"}
    assert links.table_of_contents(links.sections(texts)) == (
        "**Sections:** [One 1](#cell-id=a) · [Two](#cell-id=b)"
    )


def test_an_exercise_that_goes_further_is_addressed_in_its_notebook(tmp_path, monkeypatch):
    first = [
        nbformat.v4.new_markdown_cell("### Exercise 1: plain", id="plain-text"),
        nbformat.v4.new_code_cell("plain", id="plain"),
    ]
    more = [
        nbformat.v4.new_markdown_cell("## More", id="more-text"),
        nbformat.v4.new_markdown_cell("### Exercise: deep", id="deep-text"),
        nbformat.v4.new_code_cell("deep", id="deep"),
    ]
    for name, cells in ("98_x.ipynb", first), ("98_x_further.ipynb", more):
        nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / name)
    monkeypatch.setattr(links, "LABS", tmp_path)
    assert links.exercise_address("98", "plain") == "#cell-id=plain-text"
    assert links.exercise_address("98", "deep") == "98_x_further.ipynb"
    assert links.exercise_address("98", "nowhere") == ""
