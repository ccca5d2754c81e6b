"""A timeline as one HTML file that needs nothing else: no server, no network, no notebook."""

from __future__ import annotations

import base64
import gzip
import html
from collections.abc import Mapping, Sequence

from ..trace import Trace
from ..trace.analyses.critical import CriticalPath
from .scene import pack, scene
from .script import script

# The browser is told to ask nobody for anything, whatever a trace may hold.
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'"
# Letters are as large as the reader has told the browser; the timeline asks as in JupyterLab.
_STYLE = """
:root{--jp-code-font-size:.8125rem}
body{margin:1.5em auto;max-width:110em;padding:0 1em;font:.875rem/1.5 system-ui,sans-serif;
  color:#1a1a1a;background:#fff}
pre{overflow-x:auto;font-size:var(--jp-code-font-size)}
@media(prefers-color-scheme:dark){body{color:#e6e6e6;background:#111}}
"""


def page(
    trace: Trace,
    sections: Sequence[tuple[str, str]] = (),
    *,
    before: Trace | None = None,
    title: str = "",
    groups: Mapping[str, str] | None = None,
    path: CriticalPath | None = None,
) -> str:
    """A page with the timeline of a trace, to be written to a file.

    sections: (heading, text) each, shown below as they are; nothing of a trace or a text is taken
    for HTML. before, title, groups, path: as for `Timeline`. Raises TraceError as it does.
    """
    # The title stands above.
    shown = scene(trace, before=before, groups=groups, path=path)
    head, columns = pack(shown)
    packed = [gzip.compress(bytes(part), 6, mtime=0) for part in (head.encode(), *columns)]
    data = "".join(
        f'<script type="text/plain">{base64.b64encode(part).decode()}</script>\n' for part in packed
    )
    below = "".join(
        f"<h2>{html.escape(heading)}</h2><pre>{html.escape(text)}</pre>"
        for heading, text in sections
    )
    code = script("page")
    name = html.escape(title or "Timeline")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f'<meta name="viewport" content="width=device-width"><title>{name}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{name}</h1>"
        f'<div id="timeline">Loading the timeline…</div>{below}\n{data}'
        f'<script type="module">{code}</script></body></html>'
    )
