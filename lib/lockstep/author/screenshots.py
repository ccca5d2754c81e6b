"""Take pictures of what only a browser draws, for readers of a stored notebook on GitHub.

GitHub shows no styled HTML, so there a job's strip would be missing.
"""

from __future__ import annotations

import base64
import io
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import platformdirs

MAC = "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"
_STRIP = 'aria-label="Calls of each rank over time'
_WIDTH, _SHARPNESS, _COLOURS = 800, 1.5, 96
_PAGE = (
    '<body style="margin:0;background:#fff;color:#1a1a1a;font:13px sans-serif">'
    '<div style="padding:6px">{}</div></body>'
)


class NoBrowser(LookupError):
    """There is no Chromium; the message says what to do."""


def chromium() -> str:
    """Return the path of a Chromium or Chrome. Raises NoBrowser."""
    if chosen := os.environ.get("CHROMIUM"):
        if path := shutil.which(chosen):
            return path
        raise NoBrowser(f"CHROMIUM={chosen} is not a program")
    for name in ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", MAC):
        if path := shutil.which(name):
            return path
    if own := sorted(_playwrights_own().glob("chromium_headless_shell-*/*/*headless*shell")):
        return str(own[-1])
    raise NoBrowser(
        "Chromium or Google Chrome is needed. On Debian: apt-get install chromium; elsewhere "
        "set CHROMIUM=/path/to/the/browser"
    )


def _playwrights_own() -> Path:
    """Return the folder into which `playwright install` puts browsers."""
    if chosen := os.environ.get("PLAYWRIGHT_BROWSERS_PATH"):
        return Path(chosen)
    return platformdirs.user_cache_path("ms-playwright")


def add_screenshots(notebook: Any) -> None:
    """Give each output of an executed notebook that draws a strip its picture, PNG.

    What the output says in words is in the picture, too. Raises NoBrowser without one.
    """
    if shown := list(_strips(notebook)):
        from playwright.sync_api import sync_playwright

        with sync_playwright() as started:
            browser = started.chromium.launch(executable_path=chromium(), args=["--disable-gpu"])
            size: Any = {"width": _WIDTH, "height": 600}
            page = browser.new_page(viewport=size, device_scale_factor=_SHARPNESS)
            for data in shown:
                page.set_content(_PAGE.format(data["text/html"]))
                png = page.locator("body > div").screenshot()
                data["image/png"] = base64.b64encode(_small(png, data["text/plain"])).decode()
            browser.close()


def _strips(notebook: Any) -> Iterator[Any]:
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if _STRIP in data.get("text/html", "") and "image/png" not in data:
                yield data


def _small(png: bytes, words: str) -> bytes:
    from PIL import Image, PngImagePlugin

    said, file = PngImagePlugin.PngInfo(), io.BytesIO()
    said.add_text("Description", words)
    with Image.open(io.BytesIO(png)) as image:
        few = image.convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE)
    few.save(file, "png", optimize=True, pnginfo=said)
    return file.getvalue()
