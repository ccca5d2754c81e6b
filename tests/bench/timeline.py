"""Time how a timeline is drawn in a real JupyterLab: `timeline.py [SLICES ...] [--json FILE]`.

For each number of slices: the first paint, after the cell's end and after its start, and a frame
while zooming with the wheel. A paint before the cell's end is a negative number: the still picture
is made after the widget is shown. A missed goal is a finding, not an error.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
from report import Report, circumstances, text

sys.path.insert(0, str(Path(__file__).parents[1]))
from browser import Browser, serving

HERE = Path(__file__).parent
RANKS = 8
PAINTED = "first paint after the cell's start"
AFTER_END = "first paint after the cell's end"
SHOWN = "zoom: wheel until shown"
GOALS = {(AFTER_END, 1_000_000): 0.5, (AFTER_END, 10_000_000): 3.0}  # s
FRAME = 50.0  # ms, of SHOWN


def slices(count: int) -> Any:
    """A made-up trace of 8 ranks: nested operators and launches, kernels, collectives."""
    from lockstep.base.provenance import simulated
    from lockstep.trace import Collective, Kind, Lane, Trace

    random = np.random.default_rng(count)
    names = ["aten::mm", "cudaLaunchKernel", "ncclDevKernel_AllReduce"]
    names += [f"void kernel_{number}<float>(int)" for number in range(200)]
    lanes: list[Lane] = []
    pieces: list[dict[str, Any]] = []
    each = round(count / RANKS / 3.01)  # launches of a rank; as many operators and kernels
    for rank in range(RANKS):
        first = len(lanes)
        lanes += [Lane(rank, "thread 1"), Lane(rank, "stream 7", 7, rank)]
        lanes += [Lane(rank, "stream 20", 20, rank)]
        start = np.cumsum(random.integers(300, 2500, each)) + 10_000
        launched = start + 500
        busy = np.minimum(random.integers(100, 2000, each), np.append(np.diff(launched), 1000))
        wait = np.sort(random.choice(launched, each // 100, replace=False))
        waited = np.minimum(random.integers(1000, 60_000, len(wait)), np.append(np.diff(wait), 99))
        nothing = {"correlation": -1, "collective": -1, "sequence": -1}
        linked = nothing | {"correlation": np.arange(each)}
        synchronised = {"correlation": -1, "collective": 0, "sequence": np.arange(len(wait))}
        for lane, name, kind, begun, lasted, more in (
            (0, 0, Kind.OPERATOR, start - 20, 240, nothing),
            (0, 1, Kind.LAUNCH, start, 180, linked),
            (1, random.integers(3, 203, each), Kind.COMPUTE, launched, busy, linked),
            (2, 2, Kind.COMMUNICATION, wait, waited, synchronised),
        ):
            columns = {"start": begun, "duration": lasted, "lane": first + lane, "name": name}
            columns |= {"kind": kind, "rank": rank, "stream": lanes[first + lane].stream, **more}
            pieces.append({key: np.broadcast_to(one, len(begun)) for key, one in columns.items()})
    return Trace(
        {key: np.concatenate([piece[key] for piece in pieces]) for key in pieces[0]},
        lanes=lanes,
        names=names,
        known=[Collective("all_reduce", "world", tuple(range(RANKS)), 1 << 20, 1 << 20, "float32")],
        stamp=simulated("random slices"),
    )


RUN = """async () => {
    const {commands, shell} = window.jupyterapp;
    const cells = shell.currentWidget.content;
    const run = async at => {
        cells.activeCellIndex = at;
        await commands.execute('notebook:run-cell');
    };
    await run(0);
    const now = () => performance.timeOrigin + performance.now();
    const started = now();
    await run(1);
    const ended = now();
    await run(2);
    const built = Number(cells.widgets[2].outputArea.node.innerText) * 1000;
    while (!document.querySelector('[data-complete]')) await new Promise(requestAnimationFrame);
    const {painted, complete} = document.querySelector('[data-complete]').dataset;
    const {slices} = document.querySelector('.lockstep-timeline').dataset;
    return {started, built, ended, painted: Number(painted), complete: Number(complete),
            slices: Number(slices)};
}"""

ZOOM = """async () => {
    const root = document.querySelector('.lockstep-timeline');
    const canvas = root.querySelector('.ls-rows');
    const box = canvas.getBoundingClientRect();
    canvas.focus();
    const frame = () => new Promise(requestAnimationFrame);
    const drawn = [], shown = [];
    for (let k = 0; k < 40; k++) {
        await frame();
        const before = performance.now();
        canvas.dispatchEvent(new WheelEvent('wheel', {
            deltaY: k % 20 < 10 ? -120 : 120, clientX: box.x + box.width * 0.4, clientY: box.y + 50,
            bubbles: true, cancelable: true,
        }));
        await frame();
        await frame();
        shown.push(performance.now() - before);
        drawn.push(Number(root.dataset.frameMs));
    }
    const field = root.querySelector('input');
    field.value = 'kernel_1';
    const before = performance.now();
    field.dispatchEvent(new Event('input'));
    await frame();
    await frame();
    return {drawn, shown, searched: performance.now() - before};
}"""


def measure(report: Report, count: int, browser: Browser, folder: Path) -> None:
    """The times of so many slices. folder: where the browser's JupyterLab looks for notebooks."""
    notebook = nbformat.v4.new_notebook()
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    make = f"import sys; sys.path[:0] = [{str(HERE)!r}]"
    make += "\nimport timeline, lockstep.timeline"
    make += "\nlockstep.timeline.Timeline(timeline.slices(1000))._repr_mimebundle_()"
    make += f"\ntrace = timeline.slices({count})"  # what is imported once is in
    show = "shown = lockstep.timeline.Timeline(trace); built = time.time(); shown"
    cells = ("import time\n" + make, show, "print(built)")
    notebook.cells = [nbformat.v4.new_code_cell(code) for code in cells]
    path = folder / f"{count}.ipynb"
    nbformat.write(notebook, path)
    with browser.open(path.name) as page:
        times = page.tab.evaluate(RUN)
        frames = page.tab.evaluate(ZOOM)
        page.tab.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
        size = path.stat().st_size
        page.open_hints()  # the still picture
        report.errors += page.problems()
    paint = times["painted"]
    for name, unit, samples in (
        ("the cell", "s", [(times["ended"] - times["started"]) / 1e3]),
        (PAINTED, "s", [(paint - times["started"]) / 1e3]),
        ("first paint after its rows are laid out", "s", [(paint - times["built"]) / 1e3]),
        (AFTER_END, "s", [(paint - times["ended"]) / 1e3]),
        ("all there after the cell's end", "s", [(times["complete"] - times["ended"]) / 1e3]),
        ("zoom: a frame drawn", "ms", frames["drawn"]),
        (SHOWN, "ms", frames["shown"]),
        ("search until shown", "ms", [frames["searched"]]),
        ("saved notebook", "kB", [size / 1e3]),
    ):
        row = report.row(f"{count:,} slices: {name}", unit, samples)
        limit = FRAME if name == SHOWN else GOALS.get((name, count))
        if limit is not None:
            goal = f"{row.name}: at most {text(limit, unit)}"
            report.goal(goal, text(row.median, unit), row.median <= limit)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("slices", nargs="*", type=int, default=[1_000_000, 10_000_000])
    parser.add_argument("--json", type=Path, metavar="FILE")
    chosen = parser.parse_args()
    about, found = circumstances(os.getloadavg()[0]), Report()
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as browser:
        for count in chosen.slices:
            measure(found, count, browser, Path(folder))
    print(found)
    if chosen.json:
        found.write(chosen.json, about)
    return 1 if found.errors else 0


if __name__ == "__main__":
    sys.exit(main())
