"""The README's pictures and film, taken anew: `python tests/readme_pictures.py`. Look at them."""

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import nbformat
from browser import Browser, serving

IMAGES = Path(__file__).parents[1] / "labs" / "images"
CELLS = {
    "load": "%load_ext lockstep\nimport lockstep",
    "hangs": """\
%%torchrun -n 4 --may-fail
import torch, torch.distributed as dist

x = torch.ones(1)
dist.all_reduce(x)
if dist.get_rank() != 2:
    dist.all_reduce(x)""",
    "timeline": """\
recording = lockstep.recorded("traces/slow-rank")
trace = lockstep.Trace.load(recording.path).align()
lockstep.Timeline(trace, path=trace.critical_path())""",
}
PICTURES = {"failing": ["hangs"], "timeline": ["timeline"]}
FILMED = {
    "load": "%load_ext lockstep",
    "first": "%%torchrun -n 4\n1",  # so that PyTorch is loaded
    "ranks": """\
%%torchrun -n 4
import time
import torch, torch.distributed as dist

rank = dist.get_rank()
for step in range(3):
    time.sleep(0.9 if rank == 2 else 0.2)
    x = torch.tensor([float(rank)])
    dist.all_reduce(x)
    print(f"step {step}: 0 + 1 + 2 + 3 = {x.item()}")""",
}
MOST = 1_500_000  # bytes of the film


def write(path: Path, cells: Mapping[str, str]) -> str:
    """A notebook of these cells, by name."""
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook = nbformat.v4.new_notebook(metadata={"kernelspec": kernel})
    notebook.cells = [nbformat.v4.new_code_cell(code, id=name) for name, code in cells.items()]
    nbformat.write(notebook, path)
    return path.name


def take(browser: Browser, folder: Path, images: Path) -> list[str]:
    """Take all; returns what went wrong. folder: where the browser's JupyterLab looks."""
    with browser.open(write(folder / "pictures.ipynb", CELLS)) as page:
        page.run_all()
        for name, cells in PICTURES.items():
            page.picture(cells, images / f"{name}.png")
        page.open_hints()
        problems = page.problems()
    with browser.open(write(folder / "film.ipynb", FILMED)) as page:
        for name in ("load", "first"):
            page.run(name)
        page.film("ranks", images / "ranks.gif", width=940, height=430)
        problems += page.problems()
    if (size := (images / "ranks.gif").stat().st_size) > MOST:
        problems.append(f"ranks.gif has {size:,} bytes")
    return problems


def main() -> int:
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as browser:
        problems = take(browser, Path(folder), IMAGES)
    print(*problems, sep="\n")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
