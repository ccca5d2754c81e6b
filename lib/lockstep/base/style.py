"""One colour, one meaning: how each kind of work looks in strips, timelines, charts and pictures.

Colours alone say nothing here: each kind of work has a pattern, too, and is named in a legend.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Look:
    """The name of a kind of work, its colour, and its pattern: one of `CSS` and of `HATCHES`."""

    label: str
    colour: str
    pattern: str = ""


# Blue computes, orange communicates, pink waits, green copies, brown is the host's own, and where
# nothing is drawn a rank or a device is idle. A slash says that it communicates, alone (exposed) or
# while the rank computes (hidden).
COMPUTE = Look("compute", "#0072B2")
COMMUNICATION = Look("communication", "#F2BF4E", "/")
COLLECTIVE = Look("collective", "#F2BF4E", "/")
SEND = Look("send", "#F7DFA6", "|")
RECV = Look("recv", "#D9B15B", "-")
HIDDEN = Look("communicates while it computes", "#7FB2DC", "/")
EXPOSED = Look("exposed communication", "#D97A00", "/")
WAITING = Look("waiting", "#CC79A7", "\\")
COPY = Look("copy", "#009E73", ".")
SET = Look("set", "#9AD1A8", "-")
LAUNCH = Look("launch", "#C9B27C", "|")
HOST = Look("operator", "#8C6D1F")
GREY = "#767676"
ERROR = "#C8102E"  # of nothing but errors
DONE = "#1A7F37"  # of nothing but what is done

# What memory is for, in the order in which it is stacked: what stays longest is at the bottom.
MEMORY = (
    Look("unknown", GREY, "x"),
    Look("weights", "#3F5296"),
    Look("optimizer", "#9F8FD4", "-"),
    Look("gradients", "#A8615A", "\\"),
    Look("activations", "#4C9FA6", "."),
    Look("temporary", "#A9B388", "|"),
)

# Of what users name themselves: far from each other and from what computes, communicates, waits
# and fails, for those, too, who see no red, no green or no blue; not lost on white or black paper.
GROUPS = (("#88CCEE", "."), ("#8A2BE2", "|"), ("#731D50", "-"), ("#C7D998", "x"))
# Of lines in a chart, which are measurements and no kinds. 3:1 at least on either paper.
SERIES = ("#6F4BD8", "#1B9C8C", "#A83279", "#8F8A00", "#5E7FD0", "#2F7D32", "#B07A4A", "#767676")
# Of ranks: pale, where kinds are full (Paul Tol's light scheme). A rank is always named, too.
RANKS = ("#77AADD", "#BBCC33", "#FFAABB", "#44BB99", "#EEDD88", "#99DDFF", "#AAAA00", "#DDDDDD")

# Patterns as matplotlib has them.
HATCHES = {"/": "////", "\\": "\\\\\\\\", "-": "---", "|": "|||", ".": "...", "x": "xxx"}
# And as backgrounds of HTML: an image, and the size of its tiles. JupyterLab's sanitizer, through
# which outputs of other people's notebooks go, lets no repeating gradient pass.
_LINES = "linear-gradient({angle}deg,{ink} 2px,{none} 2px)"
_DIAGONAL = (
    "linear-gradient({angle}deg,{ink} 17%,{none} 17%,{none} 50%,{ink} 50%,{ink} 67%,{none} 67%)"
)
CSS = {
    "": ("none", "auto"),
    "/": (_DIAGONAL.replace("{angle}", "135"), "8px 8px"),
    "\\": (_DIAGONAL.replace("{angle}", "45"), "8px 8px"),
    "-": (_LINES.replace("{angle}", "0"), "6px 6px"),
    "|": (_LINES.replace("{angle}", "90"), "6px 6px"),
    ".": ("radial-gradient({ink} 1px,{none} 1.5px)", "5px 5px"),
    "x": (",".join(_DIAGONAL.replace("{angle}", angle) for angle in ("45", "135")), "8px 8px"),
}
_FAINT = "rgba(255,255,255,0.45)"  # of a pattern's lines, over its colour


def background(look: Look) -> str:
    """CSS of a ground; a text on it needs `ink`, and the plain colour behind it."""
    return f"background-color:{look.colour};{_pattern(look, _FAINT)}"


def hatched(look: Look) -> str:
    """The same without a ground: lines of the colour on whatever the paper is."""
    return _pattern(look, look.colour)


def _pattern(look: Look, ink: str) -> str:
    image, size = CSS[look.pattern]
    image = image.replace("{ink}", ink).replace("{none}", "rgba(0,0,0,0)")
    return f"background-image:{image};background-size:{size}"


def luminance(colour: str) -> float:
    """Return the luminance of "#rrggbb" by WCAG 2: https://www.w3.org/TR/WCAG22/#dfn-relative-luminance."""
    values = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """Between two colours, from 1 to 21, as WCAG 2 has it."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def ink(colour: str) -> str:
    """Black or white, whichever has more contrast on a colour: either then has 4.5 at least."""
    return "#000000" if luminance(colour) > 0.179 else "#ffffff"
