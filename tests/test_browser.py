"""Every notebook in a real JupyterLab: what is drawn is what the document holds."""

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import papermill
import platformdirs
import playwright.sync_api as playwright
import pytest
import readme_pictures
from browser import DARK, LIGHT, WIDTH, Browser, Page, serving
from lockstep.author import build
from lockstep.author.screenshots import chromium
from lockstep.course.links import exercise_address

sys.path.append(str(Path(__file__).parent / "bench"))
import timeline
from report import Report

ROOT = Path(__file__).parents[1]
PICTURES = None  # where to put pictures of all notebooks
if folder := os.environ.get("PICTURES"):
    PICTURES = Path(folder)
WIDTHS = (WIDTH, 1024, 420)
LABS = sorted(path.stem for path in (ROOT / "labs").glob("*.ipynb"))
SOLUTIONS = sorted(path.stem for path in (ROOT / "solutions").glob("*.ipynb"))

# A Chromium that crashed is started anew for the next test; the one that it failed is tried again.
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.flaky(reruns=1, only_rerun=["TargetClosedError"]),
]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what learners open: JupyterLab may write to it."""
    root = tmp_path_factory.mktemp("tree")
    for folder in ("labs", "solutions", "data"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns(".*", "__*"))
    return root


# For the module and not for the session: a browser and a server beside them would be in the way of
# tests that look at processes, and Playwright leaves an event loop running.
@pytest.fixture(scope="module")
def browser(tree: Path) -> Iterator[Browser]:
    with serving(tree) as browser:
        yield browser


def write(tree: Path, name: str, cells: dict[str, str]) -> str:
    """A notebook in the served folder. Its cells are code, or Markdown where their id says so."""
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook = nbformat.v4.new_notebook(metadata={"kernelspec": kernel})
    for key, source in cells.items():
        kind = "markdown" if key.startswith("markdown") else "code"
        new = getattr(nbformat.v4, f"new_{kind}_cell")
        notebook.cells.append(new(source, id=key))
    nbformat.write(notebook, tree / name)
    return name


DARKENED = "02_point_to_point"  # has a model to play with, a chart, a timeline, claims and tables


@pytest.mark.parametrize(  # the other labs' solutions are executed anyway
    "name",
    [pytest.param(name, marks=[] if name == DARKENED else [pytest.mark.long]) for name in LABS],
)
def test_a_blank_lab_shows_what_it_holds(browser: Browser, tree: Path, name: str) -> None:
    """With other parameters, set as papermill does."""
    lab = tree / "labs" / f"{name}.ipynb"
    papermill.execute_notebook(lab, lab, {"NPROC": 2}, prepare_only=True)
    with browser.open(f"labs/{name}.ipynb") as page:
        hints = run_and_judge(page, f"labs-{name}", "NOT YET")
        cells = nbformat.read(lab, 4).cells
        code = [cell for cell in cells if cell.cell_type == "code"]
        if any("NPROC" in cell.source and "parameters" not in str(cell.metadata) for cell in code):
            assert "2 ranks" in "".join(page.shown(cell.id) for cell in code)
    # Checks of unanswered exercises have hints to open.
    assert hints > 0 or not any("lockstep.check(" in cell.source for cell in code)


@pytest.mark.long  # papermill executes them
@pytest.mark.parametrize("name", SOLUTIONS)
def test_a_solution_shows_what_it_holds(browser: Browser, name: str) -> None:
    with browser.open(f"solutions/{name}.ipynb") as page:
        run_and_judge(page, f"solutions-{name}", "PASS")


def run_and_judge(page: Page, name: str, verdict: str) -> int:
    """Every check comes out the same, in its data and for the eye; returns how many hints are.

    In the dark, too: of one lab, for the theme is JupyterLab's, and of all for pictures.
    """
    page.run_all()
    hints = page.open_hints()
    assert page.problems() == []
    if PICTURES:
        for width in WIDTHS:
            page.resize(width)
            page.screenshot(PICTURES / f"{name}-{width}.png")
            assert page.problems() == []
            page.screenshot(PICTURES / f"{name}-{width}-dark.png", DARK)
            assert page.problems() == []
    elif name == f"labs-{DARKENED}":
        page.turn(DARK)
    assert page.problems() == []
    page.turn(LIGHT)  # it is the server's, and the next page's
    checks = page.checks()
    assert checks or name.endswith("_further")
    assert checks == dict.fromkeys(checks, verdict)
    assert [cell for cell in checks if verdict not in page.shown(cell)] == []
    return hints


# ── Models to play with ──────────────────────────────────────────────────────────────────────

PLAY = {
    "ring": "import lockstep\nlockstep.interactive.collective('ring')",
    "line": "lockstep.compare(3, 4)",
}


def test_the_kernel_answers_who_plays(browser: Browser, tree: Path) -> None:
    with browser.open(write(tree, "play.ipynb", PLAY)) as page:
        page.run_all()
        assert page.waits_for("ring", "Start: each rank has its own numbers only")
        assert page.waits_for("line", "✗ predicted 3 · measured 4")
        assert page.waits_for("ring", "the busiest rank sends", hidden=True)  # the still is folded
        page.choose("ring", "ranks", "3")
        assert page.waits_for("ring", "Ring all-reduce, 3 ranks")
        assert page.open_hints() == 2  # a still, and the words of the ring's picture
        assert page.problems() == []


HIDDEN = {
    "load": "%load_ext lockstep\nimport lockstep",
    "asks": "prediction = None  # your number",
    "silent": "seen = 41",
    "tells": "print(seen + 1)\n'and more'",
    "answers": "lockstep.compare(prediction, seen + 1)",
    "goes-on": "print('free')",
    "guesses": "guess = None",
    "claims": "lockstep.claim('All is well.', guess=guess, verdict='depends',\n"
    "    because='1 of 3 is', stamp=lockstep.simulated('a test'))",
    "asks-again": "prediction = None",
    "raises": "print('before')\n1 / 0",
}


def test_what_answers_is_hidden_until_it_is_predicted(browser: Browser, tree: Path) -> None:
    with browser.open(write(tree, "hidden.ipynb", HIDDEN)) as page:
        page.run_all()  # up to what raises
        assert page.waits_for("raises", "ZeroDivisionError")
        for cell, said in (("tells", "42"), ("answers", "42"), ("claims", "1 of 3")):
            assert page.waits_for(cell, said, hidden=True), cell
            assert page.waits_for(cell, "first: write it above"), cell
        assert page.waits_for("raises", "before", hidden=True)
        assert page.shown("silent").strip() == ""
        assert page.shown("goes-on").strip() == "free"
        page.open_hints()
        gone_on = (("tells", "and more"), ("answers", "measured 42"), ("claims", "1 of 3"))
        for cell, said in gone_on:
            assert page.waits_for(cell, said), cell
        page.tab.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
        page.tab.wait_for_function("() => !document.querySelector('.jp-mod-dirty')")
    with browser.open("hidden.ipynb") as page:
        for cell, said in gone_on:
            assert page.waits_for(cell, said), cell


SAVED = {
    "asks": "%load_ext lockstep\nprediction = None",
    "late": "%%torchrun -n 2\nimport time\nimport torch\nimport torch.distributed as dist\n"
    "time.sleep(0.2 * dist.get_rank())\ndist.all_reduce(torch.ones(1))\n'reduced'",
}
# Of the bars of a strip, which have a title, and of what explains them: without a fill or a height.
BARE = """() => [...document.querySelectorAll('.lockstep-job [style*="background-size"]')]
    .map(node => [getComputedStyle(node).backgroundImage, node.getBoundingClientRect().height])
    .filter(([image, height]) => !image.includes('gradient') || height < 8)"""
BARS = """() => document.querySelectorAll('.lockstep-job div[title][style*="dashed"]').length"""
# What stands in a bar ends within it: what has no room ends with three dots.
STANDS_OUT = """() => [...document.querySelectorAll('.lockstep-job div[title] > span')]
    .filter(node =>
        node.getBoundingClientRect().right > node.parentElement.getBoundingClientRect().right
        || getComputedStyle(node).textOverflow !== 'ellipsis').map(node => node.textContent)"""


def test_a_notebook_that_is_not_trusted_shows_all_of_a_strip(browser: Browser, tree: Path) -> None:
    with browser.open(write(tree, "saved.ipynb", SAVED)) as page:
        page.run_all()
        assert page.waits_for("late", "reduced", hidden=True)
        page.tab.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
    theirs = nbformat.read(tree / "saved.ipynb", 4)
    theirs.metadata["signed"] = "by nobody here"
    nbformat.write(theirs, tree / "theirs.ipynb")
    with browser.open("theirs.ipynb") as page:
        assert page.waits_for("late", "reduced")
        assert page.waits_for("late", "first: write it above", hidden=True)
        assert page.tab.evaluate(BARS) and page.tab.evaluate(BARE) == []
        page.tab.set_viewport_size({"width": 600, "height": 700})
        page.tab.wait_for_function(f"() => ({STANDS_OUT})().length === 0")


# ── Charts ───────────────────────────────────────────────────────────────────────────────────

CHART = """import lockstep
lockstep.chart(
    {"ring": [(1e3, 2e-5, 1e-5, 3e-5), (1e9, 4e-3, 3e-3, 6e-3)], "<b>$x$": [(1e3, 1e-5)]},
    x="message size (bytes)", y="time (seconds)", alt="A line that rises.",
    stamp=lockstep.simulated("a model of rings"))
"""
DRAWN = "() => document.querySelectorAll('.lockstep-play polyline').length === 2"
TEXTS = """() => [...document.querySelectorAll('.lockstep-play svg[role=img] text')]
    .map(node => [node.textContent, getComputedStyle(node).fill])"""
SAID = "() => [...document.querySelectorAll('.lockstep-play path title')].map(n => n.textContent)"


AGAIN = """() => [...document.querySelectorAll('.lockstep-still > summary')]
    .map(node => getComputedStyle(node, '::after').content)"""


def test_what_was_played_with_says_how_to_go_on_when_it_is_opened_again(
    browser: Browser, tree: Path
) -> None:
    with browser.open(write(tree, "played.ipynb", {"drawn": CHART})) as page:
        page.run_all()
        page.tab.wait_for_function(DRAWN)
        assert page.tab.evaluate(AGAIN) == ["none"]
        page.tab.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
        page.tab.wait_for_function("() => !document.querySelector('.jp-mod-dirty')")
    shutil.copy(tree / "played.ipynb", tree / "later.ipynb")  # with a kernel of its own
    with browser.open("later.ipynb") as page:
        page.tab.wait_for_function(f"() => ({AGAIN})().some(said => said.includes('run the cell'))")
        assert page.tab.locator(".lockstep-still img.lockstep-light").is_visible()
        missed = "widget model not found"  # JupyterLab says so late, and the next test has this tab
        if not any(missed in said for said in page.problems(patience=0.1)):
            page.tab.wait_for_event("console", lambda message: missed in message.text)


def test_a_chart_is_drawn_and_its_text_follows_the_theme(browser: Browser, tree: Path) -> None:
    with browser.open(write(tree, "chart.ipynb", {"chart": CHART})) as opened:
        opened.run_all()
        page = opened.tab
        for theme, inks in ((DARK, range(200, 256)), (LIGHT, range(100))):
            opened.turn(theme)
            page.wait_for_function(DRAWN)
            texts = page.evaluate(TEXTS)
            said = [text for text, _ in texts]
            for text in ("1 MB", "1 ms", "message size", "time"):
                assert text in said
            for _, fill in texts:
                assert int(fill.removeprefix("rgba(").removeprefix("rgb(").split(",")[0]) in inks
        for text in ("ring", "<b>$x$", "A line that rises.", "a model of rings"):
            assert text in opened.shown("chart")
        assert "1 kB: 20 µs (10 µs to 30 µs)" in page.evaluate(SAID)
        opened.open_hints()
        assert opened.problems() == []


# ── Large letters ────────────────────────────────────────────────────────────────────────────

DRAWN_IN_LETTERS = {
    "chart": CHART,
    "figure": "stamp = lockstep.simulated('a test')\n"
    "lockstep.figure(lambda canvas: None, alt='Nothing.', size=(3, 2), stamp=stamp)",
    "timeline": "from lockstep.trace import Kind, Slice, Trace\n"
    "slices = [Slice(0, 'main', 'compute', 0, 1000, Kind.COMPUTE)]\n"
    "lockstep.Timeline(Trace.from_slices(slices, stamp=stamp))",
    "ring": "lockstep.interactive.collective('ring', 2)",
    "line": "lockstep.compare(3, 4)",
}
HEIGHTS = """() => Object.fromEntries(Object.entries({
    chart: '.lockstep-play svg[role=img]:has(polyline) text',
    figure: 'figure img.lockstep-light[alt="Nothing."]',
    timeline: '.ls-stamp',
    axis: '.ls-axis',
    row: '.ls-rows',
    ring: '.lockstep-play svg:has([data-bits]) text',
    line: 'img[src^="data:image/svg"].lockstep-light',
}).map(([name, what]) => [name, document.querySelector(what)?.getBoundingClientRect().height]))"""
FITS = """() => [...document.querySelectorAll('.lockstep-play svg, .ls-rows')]
    .every(node => node.getBoundingClientRect().right
        <= node.closest('.jp-OutputArea-child').getBoundingClientRect().right + 1)"""


def test_what_is_drawn_grows_with_jupyterlabs_letters(browser: Browser, tree: Path) -> None:
    """Charts, pictures, timelines and models, without being drawn beyond the page."""
    with browser.open(write(tree, "large.ipynb", DRAWN_IN_LETTERS)) as opened:
        opened.run_all()
        opened.open_hints()
        assert opened.problems() == []
        page = opened.tab
        usual = page.evaluate(HEIGHTS)
        opened.enlarge(7)
        try:
            page.wait_for_function(
                f"usual => Object.entries(({HEIGHTS})()).every(([name, height]) =>"
                " Math.abs(height / usual[name] - 20 / 13) < 0.06)"
                f" && ({FITS})()",
                arg=usual,
            )
        finally:
            opened.enlarge(-7)  # it is the server's, and the next page's
        page.wait_for_function(
            f"usual => JSON.stringify(({HEIGHTS})()) === JSON.stringify(usual)", arg=usual
        )


WIDE = """import lockstep
stamp = lockstep.simulated("a test")
lockstep.figure(lambda canvas: None, alt="Nothing.", size=(7, 2), stamp=stamp)"""
SIZES = """() => {
    const image = document.querySelector('figure img.lockstep-light');
    const box = image.parentElement;
    return [image.getBoundingClientRect().width, box.clientWidth, box.scrollWidth];
}"""


def test_a_picture_keeps_its_letters_legible_on_a_narrow_page(browser: Browser, tree: Path) -> None:
    with browser.open(write(tree, "wide.ipynb", {"wide": WIDE})) as page:
        page.run_all()
        assert page.problems() == []
        drawn, room, all_of_it = page.tab.evaluate(SIZES)
        assert drawn == 770 and all_of_it == room
        page.tab.set_viewport_size({"width": 420, "height": 700})
        page.tab.wait_for_function(f"() => ({SIZES})()[1] < 300")
        drawn, room, all_of_it = page.tab.evaluate(SIZES)
        assert drawn == pytest.approx(0.7 * 770, abs=1) and all_of_it > room


# ── Tables ───────────────────────────────────────────────────────────────────────────────────

TABLE = """import lockstep
columns = ["rank", *(f"column {number}" for number in range(9))]
rows = [[f"rank {rank}", *(f"{number:,} ms" for number in range(9))] for rank in range(3)]
lockstep.table("wide", columns, rows, stamp=lockstep.simulated("a test"))"""
IS_TOO_WIDE = """() => {
    const box = document.querySelector('.jp-OutputArea [role=group]');
    return box.scrollWidth > box.clientWidth + 100;
}"""
SCROLLED = """() => {
    const box = document.querySelector('.jp-OutputArea [role=group]');
    const lefts = () => [...box.querySelectorAll('tr > :first-child, tr > :last-child')]
        .map(cell => cell.getBoundingClientRect().left);
    const before = lefts();
    box.scrollLeft = box.scrollWidth;
    return lefts().map((left, at) => before[at] - left);
}"""


def test_the_names_of_rows_stay_while_a_table_is_scrolled(browser: Browser, tree: Path) -> None:
    with browser.open(write(tree, "table.ipynb", {"table": TABLE})) as page:
        page.run_all()
        assert page.problems() == []
        page.tab.set_viewport_size({"width": 700, "height": 700})
        page.tab.wait_for_function(IS_TOO_WIDE)  # JupyterLab lays itself out a moment later
        moved = page.tab.evaluate(SCROLLED)
        assert len(moved) == 8  # of a head and three rows, the first cell and the last
        assert moved[::2] == [0, 0, 0, 0]
        assert min(moved[1::2]) > 100


# ── First contact ────────────────────────────────────────────────────────────────────────────


def test_links_lead_to_sections_and_to_the_next_exercise(browser: Browser, tree: Path) -> None:
    name, after = "01_communicators", "02_point_to_point"
    lab = build.labs(ROOT / "solutions" / "source" / f"{name}.py")[name]
    exercise, further = exercise_address("01", "meet"), exercise_address("01", "shrink")
    card = (
        f'from IPython.display import HTML\nHTML(\'<a href="{exercise}">next exercise →</a> '
        f'<a href="{after}.ipynb">next lab →</a> <a href="{further}">further exercise →</a>\')'
    )
    lab.cells.insert(1, nbformat.v4.new_code_cell(card, id="card"))
    nbformat.write(lab, tree / "labs" / "links.ipynb")
    sections = re.findall(r"\[(\d · [^]]*)\]\(#cell-id=([\w-]+)\)", lab.cells[0].source)
    assert len(sections) > 3
    with browser.open("labs/links.ipynb") as page:
        for title, cell in (sections[1], sections[-1]):
            page.follow(title.replace("`", ""))
            assert page.comes_into_view(cell), title
        page.run("load")
        page.run("progress")
        page.follow("next exercise: local_gpu →")
        assert page.comes_into_view(exercise_address("01", "local_gpu").removeprefix("#cell-id="))
        page.run("card")
        page.follow("next exercise →")
        assert page.comes_into_view("meet-text")
        page.follow("next lab →")
        assert page.is_open(f"labs/{after}.ipynb")
    with browser.open("labs/links.ipynb") as page:
        page.run("card")
        page.follow("further exercise →")
        assert page.is_open(f"labs/{name}_further.ipynb")


# ── That it would be seen ────────────────────────────────────────────────────────────────────

SHOW = "from IPython.display import HTML, Latex, Markdown, display\n"
DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII="
WHERE = "import sys, platformdirs\nprint(sys.executable, platformdirs.user_data_dir())"
FINE = {
    "print": "import sys\nprint('\\x1b[31mred\\x1b[0m  and \\t black'); print(1, file=sys.stderr)",
    "value": "{'a': [1, None], 'b': '<b>'}",
    "updated": "h = display(HTML('<b>begun</b>'), display_id=True); h.update(HTML('<b>ended</b>'))",
    "table": "HTML('<table><tr><td>a</td><td>b</td></tr></table><p>2 &lt; 3</p>')",
    "drawing": "HTML('<svg><title>unseen</title><text y=12>seen</text></svg><style>p {}</style>')",
    "kinds": "display(Markdown('**b** $x^2$'), Latex('$x$'))",
    "data": "display({'application/json': {'a': 1}}, raw=True)",
    "image": f"HTML('<img alt=dot src=data:image/png;base64,{DOT}>')",
    "markdown": f"# title\n![dot](data:image/png;base64,{DOT})",
    "widget": "import ipywidgets\nipywidgets.IntSlider(description='rank')",
    "machine": "display({'application/vnd.lockstep.any+json': {}, 'text/html': 'x'}, raw=True)",
    "hint": "HTML('<details><summary>more</summary>it</details>')",
    "hints": "HTML('<details><summary>a</summary><details><summary>b</summary>c</details>')",
    "passed": "from lockstep.course import exercises\n"
    "exercises.CheckOutcome('mine', 'PASS', note='so be it')",
    "nothing": "None",
    "asks": "%load_ext lockstep\nprediction = None",
    "covered": CHART,
}
WIDGET = "{'model_id': 'gone', 'version_major': 2, 'version_minor': 0}"
BROKEN = {  # by id: code, what is said of it
    "outside": (
        'HTML(\'<img src="http://192.0.2.1/x.png" alt="x">\')',
        [
            "request to the outside: http://192.0.2.1/x.png",
            "cell outside: an image is not loaded: http://192.0.2.1/x.png",
        ],
    ),
    "no-alt": (
        f"HTML('<img src=data:image/png;base64,{DOT}>')",
        ["cell no-alt: an image has no alt: data:image/png"],
    ),
    "markdown-no-alt": (
        f"![](data:image/png;base64,{DOT})",
        ["cell markdown-no-alt: an image has no alt: data:image/png"],
    ),
    "markdown-no-image": (
        "![lost](lost.png)",
        ["cell markdown-no-image: an image is not loaded: /files/lost.png"],
    ),
    "plot": (
        "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()",
        ["cell plot: an image has no alt: data:image/png"],
    ),
    "hidden-image": (
        f"HTML('<img style=display:none alt=dot src=data:image/png;base64,{DOT}>')",
        ["cell hidden-image: none of its images is visible"],
    ),
    "nobody": (
        "display({'application/vnd.nobody+json': {}}, raw=True)",
        ["cell nobody: nothing draws application/vnd.nobody+json"],
    ),
    "only-text": (
        "display({'application/vnd.nobody+json': {}, 'text/plain': 'x'}, raw=True)",
        ["cell only-text: nothing draws application/vnd.nobody+json"],
    ),
    "only-data": (
        "display({'application/vnd.lockstep.any+json': {}}, raw=True)",
        ["cell only-data: nothing draws application/vnd.lockstep.any+json"],
    ),
    "erased-print": ("print('erase')", ["cell erased-print: its stream is not drawn"]),
    "erased-html": ("HTML('erase')", ["cell erased-html: its text/html is not drawn"]),
    "eraser": (
        "HTML('''<script>for (const node of document.querySelectorAll('.jp-OutputArea-output'))"
        "if (node.innerText.trim() === 'erase') node.remove()</script>''')",
        [],
    ),
    "many": (  # JupyterLab shows 50 outputs, and a link
        "for number in range(51): display(number)",
        ["cell many: its text is not all to be seen, from 50"],
    ),
    "dead-widget": (
        f"display({{'application/vnd.jupyter.widget-view+json': {WIDGET}}}, raw=True)",
        ["cell dead-widget: its application/vnd.jupyter.widget-view+json is not drawn"],
    ),
    "lost-widget": (
        "import ipywidgets\nipywidgets.IntSlider(_view_module='nowhere')",
        ["cell lost-widget: its application/vnd.jupyter.widget-view+json is not drawn"],
    ),
    "unseen": (
        "HTML('seen <span hidden>unseen</span>')",
        ["cell unseen: its text is not all to be seen, from unseen"],
    ),
    "empty-hint": (
        "HTML('<details><summary>empty</summary></details>')",
        ["hint 'empty': a click does not show what is in it"],
    ),
    "covered-hint": (
        "HTML('<div style=position:relative><details><summary>covered</summary>it</details>"
        "<div style=position:absolute;inset:0></div></div>')",
        [
            "cell covered-hint: its text is not all to be seen, from it",
            "hint 'covered': a click does not show what is in it",
        ],
    ),
    "throws": ("HTML('<script>throw Error(\"thrown\")</script>')", ["page error: thrown"]),
    "logs": ("HTML('<script>console.error(\"logged\")</script>')", ["console: logged"]),
}


def test_nothing_is_said_of_what_is_fine(browser: Browser, tree: Path) -> None:
    cells = {"first": SHOW, "where": WHERE} | FINE
    with browser.open(write(tree, "fine.ipynb", cells)) as page:
        page.run_all()
        assert page.open_hints() == 5  # the last two: a cover, and a still under it
        assert page.problems() == []
        assert " ".join(page.shown("passed").split()).endswith(" ✓ PASS · mine so be it")
        executable, data = page.shown("where").split()
    assert executable == sys.executable
    assert data != platformdirs.user_data_dir()  # where learners' progress is


def test_each_defect_is_seen(browser: Browser, tree: Path) -> None:
    cells = {"first": SHOW} | {key: code for key, (code, _) in BROKEN.items()}
    with browser.open(write(tree, "broken.ipynb", cells)) as page:
        page.run_all()
        page.open_hints()
        found = page.problems(2)
    # What JupyterLab says in the console of some of them:
    also = ("404 (Not Found)", "widget model not found", "No version of module nowhere")
    found = [line for line in found if not any(words in line for words in also)]
    assert sorted(found) == sorted(line for _, said in BROKEN.values() for line in said)


def test_a_cell_that_raises_is_seen(browser: Browser, tree: Path) -> None:
    # A cell after it may have run or not: it depends on when its request reaches the kernel.
    cells = {"fine": "1", "raises": "1 / 0", "empty": ""}
    with browser.open(write(tree, "raises.ipynb", cells)) as page:
        page.run_all()
        found = page.problems(2)
    assert found == ["cell raises: ZeroDivisionError: division by zero"]


def test_a_cell_that_does_not_end_is_seen(browser: Browser, tree: Path) -> None:
    with browser.open(write(tree, "long.ipynb", {"long": "import time; time.sleep(4)"})) as page:
        page.run_all(within=1)
        found = page.problems(0.1)
    assert found == ["cell long: it has not run", "the cells are not over after 1 s"]


@pytest.mark.long
def test_the_readme_s_pictures_and_film_are_taken(
    browser: Browser, tree: Path, tmp_path: Path
) -> None:
    assert readme_pictures.take(browser, tree, tmp_path) == []
    assert {path.name for path in tmp_path.iterdir()} == {
        "failing.png",
        "timeline.png",
        "ranks.gif",
    }


@pytest.mark.long
def test_the_benchmark_of_timelines_runs(browser: Browser, tree: Path) -> None:
    report = Report()
    timeline.measure(report, 20_000, browser, tree)
    medians = {row.name.removeprefix("20,000 slices: "): row.median for row in report.rows}
    assert medians[timeline.PAINTED] > 0 and medians[timeline.SHOWN] > 0 and not report.errors


def test_a_missing_browser_is_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path))
    monkeypatch.delenv("CHROMIUM", raising=False)
    with pytest.raises(LookupError, match="apt-get install chromium"):
        chromium()
    own = tmp_path / "chromium_headless_shell-1255" / "linux64" / "headless_shell"
    own.parent.mkdir(parents=True)
    own.touch()
    assert chromium() == str(own)
    monkeypatch.setenv("CHROMIUM", "/nowhere/chrome")
    with pytest.raises(LookupError, match="CHROMIUM=/nowhere/chrome"):
        chromium()


def test_a_chromium_that_crashed_is_one_test_s_trouble(browser: Browser, tree: Path) -> None:
    name = write(tree, "crash.ipynb", {"one": "6 * 7"})
    with pytest.raises(playwright.Error, match="closed"), browser.open(name) as page:
        browser.crash()
        page.run("one")
    with browser.open(name) as page:
        page.run("one")
        assert page.waits_for("one", "42")
