"""The claims' table is what the solutions say: no claim without a cell, nor the reverse."""

from pathlib import Path

import pytest
from lockstep import claim
from lockstep.author import claims
from lockstep.author.source import read
from lockstep.base.provenance import Provenance
from lockstep.course.syllabus import LABS

ROOT = Path(__file__).parents[1]
STAMPS = [Provenance("live", "4 ranks · gloo"), Provenance("recorded", "an H200")]


def text(sentence="Trees | are *fast*.", verdict="depends", because="1 s · 2 s, <b>"):
    return str(claim(sentence, guess="holds", verdict=verdict, because=because, stamp=STAMPS))


def code(identity, outputs, source="lockstep.claim(\n    'x')"):
    data = [{"data": {"text/plain": one}} for one in outputs]
    return {"cell_type": "code", "id": identity, "source": source, "outputs": data}


def words(source):
    return {"cell_type": "markdown", "id": "words", "source": source}


def of(*cells):
    return claims.claims_in("07", {"cells": list(cells)})


def test_a_claim_is_read_back_as_it_was_said():
    heading = (
        '### Claim: "x"\n\n[A page](https://a.org/b) says so.\n\n### Other\n[no](https://c.org)'
    )
    (one,) = of(words(heading), code("c", ["5", text()]))
    assert (one.lab, one.cell, one.sentence) == ("07", "c", "Trees | are *fast*.")
    assert (one.verdict, one.because) == ("depends", "1 s · 2 s, <b>")
    assert one.source == "[A page](https://a.org/b)"
    assert one.stamps == ("live · 4 ranks · gloo", "recorded · an H200")


def test_a_source_belongs_to_the_claim_below_it_alone():
    heading = '### Claim: "x"\n\n[A page](https://a.org/b) says so.'
    first, second = of(words(heading), code("a", [text()]), code("b", [text()]))
    assert first.source != claims.PEOPLE and second.source == claims.PEOPLE


def test_other_cells_and_other_texts_are_no_claims():
    assert not of(code("a", [text()], source="print(1)"))
    assert not of(code("a", ["“quoted”", "“quoted”\nyou said · x", "", "PASS"]))


def test_several_claims_of_one_cell():
    assert [one.verdict for one in of(code("a", [text(), text(verdict="holds")]))] == [
        "depends",
        "holds",
    ]


def test_the_table_is_written_and_read(tmp_path):
    found = of(code("a", [text(because='"quoted" \\ and é')]), code("b", [text()]))
    path = tmp_path / "claims.toml"
    path.write_text(claims.as_toml(found), encoding="utf-8")
    assert claims.read(path) == found


def test_the_page_shows_what_was_said_as_text():
    page = claims.as_markdown(of(code("a", [text()])))
    assert (
        "1 claims: 0 holds, 0 does not hold, 1 depends; 1 measured, 0 computed, 0 measured" in page
    )
    assert "Trees \\| are \\*fast\\*." in page and "&lt;b>" in page and "<b>" not in page


# ── The course's own ─────────────────────────────────────────────────────────────────────────


def test_the_files_are_what_the_published_solutions_say():
    found = claims.gather(ROOT)
    toml, markdown = ((ROOT / name).read_text(encoding="utf-8") for name in claims.FILES)
    again = "write them anew: python -m lockstep.author.claims"
    assert claims.read(ROOT / claims.FILES[0]) == found, again
    assert toml == claims.as_toml(found), again
    assert markdown == claims.as_markdown(found), again
    assert claims.FILES[1] in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.number)
def test_no_claim_without_a_cell_and_no_cell_without_a_claim(lab):
    name = f"{lab.number}_{lab.name}"
    stating = {
        cell.id
        for cell in read(ROOT / "solutions" / "source" / f"{name}.py")
        if cell.cell_type == "code" and "lockstep.claim(" in cell.source
    }
    listed = {one.cell for one in claims.read(ROOT / claims.FILES[0]) if one.lab == lab.number}
    assert listed - stating == set(), "a claim without a cell"
    assert stating - listed == set(), "a cell without a claim"


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.number)
def test_below_each_heading_of_a_claim_a_cell_says_its_verdict(lab):
    """And before the next heading: a sentence that nothing tests is no claim."""
    waiting = ""
    for cell in read(ROOT / "solutions" / "source" / f"{lab.number}_{lab.name}.py"):
        if cell.cell_type != "markdown":
            waiting = "" if "lockstep.claim(" in cell.source else waiting
            continue
        for line in cell.source.splitlines():
            assert not (waiting and line.startswith("#")), f"no cell tests {waiting}"
            waiting = line if line.startswith("### Claim: ") else waiting
    assert not waiting


def test_there_are_enough_claims_and_a_third_of_them_hold():
    found = claims.read(ROOT / claims.FILES[0])
    assert len(found) >= 40
    assert 3 * sum(one.verdict == "holds" for one in found) >= len(found)
    assert all(one.stamps and one.because for one in found)


def test_a_claim_fits_into_a_narrow_window(context):
    long = "torch.distributed._functional_collectives.all_reduce_coalesced_and_wait_tensor" * 2
    shown = claim("x", guess="holds", verdict="holds", because=long, stamp=STAMPS)
    page = context.new_page()
    page.set_viewport_size({"width": 420, "height": 600})
    page.set_content(shown._repr_mimebundle_()["text/html"])
    assert page.evaluate("document.documentElement.scrollWidth") <= 420
