"""The README's pictures, taken anew: `python tests/readme_pictures.py`. Look at them."""

import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import nbformat
from browser import Page, serving

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


@contextmanager
def opened(cells: Mapping[str, str]) -> Iterator[Page]:
    """A notebook of these cells, by name, in JupyterLab."""
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook = nbformat.v4.new_notebook(metadata={"kernelspec": kernel})
    notebook.cells = [nbformat.v4.new_code_cell(code, id=name) for name, code in cells.items()]
    with tempfile.TemporaryDirectory() as folder:
        nbformat.write(notebook, Path(folder) / "readme.ipynb")
        with serving(Path(folder)) as browser, browser.open("readme.ipynb") as page:
            yield page


def main() -> int:
    with opened(CELLS) as page:
        page.run_all()
        for name, cells in PICTURES.items():
            page.picture(cells, IMAGES / f"{name}.png")
        page.open_hints()
        problems = page.problems()
    print(*problems, sep="\n")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
