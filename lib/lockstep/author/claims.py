"""The claims of all labs in one table: what people say, and what the labs' own runs measured.

A claim is a call of `lockstep.claim` in a cell of a lab. What it said when the solution was
executed stands in the published notebook, and `python -m lockstep.author.claims` gathers it from
there into `data/claims.toml` and `data/claims.md`. Nothing in these is written by hand.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..course.predict import VERDICTS
from ..course.syllabus import LABS

FILES = ("data/claims.toml", "data/claims.md")
PEOPLE = "a common guess"
WAYS = ("measured", "computed", "measured and computed")
_CALL = re.compile(r"\blockstep\.claim\(")
_HEADING = re.compile(r'^#+ Claim: "(?P<said>.*)"', re.MULTILINE)
_NEXT = re.compile(r"^#+ ", re.MULTILINE)
_LINK = re.compile(r"\[(?P<title>[^\]]+)\]\((?P<url>https?://[^)\s]+)\)")
_HEAD = """\
# Claims

What people and public texts say about PyTorch on many GPUs, each tested in a cell of a lab. The
sentence is in our words; the source is the text that says so, where there is one. The verdict is
what the cell said when the solution was executed last, on the machines that it names: it was
measured there, or computed by a formula or by the model of a virtual GPU. Run the lab to have the
verdict of your machine. Written by `make notebooks` from the solutions; do not edit.
"""


@dataclass(frozen=True)
class TestedClaim:
    """A claim and what became of it.

    lab, cell: where it is tested. sentence: in our words. source: texts that say so, as links in
    Markdown, or PEOPLE. way: one of WAYS. verdict, because: as the cell said. stamps: of the
    figures.
    """

    lab: str
    cell: str
    sentence: str
    source: str
    way: str
    verdict: str
    because: str
    stamps: tuple[str, ...]


def claims_in(lab: str, notebook: dict[str, Any]) -> list[TestedClaim]:
    """Return the claims that an executed notebook's outputs state, in order."""
    found, said = [], ""  # said: the text from the last claim's heading on
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            headings = list(_HEADING.finditer(text))
            said = text[headings[-1].end() :] if headings else said
        elif _CALL.search(text):
            source, said = _source(said), ""
            for output in cell["outputs"]:
                shown = "".join(output.get("data", {}).get("text/plain", ""))
                if claim := _parse_claim(shown, lab, cell["id"], source):
                    found.append(claim)
    return found


def _source(text: str) -> str:
    """Return the links from a claim's heading to the next heading."""
    own = _NEXT.split(text, maxsplit=1)[0]
    links = [f"[{one['title']}]({one['url']})" for one in _LINK.finditer(own)]
    return "; ".join(dict.fromkeys(" ".join(one.split()) for one in links)) or PEOPLE


def _parse_claim(text: str, lab: str, cell: str, source: str) -> TestedClaim | None:
    """Return the claim that an output's text states; None for another text."""
    first, *lines = text.splitlines() or [""]
    if not (first.startswith("“") and first.endswith("”")):
        return None
    said = [tuple(part.strip() for part in line.split(" · ", 1)) for line in lines]
    if len(said) < 3 or (said[0][0], said[2][0]) != ("you said", "because"):
        return None
    if said[1][0] not in WAYS:
        return None
    _, (way, verdict), (_, because), *stamps = said
    where = tuple(" · ".join(one) for one in stamps)
    return TestedClaim(lab, cell, first[1:-1], source, way, verdict, because, where)


def gather(root: Path) -> list[TestedClaim]:
    """Return the claims of all published solutions."""
    found = []
    for lab in LABS:
        for path in sorted((root / "solutions").glob(f"{lab.number}_{lab.name}*.ipynb")):
            found += claims_in(lab.number, json.loads(path.read_text(encoding="utf-8")))
    return found


def as_toml(claims: list[TestedClaim]) -> str:
    """Return the claims, one table each; strings as JSON writes them, which TOML reads."""
    tables = []
    for one in claims:
        rows = [
            f"{name} = {json.dumps(value, ensure_ascii=False)}"
            for name, value in asdict(one).items()
        ]
        tables.append("\n".join(["[[claim]]", *rows]))
    return "\n\n".join(["# Written by `python -m lockstep.author.claims`.", *tables]) + "\n"


def read(path: Path) -> list[TestedClaim]:
    """Read what `as_toml` has written."""
    content = tomllib.loads(path.read_text(encoding="utf-8")).get("claim", [])
    return [TestedClaim(**{**one, "stamps": tuple(one["stamps"])}) for one in content]


def as_markdown(claims: list[TestedClaim]) -> str:
    """Return a page that says how many hold, with a table for each lab."""
    counts = Counter(one.verdict for one in claims)
    summary = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS)
    ways = Counter(one.way for one in claims)
    how = ", ".join(f"{ways[way]} {way}" for way in WAYS)
    parts = [_HEAD, f"{len(claims)} claims: {summary}; {how}.\n"]
    for lab in LABS:
        own = [one for one in claims if one.lab == lab.number]
        if not own:
            continue
        link = f"[{lab.number} {lab.title}](../labs/{lab.number}_{lab.name}.ipynb)"
        rows = [("claim", "source", "verdict", "", "because", "on", "cell"), ("---",) * 7]
        rows += [
            (
                _cell(one.sentence),
                one.source.replace("|", "\\|"),
                f"**{one.verdict}**",
                one.way,
                _cell(one.because),
                _cell("; ".join(one.stamps)),
                f"`{one.cell}`",
            )
            for one in own
        ]
        parts.append(
            "\n".join([f"## {link}\n", *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"
        )
    return "\n".join(parts)


def _cell(text: str) -> str:
    """Escape the words of a run, so that they stand as they are in a cell of a table."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace("\\", "\\\\")
    return re.sub(r"([|`*_\[\]])", r"\\\1", text)


def main(root: Path) -> None:
    """Write both files anew."""
    claims = gather(root)
    for name, text in zip(FILES, (as_toml(claims), as_markdown(claims)), strict=True):
        (root / name).write_text(text, encoding="utf-8")
        print(f"wrote {name}: {len(claims)} claims")


if __name__ == "__main__":
    main(Path.cwd())
