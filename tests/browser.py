"""JupyterLab as a learner sees it: its server, a Chromium, and what is wrong on a page.

`python tests/browser.py` gets a Chromium where there is none; `make test-more` begins with that.
"""

from __future__ import annotations

import io
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import playwright.sync_api as playwright
from lockstep.author.screenshots import chromium
from PIL import Image

START = 60.0  # seconds for the server, a page or a kernel to be there
RUN = 240.0  # seconds for all cells of a notebook
LIGHT, DARK = "JupyterLab Light", "JupyterLab Dark"
CHECK = "application/vnd.lockstep.check+json"
WIDTH = 1280
HIGHEST = 10_000  # Chromium repeats the top of a picture that is higher than 16384

SETTINGS = {
    # Every cell is laid out, not only those near the visible part.
    "@jupyterlab/notebook-extension/tracker": '{"windowingMode": "none"}',
    "@jupyterlab/docmanager-extension/plugin": '{"autosave": false}',
    "@jupyterlab/apputils-extension/notification": (
        '{"fetchNews": "false", "checkForUpdates": false, "doNotDisturbMode": true}'
    ),
}


class JupyterLab:
    """A JupyterLab server on a folder; it reads and writes no settings but its own."""

    def __init__(self, root: Path, as_learners: bool = False):
        """as_learners: by `lockstep labs`, without the tests' settings."""
        # Not below pytest's tmp_path: a Unix socket's path has room for about 100 characters.
        self._home = Path(tempfile.mkdtemp(prefix="ls-"))
        for plugin, values in ({} if as_learners else SETTINGS).items():
            path = self._home / "settings" / f"{plugin}.jupyterlab-settings"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(values)
        self._token = secrets.token_hex(16)
        own = ["--allow-root", f"--ServerApp.root_dir={root}"]
        own += ["--LabApp.extension_manager=readonly", "--LabApp.news_url=None"]
        own += ["--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
        command = [
            *(sys.executable, "-m"),
            *(("lockstep", "labs", str(root), "--") if as_learners else ("jupyterlab", *own)),
            *("--no-browser", "--ip=127.0.0.1", "--port=0"),
            f"--IdentityProvider.token={self._token}",
            "--LabApp.expose_app_in_browser=True",  # as window.jupyterapp
        ]
        self._process = subprocess.Popen(
            command,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._log: list[str] = []
        self._said_where = threading.Event()
        self.printed, self.address = "", ""  # the whole address that it prints, and its beginning
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._said_where.wait(START)
        if not self.address:
            self.close()
            raise RuntimeError("JupyterLab did not start. It said:\n" + "".join(self._log))

    def _environment(self) -> dict[str, str]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("JUPYTER")}
        own = {
            "HOME": "",
            "IPYTHONDIR": "ipython",
            "JUPYTER_CONFIG_DIR": "config",
            "JUPYTER_DATA_DIR": "data",
            "JUPYTER_RUNTIME_DIR": "runtime",
            "JUPYTERLAB_SETTINGS_DIR": "settings",
            "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
            "XDG_CACHE_HOME": "cache",
            "XDG_CONFIG_HOME": "xdg-config",
            "XDG_DATA_HOME": "xdg-data",  # learners' progress
        }
        return inherited | {name: str(self._home / folder) for name, folder in own.items()}

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self._log.append(line)
            if found := re.search(r"(http://127\.0\.0\.1:\d+)\S*", line):
                # A token that was given is not printed, but three dots.
                self.printed = found[0].replace("token=...", f"token={self._token}")
                self.address = found[1]
                self._said_where.set()
        self._said_where.set()  # it ended

    def url(self, notebook: str) -> str:
        """The page of a notebook, alone: `reset` forgets what was open before."""
        return f"{self.address}/lab/tree/{notebook}?token={self._token}&reset"

    def close(self) -> None:
        os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        shutil.rmtree(self._home, ignore_errors=True)


def get() -> None:
    """See to it that there is one. Raises LookupError where none can be had."""
    try:
        chromium()
        return
    except LookupError:
        if os.environ.get("CHROMIUM"):
            raise
    ways = [[sys.executable, "-m", "playwright", "install", "chromium", "--only-shell"]]
    if os.geteuid() == 0 and shutil.which("apt-get"):
        ways += [
            ["apt-get", "update", "-qq"],
            ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium"],
        ]
    print("the tests need a browser; this machine has none: getting one", flush=True)
    for command in ways:
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        done = subprocess.run(command, env=quiet, capture_output=True, check=False)
        with suppress(LookupError):
            if done.returncode == 0 and starts(chromium()):
                return
    chromium()  # says what to do
    raise LookupError(f"{chromium()} does not start: set CHROMIUM=/path/to/another browser")


def starts(path: str) -> bool:
    """Whether a browser starts: libraries of the system may be missing."""
    with playwright.sync_playwright() as started:
        try:
            started.chromium.launch(executable_path=path).close()
        except playwright.Error:
            return False
    return True


class Browser:
    """A headless Chromium that reaches nothing but one JupyterLab."""

    def __init__(self, jupyterlab: JupyterLab):
        path = chromium()
        self._jupyterlab = jupyterlab
        flags = [
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--force-color-profile=srgb",
            "--hide-scrollbars",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        ]
        self._playwright = playwright.sync_playwright().start()
        try:
            self._start = partial(
                self._playwright.chromium.launch, executable_path=path, args=flags
            )
            self._chromium = self._start()
            self._context = self._new_context()
        except playwright.Error:
            self._playwright.stop()  # its event loop would disturb whoever comes after
            raise
        self._tab: playwright.Page | None = None  # has JupyterLab, and no notebook

    def _new_context(self) -> playwright.BrowserContext:
        return self._chromium.new_context(
            reduced_motion="reduce",
            service_workers="block",  # their requests would pass by the page's
        )

    @contextmanager
    def open(self, notebook: str, printed: bool = False) -> Iterator[Page]:
        """Open a notebook of the served folder, with its kernel; `printed`: the address that the
        server printed has to open it.

        Chromium needs longer to load JupyterLab than to show a lab: so the next notebook is opened
        in the same tab, unless something went wrong in it.
        """
        tab, self._tab = self._tab, None
        if not self._chromium.is_connected():  # it crashed: one test's trouble, not all the others'
            self._chromium, tab = self._start(), None
            self._context = self._new_context()
        page = Page(tab or self._context.new_page(), self._jupyterlab.address)
        try:
            if tab is None or printed:
                page.load(self._jupyterlab.printed if printed else self._jupyterlab.url(notebook))
            else:
                page.go_on_to(notebook)
            page.is_ready(notebook)
            yield page
            page.leave()
        except BaseException:
            page.close()
            raise
        self._tab = page.tab

    def crash(self) -> None:
        """End Chromium as a fault of its own would."""
        session = self._chromium.new_browser_cdp_session()
        with suppress(playwright.Error):  # it cannot answer any more
            session.send("Browser.crash")

    def close(self) -> None:
        self._chromium.close()
        self._playwright.stop()


@contextmanager
def serving(root: Path, as_learners: bool = False) -> Iterator[Browser]:
    """A browser before a JupyterLab that serves this folder; both end with the block."""
    chromium()  # before anything is started
    jupyterlab = JupyterLab(root, as_learners)
    try:
        browser = Browser(jupyterlab)
        yield browser
        browser.close()
    finally:
        jupyterlab.close()


class Page:
    """A notebook in JupyterLab; collects what goes wrong on the page from its first request on."""

    def __init__(self, tab: playwright.Page, address: str):
        self.tab = self._page = tab
        self._address = address
        self._problems: list[str] = []
        self._blocked: set[str] = set()
        tab.set_viewport_size({"width": WIDTH, "height": 1000})
        tab.set_default_timeout(START * 1000)
        self._heard: dict[Any, Callable[[Any], Any]] = {
            "request": lambda request: self._is_local(request.url),
            "websocket": lambda socket: self._is_local(socket.url),
            "pageerror": lambda error: self._problems.append(f"page error: {error}"),
            "console": self._console,
        }
        for event, hear in self._heard.items():
            tab.on(event, hear)

    def load(self, url: str) -> None:
        """Load JupyterLab, with what this address opens."""
        self._page.goto(url)

    def go_on_to(self, notebook: str) -> None:
        """Open a notebook in the JupyterLab that is loaded."""
        self._page.evaluate(OPEN, notebook)

    def is_ready(self, notebook: str) -> None:
        """Wait until this notebook is in front and has its kernel. Raises TimeoutError."""
        self._page.wait_for_function(HAS_ITS_KERNEL, arg=notebook, polling=50)  # not at every frame

    def leave(self) -> None:
        """End the notebook and its kernel; JupyterLab stays."""
        for event, hear in self._heard.items():
            self._page.remove_listener(event, hear)
        self._page.evaluate(LEAVE)

    def close(self) -> None:
        """End all that the tab holds."""
        try:
            with suppress(playwright.Error):  # it may not have come so far
                self._page.evaluate(LEAVE)
        finally:
            self._page.close()

    # ── What the page asks for and says ──────────────────────────────────────────────────────

    def _is_local(self, url: str) -> bool:
        own = self._address.removeprefix("http")
        if url.startswith((f"http{own}/", f"ws{own}/", "data:", "blob:")):
            return True
        if url not in self._blocked:
            self._blocked.add(url)
            self._problems.append(f"request to the outside: {url}")
        return False

    def _console(self, message: playwright.ConsoleMessage) -> None:
        url = message.location["url"]
        if message.type == "error" and url not in self._blocked:
            said = message.text.partition("\n")[0]  # without the stack
            self._problems.append(f"console: {said} {url.partition('?')[0]}".rstrip())

    # ── What a learner does ──────────────────────────────────────────────────────────────────

    def run_all(self, within: float = RUN) -> None:
        """Run every cell, without what was stored and with what is folded, until the last has
        ended or one has raised; then unfold."""
        if not self._page.evaluate(RUN_ALL, within):
            self._problems.append(f"the cells are not over after {within:g} s")

    def run(self, cell: str) -> None:
        """Run one cell."""
        self._page.evaluate(RUN_CELL, cell)

    def open_hints(self) -> int:
        """Click every <details> that is seen below the cells open; returns how many there are."""
        hints = self._page.evaluate(OPEN_HINTS)
        for said in hints["lost"]:
            self._problems.append(f"hint {said!r}: a click does not show what is in it")
        return hints["all"]

    def choose(self, cell: str, label: str, value: str) -> None:
        """Choose from a list below a cell."""
        self._below(cell).get_by_label(label, exact=True).select_option(value)

    def waits_for(self, cell: str, text: str, patience: float = 20.0, hidden: bool = False) -> bool:
        """Whether a text is seen below a cell, or no longer is, by then."""
        found = self._below(cell).get_by_text(text).first
        try:
            found.wait_for(timeout=patience * 1000, state="hidden" if hidden else "visible")
        except playwright.TimeoutError:
            return False
        return True

    def _below(self, cell: str) -> playwright.Locator:
        node = self._page.evaluate_handle(CELL, cell).as_element()
        assert node is not None
        node.evaluate("(node, cell) => (node.dataset.cell = cell)", cell)
        return self._page.locator(f'[data-cell="{cell}"] .jp-OutputArea')

    def follow(self, link: str) -> None:
        """Click the first link with this text."""
        self._page.get_by_role("link", name=link, exact=True).first.click()

    def comes_into_view(self, cell: str, patience: float = 20.0) -> bool:
        """Whether the head of a cell is in the upper half of the window, by then."""
        try:
            self._page.wait_for_function(IS_IN_VIEW, arg=cell, timeout=patience * 1000)
        except playwright.TimeoutError:
            return False
        return True

    def is_open(self, notebook: str, patience: float = 20.0) -> bool:
        """Whether this notebook is in front, by then."""
        try:
            self._page.wait_for_function(
                "path => window.jupyterapp.shell.currentWidget?.context?.path === path",
                arg=notebook,
                timeout=patience * 1000,
            )
        except playwright.TimeoutError:
            return False
        return True

    def setting(self, plugin: str, name: str) -> Any:
        """What a setting is where the learner has set nothing."""
        return self._page.evaluate(SETTING, [plugin, name])

    def toasts(self) -> list[str]:
        """What JupyterLab tells the learner in a corner of the window."""
        return self._page.locator(".Toastify__toast").all_inner_texts()

    def problems(self, patience: float = 10.0) -> list[str]:
        """What is wrong by now; [] is a page as it should be.

        Pictures and widgets are drawn after their cell has ended: they get `patience` seconds.
        """
        with suppress(playwright.TimeoutError):
            self._page.wait_for_function(
                f"() => ({WRONG_IN_CELLS})().length === 0", polling=200, timeout=patience * 1000
            )
        return self._page.evaluate(WRONG_IN_CELLS) + self._problems

    def checks(self) -> dict[str, str]:
        """By cell that calls `lockstep.check`: the verdict in its output's data, "" without."""
        return dict(self._page.evaluate(CHECKS, CHECK))

    def shown(self, cell: str) -> str:
        """The text below a cell."""
        return self._page.evaluate(SHOWN, cell)

    def turn(self, theme: str) -> None:
        """Have it light or dark."""
        self._page.evaluate(
            "theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})", theme
        )
        self._page.wait_for_function(THEME_IS_ON, arg=theme, polling=50)

    def enlarge(self, by: int) -> None:
        """Have the letters of code so many pixels larger, as JupyterLab's menu does."""
        self._page.evaluate(ENLARGE, by)

    def resize(self, width: int) -> None:
        """Have a window of this width; a narrow one without JupyterLab's list of files."""
        self._page.set_viewport_size({"width": width, "height": 1000})
        self._page.evaluate(SHOW_FILES, width >= WIDTH)

    def screenshot(self, path: Path, theme: str = LIGHT) -> None:
        """The whole notebook as one picture, from its title on."""
        self.turn(theme)
        width = self._page.evaluate("window.innerWidth")
        self._page.mouse.move(0, 0)  # the row of a table below it would be marked
        height = self._page.evaluate(FULL_HEIGHT)
        part = min(height, HIGHEST)
        self._page.set_viewport_size({"width": width, "height": part})
        self._page.wait_for_function(IS_LAID_OUT, arg=part)
        head = self._page.evaluate(f"() => {NOTEBOOK}.getBoundingClientRect().top")
        picture = Image.new("RGB", (width, height))
        step = part - 300  # the parts overlap by more than the page's head and foot
        for below in range(0, height - part + step, step):
            top = self._page.evaluate(SCROLL_TO, min(below, height - part))
            shot = Image.open(io.BytesIO(self._page.screenshot()))
            cut = int(head) + 10 if top else 0  # and the head's shadow
            picture.paste(shot.crop((0, cut, width, part)), (0, int(top) + cut))
        path.parent.mkdir(parents=True, exist_ok=True)
        picture.save(path)

    def picture(self, cells: list[str], path: Path) -> None:
        """These cells with their outputs, one below the other, none of them marked."""
        self._page.evaluate(MARK_THE_FIRST)
        self._page.set_viewport_size({"width": WIDTH, "height": 2500})
        nodes = [self._page.evaluate_handle(CELL, cell).as_element() for cell in cells]
        parts = [Image.open(io.BytesIO(node.screenshot())) for node in nodes if node]
        whole = Image.new("RGB", (WIDTH, sum(part.height for part in parts)), "white")
        for at, part in enumerate(parts):
            whole.paste(part, (0, sum(before.height for before in parts[:at])))
        width = max(part.width for part in parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        whole.crop((0, 0, width, whole.height)).save(path, optimize=True)

    def film(self, cell: str, path: Path, width: int, height: int, every: float = 0.1) -> None:
        """Run one cell, and keep what is seen of it meanwhile as a GIF that goes round.

        width, height: of the part of the page from the cell on, in pixels. every: seconds between
        two looks; each is shown as long as it was to be seen, and the last one for long.
        """
        self._page.set_viewport_size({"width": WIDTH, "height": 1000})
        node = self._page.evaluate_handle(CELL, cell).as_element()
        assert node is not None
        at = node.bounding_box()
        assert at is not None
        clip: Any = {"x": at["x"], "y": at["y"], "width": width, "height": height}
        shots, times, is_over = [], [], None
        while not is_over:
            times.append(time.perf_counter())
            shots.append(Image.open(io.BytesIO(self._page.screenshot(clip=clip))).convert("RGB"))
            if is_over is None:
                self._page.evaluate(START_CELL, cell)
            self._page.wait_for_timeout(1000 * every)
            is_over = self._page.evaluate("window.cellIsOver")
        times.append(time.perf_counter())
        shots.append(Image.open(io.BytesIO(self._page.screenshot(clip=clip))).convert("RGB"))
        palette = shots[-1].quantize(128)  # one for all, or colours would flicker
        looks = [shot.quantize(palette=palette, dither=Image.Dither.NONE) for shot in shots]
        lasted = [round(1000 * (after - before)) for before, after in pairwise(times)]
        path.parent.mkdir(parents=True, exist_ok=True)
        kept: dict[str, Any] = {"append_images": looks[1:], "duration": [*lasted, 6000], "loop": 0}
        looks[0].save(path, save_all=True, optimize=True, disposal=1, **kept)


# ── What runs in the page ────────────────────────────────────────────────────────────────────

OPEN = "async path => { await window.jupyterapp.commands.execute('docmanager:open', {path}); }"

HAS_ITS_KERNEL = """path => {
    const panel = window.jupyterapp?.shell?.currentWidget;
    return panel?.context?.path === path
        && panel.sessionContext.session?.kernel?.status === 'idle';
}"""

LEAVE = """async () => {
    const {serviceManager, shell} = window.jupyterapp;
    for (const widget of [...shell.widgets('main')]) widget.dispose();
    await serviceManager.sessions.shutdownAll();
}"""

MARK_THE_FIRST = """() => {
    const {content} = window.jupyterapp.shell.currentWidget;
    content.deselectAll();
    content.activeCellIndex = 0;
}"""

CELL = """cell => {
    const {content} = window.jupyterapp.shell.currentWidget;
    return content.widgets.find(widget => widget.model.id === cell).node;
}"""

IS_IN_VIEW = """cell => {
    const widgets = window.jupyterapp.shell.currentWidget.content.widgets;
    const node = widgets.find(widget => widget.model.id === cell)?.node;
    const top = node?.getBoundingClientRect().top;
    return node?.isConnected && top >= 0 && top < window.innerHeight / 2;
}"""

RUN_CELL = """async cell => {
    const {commands, shell} = window.jupyterapp;
    const {content} = shell.currentWidget;
    content.activeCellIndex = content.widgets.findIndex(widget => widget.model.id === cell);
    content.deselectAll();
    await commands.execute('notebook:run-cell');
}"""

START_CELL = f"""cell => {{
    window.cellIsOver = false;
    ({RUN_CELL})(cell).then(() => {{ window.cellIsOver = true; }});
}}"""

# A step that is not yet saved when the next one is made would be lost.
ENLARGE = """async by => {
    const {commands, serviceManager} = window.jupyterapp;
    const command = by < 0 ? 'apputils:decr-font-size' : 'apputils:incr-font-size';
    const css = () => getComputedStyle(document.body).getPropertyValue('--jp-code-font-size');
    const saved = async () =>
        (await serviceManager.settings.fetch('@jupyterlab/apputils-extension:themes')).raw;
    for (let step = 0; step < Math.abs(by); step++) {
        const wanted = `${parseFloat(css()) + Math.sign(by)}px`;
        await commands.execute(command, {key: 'code-font-size'});
        while (css() !== wanted || !(await saved()).includes(`"code-font-size": "${wanted}"`))
            await new Promise(requestAnimationFrame);
    }
}"""

SETTING = """async ([plugin, name]) => {
    const {serviceManager} = window.jupyterapp;
    const {schema} = await serviceManager.settings.fetch(plugin);
    return schema.properties[name].default;
}"""

RUN_ALL = """async limit => {
    const {commands, shell} = window.jupyterapp;
    await commands.execute('notebook:clear-all-cell-outputs');
    const late = new Promise(then => setTimeout(() => then(false), limit * 1000));
    const run = commands.execute('notebook:run-all-cells').then(() => true);
    const done = await Promise.race([run, late]);
    await commands.execute('notebook:expand-all-headings');
    return done;
}"""

# Judged is what the page draws of each output that the document holds. The other way round, an
# output that nothing can draw would not be missed: JupyterLab leaves it out without a word.
WRONG_IN_CELLS = r"""() => {
    const wrong = [];
    const joined = lines => [].concat(lines ?? '').join('');
    const squeezed = text => text.replace(/\x1b\[[\d;]*[A-Za-z]/g, '').replace(/\s+/g, '');
    const isVisible = node =>
        node.checkVisibility({visibilityProperty: true, opacityProperty: true})
        && node.getBoundingClientRect().height > 0;
    const wordsOf = html => {
        const body = new DOMParser().parseFromString(html, 'text/html').body;
        body.querySelectorAll('script, style, title, template').forEach(node => node.remove());
        return body.textContent;
    };

    const judgeImages = (node, say) => {
        // Plotly's extension keeps one, hidden, for notebooks that are closed.
        const images = [...node.querySelectorAll('img:not(.plot-img)')];
        for (const image of images) {
            // Of a data: URL only its type, and no token.
            const which = image.src.replace(location.origin, '').split(/[;?]/)[0];
            // JupyterLab writes "Image" where HTML and Markdown have no alt.
            if (['', 'Image'].includes(image.alt.trim())) say(`an image has no alt: ${which}`);
            if (!image.complete || !image.naturalWidth) say(`an image is not loaded: ${which}`);
        }
        if (images.length && !images.some(isVisible)) say('none of its images is visible');
    };

    const judgeText = (node, meant, say) => {
        const want = squeezed(meant), seen = squeezed(node.innerText);
        if (!want) return;
        if (!isVisible(node)) return say('its text is not visible');
        if (seen.includes(want)) return;
        const at = [...want].findIndex((letter, i) => seen[i] !== letter);
        say(`its text is not all to be seen, from ${want.slice(at, at + 40)}`);
    };

    const judgeOutput = (output, box, rendermime, say) => {
        const node = box?.node.querySelector('.jp-OutputArea-output');
        if (output.output_type === 'error') return say(`${output.ename}: ${output.evalue}`);
        if (output.output_type === 'stream') {
            if (!node) return say('its stream is not drawn');
            return judgeText(node, joined(output.text), say);
        }
        const kinds = Object.keys(output.data);
        const kind = rendermime.preferredMimeType(output.data, 'any');
        // Widgets and plots often come with a text that is no replacement for them.
        const ours = name => name.startsWith('application/vnd.lockstep.');
        const rich = kinds.filter(name => name.startsWith('application/vnd.') && !ours(name));
        if (!kind || (rich.length && !rich.includes(kind)))
            return say(`nothing draws ${(rich.length ? rich : kinds).join(', ')}`);
        const drawn = node?.dataset.mimeType;  // an extension's renderer has none
        if (!node || (drawn && drawn !== kind)) return say(`its ${kind} is not drawn`);
        judgeImages(node, say);
        if (['text/html', 'text/plain'].includes(kind)) {
            const meant = joined(output.data[kind]);
            return judgeText(node, kind === 'text/html' ? wordsOf(meant) : meant, say);
        }
        const failed = node.querySelector('.jupyter-widgets-error-widget');
        if (failed || !node.childElementCount || !isVisible(node)) say(`its ${kind} is not drawn`);
    };

    for (const cell of window.jupyterapp.shell.currentWidget.content.widgets) {
        const stored = cell.model.sharedModel.toJSON();
        const say = what => wrong.push(`cell ${stored.id}: ${what}`);
        if (stored.cell_type === 'markdown') judgeImages(cell.node, say);
        if (stored.cell_type !== 'code') continue;
        if (stored.source.trim() && !stored.execution_count) say('it has not run');
        const {widgets, rendermime} = cell.outputArea;
        const [first, ...more] = stored.outputs;
        const hidden = joined(first?.data?.['text/html'] ?? '').includes('"lockstep-spoiler"');
        if (hidden && !more.length) continue; // a cover over nothing is not to be seen
        stored.outputs.forEach((output, i) => judgeOutput(output, widgets[i], rendermime, say));
    }
    return wrong;
}"""

# A click lands on what lies on top there. What is inside of a hint comes after it in the list, and
# so is seen when it is its turn. A widget that was under a cover is drawn once it is seen, and then
# folds the picture below it, which may be opened only afterwards.
OPEN_HINTS = r"""async () => {
    const length = node => node.innerText.replace(/\s+/g, '').length;
    const hints = [...document.querySelectorAll('.jp-OutputArea-output details')];
    const lost = [];
    let all = 0;
    for (const hint of hints) {
        const summary = hint.querySelector(':scope > summary');
        summary.scrollIntoView({block: 'center', behavior: 'instant'});
        if (getComputedStyle(hint).display === 'none') continue; // a cover over nothing
        all++;
        const above = hint.closest('.jp-OutputArea-child').previousElementSibling;
        const widget = above?.querySelector('.jp-OutputArea-output:not([data-mime-type])');
        const limit = performance.now() + 10_000;
        while (widget && hint.matches('.lockstep-still:not([data-plays])')
               && performance.now() < limit)
            await new Promise(then => setTimeout(then, 20));
        if (!hint.open) {
            const {left, top, width, height} = summary.getBoundingClientRect();
            const target = document.elementFromPoint(left + width / 2, top + height / 2);
            if (summary.contains(target)) target.click();
            await new Promise(then => setTimeout(then));
        }
        if (!hint.open || length(hint) <= length(summary)) lost.push(summary.innerText);
    }
    return {all, lost};
}"""

CHECKS = """kind => window.jupyterapp.shell.currentWidget.content.widgets
    .map(cell => cell.model.sharedModel.toJSON())
    .filter(cell => cell.cell_type === 'code' && cell.source.includes('lockstep.check('))
    .map(cell => [cell.id, cell.outputs.map(output => output.data?.[kind]?.verdict).join('')])"""

SHOWN = """id => window.jupyterapp.shell.currentWidget.content.widgets
    .find(cell => cell.model.id === id).outputArea.node.innerText"""

# While a theme comes in, and at the start, a splash screen lies over all.
THEME_IS_ON = """theme => document.body.dataset.jpThemeName === theme
    && !document.getElementById('jupyterlab-splash')"""

NOTEBOOK = "document.querySelector('.jp-NotebookPanel .jp-WindowedPanel-outer')"

FULL_HEIGHT = f"""() => {{
    const outer = {NOTEBOOK};
    outer.scrollTop = 0;
    const last = window.jupyterapp.shell.currentWidget.content.widgets.at(-1).node;
    const below = last.getBoundingClientRect().bottom - outer.getBoundingClientRect().bottom;
    return Math.ceil(window.innerHeight + below) + 20;
}}"""

SHOW_FILES = """shown => {
    const shell = window.jupyterapp.shell;
    shown ? shell.expandLeft() : shell.collapseLeft();
}"""

IS_LAID_OUT = f"""height => window.innerHeight === height
    && {NOTEBOOK}.clientHeight > height - 300 && document.fonts.status === 'loaded'"""

SCROLL_TO = f"""top => {{
    const outer = {NOTEBOOK};
    outer.scrollTop = top;
    return outer.scrollTop;
}}"""


if __name__ == "__main__":
    try:
        get()
    except LookupError as error:
        sys.exit(str(error))
