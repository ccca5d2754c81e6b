"""Memory over time on a page: it shows all of a snapshot, at any size, to everybody."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import playwright.sync_api as playwright
import pytest
from lockstep.base.provenance import simulated
from lockstep.figures.memory_over_time import MOST_DRAWN, MOST_GROUPS
from lockstep.figures.widget import reply
from lockstep.trace.read.memory_snapshot import Memory, memory
from playing import Opened
from test_axe import PAGES, violations

MIB = 1 << 20
NASTY = "</script><img src=x onerror=alert(1)>$\\frac"
RECORDED = Path(__file__).parents[1] / "data/memory/snapshot-h200.pickle.gz"
MODULE = "/venv/site-packages/torch/nn/modules/"
STACKS = {
    "weights": [(f"{MODULE}module.py", "convert"), (f"{MODULE}module.py", "_apply")],
    "activations": [(f"{MODULE}linear.py", "forward"), (f"{MODULE}module.py", "_call_impl")],
    "unknown": [],
}


def event(action: str, addr: int, size: int, at: int, kind: str = "", line: int = 1) -> dict:
    stack = [*STACKS.get(kind, []), ("/home/me/train.py", "step")]
    frames = [{"filename": file, "name": name, "line": line} for file, name in stack]
    if kind == "backward":
        frames = []
    return {"action": action, "addr": addr, "size": size, "time_us": at, "frames": frames}


def told(*events: dict) -> Memory:
    return memory({"device_traces": [list(events)], "segments": []}, stamp=simulated("a test"))


def small() -> Memory:
    """8 MiB of weights, then activations of 4 and 2 MiB, of which one goes, in 9 ms."""
    segment = event("segment_alloc", 0, 16 * MIB, 0)
    return told(
        segment,
        event("alloc", 0, 8 * MIB, 1_000, "weights", 11),
        event("alloc", 8 * MIB, 4 * MIB, 2_000, "activations", 12),
        event("alloc", 12 * MIB, 2 * MIB, 3_000, "activations", 13),
        event("free_requested", 8 * MIB, 4 * MIB, 4_000, "backward"),
        event("free_completed", 8 * MIB, 4 * MIB, 4_000, "backward"),
        event("alloc", 14 * MIB, MIB // 2, 9_000, "unknown", 14),
        event("free_requested", 14 * MIB, MIB // 2, 9_000),  # by the program
    )


def crowd(count: int, seed: int = 0) -> Memory:
    """So many events: of all sizes, from many lines."""
    drawn = random.Random(seed)
    alive: list[tuple[int, int]] = []
    events = []
    for number in range(count):
        if alive and (len(alive) > 3_000 or drawn.random() < 0.45):
            events.append(event("free_requested", *alive.pop(drawn.randrange(len(alive))), number))
        else:
            alive.append((number << 32, int(2 ** drawn.uniform(9, 27))))
            kind = drawn.choice([*STACKS])
            events.append(event("alloc", *alive[-1], number, kind, drawn.randrange(400)))
    return told(*events)


@pytest.fixture(scope="module")
def many() -> Memory:
    return crowd(100_000)


def totals(scene: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """The state of each group that is drawn, and the bytes that lie on each other there."""
    full = np.cumsum(scene["full"])
    drawn = np.zeros(len(full) + 1, np.int64)
    begin, end, size, *_ = map(np.array, scene["allocations"])
    np.add.at(drawn, begin, size)
    np.add.at(drawn, end, -size)
    rest = sum((np.array(one) for one in scene["rest"] if one), np.zeros(len(full), np.int64))
    return full, np.cumsum(drawn)[:-1] + rest


def test_what_is_drawn_adds_up_to_what_is_allocated(many: Memory) -> None:
    for found in (small(), memory(RECORDED), many):
        scene = found.answer(found.first())
        full, drawn = totals(scene)
        assert (drawn == found.allocated[full]).all()
        assert found.peak in full  # whatever is left out, it is not the peak
        assert drawn.max() == found.allocated.max() == scene["peak"]["bytes"]


def test_a_hundred_thousand_events_take_little_room_and_lose_nothing_of_a_part(
    many: Memory,
) -> None:
    text = reply(many, "{}")
    scene = json.loads(text)
    assert len(text) < 300_000
    assert (len(scene["full"]), len(scene["allocations"][0])) == (MOST_GROUPS, MOST_DRAWN)
    assert not scene["exact"] and scene["others"] > 0
    assert text == reply(crowd(100_000), "{}")
    part = many.answer({"first": 50_000, "last": 50_000 + MOST_GROUPS})
    assert part["exact"]
    full, drawn = totals(part)
    assert full.tolist() == list(range(50_000, 50_000 + MOST_GROUPS))
    assert (drawn == many.allocated[full]).all()


@pytest.mark.parametrize("asked", [{"first": 9, "last": 9}, {"first": "x"}, {"last": -4}])
def test_what_is_asked_for_wrongly_is_a_problem(asked: dict[str, Any]) -> None:
    assert json.loads(reply(small(), json.dumps(asked)))["problem"]


def test_where_there_is_no_kernel_there_are_a_picture_a_table_and_words() -> None:
    found = small()
    bundle = found._repr_mimebundle_()
    assert bundle["text/plain"] == f"{found}\n{found.stamp}"
    assert bundle["image/png"] == small()._repr_mimebundle_()["image/png"]
    shown = bundle["text/html"]
    assert "At the peak: weights 8.00 MiB, activations 6.00 MiB." in shown
    assert "Kinds are inferred from call stacks" in shown and "simulated · a test" in shown
    assert len(shown) + len(bundle["image/png"]) < 300_000
    assert len("".join(crowd(20_000)._repr_mimebundle_().values())) < 1_000_000


def test_text_of_a_snapshot_is_data() -> None:
    one = event("alloc", 0, 8, 0)
    one["frames"] = [{"filename": f"/{NASTY}.py", "name": f"{NASTY}\x1b[2J", "line": 1}]
    found = memory(
        {"device_traces": [[one]], "segments": []}, kinds={NASTY: ".*"}, stamp=simulated("a test")
    )
    bundle = found._repr_mimebundle_()
    assert "<img src=x" not in bundle["text/html"] and "&lt;img src=x" in bundle["text/html"]
    assert "\x1b" not in "".join(bundle.values()) and "\x1b" not in reply(found, "{}")


def test_a_notebook_gets_the_widget_and_below_it_what_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("anywidget")
    shown: list[dict] = []
    monkeypatch.setattr("lockstep.figures.widget.in_notebook", lambda: True)
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append(data))
    found = small()
    found._ipython_display_()
    live, still = shown
    assert (
        live["text/plain"] == f"{found}\n{found.stamp}" and "lockstep-still" in still["text/html"]
    )
    assert set(still) == {"text/html", "image/png"}


# ── In a browser ─────────────────────────────────────────────────────────────────────────────


class Seen(Opened):
    """With the places of the picture: 7 states of `small`, and bytes."""

    def view(self) -> list[float]:
        self.frame()
        said = self.page.locator(".lockstep-play").get_attribute("data-view") or ""
        return [float(one) for one in said.split()]

    def at(self, state: float, bytes_: float = 0) -> tuple[float, float]:
        """Where a state and a number of bytes are, from the canvas's upper left corner."""
        canvas = self.page.locator(".ls-plot canvas")
        box = canvas.bounding_box()
        assert box
        first, last = self.view()
        left, wide, high = 74, box["width"] - 74 - 8, 320 - 22 - 36
        x = left + (state - first) / (last - first) * wide
        return x, 22 + high * (1 - bytes_ / (1.06 * 16 * MIB))

    def hover(self, state: float, bytes_: float) -> str:
        x, y = self.at(state, bytes_)
        self.page.locator(".ls-plot canvas").hover(position={"x": x, "y": y})
        self.frame()
        tip = self.page.locator(".ls-tip")
        return tip.inner_text() if tip.is_visible() else ""

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)
        self.frame()


@pytest.fixture
def opened(context: playwright.BrowserContext) -> Iterator[Seen]:
    seen = Seen(context, small())
    yield seen
    assert seen.problems == []
    seen.page.close()


def test_pointing_tells_what_an_allocation_is(opened: Seen) -> None:
    said = opened.hover(4.5, 4 * MIB)
    assert said.splitlines() == [
        *("8.00 MiB · weights", "train.py:11 step", "from 1 ms until the end")
    ]
    assert "4.00 MiB · activations" in opened.hover(3.5, 10 * MIB)
    assert "from 2 ms until 4 ms" in opened.hover(4.5, 11 * MIB)
    assert "2.00 MiB · activations" in opened.hover(5.5, 9 * MIB)  # it fell on the weights
    assert opened.hover(5.5, 13 * MIB) == ""


def test_who_holds_what_stands_below_at_the_peak_and_where_one_clicks(opened: Seen) -> None:
    assert opened.text(".ls-memory") == (
        "At the peak (3 ms, after 4 events): 14.00 MiB allocated, 16.00 MiB reserved."
    )
    rows = [row.split("\t") for row in opened.text(".ls-held").splitlines()]
    assert [[cell.strip() for cell in row] for row in rows[1:]] == [
        ["weights", "", "8.00 MiB", "57 %"],
        ["train.py:11 step", "1", "8.00 MiB", "57 %"],
        ["activations", "", "6.00 MiB", "43 %"],
        ["train.py:12 step", "1", "4.00 MiB", "29 %"],
        ["train.py:13 step", "1", "2.00 MiB", "14 %"],
    ]
    x, y = opened.at(2.5, 4 * MIB)
    opened.page.locator(".ls-plot canvas").click(position={"x": x, "y": y})
    opened.frame()
    assert "At the cursor (1 ms, after 2 events): 8.00 MiB allocated" in opened.text(".ls-memory")
    assert "Chosen: 8.00 MiB · weights, train.py:11 step" in opened.text(".ls-memory")
    opened.button("go to the peak").click()
    assert opened.text(".ls-memory").startswith("At the peak")
    assert "Kinds are inferred from call stacks" in opened.text(".ls-foot")
    said = opened.page.locator(".ls-legend span").all_inner_texts()
    assert [one.strip() for one in said] == [
        *("activations", "weights", "unknown", "┈ reserved", "▼ peak")
    ]


def test_all_of_it_by_keyboard(opened: Seen) -> None:
    canvas = opened.page.locator(".ls-plot canvas")
    canvas.focus()
    whole = opened.view()
    assert whole == [0, 9]
    opened.press("+")
    zoomed = opened.view()
    assert zoomed[1] - zoomed[0] == pytest.approx(9 * 0.6)
    opened.press("ArrowRight")
    assert opened.view()[0] == pytest.approx(zoomed[0] + 0.15 * 9 * 0.6)
    opened.press("ArrowLeft", "-")
    assert opened.view() == pytest.approx(whole)
    for key in ("Home", "0"):
        opened.press("+", "+")
        assert opened.view() != whole
        opened.press(key)
        assert opened.view() == whole
    opened.press("Shift+ArrowRight", "Shift+ArrowRight")
    assert "after 6 events): 10.00 MiB" in opened.text(".ls-memory")
    opened.press("ArrowUp", "ArrowUp")  # the weights, then what lies on them
    assert "Chosen: 2.00 MiB · activations, train.py:13 step" in opened.text(".ls-memory")
    opened.press("Escape")
    assert "Chosen" not in opened.text(".ls-memory")
    opened.press("p")
    assert opened.text(".ls-memory").startswith("At the peak")
    assert opened.view()[0] < 4.5 < opened.view()[1]
    assert "go" in (canvas.get_attribute("aria-label") or "")
    opened.press("?")
    assert opened.page.locator(".ls-help").is_visible()


def test_the_wheel_and_dragging_zoom_and_pan(opened: Seen) -> None:
    canvas = opened.page.locator(".ls-plot canvas")
    canvas.hover(position={"x": 400, "y": 100})
    opened.page.mouse.wheel(0, -200)
    assert opened.view() == [0, 9]  # the wheel is the page's until the picture is clicked
    canvas.click(position={"x": 400, "y": 100})
    opened.page.mouse.wheel(0, -200)
    opened.page.wait_for_function("document.querySelector('.lockstep-play').dataset.view != '0 9'")
    first, last = opened.view()
    opened.page.mouse.down()
    opened.page.mouse.move(500, 150, steps=4)
    opened.page.mouse.up()
    assert opened.view()[0] < first and opened.view()[1] < last
    canvas.dblclick(position={"x": 400, "y": 100})
    assert opened.view() == [0, 9]


def test_the_axis_is_events_or_time(opened: Seen) -> None:
    opened.choose("x axis", "by time")
    assert opened.view() == [0, 9e6]  # ns
    # At 6 ms, two thirds along, there are 10 MiB; as events there would be 10.5.
    x, y = opened.at(6e6, 4 * MIB)
    opened.page.locator(".ls-plot canvas").click(position={"x": x, "y": y})
    assert "10.00 MiB allocated" in opened.text(".ls-memory")


def test_parts_of_a_large_snapshot_are_asked_for_when_they_are_looked_at(
    context: playwright.BrowserContext, many: Memory
) -> None:
    seen = Seen(context, many)
    root = seen.page.locator(".lockstep-play")
    seen.view()
    assert root.get_attribute("data-exact") == "false"
    # Where one looks, the areas, with what is too small for its own, are as high as the bytes are.
    filled = (
        "c => [...c.getContext('2d').getImageData(700, 22, 1, 262).data]"
        ".filter((value, at) => at % 4 == 3 && value).length"
    )
    canvas = seen.page.locator(".ls-plot canvas")
    box = canvas.bounding_box()
    assert box
    state = round((700 - 74) / (box["width"] - 74 - 8) * len(many.time))
    share = many.allocated[state - 100 : state + 100].max() / (1.06 * many.allocated.max())
    assert canvas.evaluate(filled) == pytest.approx(262 * share, abs=4)
    canvas.focus()
    seen.press(*["+"] * 13)
    seen.page.wait_for_selector(".lockstep-play[data-exact=true]")
    asked = [json.loads(one) for one in seen.asked]
    assert 1 <= len(asked) <= 13 and asked[-1]["last"] - asked[-1]["first"] <= MOST_GROUPS
    first, last = seen.view()
    assert asked[-1]["first"] <= first and last <= asked[-1]["last"]
    seen.press("Home")
    assert root.get_attribute("data-exact") == "false"
    assert seen.problems == []
    seen.page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 420])
def test_it_fits_and_its_kinds_have_their_colours(
    context: playwright.BrowserContext, scheme: Any, width: int
) -> None:
    seen = Seen(context, small())
    seen.page.emulate_media(color_scheme=scheme)
    seen.page.set_viewport_size({"width": width, "height": 700})
    seen.view()
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
    # Plain weights, in the middle of the picture's lower half.
    pixel = seen.page.evaluate(
        "() => { const c = document.querySelector('.ls-plot canvas');"
        "return [...c.getContext('2d').getImageData(c.width * 0.7, c.height * 0.75, 1, 1).data]; }"
    )
    assert pixel[:3] == [0x3F, 0x52, 0x96]
    paper = seen.page.evaluate(
        "() => getComputedStyle(document.querySelector('.ls-plot canvas')).backgroundColor"
    )
    assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
    assert violations(seen.page, PAGES) == []
    assert seen.problems == []
    seen.page.close()


def test_beside_an_open_sidebar_it_keeps_a_width_that_can_be_read(
    context: playwright.BrowserContext,
) -> None:
    """At 420 pixels JupyterLab's sidebar leaves 52 for an output, which then scrolls."""
    seen = Seen(context, small())
    seen.page.add_style_tag(content="body{margin:0;width:52px;overflow:hidden}")
    seen.frame()
    canvas = seen.page.locator(".ls-plot canvas")
    before = canvas.bounding_box()
    assert before and before["width"] > 200
    root = seen.page.locator(".lockstep-play")
    root.evaluate("root => (root.parentElement.scrollLeft = 150)")
    after = canvas.bounding_box()
    assert after and before["x"] - after["x"] == 150
    seen.view()
    assert seen.problems == []
    seen.page.close()


def test_text_of_a_snapshot_becomes_no_html_on_a_page(context: playwright.BrowserContext) -> None:
    one = event("alloc", 0, 8, 0)
    one["frames"] = [{"filename": f"/{NASTY}.py", "name": NASTY, "line": 1}]
    seen = Seen(context, memory({"device_traces": [[one]], "segments": []}, kinds={NASTY: ".*"}))
    seen.frame()
    assert NASTY in seen.text(".ls-held") and seen.page.locator("img").count() == 0
    # No segment is known, and nothing lies above the axis for that.
    top = "c => [20, 40].map(y => c.getContext('2d').getImageData(800, y, 1, 1).data[3])"
    assert seen.page.locator(".ls-plot canvas").evaluate(top) == [0, 255]
    assert seen.problems == []
    seen.page.close()
