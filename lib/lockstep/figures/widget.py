"""Figures that a learner may touch: widgets while the kernel lives, then pictures and sentences."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..base.machine import in_notebook

BROWSER = Path(__file__).with_name("browser")
# Each begins with one of these, which imports from those before it.
FILES: dict[str, tuple[str, ...]] = {
    "player": ("nodes", "widget", "stage", "player"),
    "sliders": ("nodes", "widget", "chart", "lanes", "sliders"),
    "memory": ("nodes", "widget", "colours", "stack", "paint", "held", "memory"),
}
_BETWEEN_FILES = re.compile(r"^import [^;]*;\n|^export (?!default)", re.MULTILINE)
_WIDGET = "application/vnd.jupyter.widget-view+json"
# Where the widget's model is gone, JupyterLab writes an error into an output without children; what
# is below it says more, and what to do: a widget that is there marks it.
_STYLE = (
    "<style>.jp-OutputArea-child:has(+ .jp-OutputArea-child .lockstep-still)"
    ">.jp-OutputArea-output.jupyter-widgets:not(:has(*)){display:none}"
    ".lockstep-still:not([data-plays])>summary::after"
    '{content:" · run the cell again to play with it"}'
    ".lockstep-still>summary{cursor:pointer;font-size:85%}</style>"
)


class Playable:
    """Base of what is played with. The page asks, and Python answers: formulas live here only.

    start: the JavaScript.
    """

    start = ""

    def first(self) -> dict[str, Any]:
        """Return what is asked for at the start."""
        return {}

    def answer(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the page shows; `asked` comes from the page. Raises ValueError for what is
        wrong."""
        raise NotImplementedError

    def still(self) -> dict[str, Any]:
        """Text, HTML and perhaps a PNG for where there is no widget."""
        raise NotImplementedError

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        return self.still()

    def _ipython_display_(self) -> None:
        if not can_be_shown():
            raise NotImplementedError  # IPython then draws it as it draws all else
        still = self.still()
        show(make(self), still.pop("text/plain"))
        show_still({**still, "text/html": folded(still["text/html"], "The same as a picture")})


def can_be_shown() -> bool:
    """Whether there is a notebook, and what widgets are made of."""
    return in_notebook() and find_spec("anywidget") is not None


def show(widget: Any, text: str) -> None:
    """Show a widget. What stays when it is gone follows by `show_still`.

    Two outputs, and not two forms of one: of a saved notebook JupyterLab would show the widget's
    form, and say that there is no widget any more.
    """
    from IPython.display import display

    view = {"model_id": widget.model_id, "version_major": 2, "version_minor": 0}
    display({_WIDGET: view, "text/plain": text}, raw=True)


def show_still(bundle: Mapping[str, Any]) -> None:
    """Show what stays below a widget."""
    from IPython.display import display

    display(dict(bundle), raw=True)


def folded(still: str, summary: str) -> str:
    """Return HTML that stands below a widget, which folds it; on GitHub it is open."""
    return (
        f'{_STYLE}<details open class="lockstep-still"><summary>{html.escape(summary)}'
        f"</summary>{still}</details>"
    )


def script(start: str) -> str:
    """The JavaScript of one kind of widget."""
    return joined(BROWSER, FILES[start])


def joined(folder: Path, files: Iterable[str]) -> str:
    """JavaScript in one scope, as notebooks and pages cannot load a folder of modules.

    files: in an order in which each imports only from those before it.
    """
    texts = [(folder / f"{name}.js").read_text(encoding="utf-8") for name in files]
    return "\n".join(_BETWEEN_FILES.sub("", text) for text in texts)


def reply(playable: Playable, asked: str) -> str:
    """The answer to what a page has asked, both as JSON. What is asked is never trusted."""
    try:
        return json.dumps(playable.answer({**playable.first(), **json.loads(asked)}))
    except (ValueError, TypeError, KeyError) as error:
        return json.dumps({"problem": str(error), "asked": asked})


def make(playable: Playable) -> Any:
    """The widget, which answers for as long as the kernel lives."""
    widget = _model(playable.start)(shown=reply(playable, "{}"))

    def told(change: Any) -> None:
        widget.shown = reply(playable, change["new"])

    widget.observe(told, "asked")
    return widget


@cache
def _model(start: str) -> Any:
    """The class of a widget, made at its first use: the command line needs no widgets."""
    import anywidget
    import traitlets

    class Model(anywidget.AnyWidget):
        """asked, shown: JSON, of the page and for it."""

        _esm = script(start)
        asked = traitlets.Unicode("{}").tag(sync=True)
        shown = traitlets.Unicode("{}").tag(sync=True)

    return Model
