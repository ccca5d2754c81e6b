"""Strips as pictures, for who reads a stored notebook on GitHub."""

from __future__ import annotations

import base64
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import lockstep
import nbformat
import pytest
import torch.distributed as dist
from lockstep.base.style import WAITING
from PIL import Image, ImageColor

SOLUTIONS = sorted((Path(__file__).parents[1] / "solutions").glob("*.ipynb"))
# In a process of its own: Playwright has one of its kind in each, and other tests have theirs.
ADD_SCREENSHOTS = """
import sys, nbformat
from lockstep.author.screenshots import add_screenshots
book = nbformat.read(sys.argv[1], 4)
add_screenshots(book)
nbformat.write(book, sys.argv[1])
"""


def with_screenshots(
    path: Path, *shown: object, **environment: str
) -> subprocess.CompletedProcess[str]:
    bundles = [one._repr_mimebundle_() for one in shown]  # type: ignore[attr-defined]
    outputs = [nbformat.v4.new_output("display_data", data=data) for data in bundles]
    nbformat.write(
        nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("", outputs=outputs)]), path
    )
    return subprocess.run(
        [sys.executable, "-c", ADD_SCREENSHOTS, str(path)],
        env={**os.environ, **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def late() -> None:
    """Ranks that wait for rank 0, so that a strip has something to show."""
    import time

    if dist.get_rank() == 0:
        time.sleep(0.2)
    dist.barrier()


def test_a_strip_gets_its_picture_and_other_outputs_stay(tmp_path: Path) -> None:
    path = tmp_path / "book.ipynb"
    job = lockstep.torchrun(late, nproc_per_node=2, show=False)
    silent = lockstep.torchrun(int, "7", nproc_per_node=2, show=False)
    done = with_screenshots(path, job, silent)
    assert done.returncode == 0, done.stderr
    strip, words = (output.data for output in nbformat.read(path, 4).cells[0].outputs)
    assert "image/png" not in words
    with Image.open(io.BytesIO(base64.b64decode(strip["image/png"]))) as picture:
        assert picture.info["Description"] == strip["text/plain"]
        assert picture.width == 1200 and 100 < picture.height < 600
        seen: set[Any] = {colour for _, colour in picture.convert("RGB").getcolors(1 << 24) or ()}
    waiting = ImageColor.getrgb(WAITING.colour)
    assert min(sum(abs(a - b) for a, b in zip(one, waiting, strict=True)) for one in seen) < 30


def test_without_a_browser_it_is_said_what_to_do(tmp_path: Path) -> None:
    job = lockstep.torchrun(late, nproc_per_node=2, show=False)
    done = with_screenshots(tmp_path / "book.ipynb", job, CHROMIUM="nothing-of-that-name")
    assert "NoBrowser: CHROMIUM=nothing-of-that-name is not a program" in done.stderr


@pytest.mark.parametrize("path", SOLUTIONS, ids=lambda path: path.stem)
def test_each_stored_strip_is_a_picture(path: Path) -> None:
    for cell in nbformat.read(path, 4).cells:
        for output in cell.get("outputs", ()):
            words = output.get("data", {}).get("text/plain", "")
            if "\ncalls: " in f"\n{words}" and "rank" in words:
                assert "image/png" in output.data, cell.id
