"""A compiled function, drawn: its lines, graph nodes and kernels side by side, and who became what.

In a notebook one of them is chosen, by mouse or by the arrow keys, and what belongs to it is
marked. It is HTML and a style sheet without any script: the choice is a radio button. Where there
is no style sheet, as on GitHub, the lists can be read, and there is a picture.
"""

from __future__ import annotations

import html
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..figures.picture import PALETTE, Figure
from ..stamps import Stamp
from ..words import printable
from .look import Compiled, Kernel, Node

_numbers = itertools.count(1)
_TITLES = ("source", "captured by Dynamo", "joint graph of AOTAutograd", "kernels of Inductor")
_INPUT = "input"
_SHOWN = 34  # characters of a kernel's name in the picture
_STYLE = """
.lockstep-compiled .lockstep-columns{display:grid;grid-template-columns:repeat(4,auto);gap:0 1em;
overflow-x:auto;font-family:var(--jp-code-font-family,monospace);font-size:85%}
.lockstep-compiled ol{list-style:none;margin:0;padding:0}
.lockstep-compiled label{display:block;white-space:pre;padding:1px 4px;cursor:pointer;
border-left:4px solid transparent}
.lockstep-compiled input{position:absolute;opacity:0;width:0}
.lockstep-compiled input:focus-visible+span{outline:2px solid currentColor}
.lockstep-compiled details pre{max-height:22em;overflow:auto;font-size:90%}
.lockstep-compiled .lockstep-picture{display:none}
"""


@dataclass(frozen=True)
class Item:
    """What can be chosen: `key` says which list it is in, and where."""

    key: tuple[int, int]
    text: str
    related: frozenset[tuple[int, int]]


def items(seen: Compiled) -> list[list[Item]]:
    """The four lists. Related are: a node and the kernels that compute it, nodes of both graphs
    that stem from the same part of a line, and with them their lines."""
    graphs = [_without_inputs(seen.captured), _without_inputs(seen.joint)]
    links: dict[tuple[int, int], set[tuple[int, int]]] = {}

    def join(*keys: tuple[int, int]) -> None:
        for one in keys:
            links.setdefault(one, set()).update(set(keys) - {one})

    for which, nodes in enumerate(graphs, start=1):
        for at, node in enumerate(nodes):
            if node.line is not None:
                join((which, at), (0, node.line))
    for at, node in enumerate(graphs[1]):
        for other, origin in enumerate(graphs[0]):
            if node.line is not None and (node.line, node.part) == (origin.line, origin.part):
                join((2, at), (1, other))
        for number, kernel in enumerate(seen.kernels):
            if node.name in kernel.nodes:
                join((2, at), (3, number))
                join((3, number), *(key for key in links.get((2, at), ()) if key[0] < 2))
    for number, _ in enumerate(seen.kernels):  # the lines and nodes of a kernel, not of its kin
        join((3, number))
    texts = [
        [printable(line) or " " for line in seen.source],
        *([f"{node.name} = {node.does}" for node in nodes] for nodes in graphs),
        [title(number, kernel) for number, kernel in enumerate(seen.kernels)],
    ]
    return [
        [
            Item((which, at), text, frozenset(links.get((which, at), ())))
            for at, text in enumerate(own)
        ]
        for which, own in enumerate(texts)
    ]


def title(number: int, kernel: Kernel) -> str:
    """ "K1 forward, C++: cpp_fused_add_0": a library's kernel is called by its name."""
    return f"K{number} {kernel.phase}, {kernel.language}: {kernel.name}"


def _without_inputs(nodes: tuple[Node, ...]) -> list[Node]:
    return [node for node in nodes if node.does != _INPUT]


class View:
    """Draws itself: in JupyterLab to choose in, elsewhere as a picture and as text."""

    def __init__(self, seen: Compiled, *, stamp: Stamp):
        self.seen, self.stamp = seen, stamp
        self._items = items(seen)
        kernels = self._items[3]
        alt = (
            f"{count(len(seen.source), 'line')} of source, "
            f"{count(len(self._items[1]), 'node')} captured, "
            f"{count(len(self._items[2]), 'node')} in the joint graph, "
            f"{count(len(kernels), 'kernel')}. "
            + " ".join(f"{one.text}, of {self._from(one)}." for one in kernels)
        )
        rows = max(len(self._items[0]), len(self._items[2]))
        size = (11.0, 0.6 + 0.21 * rows)
        self._figure = Figure(self._draw, alt=alt, stamp=stamp, size=size)

    def _from(self, kernel: Item) -> str:
        nodes = sum(key[0] == 2 for key in kernel.related)
        lines = sorted(at + 1 for which, at in kernel.related if which == 0)
        said = ", ".join(map(str, lines))
        where = f" of line{'' if len(lines) == 1 else 's'} {said}" if lines else ""
        return count(nodes, "node") + where

    def __repr__(self) -> str:
        parts = []
        for heading, own in zip(_TITLES, self._items, strict=True):
            parts.append(f"{heading}\n" + "\n".join(f"  {line}" for line in self._lines(own)))
        return "\n".join([*parts, str(self.stamp)])

    def _lines(self, own: list[Item]) -> Iterator[str]:
        for item in own:
            which, at = item.key
            if which == 0:
                yield f"{at + 1:>2} {item.text}"
            elif which == 3:
                yield f"{item.text} ({self._from(item)})"
            else:
                kernels = sorted(f"K{to}" for kind, to in item.related if kind == 3)
                lines = [str(to + 1) for kind, to in item.related if kind == 0]
                origin = f"line {', '.join(lines)}" if lines else ""
                notes = ", ".join([origin, *kernels] if origin else kernels)
                yield f"{item.text}  · {notes}" if notes else item.text

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        drawn = self._figure._repr_mimebundle_()
        name = f"lockstep-compiled-{next(_numbers)}"
        columns = "".join(
            f"<section><strong>{html.escape(heading)}</strong><ol>"
            + "".join(self._choice(name, item) for item in own)
            + "</ol></section>"
            for heading, own in zip(_TITLES, self._items, strict=True)
        )
        codes = "".join(
            f"<details><summary>{html.escape(item.text)}</summary>"
            f"<pre>{html.escape(printable_lines(kernel.code))}</pre></details>"
            for item, kernel in zip(self._items[3], self.seen.kernels, strict=True)
        )
        muted = 'style="color:var(--jp-ui-font-color2,#666);font-size:85%"'
        text = (
            f"<style>{_STYLE}{self._rules(name)}</style>"
            f'<div class="lockstep-compiled" id="{name}">'
            f'<div class="lockstep-columns" role="radiogroup" '
            f'aria-label="a line, a node or a kernel, to mark what belongs to it">{columns}</div>'
            f"{codes}<div {muted}>{html.escape(str(self.stamp))}</div>"
            f'<div class="lockstep-picture">{drawn["text/html"]}</div></div>'
        )
        return {"text/plain": repr(self), "text/html": text, "image/png": drawn["image/png"]}

    @staticmethod
    def _choice(name: str, item: Item) -> str:
        which, at = item.key
        return (
            f'<li><label class="i{which}-{at}"><input type="radio" name="{name}" '
            f'id="{name}-{which}-{at}"><span>{html.escape(item.text)}</span></label></li>'
        )

    def _rules(self, name: str) -> str:
        """For each choice: what is chosen, and what belongs to it, which is marked in two ways."""
        colour = PALETTE[1]
        rules = []
        for item in itertools.chain.from_iterable(self._items):
            which, at = item.key
            chosen = f"#{name}:has(#{name}-{which}-{at}:checked)"
            kin = ",".join(f"{chosen} .i{to}-{there}" for to, there in sorted(item.related))
            rules.append(f"{chosen} .i{which}-{at}{{border-color:{colour};font-weight:bold}}")
            if kin:
                rules.append(f"{kin}{{border-color:{colour};background:{colour}33}}")
        return "".join(rules)

    def _draw(self, canvas: Any) -> None:
        axes = canvas.subplots()
        axes.axis("off")
        lists = [self._items[0], self._items[2], self._items[3]]
        across, height = (0.0, 4.6, 8.6), max(map(len, lists))
        places: dict[tuple[int, int], tuple[float, float]] = {}
        for x, heading, own in zip(across, (_TITLES[0], *_TITLES[2:]), lists, strict=True):
            axes.text(x, 0.6, heading, weight="bold", fontsize=9)
            gap = height / max(1, len(own)) if own is lists[2] else 1.0
            for at, item in enumerate(own):
                y = -1 - at * gap
                places[item.key] = (x, y)
                text = (
                    item.text if len(item.text) <= _SHOWN + 14 else f"{item.text[: _SHOWN + 13]}…"
                )
                look: Any = {"family": "monospace", "fontsize": 7.5, "va": "center"}
                if item.key[0] == 3:
                    look["color"] = PALETTE[item.key[1] % len(PALETTE)]
                axes.text(x, y, text, **look)
        for item in self._items[2]:
            x, y = places[item.key]
            for which, at in item.related:
                if which == 0:
                    there = places[which, at]
                    line = len(self.seen.source[at]) * 0.074
                    axes.plot(
                        (there[0] + line + 0.1, x - 0.1), (there[1], y), color="#767676", lw=0.5
                    )
                elif which == 3:
                    there = places[which, at]
                    colour = PALETTE[at % len(PALETTE)]
                    style = ("-", "--", ":", "-.")[at % 4]
                    begin = x + len(item.text) * 0.074 + 0.1
                    axes.plot(
                        (begin, there[0] - 0.1), (y, there[1]), color=colour, lw=0.8, ls=style
                    )
        axes.set(xlim=(-0.1, 12.6), ylim=(-1.5 - height, 1.2))


def count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def printable_lines(text: str) -> str:
    return "\n".join(map(printable, text.splitlines()))


def view(seen: Compiled, *, stamp: Stamp) -> View:
    """Show what `look` saw. stamp: `lockstep.live(job)` or `lockstep.recorded(file).stamp`."""
    return View(seen, stamp=stamp)
