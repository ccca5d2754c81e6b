"""One colour, one meaning: what looks alike is the same everywhere, and all of it can be read."""

import base64
import itertools
import re

import pytest
from lockstep import looks
from lockstep.looks import Look
from lockstep.play.cards import number_line
from lockstep.timeline.scene import LOOKS
from lockstep.timeline.script import BROWSER

ALL = [one for one in vars(looks).values() if isinstance(one, Look)]
COLOURS = [*(look.colour for look in (*ALL, *LOOKS.values())), *looks.RANKS, looks.ERROR]
COLOURS += [colour for colour, _ in looks.GROUPS]
PAPERS = ("#ffffff", "#111111")


@pytest.mark.parametrize(
    ("one", "other", "ratio"),
    [("#000000", "#ffffff", 21), ("#777777", "#ffffff", 4.48), ("#0000ff", "#ffffff", 8.59)],
)
def test_contrast_is_that_of_the_standard(one: str, other: str, ratio: float) -> None:
    assert looks.contrast(one, other) == pytest.approx(ratio, abs=0.01)
    assert looks.contrast(other, one) == looks.contrast(one, other)


@pytest.mark.parametrize("colour", sorted(set(COLOURS)))
def test_a_text_on_a_colour_can_be_read(colour: str) -> None:
    assert looks.contrast(colour, looks.ink(colour)) >= 4.5
    for paper in PAPERS:  # on a canvas, what is not searched for is mixed with the paper
        mixed = [
            round(0.22 * int(colour[at : at + 2], 16) + 0.78 * int(paper[at : at + 2], 16))
            for at in (1, 3, 5)
        ]
        faint = "#" + "".join(f"{value:02x}" for value in mixed)
        assert looks.contrast(faint, looks.ink(faint)) >= 4.5


def test_the_canvas_chooses_its_ink_as_python_does() -> None:
    code = (BROWSER / "colours.js").read_text(encoding="utf-8")
    assert "0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179" in code
    assert "mix(tiles[kind].colour, rgb(colours.paper), 0.78)" in (BROWSER / "draw.js").read_text()
    themes = re.findall(
        r'ink: "(#\w+)", muted: "(#\w+)", .*paper: "(#\w+)"', (BROWSER / "theme.js").read_text()
    )
    assert len(themes) == 2
    for ink, muted, paper in themes:
        assert min(looks.contrast(ink, paper), looks.contrast(muted, paper)) >= 4.5


def test_no_two_kinds_look_the_same() -> None:
    same = {looks.COMMUNICATION, looks.COLLECTIVE}  # one as calls, one as traces have it
    for one, other in itertools.combinations(ALL, 2):
        if {one, other} != same:
            assert (one.colour, one.pattern) != (other.colour, other.pattern)
            assert one.label != other.label


def test_colours_of_ranks_and_of_lines_are_none_of_kinds_and_red_is_for_errors() -> None:
    kinds = {look.colour for look in (*ALL, *LOOKS.values())} | {c for c, _ in looks.GROUPS}
    assert not kinds & set(looks.RANKS)
    assert not {looks.DONE, looks.ERROR} & (kinds | set(looks.RANKS) | set(looks.SERIES))
    assert not (kinds - {looks.GREY}) & set(looks.SERIES)
    for colour in kinds | set(looks.RANKS) | set(looks.SERIES):
        red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
        assert not (red > 100 and red > 2.5 * max(green, blue)), f"{colour} is red"


def test_what_is_no_kind_of_work_has_no_kinds_colour() -> None:
    kinds = {look.colour for look in ALL} - {looks.GREY}
    for source in number_line({"predicted": 1.0, "measured": 2.0}, "s", (1.5, 2.5)).values():
        drawn = base64.b64decode(source.partition(",")[2]).decode()
        assert not kinds & set(re.findall(r"#\w{6}", drawn))
    for script in (BROWSER.parents[1] / "play" / "browser").glob("*.js"):  # kinds come from Python
        assert not kinds & set(re.findall(r"#\w{6}", script.read_text(encoding="utf-8"))), script


def test_lines_of_charts_are_seen_on_either_paper() -> None:
    for colour, paper in itertools.product(looks.SERIES, PAPERS):
        assert looks.contrast(colour, paper) >= 3


def test_every_pattern_can_be_drawn_everywhere() -> None:
    patterns = {look.pattern for look in (*ALL, *LOOKS.values())} | {p for _, p in looks.GROUPS}
    assert patterns <= set(looks.CSS)
    assert patterns - {""} <= set(looks.HATCHES)
