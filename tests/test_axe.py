"""What labs show can be read by everybody: axe-core finds nothing, on light paper and on dark."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lockstep
import playwright.sync_api as playwright
import pytest
from lockstep import simulated
from lockstep.author.screenshots import chromium
from lockstep.course import compiled
from lockstep.course.exercises import CheckOutcome
from lockstep.launch import view
from lockstep.timeline import page
from lockstep.trace import Kind, Slice, Trace

axe = pytest.importorskip("axe_playwright_python")
SCRIPT = Path(axe.__file__).with_name("axe.min.js")
STAMP = simulated("by hand")
PAPERS = {"light": "background:#fff;color:#1a1a1a", "dark": "background:#111;color:#e6e6e6"}
WIDTHS = (1440, pytest.param(1024, marks=pytest.mark.long), 420)
# Rules for whole pages, which a notebook's output is not.
PAGES = ("document-title", "html-has-lang", "landmark-one-main", "page-has-heading-one", "region")


@pytest.fixture(scope="module")
def browser() -> Iterator[playwright.Browser]:
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium(), args=["--disable-gpu"])
        yield browser
        browser.close()


def violations(shown: playwright.Page, without: tuple[str, ...] = ()) -> list[str]:
    shown.evaluate(SCRIPT.read_text(encoding="utf-8"))
    rules = {rule: {"enabled": False} for rule in without}
    found: Any = shown.evaluate("rules => axe.run({rules}).then(one => one.violations)", rules)
    return [f"{one['id']}: {node['html'][:200]}" for one in found for node in one["nodes"]]


def is_drawn_for(shown: playwright.Page, says: str) -> str:
    """The theme of the pictures that are seen, on a page whose body says so."""
    name, _, value = says.partition("=")
    shown.evaluate(
        "([name, value]) => { for (const one of [...document.body.attributes])"
        "  if (one.name.startsWith('data-')) document.body.removeAttribute(one.name);"
        "document.body.setAttribute(name, value); }",
        [name, value.strip("'")],
    )
    seen = {theme: shown.locator(f".lockstep-{theme}:visible").count() for theme in PAPERS}
    assert min(seen.values()) == 0
    return max(seen, key=lambda theme: seen[theme])


def trace() -> Trace:
    slices = [
        Slice(rank, lane, name, 100 * rank + start, 900, kind, stream)
        for rank in range(2)
        for lane, name, start, kind, stream in (
            ("stream 7", "gemm", 0, Kind.COMPUTE, 7),
            ("stream 20", "all_reduce", 500, Kind.COMMUNICATION, 20),
            ("main", "aten::mm", 0, Kind.OPERATOR, -1),
        )
    ]
    return Trace.from_slices(slices, stamp=STAMP)


def fails() -> None:
    import torch
    import torch.distributed as dist

    print("rank", dist.get_rank())
    dist.all_reduce(torch.ones(1))
    if dist.get_rank() == 0:
        raise ValueError("wrong")
    dist.all_reduce(torch.ones(1))


def talks() -> None:
    """By so many operations that their names are longer than a telephone is wide."""
    import torch
    import torch.distributed as dist

    x, both = torch.ones(1), [torch.ones(1), torch.ones(1)]
    first = dist.get_rank() == 0
    dist.all_reduce(x)
    dist.all_gather(both, x)
    dist.reduce_scatter(x, both)
    dist.broadcast(x, 0)
    dist.reduce(x, 0)
    dist.gather(x, both if first else None)
    dist.scatter(x, both if first else None)
    dist.barrier()


@pytest.fixture(scope="module")
def outputs() -> str:
    """One of each kind."""
    with pytest.raises(lockstep.JobFailed) as caught:
        lockstep.torchrun(fails, nproc_per_node=2, backend="gloo", show=False)
    job = lockstep.torchrun(lambda: 7, nproc_per_node=2, backend="gloo", show=False)
    talk = lockstep.torchrun(talks, nproc_per_node=2, backend="gloo", show=False)
    points = [(1e3, 1e-5), (1e6, 1e-3)]
    shown = [
        lockstep.chart(
            {"ring": points},
            models={"ring": points},
            x="size (bytes)",
            y="time (seconds)",
            alt="A line that rises. It is straight.",
            stamp=STAMP,
        ),
        lockstep.buffers({"sum": ([[1], [2]], [[3], [3]])}, stamp=STAMP),
        lockstep.table("Caption", ["rank", "bytes", ""], [[0, "1,024", "most"]], stamp=STAMP),
        lockstep.compare(3, 4),
        lockstep.Timeline(trace()),
        trace().critical_path(),
        trace().diff(trace()),
        Trace.memory(lockstep.recorded("traces/memory").path / "rank0.pickle.gz"),
        CheckOutcome("average", "TRY AGAIN", "the sum, not the mean", hints=("look", "again")),
    ]
    texts = [one._repr_mimebundle_()["text/html"] for one in shown]
    jobs = [view.html(one) for one in (caught.value.job, job, talk)]
    return "".join([*jobs, *texts])


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("theme", PAPERS)
def test_outputs(browser: playwright.Browser, outputs: str, theme: str, width: int) -> None:
    shown = browser.new_page(viewport={"width": width, "height": 900})
    is_light = str(theme == "light").lower()
    shown.set_content(
        f'<body data-jp-theme-light="{is_light}" style="{PAPERS[theme]};font:14px sans-serif">'
        f"{outputs}</body>"
    )
    assert violations(shown, PAGES) == []
    contrast = {"light": "high-contrast-light", "dark": "high-contrast"}[theme]
    of_vs_code = [f"data-vscode-theme-kind='vscode-{kind}'" for kind in (theme, contrast)]
    for says in (f"data-jp-theme-light='{is_light}'", *of_vs_code):
        assert is_drawn_for(shown, says) == theme
    # Nothing is wider than the page but what scrolls by itself.
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
    shown.close()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("theme", PAPERS)
def test_a_compiled_function_fits_its_place(
    browser: playwright.Browser, theme: str, width: int
) -> None:
    """Its four lists are seen at once; what is too long scrolls in its own."""
    recording = lockstep.recorded("compile/h200.json")
    seen = compiled.view(compiled.Compiled.of(recording.content["code"]), stamp=recording.stamp)
    shown = browser.new_page(viewport={"width": width, "height": 900})
    shown.set_content(
        f'<body style="{PAPERS[theme]};font:14px sans-serif">'
        f"{seen._repr_mimebundle_()['text/html']}</body>"
    )
    assert violations(shown, PAGES) == []
    lists = shown.locator(".lockstep-columns > section")
    assert lists.count() == 4
    for one in lists.all():
        box = one.bounding_box()
        assert box is not None and box["width"] > 100 and box["x"] + box["width"] <= width
    columns = "document.querySelector('.lockstep-columns')"
    assert shown.evaluate(f"{columns}.scrollWidth <= {columns}.clientWidth")
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
    shown.close()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("theme", PAPERS)
def test_a_timeline_in_its_page(
    browser: playwright.Browser, tmp_path: Path, theme: Any, width: int
) -> None:
    file = tmp_path / "timeline.html"
    text = page(trace(), [("Below", "text")], title="A trace", path=trace().critical_path())
    file.write_text(text, encoding="utf-8")
    shown = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
    shown.goto(file.as_uri())
    shown.wait_for_selector("[data-painted]")
    shown.get_by_role("button", name="compute", exact=True).click()  # is hidden
    for key in ("r", "?"):
        shown.locator(".ls-rows").press(key)
    assert violations(shown, ("region", "landmark-one-main")) == []
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
    shown.close()


def test_what_cannot_be_read_is_found(browser: playwright.Browser) -> None:
    shown = browser.new_page()
    shown.set_content('<p style="background:#D55E00;color:#fff;font-size:12px">white on orange</p>')
    assert [one.partition(":")[0] for one in violations(shown, PAGES)] == ["color-contrast"]
    shown.close()
