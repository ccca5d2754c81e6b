"""One colour, one meaning: what looks alike is the same everywhere, and all of it can be read."""

import base64
import itertools
import re

import pytest
from lockstep.base import style
from lockstep.base.style import Look
from lockstep.figures.number_line import number_line
from lockstep.figures.widget import BROWSER as OF_FIGURES
from lockstep.timeline.scene import LOOKS
from lockstep.timeline.script import BROWSER

ALL = [one for one in vars(style).values() if isinstance(one, Look)]
ALL += style.MEMORY
COLOURS = [*(look.colour for look in (*ALL, *LOOKS.values())), *style.RANKS, style.ERROR]
COLOURS += [colour for colour, _ in style.GROUPS]
PAPERS = ("#ffffff", "#111111")


@pytest.mark.parametrize(
    ("one", "other", "ratio"),
    [("#000000", "#ffffff", 21), ("#777777", "#ffffff", 4.48), ("#0000ff", "#ffffff", 8.59)],
)
def test_contrast_is_that_of_the_standard(one: str, other: str, ratio: float) -> None:
    assert style.contrast(one, other) == pytest.approx(ratio, abs=0.01)
    assert style.contrast(other, one) == style.contrast(one, other)


@pytest.mark.parametrize("colour", sorted(set(COLOURS)))
def test_a_text_on_a_colour_can_be_read(colour: str) -> None:
    assert style.contrast(colour, style.ink(colour)) >= 4.5
    for paper in PAPERS:  # on a canvas, what is not searched for is mixed with the paper
        mixed = [
            round(0.22 * int(colour[at : at + 2], 16) + 0.78 * int(paper[at : at + 2], 16))
            for at in (1, 3, 5)
        ]
        faint = "#" + "".join(f"{value:02x}" for value in mixed)
        assert style.contrast(faint, style.ink(faint)) >= 4.5


def test_the_canvas_chooses_its_ink_as_python_does() -> None:
    code = (OF_FIGURES / "colours.js").read_text(encoding="utf-8")
    assert "0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179" in code
    assert "mix(tiles[kind].colour, rgb(colours.paper), 0.78)" in (BROWSER / "draw.js").read_text()
    themes = re.findall(
        r'ink: "(#\w+)", muted: "(#\w+)", .*paper: "(#\w+)"', (BROWSER / "theme.js").read_text()
    )
    assert len(themes) == 2
    for ink, muted, paper in themes:
        assert min(style.contrast(ink, paper), style.contrast(muted, paper)) >= 4.5


def test_no_two_kinds_look_the_same() -> None:
    same = {style.COMMUNICATION, style.COLLECTIVE}  # one as calls, one as traces have it
    for one, other in itertools.combinations(ALL, 2):
        if {one, other} != same:
            assert (one.colour, one.pattern) != (other.colour, other.pattern)
            assert one.label != other.label


def test_colours_of_ranks_and_of_lines_are_none_of_kinds_and_red_is_for_errors() -> None:
    kinds = {look.colour for look in (*ALL, *LOOKS.values())} | {c for c, _ in style.GROUPS}
    assert not kinds & set(style.RANKS)
    assert not {style.DONE, style.ERROR} & (kinds | set(style.RANKS) | set(style.SERIES))
    assert not (kinds - {style.GREY}) & set(style.SERIES)
    for colour in kinds | set(style.RANKS) | set(style.SERIES):
        red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
        assert not (red > 100 and red > 2.5 * max(green, blue)), f"{colour} is red"


def test_what_is_no_kind_of_work_has_no_kinds_colour() -> None:
    kinds = {look.colour for look in ALL} - {style.GREY}
    for source in number_line({"predicted": 1.0, "measured": 2.0}, "s", (1.5, 2.5)).values():
        drawn = base64.b64decode(source.partition(",")[2]).decode()
        assert not kinds & set(re.findall(r"#\w{6}", drawn))
    for script in (BROWSER.parents[1] / "figures" / "interactive" / "browser").glob(
        "*.js"
    ):  # kinds come from Python
        assert not kinds & set(re.findall(r"#\w{6}", script.read_text(encoding="utf-8"))), script


def test_lines_of_charts_are_seen_on_either_paper() -> None:
    for colour, paper in itertools.product(style.SERIES, PAPERS):
        assert style.contrast(colour, paper) >= 3


def test_every_pattern_can_be_drawn_everywhere() -> None:
    patterns = {look.pattern for look in (*ALL, *LOOKS.values())} | {p for _, p in style.GROUPS}
    assert patterns <= set(style.CSS)
    assert patterns - {""} <= set(style.HATCHES)
