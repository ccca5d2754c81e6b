"""Charts: what the page gets, the picture and the words. In a browser: test_interactive.py."""

import base64
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import lockstep
import matplotlib.colors
import matplotlib.figure
import matplotlib.image
import nbformat
import numpy as np
import pytest
from lockstep import simulated
from lockstep.author import build
from lockstep.figures import chart as charts
from lockstep.figures import widget

LIB = Path(lockstep.__file__).parents[1]
STAMP = simulated("a model of rings")
ATTACK = "<script>alert('\"&')</script> $x_1$ %{x} <b>bold</b>"
POINTS = [(1e3, 2e-5), (1e6, 3e-5), (1e9, 4e-3)]
SPREAD = [(1e3, 2e-5, 1e-5, 3e-5), (1e9, 4e-3, 3e-3, 6e-3)]
CURVE = [(10 ** (3 + i / 10), 10 ** (-5 + i / 20)) for i in range(61)]
BAND = [(x, y, y / 2, 2 * y) for x, y in CURVE]
AXES = {"x": "message size (bytes)", "y": "time (seconds)"}


def chart(lines: dict[str, Any] | None = None, **changed: Any) -> charts.Chart:
    given = {**AXES, "alt": "A line that rises.", "stamp": STAMP, **changed}
    return lockstep.chart({"ring": POINTS} if lines is None else lines, **given)


def picture(shown: charts.Chart) -> np.ndarray:
    png = base64.b64decode(shown._repr_mimebundle_()["image/png"])
    return matplotlib.image.imread(io.BytesIO(png))


def displayed(shown: charts.Chart, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The outputs of a chart in a notebook."""
    outputs: list[dict[str, Any]] = []
    monkeypatch.setattr(widget, "in_notebook", lambda: True)
    monkeypatch.setattr("IPython.display.display", lambda data, raw: outputs.append(data))
    shown._ipython_display_()
    return outputs


# What the page gets


@pytest.mark.parametrize("log", [True, False, "x", "y"])
@pytest.mark.parametrize("axes", [AXES, {"x": "stages", "y": "bus bandwidth (bytes/s)"}])
def test_places_are_shares_of_the_axes(log, axes):
    lines = {"points": POINTS, "spread": SPREAD, "curve": CURVE, "band": BAND, "one": POINTS[:1]}
    drawn = chart(lines, log=log, **axes).packed()
    places = [place for line in drawn["lines"] for point in line["points"] for place in point]
    places += [place for axis in "xy" for place, _ in drawn[axis]["ticks"]]
    assert 0 <= min(places) < 0.05 and 0.95 < max(places) <= 1
    x = [point[0] for point in drawn["lines"][0]["points"]]
    between = (x[1] - x[0]) / (x[2] - x[0])
    logarithmic = "x" in charts._LOGARITHMIC[log]
    assert between == pytest.approx(0.5 if logarithmic else 1e-3, rel=0.01)


def test_points_and_their_spread():
    points, spread, curve, band = chart(
        {"points": POINTS[::-1], "spread": SPREAD, "curve": CURVE, "band": BAND}
    ).packed()["lines"]
    assert points["points"] == sorted(points["points"])  # in order of size
    assert points["marker"] and spread["marker"] and not curve["marker"] and not band["marker"]
    assert {len(point) for point in (*spread["points"], *band["points"])} == {4}
    assert all(low < y < high for _, y, low, high in band["points"])
    assert points["said"] == ["1 kB: 20 µs", "1 MB: 30 µs", "1 GB: 4 ms"]
    assert spread["said"][1] == "1 GB: 4 ms (3 ms to 6 ms)"


def test_a_model_has_the_colour_of_its_line_and_no_markers():
    measured, other, model = chart(
        {"tree": POINTS, "ring": POINTS}, models={"ring": POINTS}
    ).packed()["lines"]
    assert [one["label"] for one in (measured, other, model)] == ["tree", "ring", "ring, model"]
    assert model["colour"] == other["colour"] != measured["colour"]
    assert not model["marker"] and other["marker"]
    many = chart({f"line {number}": POINTS for number in range(32)}).packed()["lines"]
    assert model["dash"] not in [one["dash"] for one in many]  # what is dashed is a model
    with pytest.raises(ValueError, match="a model of 'doubling', but there is no such line"):
        chart(models={"doubling": POINTS})


def test_no_two_lines_look_the_same_and_none_by_colour_alone():
    lines = chart({f"line {number}": POINTS for number in range(32)}).packed()["lines"]
    looks = [(one["dash"], one["marker"], one["colour"]) for one in lines]
    assert len(set(looks)) == 32
    for look in (1, 2):
        assert len({one[look] for one in looks[:8]}) == 8
    for earlier, later in zip(looks, looks[8:], strict=False):  # of the same colour
        assert earlier[2] == later[2] and earlier[0] != later[0] and earlier[1] != later[1]
    assert len({(dash, marker) for dash, marker, _ in looks}) == 32


def test_the_stamps_stand_in_the_chart():
    stamps = [STAMP, lockstep.recorded("sweeps/h200-x4.json").stamp]
    shown = chart(stamp=stamps)
    first, second = map(str, stamps)
    assert repr(shown) == f"chart: A line that rises.\n{first}\n{second}"
    assert shown.answer({})["stamp"] == f"{first}\n{second}"


# Ticks


@pytest.mark.parametrize(
    ("label", "value", "said"),
    [
        ("bytes", 256, "256 B"),
        ("size (bytes)", 1e3, "1 kB"),
        ("size (bytes)", 2**20, "1.05 MB"),
        ("size (bytes)", 1e9, "1 GB"),
        ("size (bytes)", 0, "0 B"),
        ("size (bytes)", 14e12, "14 TB"),
        ("size (bytes)", 5e15, "5,000 TB"),
        ("time (seconds)", 1e-6, "1 µs"),
        ("time (seconds)", 16.82e-6, "16.8 µs"),
        ("time (seconds)", 999.9e-6, "1 ms"),
        ("time (seconds)", 10.0**-3, "1 ms"),
        ("time (seconds)", 0.25, "250 ms"),
        ("time (seconds)", 90, "90 s"),
        ("time (seconds)", 3e-10, "0.3 ns"),
        ("time (seconds)", 0, "0 s"),
        ("bus bandwidth (bytes/s)", 340e9, "340 GB/s"),
        ("difference (seconds)", -2e-3, "-2 ms"),
        ("stages", 8, "8"),
        ("bubble", 0.4286, "0.4286"),
        ("kilobytes", 1e6, "1,000,000"),  # no unit of ours
    ],
)
def test_values_are_said_with_their_unit(label, value, said):
    assert charts._Axis.of(label, log=False).say(value) == said


def test_a_unit_is_no_part_of_the_title():
    drawn = chart(x="bytes").packed()
    assert (drawn["x"]["label"], drawn["y"]["label"]) == ("bytes", "time")


def test_ticks_of_logarithmic_axes():
    drawn = chart().packed()
    sizes = "1 kB, 10 kB, 100 kB, 1 MB, 10 MB, 100 MB, 1 GB"
    assert ", ".join(said for _, said in drawn["x"]["ticks"]) == sizes
    times = [said for _, said in drawn["y"]["ticks"]]
    assert times[:5] == ["20 µs", "50 µs", "100 µs", "200 µs", "500 µs"]
    assert charts._ticks(7, 7) == [1, 2, 5, 10, 20, 50]
    many = chart({"far": [(1, 1), (1e30, 1)]}, x="x").packed()["x"]["ticks"]
    assert 4 <= len(many) <= 9


# What cannot be drawn


@pytest.mark.parametrize(
    ("lines", "changed", "why"),
    [
        ({"a": POINTS}, {"alt": " \n"}, "alt="),
        ({}, {}, "a chart needs a line"),
        ({"a": []}, {}, "the line 'a' has no points"),
        ({"a": [(1, 2, 3)]}, {}, r"all be \(x, y\), or all \(x, y, low, high\)"),
        ({"a": [(1, 2), (1, 2, 1, 3)]}, {}, "all be"),
        ({"a": [(0, 1), (1, 1)]}, {}, "'a' has 0, but a logarithmic axis .* log=False"),
        ({"a": [(1, -1)]}, {"log": "y"}, "'a' has -1"),
        ({"a": [(1, 1, 0, 2)]}, {}, "'a' has 0"),
        ({"a": [(1, float("nan"))]}, {}, "cannot be drawn"),
        ({"a": [(1, float("inf"))]}, {"log": False}, "cannot be drawn"),
        ({"a": [(1, 5, 1, 2)]}, {}, "not between its low and high"),
        ({"a": POINTS}, {"log": "z"}, 'True, False, "x" or "y"'),
    ],
)
def test_what_cannot_be_drawn(lines, changed, why):
    with pytest.raises(ValueError, match=why):
        chart(lines, **changed)


def test_zero_can_be_drawn_on_a_linear_axis():
    first, last = chart({"a": [(0, 1), (1, 0)]}, log=False).packed()["lines"][0]["points"]
    assert first[0] == last[1] < 0.05 and last[0] == first[1] > 0.95
    chart({"a": [(1, 0), (2, 0)]}, log="x")._repr_mimebundle_()


def test_ticks_of_linear_axes_have_a_space_before_their_unit():
    shown = chart({"a": [(0, 0), (4, 3.4e11)]}, x="ranks", y="bandwidth (bytes/s)", log=False)
    said = [said for _, said in shown.packed()["y"]["ticks"]]
    assert said[:2] == ["0 B/s", "50 GB/s"] and said[-1] == "350 GB/s"
    for low, high in ((0, 1), (1e-6, 1.3e-6), (-3, 8), (10, 990)):
        ticks = charts._even_ticks(low, high)
        assert ticks[0] <= low and ticks[-1] >= high and 6 <= len(ticks) <= 13
    assert charts._even_ticks(5, 5) == [5]


# The picture and the words


def test_the_picture_shows_the_lines_in_their_colours():
    def inked(pixels: np.ndarray, number: int) -> int:
        colour = matplotlib.colors.to_rgb(lockstep.PALETTE[number])
        return int((abs(pixels[..., :3] - colour).max(axis=-1) < 0.2).sum())

    one = picture(chart({"ring": POINTS}))
    two = picture(chart({"ring": POINTS, "tree": CURVE}))
    assert inked(one, 0) > 300 and inked(two, 0) > 300
    assert inked(one, 1) == 0 and inked(two, 1) > 300
    frame = [(1e3, 1e-6), (1e9, 1.0)]
    narrow = [(x, y, y, y) for x, y in POINTS]
    wide = [(x, y, y / 9, 9 * y) for x, y in POINTS]
    inks = [inked(picture(chart({"frame": frame, "ring": line})), 1) for line in (narrow, wide)]
    assert inks[1] > inks[0] + 100
    for line, bands in ((CURVE, 0), (BAND, 1)):
        canvas = matplotlib.figure.Figure()
        chart({"a": line})._draw(canvas)
        assert len(canvas.axes[0].collections) == bands


def test_the_picture_takes_any_text():
    names = ["_hidden", "$x$", "$", r"\frac{$", ATTACK]
    shown = chart(dict.fromkeys(names, POINTS), x=ATTACK, y="$")
    shown._repr_mimebundle_()  # draws it
    canvas = matplotlib.figure.Figure()
    shown._draw(canvas)
    said = [text.get_text() for text in canvas.legends[0].get_texts()]
    assert said[:2] == ["hidden", r"\$x\$"]  # matplotlib shows the latter as $x$
    assert len(said) == len(names)


def test_many_lines_leave_the_chart_its_height():
    few, many = (
        picture(chart({f"line {number}": POINTS for number in range(count)})).shape[0]
        for count in (3, 12)
    )
    assert many > few + 40


def test_a_notebook_gets_the_widget_the_picture_and_the_words(monkeypatch):
    shown = chart(alt=f"A line that rises. {ATTACK}")
    live, still = displayed(shown, monkeypatch)
    assert live["text/plain"] == repr(shown)
    assert "image/png" not in live and "image/png" in still
    assert still["text/html"].count("<img") == 2  # both themes
    assert "&lt;b&gt;bold&lt;/b&gt;</details>" in still["text/html"]
    assert "<script" not in still["text/html"]


def test_what_is_stored_of_a_chart_is_one_text_and_one_picture(monkeypatch):
    outputs = displayed(chart(), monkeypatch)
    cell = nbformat.v4.new_code_cell(id="chart")
    cell.outputs = [nbformat.v4.new_output("display_data", data) for data in outputs]
    notebook = build.published(nbformat.v4.new_notebook(cells=[cell]))
    nbformat.validate(notebook)
    stored = [dict(output.data) for output in notebook.cells[0].outputs]
    assert [list(data) for data in stored] == [["text/plain"], ["image/png"]]
    assert stored[0]["text/plain"] == "chart: A line that rises.\nsimulated · a model of rings"


@pytest.mark.parametrize("missing", ["anywidget", "notebook"])
def test_without_widgets_there_is_the_picture(missing, monkeypatch):
    if missing == "anywidget":
        monkeypatch.setattr(widget, "in_notebook", lambda: True)
        monkeypatch.setattr(widget, "find_spec", lambda name: None)
    shown = chart()
    with pytest.raises(NotImplementedError):  # IPython then takes the other form
        shown._ipython_display_()
    bundle = shown._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html", "image/png"}
    assert bundle["text/plain"] == repr(shown)
    assert "<figcaption>A line that rises.</figcaption>" in bundle["text/html"]


def test_a_chart_is_the_same_bytes_at_each_execution():
    code = (
        "import json, lockstep\n"
        f"lines = {{'ring': {POINTS}, 'band': {BAND}}}\n"
        "stamp = lockstep.simulated('a model of rings')\n"
        f"one = lockstep.chart(lines, **{AXES}, alt='A line that rises.', stamp=stamp)\n"
        "print(json.dumps([one.answer({}), one._repr_mimebundle_()]))\n"
    )
    env = {**os.environ, "PYTHONPATH": str(LIB), "PYTHONHASHSEED": "1", "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-c", code]
    said = subprocess.run(
        command, env=env, capture_output=True, encoding="utf-8", timeout=60, check=True
    ).stdout
    shown = chart({"ring": POINTS, "band": BAND})
    assert json.loads(said) == json.loads(json.dumps([shown.answer({}), shown._repr_mimebundle_()]))
