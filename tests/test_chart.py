"""Charts: what plotly gets, the picture and the words beside it. In JupyterLab: test_browser.py."""

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
import plotly.graph_objects
import pytest
from lockstep import simulated
from lockstep.author import build
from lockstep.figures import chart as charts

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
    monkeypatch.setattr(charts, "in_notebook", lambda: True)
    monkeypatch.setattr("IPython.display.display", lambda data, raw: outputs.append(data))
    shown._ipython_display_()
    return outputs


# What plotly gets


@pytest.mark.parametrize("log", [True, False, "x", "y"])
@pytest.mark.parametrize("axes", [AXES, {"x": "stages", "y": "bus bandwidth (bytes/s)"}])
def test_plotly_knows_all_that_it_is_given(log, axes):
    lines = {"points": POINTS, "spread": SPREAD, "curve": CURVE, "band": BAND, "one": POINTS[:1]}
    drawn = chart(lines, log=log, **axes).plotly()
    assert list(drawn) == ["data", "layout", "config"]
    del drawn["config"]
    plotly.graph_objects.Figure(drawn)  # raises for a name or a value that plotly has not
    kinds = [drawn["layout"][axis]["type"] for axis in ("xaxis", "yaxis")]
    wanted = charts._LOGARITHMIC[log]
    assert kinds == ["log" if axis in wanted else "linear" for axis in "xy"]


def test_points_and_their_spread():
    points, spread, curve, fill, band = chart(
        {"points": POINTS[::-1], "spread": SPREAD, "curve": CURVE, "band": BAND}
    ).plotly()["data"]
    assert list(zip(points["x"], points["y"], strict=True)) == POINTS  # in order of size
    assert (points["mode"], curve["mode"]) == ("lines+markers", "lines")
    assert spread["error_y"]["array"] == pytest.approx([1e-5, 2e-3])
    assert spread["error_y"]["arrayminus"] == pytest.approx([1e-5, 1e-3])
    assert fill["fill"] == "toself" and fill["hoverinfo"] == "skip" and not fill["showlegend"]
    assert fill["legendgroup"] == band["legendgroup"] == "band"
    low, high = zip(*((row[2], row[3]) for row in BAND), strict=True)
    assert fill["y"] == [*high, *low[::-1]]
    assert points["customdata"] == ["1 kB: 20 µs", "1 MB: 30 µs", "1 GB: 4 ms"]
    assert spread["customdata"][1] == "1 GB: 4 ms (3 ms to 6 ms)"


def test_a_model_has_the_colour_of_its_line_and_no_markers():
    measured, other, model = chart(
        {"tree": POINTS, "ring": POINTS}, models={"ring": POINTS}
    ).plotly()["data"]
    assert [one["name"] for one in (measured, other, model)] == ["tree", "ring", "ring, model"]
    assert model["line"]["color"] == other["line"]["color"] != measured["line"]["color"]
    assert (model["mode"], model["line"]["dash"]) == ("lines", "dash")
    many = chart({f"line {number}": POINTS for number in range(32)}).plotly()["data"]
    assert "dash" not in {one["line"]["dash"] for one in many}  # what is dashed is a model
    assert other["mode"] == "lines+markers"
    with pytest.raises(ValueError, match="a model of 'doubling', but there is no such line"):
        chart(models={"doubling": POINTS})


def test_no_two_lines_look_the_same_and_none_by_colour_alone():
    lines = chart({f"line {number}": POINTS for number in range(32)}).plotly()["data"]
    looks = [(one["line"]["dash"], one["marker"]["symbol"], one["line"]["color"]) for one in lines]
    assert len(set(looks)) == 32
    for look in (1, 2):
        assert len({one[look] for one in looks[:8]}) == 8
    for earlier, later in zip(looks, looks[8:], strict=False):  # of the same colour
        assert earlier[2] == later[2] and earlier[0] != later[0] and earlier[1] != later[1]
    assert len({(dash, marker) for dash, marker, _ in looks}) == 32


def test_text_is_no_markup_for_plotly():
    drawn = chart(
        {ATTACK: POINTS}, x=ATTACK, y=ATTACK, stamp=simulated(ATTACK), alt=ATTACK
    ).plotly()
    for layer in (drawn["data"][0], drawn["layout"]):
        text = json.dumps(layer).replace("<br>", "").replace("<extra></extra>", "")
        assert "<" not in text and "$" not in text
    assert "%{x}" not in drawn["data"][0]["hovertemplate"]
    assert drawn["layout"]["xaxis"]["title"]["text"].startswith("&lt;script&gt;")


def test_nothing_of_a_chart_leaves_the_machine():
    config = chart().plotly()["config"]
    assert config["showSendToCloud"] is False
    assert config["displaylogo"] is False  # a link


def test_the_stamps_stand_in_the_chart():
    stamps = [STAMP, lockstep.recorded("sweeps/h200-x4.json").stamp]
    shown = chart(stamp=stamps)
    first, second = map(str, stamps)
    assert repr(shown) == f"chart: A line that rises.\n{first}\n{second}"
    assert f"{first}<br>{second}" in shown._words()  # where there is room for long ones
    assert "toImage" in shown.plotly()["config"]["modeBarButtonsToRemove"]  # it would have none


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
    layout = chart(x="bytes").plotly()["layout"]
    assert layout["xaxis"]["title"]["text"] == "bytes"
    assert layout["yaxis"]["title"]["text"] == "time"


def test_ticks_of_logarithmic_axes():
    layout = chart().plotly()["layout"]
    sizes = "1 kB, 10 kB, 100 kB, 1 MB, 10 MB, 100 MB, 1 GB"
    assert ", ".join(layout["xaxis"]["ticktext"]) == sizes
    times = layout["yaxis"]
    assert times["tickvals"][:5] == [1e-5, 2e-5, 5e-5, 1e-4, 2e-4]
    assert times["ticktext"][:5] == ["10 µs", "20 µs", "50 µs", "100 µs", "200 µs"]
    flat = chart({"flat": [(1, 7), (2, 7)]}, x="x", y="y").plotly()["layout"]
    assert flat["yaxis"]["tickvals"] == [1, 2, 5, 10, 20, 50]


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
    assert chart({"a": [(0, 1), (1, 0)]}, log=False).plotly()["data"][0]["x"] == [0, 1]
    chart({"a": [(1, 0), (2, 0)]}, log="x")._repr_mimebundle_()


def test_ticks_of_linear_axes_have_a_space_before_their_unit():
    shown = chart({"a": [(0, 0), (4, 3.4e11)]}, x="ranks", y="bandwidth (bytes/s)", log=False)
    axis = shown.plotly()["layout"]["yaxis"]
    assert axis["ticktext"][:2] == ["0 B/s", "50 GB/s"] and axis["tickvals"][-1] == 3.5e11
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


def test_a_notebook_gets_the_chart_the_picture_and_the_words(monkeypatch):
    shown = chart(alt=f"A line that rises. {ATTACK}")
    drawn, words = displayed(shown, monkeypatch)
    assert drawn[charts.PLOTLY] == shown.plotly()
    assert drawn["text/plain"] == repr(shown)
    assert drawn["text/html"].count("<img") == 2  # both themes, where plotly is not drawn
    assert "<details" not in drawn["text/html"]  # the words stand below
    # JupyterLab's extension shows a PNG that comes with a chart, and not the chart.
    assert "image/png" not in drawn and "image/png" in words
    assert "&lt;b&gt;bold&lt;/b&gt;</details>" in words["text/html"]
    assert "<script" not in words["text/html"]


def test_what_is_stored_of_a_chart_is_one_text_and_one_picture(monkeypatch):
    outputs = displayed(chart(), monkeypatch)
    cell = nbformat.v4.new_code_cell(id="chart")
    cell.outputs = [nbformat.v4.new_output("display_data", data) for data in outputs]
    notebook = build.published(nbformat.v4.new_notebook(cells=[cell]))
    nbformat.validate(notebook)
    stored = [dict(output.data) for output in notebook.cells[0].outputs]
    assert [list(data) for data in stored] == [["text/plain"], ["image/png"]]
    assert stored[0]["text/plain"] == "chart: A line that rises.\nsimulated · a model of rings"


@pytest.mark.parametrize("missing", ["plotly", "notebook"])
def test_without_plotly_there_is_the_picture(missing, monkeypatch):
    if missing == "plotly":
        monkeypatch.setattr(charts, "in_notebook", lambda: True)
        monkeypatch.setattr(charts, "find_spec", lambda name: None)
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
        "print(json.dumps([one.plotly(), one._repr_mimebundle_()]))\n"
    )
    env = {**os.environ, "PYTHONPATH": str(LIB), "PYTHONHASHSEED": "1", "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-c", code]
    said = subprocess.run(
        command, env=env, capture_output=True, encoding="utf-8", timeout=60, check=True
    ).stdout
    shown = chart({"ring": POINTS, "band": BAND})
    assert json.loads(said) == [shown.plotly(), shown._repr_mimebundle_()]
