"""The timeline in a notebook: a widget while the kernel lives, a picture for ever."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Mapping
from functools import cache, cached_property
from typing import Any

from ..base.formatting import printable
from ..figures.picture import Figure
from ..figures.table import Table
from ..figures.widget import can_be_shown, folded, show, show_still
from ..trace import Trace
from ..trace.analyses.critical import CriticalPath
from .picture import picture
from .scene import Scene, counts, overview, pack, percent, scene
from .script import script


class Timeline:
    r"""A drawing of what every rank did: lanes by rank and stream, to zoom, search and compare.

    trace: with its stamp. before: another trace, drawn above on the same scale, each from its own
    first start. groups: up to four, as {"forward": r"F\d+"}: slices whose whole
    name a pattern matches have a colour and a pattern of their own. path: the trace's
    `critical_path()`, drawn as a line. In a notebook it shows a widget
    and, folded below it, a picture (PNG) with the shares of each rank, which is all that a saved
    notebook shows. Its text says what there is and where it comes from, without a measured time.

    Raises TraceError where there is nothing to draw, and where a group is none.
    """

    def __init__(
        self,
        trace: Trace,
        *,
        before: Trace | None = None,
        title: str = "",
        groups: Mapping[str, str] | None = None,
        path: CriticalPath | None = None,
    ):
        self.scene = scene(trace, before=before, title=title, groups=groups, path=path)

    @cached_property
    def _picture(self) -> Figure:
        return picture(self.scene)

    def __repr__(self) -> str:
        return printable(f"{counts(self.scene)}\n{self.scene.stamp}")

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        still = self._picture._repr_mimebundle_()
        shares = _shares(self.scene)._repr_mimebundle_()
        both = still["text/html"] + shares["text/html"]
        return {
            "text/plain": repr(self),
            "text/html": folded(both, "The same as a picture and in numbers"),
            "image/png": still["image/png"],
        }

    def _ipython_display_(self) -> None:
        if not can_be_shown():
            raise NotImplementedError  # IPython then draws it as it draws all else
        # The widget first: while the picture is made, it is there already.
        widget = _canvas()(key=uuid.uuid4().hex)
        if len(self.scene.start) > _MANY:
            _send(widget, overview(self.scene))
        show(widget, repr(self))
        _send(widget, self.scene)
        widget.fresh = False
        widget.on_msg(_Shown(self.scene).answer)
        still = self._repr_mimebundle_()
        del still["text/plain"]
        show_still(still)


def _shares(scene: Scene) -> Table:
    """Stamped by the picture above it."""
    rows = []
    for one in scene.times:
        rank = f"{scene.parts[one.part].label} {one.rank}".strip()
        known = one.has_compute
        cells = [
            percent(one.compute, one.span) if known else "unknown",
            percent(one.communication, one.span),
            percent(one.exposed, one.span) if known else "unknown",
            *(percent(lasts, one.span) for lasts in one.groups),
        ]
        rows.append((rank, *cells))
    shared = all(part.one_clock for part in scene.parts)
    begin = "the first start to the last end" if shared else "a rank's first start to its last end"
    caption = f"of the time from {begin}"
    columns = ("rank", "computes", "communicates", "exposed communication", *scene.groups)
    return Table(caption, columns, rows, stamp=None)


@cache
def _canvas() -> Any:
    """The widget's class, made at the first use: the command line needs no widgets."""
    import anywidget
    import traitlets

    class Canvas(anywidget.AnyWidget):
        """Its state holds the JavaScript only: what the state holds is stored in notebooks.

        The scene comes in messages, which wait until the JavaScript is there. fresh: it is on its
        way. Later, when a page was loaded anew, it has to be asked for.
        """

        _esm = script("notebook")
        fresh = traitlets.Bool(True).tag(sync=True)
        key = traitlets.Unicode().tag(sync=True)

    return Canvas


class _Shown:
    """The scene of one widget, until later ones need the memory."""

    def __init__(self, scene: Scene):
        self.scene: Scene | None = scene
        _kept.append(self)
        while len(_kept) > 1 and sum(one.slices for one in _kept) > _MOST_KEPT:
            _kept.popleft().scene = None

    @property
    def slices(self) -> int:
        return len(self.scene.start) if self.scene else 0

    def answer(self, widget: Any, content: dict[str, Any], _: Any) -> None:
        if content.get("type") != "scene":
            return
        if self.scene is None:
            widget.send({"type": "scene", "head": ""})
            return
        _send(widget, self.scene)


def _send(widget: Any, scene: Scene) -> None:
    head, columns = pack(scene)
    widget.send({"type": "scene", "head": head}, buffers=columns)


_MANY = 2_000_000  # slices, that take seconds to reach the browser
_MOST_KEPT = 20_000_000  # slices; what the browser has already drawn stays there
_kept: deque[_Shown] = deque()
