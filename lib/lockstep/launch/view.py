"""How a job is drawn: the same content as text (stable from run to run) and as HTML."""

from __future__ import annotations

import html as escaping
from collections import Counter
from typing import TYPE_CHECKING, Any

from ..words import by_value, quantity, ranks_text
from .calls import Call
from .output import fold

if TYPE_CHECKING:
    from .job import Job

# Okabe and Ito's palette, which colour-blind people can tell apart; the rank is always named too.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D1F", "#666666")
_WHITE_INK = ("#0072B2", "#8C6D1F", "#666666")  # black reads better on the others
_MOST_BARS = 400  # calls of one rank in the strip; a timeline is the place for more


def text(job: Job, report: bool = True) -> str:
    """Output, results, what went wrong (unless `report` is False), and state.

    Equal lines of several ranks are folded.
    """
    blocks = [(ranks_text(who), lines) for who, lines in _output(job)]
    blocks += [(f"{who} →", value.splitlines()) for who, value in _results(job)]
    width = max((len(label) for label, _ in blocks), default=0)
    rows = [
        f"{label if at == 0 else '':<{width}} │ {line}".rstrip()
        for label, lines in blocks
        for at, line in enumerate(lines)
    ]
    if report and job.report:
        rows += ["", *job.report.splitlines(), ""]
    if job.note:
        rows.append(f"note: {job.note}")
    if calls := _calls_line(job):
        rows.append(calls)
    return "\n".join([*rows, job.summary()])


def _output(job: Job) -> list[tuple[tuple[int, ...], list[str]]]:
    return fold({r: output.lines for r, output in enumerate(job.outputs) if r not in job.hidden})


def _results(job: Job) -> list[tuple[str, str]]:
    values = [
        job.unsent.get(rank, shown) if rank not in job.hidden else None
        for rank, shown in enumerate(job.shown)
    ]
    return by_value(values)


def _calls_line(job: Job) -> str:
    if job.state == "running":
        return ""
    said: list[str | None] = []
    for calls in job.calls:
        counted = Counter(call.operation for call in calls)
        said.append(", ".join(f"{count} {name}" for name, count in counted.items()) or None)
    parts = by_value(said)
    if not parts:
        return ""
    if len(parts) == 1 and all(said):
        return f"calls: {parts[0][1]} on each rank" if job.nproc > 1 else f"calls: {parts[0][1]}"
    return "calls: " + "; ".join(f"{calls} on {who}" for who, calls in parts)


# ── HTML ─────────────────────────────────────────────────────────────────────────────────────
# Styles are inline, and colours JupyterLab's own, so that it reads in the light and the dark
# theme and in a saved notebook. All text is escaped: what a rank prints is data.

_MONO = "font-family:var(--jp-code-font-family,monospace);font-size:var(--jp-code-font-size,13px)"
_WRAP = "word-break:normal;overflow-wrap:anywhere"
_MUTED = "color:var(--jp-ui-font-color2,#666)"
_LINE = "var(--jp-border-color2,#ddd)"


def html(job: Job, report: bool = True) -> str:
    parts = [
        _block(ranks_text(who), min(who), "\n".join(lines), job.nproc)
        for who, lines in _output(job)
    ]
    results = [
        _block(who, _first_rank(who), value, job.nproc, result=True) for who, value in _results(job)
    ]
    body = "".join(parts + results)
    strip = "" if job.state == "running" else _strip(job)
    wrong = _report(job.report) if report and job.report else ""
    note = f'<div style="{_MUTED}">note: {_escape(job.note)}</div>' if job.note else ""
    sign = {"running": "…", "ok": "✓", "failed": "✗", "interrupted": "■"}[job.state]
    seconds = f" · {job.seconds:.3g} s" if job.seconds else ""
    foot = (
        f'<div style="{_MUTED};font-size:12px;margin-top:4px">'
        f"{sign} {_escape(job.summary())}{seconds}</div>"
    )
    return (
        f'<div class="lockstep-job" style="line-height:1.45;color:var(--jp-ui-font-color1,#111)">'
        f"{body}{wrong}{strip}{note}{foot}</div>"
    )


def _escape(value: Any) -> str:
    return escaping.escape(str(value))


def _first_rank(who: str) -> int:
    digits = "".join(c if c.isdigit() else " " for c in who).split()
    return int(digits[0])


def _block(who: str, rank: int, content: str, nproc: int, result: bool = False) -> str:
    colour = _COLOURS[rank % len(_COLOURS)]
    arrow = '<span title="result"> →</span>' if result else ""
    background = "background:var(--jp-layout-color2,#f5f5f5);" if result else ""
    return (
        f'<div style="display:flex;border-left:4px solid {colour};margin:1px 0;{background}">'
        f'<div style="flex:0 0 7.5em;padding:1px 8px;font-size:12px;white-space:nowrap">'
        f"{_escape(who)}{arrow}</div>"
        f'<pre style="{_MONO};margin:0;padding:1px 4px;white-space:pre-wrap;{_WRAP};'
        f'background:transparent;color:inherit">{_escape(content)}</pre></div>'
    )


def _report(report: str) -> str:
    """The headline in bold, the marked lines of the learner's code standing out."""
    lines = []
    for at, line in enumerate(report.splitlines()):
        if at == 0:
            lines.append(f"<b>✗ {_escape(line)}</b>")
        elif line.lstrip().startswith("→"):
            lines.append(f"<b>{_escape(line)}</b>")
        else:
            lines.append(_escape(line))
    return (
        f'<pre role="alert" style="{_MONO};{_WRAP};margin:6px 0;padding:6px 10px;'
        "white-space:pre-wrap;border-left:4px solid #D55E00;color:inherit;"
        'background:var(--jp-layout-color2,#f5f5f5)">' + "\n".join(lines) + "</pre>"
    )


def _strip(job: Job) -> str:
    """When each rank was in which call: one lane a rank, one bar a call."""
    calls = [call for rank in job.calls for call in rank]
    if not calls or max(len(rank) for rank in job.calls) > _MOST_BARS:
        return ""
    start = min(call.start for call in calls)
    end = max(call.end or call.start for call in calls)
    span = max(end - start, 1e-6)
    width, left, lane = 720, 60, 18
    operations = sorted({call.operation for call in calls})
    shapes = []
    height = 0
    for rank, own in enumerate(job.calls):
        top = height
        shapes.append(
            f'<text x="0" y="{top + 13}" font-size="11" fill="currentColor">rank {rank}</text>'
            f'<line x1="{left}" x2="{left + width}" y1="{top + 9}" y2="{top + 9}" '
            f'stroke="{_LINE}"/>'
        )
        rows = _rows(own, end)
        height += lane * (1 + max(rows, default=0))
        for call, row in zip(own, rows, strict=True):
            y = top + row * lane
            x = left + (call.start - start) / span * width
            length = max(((call.end or end) - call.start) / span * width, 1.5)
            at = operations.index(call.operation)
            colour = _COLOURS[at % len(_COLOURS)]
            label = call.operation if length > 7 * len(call.operation) else ""
            dash, ink = "", "#fff" if colour in _WHITE_INK else "#000"
            if call.end is None:
                dash, ink = ' stroke-dasharray="3 2" fill-opacity="0.15"', "currentColor"
            shapes.append(
                f"<g><title>{_escape(_hover(call, start))}</title>"
                f'<rect x="{x:.1f}" y="{y + 2}" width="{length:.1f}" height="{lane - 3}" rx="2" '
                f'fill="{colour}" stroke="{colour}"{dash}/>'
                f'<text x="{x + 4:.1f}" y="{y + 13}" font-size="11" fill="{ink}">'
                f"{_escape(label)}</text></g>"
            )
    legend = " · ".join(
        f'<span style="color:{_COLOURS[i % len(_COLOURS)]}">■</span> {_escape(name)}'
        for i, name in enumerate(operations)
    )
    return (
        f'<div style="margin-top:6px"><svg role="img" aria-label="{_escape(_spoken(job))}" '
        f'viewBox="0 0 {left + width} {height}" style="max-width:{left + width}px;width:100%">'
        f"{''.join(shapes)}</svg>"
        f'<div style="font-size:11px;{_MUTED};padding-left:{left}px">{legend} · '
        f"the strip is {quantity(span, 's')} long</div></div>"
    )


def _rows(calls: list[Call], end: float) -> list[int]:
    """For each call its row within the rank's lane: calls that overlap stand below each other."""
    free: list[float] = []  # when each row is free again
    rows = []
    for call in calls:
        row = next((at for at, until in enumerate(free) if until <= call.start), len(free))
        free[row : row + 1] = [call.end or end]
        rows.append(row)
    return rows


def _hover(call: Call, start: float) -> str:
    took = "never ended" if call.end is None else f"took {quantity(call.seconds, 's')}"
    began = quantity(call.start - start, "s")
    return f"{call}\n{call.bytes} bytes · began at {began} · {took}"


def _spoken(job: Job) -> str:
    """What a screen reader says of the strip."""

    def said(call: Call) -> str:
        return f"{call.operation} {quantity(call.seconds, 's') if call.end else 'unfinished'}"

    lanes = (
        f"rank {rank}: {', '.join(said(call) for call in own[:8]) or 'no calls'}"
        for rank, own in enumerate(job.calls)
    )
    return "Calls of each rank over time. " + "; ".join(lanes)
