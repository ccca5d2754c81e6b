"""Text of others (names in files, paths, messages) made fit to be shown to a person."""

from __future__ import annotations

import re

# Control characters move the cursor, hide text or set a terminal's title; those of bidirectional
# text turn the order of what is shown round; lone surrogates cannot be encoded at all.
_UNFIT = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: object) -> str:
    """The text with what a terminal would obey instead of showing written out: "\\x1b[2J".

    Lines and tabs stay.
    """
    return _UNFIT.sub(lambda found: found[0].encode("unicode_escape").decode(), str(text))


def in_one_line(text: object) -> str:
    """The same for a name, which must not seem to be several lines of ours."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")
