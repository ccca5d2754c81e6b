"""A widget of `lockstep.interactive` on a page of its own, with Python behind it, in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import playwright.sync_api as playwright
from lockstep.author.screenshots import chromium
from lockstep.figures.widget import Playable, reply, script

PAGE = """<!doctype html><html lang="en"><title>play</title><style>
:root{color-scheme:light dark}
body{margin:8px;font:14px system-ui;background:Canvas;color:CanvasText}
</style><body><div id="here"></div></body></html>"""

# What anywidget hands over: a model with state; `asked` goes to Python, `shown` comes from there.
MOUNT = """async ([text, shown]) => {
    const address = URL.createObjectURL(new Blob([text], {type: 'text/javascript'}));
    const {render} = (await import(address)).default;
    const state = {asked: '{}', shown}, tells = new Set();
    window.answers = true;
    const model = {
        get: key => state[key],
        set: (key, value) => (state[key] = value),
        save_changes: async () => {
            if (!window.answers) return;
            state.shown = await window.askPython(state.asked);
            for (const tell of tells) tell();
        },
        on: (_, tell) => tells.add(tell),
        off: (_, tell) => tells.delete(tell),
    };
    window.end = render({model, el: document.getElementById('here')});
}"""


class Opened:
    """A page with one widget, and what it complained of or asked the network for."""

    def __init__(self, context: playwright.BrowserContext, playable: Playable):
        self.problems: list[str] = []
        self.asked: list[str] = []
        self.page = context.new_page()
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("console", self._heard)
        self.page.set_default_timeout(10_000)
        self.page.expose_function("askPython", lambda asked: self._reply(playable, asked))
        self.page.set_content(PAGE)
        self.page.on("request", self._requested)
        self.page.evaluate(MOUNT, [script(playable.start), reply(playable, "{}")])
        self.frame()

    def _reply(self, playable: Playable, asked: str) -> str:
        self.asked.append(asked)
        return reply(playable, asked)

    def _heard(self, said: playwright.ConsoleMessage) -> None:
        if said.type == "error":
            self.problems.append(said.text)

    def _requested(self, request: playwright.Request) -> None:
        if not request.url.startswith("blob:"):
            self.problems.append(request.url)

    def frame(self) -> None:
        """Until what was asked for is drawn."""
        self.page.evaluate("() => new Promise(r => requestAnimationFrame(() => setTimeout(r)))")

    def button(self, name: str) -> playwright.Locator:
        return self.page.get_by_role("button", name=name, exact=True)

    def text(self, selector: str) -> str:
        return self.page.locator(selector).inner_text()

    def choose(self, label: str, value: str) -> None:
        self.page.get_by_label(label, exact=True).select_option(value)

    def shots(self, folder: Path, name: str) -> None:
        """Pictures at three widths in both themes, for people to look at."""
        folder.mkdir(parents=True, exist_ok=True)
        schemes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
        for width in (1440, 1024, 420):
            for scheme in schemes:
                self.page.set_viewport_size({"width": width, "height": 600})
                self.page.emulate_media(color_scheme=scheme)
                self.frame()
                self.page.screenshot(path=folder / f"{name}-{width}-{scheme}.png", full_page=True)
        self.page.emulate_media(color_scheme="light")
        self.page.set_viewport_size({"width": 1024, "height": 600})


@contextmanager
def browsing(**options: Any) -> Iterator[playwright.BrowserContext]:
    """Return a browser's context, 1024 × 600 unless `options` say another viewport."""
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium(), args=["--disable-gpu"])
        try:
            yield browser.new_context(**{"viewport": {"width": 1024, "height": 600}, **options})
        finally:
            browser.close()
