"""The manual: what its pages link to is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md"))]
PAGES += sorted(ROOT.glob("data/*.md"))


def headings(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    found = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in found}


def broken(page: Path) -> list[str]:
    """The links of a page that lead to no file, or to no heading of one."""
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    lost = []
    for link in (one for one in links if ":" not in one):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (anchor and anchor not in headings(target)):
            lost.append(link)
    return lost


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One thing\n[a](page.md#one-thing) [b](#two) [c](lost.md) [d](https://x.y)\n")
    assert broken(page) == ["#two", "lost.md"]


def test_the_readme_leads_to_every_page() -> None:
    text = PAGES[0].read_text(encoding="utf-8")
    assert [page.name for page in ROOT.glob("docs/*.md") if f"(docs/{page.name})" not in text] == []
