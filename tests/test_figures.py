"""Figures, tables and grids: what they say in words, how they are drawn, and their stamps."""

import base64
import gzip
import io
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import lockstep
import matplotlib.colors
import matplotlib.image
import pytest
from lockstep import simulated, torchrun
from lockstep.figures.table import Table
from PIL.PngImagePlugin import PngImageFile

LIB = Path(lockstep.__file__).parents[1]
DATA = LIB.parent / "data"
MANIFEST = json.loads((DATA / "manifest.json").read_text(encoding="utf-8"))
ATTACK = "<script>alert('\"&')</script>"
STAMP = simulated("a model of rings")
CUBE = {"dp": 2, "pp": 2, "tp": 2}
GROUPS = {"dp": [5, 1], "pp": [5, 7], "tp": [4, 5]}


class Html(HTMLParser):
    """What a notebook draws: its elements, (tag, attributes), and its text without styles."""

    def __init__(self, shown):
        super().__init__()
        self.elements: list[tuple[str, dict]] = []
        self.texts: list[str] = []
        self.feed(shown._repr_mimebundle_()["text/html"])

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.elements[-1][0] != "style":
            self.texts.append(data)

    def all(self, tag: str) -> list[dict]:
        return [attributes for name, attributes in self.elements if name == tag]


def line(canvas) -> None:
    canvas.subplots().plot([1, 2], [3, 4], color=lockstep.PALETTE[0])


def pictures(figure) -> list[bytes]:
    """The PNGs of a figure: light, dark."""
    sources = [image["src"].split(",") for image in Html(figure).all("img")]
    assert {kind for kind, _ in sources} == {"data:image/png;base64"}
    return [base64.b64decode(data) for _, data in sources]


# Figures


@pytest.mark.parametrize("alt", ["", " \n"])
def test_a_figure_without_words_is_refused(alt):
    with pytest.raises(ValueError, match="alt="):
        lockstep.figure(line, alt=alt, stamp=STAMP)


def test_a_figure_says_in_words_what_it_shows_and_where_that_is_from():
    words = f"A line that rises. {ATTACK}"
    figure = lockstep.figure(line, alt=words, stamp=STAMP)
    text = figure._repr_mimebundle_()["text/plain"]
    assert text == f"figure: {words}\nsimulated · a model of rings"
    shown = Html(figure)
    assert [image["alt"] for image in shown.all("img")] == [words, words]
    # A line above the pictures, all words folded below them.
    assert shown.texts == ["A line that rises.", "The picture in words", words]
    alone = Html(lockstep.figure(line, alt="A line that rises.", stamp=STAMP))
    assert alone.texts == ["A line that rises."] and not alone.all("details")
    long = Html(lockstep.figure(line, alt="rises " * 100, stamp=STAMP))
    assert len(long.texts[0]) <= 120  # and no word is cut
    assert {*long.texts[0].split()} == {"rises", "…"}
    assert not shown.all("script")


def test_a_figure_is_drawn_for_both_themes_and_with_its_stamp():
    light, dark = pictures(lockstep.figure(line, alt="A line.", stamp=STAMP))
    assert light != dark
    assert light.startswith(b"\x89PNG") and dark.startswith(b"\x89PNG")
    other = lockstep.figure(line, alt="A line.", stamp=simulated("another model"))
    assert pictures(other)[0] != light
    bundle = lockstep.figure(line, alt="A line.", stamp=STAMP)._repr_mimebundle_()
    assert base64.b64decode(bundle["image/png"]) == light  # where HTML does not show


def test_a_figure_is_the_same_bytes_at_each_execution():
    code = (
        "import lockstep\n"
        "def line(canvas):\n"
        "    canvas.subplots().plot([1, 2], [3, 4], color=lockstep.PALETTE[0])\n"
        "stamp = lockstep.simulated('a model of rings')\n"
        "figure = lockstep.figure(line, alt='A line.', stamp=stamp)\n"
        "print(figure._repr_mimebundle_()['text/html'], end='')\n"
    )
    env = {**os.environ, "PYTHONPATH": str(LIB), "PYTHONHASHSEED": "1", "PYTHONIOENCODING": "utf-8"}
    other = subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=True,
    )
    learners: dict[Any, Any] = {
        "font.size": 30,
        "lines.linewidth": 9,
        "text.color": "red",
        "savefig.dpi": 20,
    }
    with matplotlib.rc_context(learners):
        figure = lockstep.figure(line, alt="A line.", stamp=STAMP)
        assert matplotlib.rcParams["font.size"] == 30  # the learner's own figures stay theirs
    assert figure._repr_mimebundle_()["text/html"] == other.stdout
    for png in pictures(figure):  # no version of matplotlib, but its words
        assert PngImageFile(io.BytesIO(png)).text == {"Description": f"A line. {STAMP}"}


# Tables


def test_text_of_a_table():
    shown = lockstep.table(
        "Who sends what",
        ["rank", "bytes"],
        [[0, "1,024"], ["the last one", 7]],
        stamp=[STAMP, simulated("another")],
    )
    text = """\
Who sends what
rank          bytes
────────────  ─────
0             1,024
the last one  7
simulated · a model of rings
simulated · another"""
    assert shown._repr_mimebundle_()["text/plain"] == repr(shown) == text


SURE = {"guess": "holds", "verdict": "holds", "because": "1 of 1"}
UNSTAMPED = {  # what a lab shows, by how an error calls it
    "the table 'Caption'": lambda stamp: lockstep.table("Caption", ["a"], [["b"]], stamp=stamp),
    "the figure": lambda stamp: lockstep.figure(line, alt="A line.", stamp=stamp),
    "the chart": lambda stamp: lockstep.chart({"a": [(1, 1)]}, x="x", y="y", alt="A.", stamp=stamp),
    "the claim": lambda stamp: lockstep.claim("It holds.", **SURE, stamp=stamp),
}


@pytest.mark.parametrize("nothing", [None, []])
@pytest.mark.parametrize("what", UNSTAMPED)
def test_whatever_a_lab_shows_has_a_stamp(what, nothing):
    with pytest.raises(ValueError, match=rf"^{what} has no stamp: .*lockstep\.live\(job\)"):
        UNSTAMPED[what](nothing)


def test_grids_and_buffers_are_figures():
    nothing: Any
    for nothing in None, []:
        with pytest.raises(ValueError, match="has no stamp"):
            lockstep.grid(CUBE, rank=5, groups=GROUPS, stamp=nothing)
        with pytest.raises(ValueError, match="has no stamp"):
            lockstep.buffers({"a": ([[1], [2]], [[3], [3]])}, stamp=nothing)


def test_a_table_of_a_command_says_that_it_has_no_stamp():
    table: Any = Table
    with pytest.raises(TypeError, match="stamp"):
        table("Caption", ["one"], [["a"]])
    assert Table("Caption", ["one", "two"], [["a", 10]], stamp=None).lines() == [
        "one  two",
        "a    10",
    ]


def test_html_of_a_table():
    cells = f"row {ATTACK}", f"cell {ATTACK}"
    table = lockstep.table(
        f"caption {ATTACK}", ["what", f"head {ATTACK}"], [cells], stamp=simulated(ATTACK)
    )
    shown = Html(table)
    assert not shown.all("script")
    stamp = f"simulated · {ATTACK}"
    assert shown.texts == [f"caption {ATTACK}", "what", f"head {ATTACK}", *cells, stamp]
    assert [cell["scope"] for cell in shown.all("th")] == ["col", "col", "row"]
    assert len(shown.all("td")) == 1


def test_what_scrolls_of_a_table_is_neither_its_caption_nor_its_stamp():
    shown = lockstep.table("A caption", ["what", "number"], [["a", 1]], stamp=STAMP)
    html = shown._repr_mimebundle_()["text/html"]
    before, scrolls = html.split('style="overflow-x:auto"')
    inside, after = scrolls.split("</table></div>")
    assert ">A caption<" in before and str(STAMP) in after
    assert ">A caption<" not in inside and str(STAMP) not in inside


@pytest.mark.parametrize("row", [["a"], ["a", "b", "c"], []])
def test_a_row_of_another_length_is_refused(row):
    with pytest.raises(ValueError, match=f"2 columns, but a row of {len(row)}"):
        lockstep.table("Caption", ["one", "two"], [["a", "b"], row], stamp=STAMP)


# Stamps


@pytest.mark.parametrize("entry", MANIFEST, ids=lambda entry: entry["file"])
def test_a_recording_opens_and_says_where_it_is_from(entry):
    recording = lockstep.recorded(entry["file"])
    assert recording.path == DATA / entry["file"]
    if recording.path.suffix == ".json":
        text = recording.path.read_text(encoding="utf-8")
        assert recording.content == json.loads(text)
    idle = 0 < (entry.get("ranks") or 0) < sum(entry["hardware"]["gpus"].values())
    at_work = f"{entry['ranks']} ranks on {entry['machine']}" if idle else entry["machine"]
    assert str(recording.stamp).startswith(f"recorded · {at_work} · PyTorch ")
    stamp, conditions = str(recording.stamp), entry["conditions"] or {}
    for name, value in conditions.items():
        if name.startswith("NCCL_NVLS"):
            assert " · NVLS and NVLink multicast: off · " in stamp or " · NVLS: off · " in stamp
        elif name == "TORCH_SYMM_MEM_DISABLE_MULTICAST":
            assert " · NVLS and NVLink multicast: off · " in stamp
        elif name not in ("CUDA_VISIBLE_DEVICES", "NVSHMEM_DISABLE_NVLS"):
            assert f" · {name}: {value} · " in stamp
    for name, key in (("NCCL", "nccl"), ("driver", "driver")):
        version = entry["versions"][key]
        assert (f" · {name} {version} · " in stamp) == bool(entry["hardware"]["gpus"] and version)
    assert str(recording.stamp).endswith(f" · {entry['date']}")


def test_a_long_stamp_is_drawn_to_its_end():
    # Drawn in one line it would begin left of the picture: there its first column has ink.
    from lockstep.figures.picture import wrapped

    said = "recorded · " + " · ".join(f"NCCL_VARIABLE_{at}: on" for at in range(12))
    lines = wrapped(f"{said}\nsimulated · short", 7.0).split("\n")
    assert lines[-1] == "simulated · short" and " ".join(lines[:-1]) == said
    assert len(lines) == 4 and max(map(len, lines)) <= 98
    shown = [lockstep.figure(line, alt="A line.", stamp=simulated(text)) for text in ("b", said)]
    short, long = (matplotlib.image.imread(io.BytesIO(pictures(one)[0])) for one in shown)
    assert long.shape[0] > short.shape[0] and long.shape[1] == short.shape[1]
    assert (long[:, :4, :3] == 1).all()


def test_the_same_stamp_is_said_once():
    for shown in (
        lockstep.table("Caption", ["one"], [["a"]], stamp=[STAMP, STAMP]),
        lockstep.chart({"a": [(1, 1)]}, x="x", y="y", alt="A point.", stamp=[STAMP, STAMP]),
        lockstep.claim("It holds.", **SURE, stamp=[STAMP, STAMP]),
    ):
        assert repr(shown).count(STAMP.source) == 1


def test_every_recording_is_in_the_manifest_small_and_names_no_place_of_its_machine():
    known = {DATA / entry["file"] for entry in MANIFEST}
    for folder in (one for one in DATA.glob("*/") if one.name not in ("published", "costs")):
        for file in (one for one in folder.rglob("*") if one.is_file()):
            assert known & {file, file.parent}, f"{file} is not in the manifest"
            packed = file.read_bytes()
            content = gzip.decompress(packed) if file.suffix == ".gz" else packed
            assert not re.search(rb"/(home|root|tmp|opt|usr|Users)/|localhost", content), file
    for one in known:
        files = [one] if one.is_file() else list(one.iterdir())
        assert 0 < sum(file.stat().st_size for file in files) < 2_000_000, one


def test_an_unknown_recording():
    with pytest.raises(FileNotFoundError) as refused:
        lockstep.recorded("manifest.json")  # a file, but no recording
    assert "no recording 'manifest.json'" in str(refused.value)
    assert all(entry["file"] in str(refused.value) for entry in MANIFEST)


@pytest.mark.parametrize("file", sorted((DATA / "published").iterdir()), ids=lambda file: file.stem)
def test_what_others_published_names_them_and_is_not_called_a_recording(file):
    found = lockstep.published(file.stem)
    assert all((found.authors, found.title, found.section, found.quote, found.values))
    assert 2000 < found.year < 2100 and found.link.startswith("https://")
    assert str(found.stamp) == f"published · {found.authors} {found.year}, {found.title}, " + (
        found.section
    )
    assert found.quote in repr(found) and found.link in repr(found)


def test_an_unknown_publication():
    with pytest.raises(FileNotFoundError) as refused:
        lockstep.published("../manifest")
    assert "no publication '../manifest'" in str(refused.value)
    assert "deepseek-v3, " in str(refused.value)


def test_the_stamp_of_a_job_says_on_what_it_ran_and_not_how_it_ended():
    for function, ok in (int, True), (lambda: 1 / 0, False):
        options: dict[str, Any] = {
            "nproc_per_node": 2,
            "backend": "gloo",
            "may_fail": True,
            "show": False,
        }
        job = torchrun(function, **options)
        assert job.ok is ok
        assert str(lockstep.live(job)) == "live · 2 ranks · gloo · CPU"


# Grids


def test_a_grid_says_which_ranks_are_in_the_groups():
    shown = lockstep.grid(CUBE, rank=5, groups=GROUPS, stamp=STAMP)
    assert shown.alt == (
        "8 ranks in a grid of 2 dp × 2 pp × 2 tp. Rank 5 is in groups along "
        "dp with rank 1; pp with rank 7; tp with rank 4."
    )
    assert repr(shown).endswith("\nsimulated · a model of rings")


def test_a_grid_shows_the_groups_that_it_is_given():
    wrong = {**GROUPS, "tp": [2, 5, 3]}  # as somebody has measured who made the wrong groups
    shown = lockstep.grid(CUBE, rank=5, groups=wrong, stamp=STAMP)
    assert shown.alt.endswith("; tp with ranks 2, 3.")


def test_a_grid_draws_a_line_through_each_group():
    def inked(members: list[int]) -> int:
        """How many pixels have the colour of the first group, the legend's among them."""
        shown = lockstep.grid({"dp": 4, "tp": 2}, rank=0, groups={"tp": members}, stamp=STAMP)
        pixels = matplotlib.image.imread(io.BytesIO(pictures(shown)[0]))[..., :3]
        colour = matplotlib.colors.to_rgb(lockstep.PALETTE[0])
        return int((abs(pixels - colour).max(axis=-1) < 0.01).sum())

    assert inked([0]) < inked([0, 2]) < inked([0, 2, 4]) < inked([0, 2, 4, 6])


@pytest.mark.parametrize("sizes", [{"tp": 3}, {"dp": 2, "tp": 3}])
def test_a_grid_of_fewer_axes(sizes):
    shown = lockstep.grid(sizes, rank=0, groups={"tp": [0, 1, 2]}, stamp=STAMP)
    assert shown.alt.endswith("Rank 0 is in groups along tp with ranks 1, 2.")


@pytest.mark.parametrize(
    ("sizes", "rank", "why"),
    [
        ({**CUBE, "cp": 1}, 0, "1 to 3 axes"),
        ({}, 0, "1 to 3 axes"),
        (CUBE, 8, "rank 8 is not in a grid of 8 ranks"),
        (CUBE, -1, "rank -1 is not"),
    ],
)
def test_a_grid_that_cannot_be_drawn(sizes, rank, why):
    with pytest.raises(ValueError, match=why):
        lockstep.grid(sizes, rank=rank, groups={}, stamp=STAMP)
