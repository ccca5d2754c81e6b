"""A compiled function, drawn: its lines, graph nodes and kernels side by side, and who became what.

In a notebook one of them is chosen, by mouse or by the arrow keys, and what belongs to it is
marked. It is HTML and a style sheet without any script: the choice is a radio button. What is
published has a picture and the lists as text.
"""

from __future__ import annotations

import html
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...base.formatting import cut, printable
from ...base.provenance import Provenance
from ...figures.picture import PALETTE, Figure
from .inspection import Compiled, CompiledKernel, GraphNode

_numbers = itertools.count(1)
_TITLES = ("source", "captured by Dynamo", "joint graph of AOTAutograd", "kernels of Inductor")
_INPUT = "input"
_SHOWN = 48  # characters of a line in the picture
_DASHES = ("-", "--", ":", "-.")  # of kernels, beside their colours
_STYLE = """
.lockstep-compiled .lockstep-columns{display:grid;gap:0 1em;
grid-template-columns:repeat(3,minmax(0,auto)) minmax(16em,1fr);
font-family:var(--jp-code-font-family,monospace);font-size:85%}
.lockstep-compiled section{min-width:0}
.lockstep-compiled ol{list-style:none;margin:0;padding:0;overflow-x:auto}
.lockstep-compiled section:not(:last-child) li{width:max-content;min-width:100%}
.lockstep-compiled label{display:block;white-space:pre;padding:1px 4px;cursor:pointer;
border-left:4px solid transparent}
.lockstep-compiled section:last-child label{white-space:normal;overflow-wrap:anywhere}
.lockstep-compiled input{position:absolute;opacity:0;width:0}
.lockstep-compiled input:focus-visible+span{outline:2px solid currentColor}
.lockstep-compiled details pre{max-height:22em;overflow:auto;font-size:90%}
.lockstep-compiled{container-type:inline-size}
.lockstep-compiled summary{overflow-wrap:anywhere}
@container (max-width:44em){.lockstep-compiled .lockstep-columns{display:block}
.lockstep-compiled ol{max-height:13em;overflow:auto;margin-bottom:.5em}}
"""


@dataclass(frozen=True)
class Item:
    """An entry that can be chosen: `key` says which list it is in, and where."""

    key: tuple[int, int]
    text: str
    related: frozenset[tuple[int, int]]


def items(seen: Compiled) -> list[list[Item]]:
    """Return the four lists.

    Related are: a node and the kernels that compute it, nodes of both graphs that stem from the
    same part of a line, and with them their lines.
    """
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


def title(number: int, kernel: CompiledKernel) -> str:
    """Return such as "K1 forward, C++: cpp_fused_add_0"; a library's kernel has its own name."""
    return f"K{number} {kernel.phase}, {kernel.language}: {kernel.name}"


def _without_inputs(nodes: tuple[GraphNode, ...]) -> list[GraphNode]:
    return [node for node in nodes if node.does != _INPUT]


class View:
    """Draws itself: in JupyterLab to choose in, elsewhere as a picture and as text."""

    def __init__(self, seen: Compiled, *, stamp: Provenance):
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
        rows = max(len(self._items[0]), len(self._drawn()))
        self._figure = Figure(self._draw, alt=alt, stamp=stamp, size=(10.0, 0.6 + 0.17 * rows))

    def _drawn(self) -> list[Item]:
        """Return the joint graph's nodes that a kernel computes: views are in none."""
        return [item for item in self._items[2] if any(key[0] == 3 for key in item.related)]

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
        small = 'style="font-size:85%"'
        text = (
            f"<style>{_STYLE}{self._rules(name)}</style>"
            f'<div class="lockstep-compiled" id="{name}">'
            f'<div class="lockstep-columns" role="radiogroup" '
            f'aria-label="a line, a node or a kernel, to mark what belongs to it">{columns}</div>'
            f"{codes}<div {small}>{html.escape(str(self.stamp))}</div>"
            "</div>"
        )
        return {
            "text/plain": repr(self),
            "text/html": text,
            "image/png": self._figure._repr_mimebundle_()["image/png"],
        }

    @staticmethod
    def _choice(name: str, item: Item) -> str:
        which, at = item.key
        return (
            f'<li><label class="i{which}-{at}"><input type="radio" name="{name}" '
            f'id="{name}-{which}-{at}"><span>{html.escape(item.text)}</span></label></li>'
        )

    def _rules(self, name: str) -> str:
        """Return the style of each choice: of what is chosen, and of what belongs to it, which is
        marked in two ways."""
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
        lists = [self._items[0], self._drawn(), self._items[3]]
        height = max(map(len, lists))
        places: dict[tuple[int, int], tuple[float, float, float]] = {}  # left, right, y
        for x, own in zip((0.0, 46.0, 82.0), lists, strict=True):
            axes.text(x, 0.5, _TITLES[own[0].key[0]] if own else "", weight="bold", fontsize=9)
            gap = height / len(own) if own is lists[2] and own else 1.0
            for at, item in enumerate(own):
                text = cut(item.text, _SHOWN)
                y = -1 - at * gap
                places[item.key] = x - 0.8, x + 0.82 * len(text) + 0.8, y
                colour = {"color": _colour(item)} if own is lists[2] else {}
                axes.text(x, y, text, family="monospace", fontsize=7, va="center", **colour)
        for item in lists[1]:
            left, right, y = places[item.key]
            for key in sorted(item.related & places.keys()):
                there = places[key]
                if key[0] == 0:
                    axes.plot((there[1], left), (there[2], y), color="#767676", lw=0.5)
                elif key[0] == 3:
                    kernel = self._items[3][key[1]]
                    look: Any = {"color": _colour(kernel), "ls": _DASHES[key[1] % len(_DASHES)]}
                    axes.plot((right, there[0]), (y, there[2]), lw=0.9, **look)
        axes.set(xlim=(-1, 126), ylim=(-1.5 - height, 1.2))


def _colour(kernel: Item) -> str:
    return PALETTE[kernel.key[1] % len(PALETTE)]


def count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def printable_lines(text: str) -> str:
    return "\n".join(map(printable, text.splitlines()))


def view(seen: Compiled, *, stamp: Provenance) -> View:
    """Show what `look` saw. stamp: `lockstep.live(job)` or `lockstep.recorded(file).stamp`."""
    return View(seen, stamp=stamp)
