"""Draws a job: the same content as text (stable from run to run) and as HTML."""

from __future__ import annotations

import html as escaping
import math
from collections import Counter
from typing import Any

from ..base.formatting import by_value, quantity, ranks_text
from ..base.style import (
    COLLECTIVE,
    ERROR,
    RANKS,
    RECV,
    SEND,
    WAITING,
    Look,
    background,
    hatched,
    ink,
)
from ..calls.record import ANY_SOURCE, POINT_TO_POINT, Call
from .outcome import JobData
from .output import fold

_MOST_BARS = 400  # calls of one rank in the strip; a timeline is the place for more


def text(job: JobData, report: bool = True) -> str:
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


def _output(job: JobData) -> list[tuple[tuple[int, ...], list[str]]]:
    return fold({r: output.lines for r, output in enumerate(job.outputs) if r not in job.hidden})


def _results(job: JobData) -> list[tuple[str, str]]:
    values = [
        job.unsent.get(rank, shown) if rank not in job.hidden else None
        for rank, shown in enumerate(job.shown)
    ]
    return by_value(values)


def _calls_line(job: JobData) -> str:
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
# Styles are inline, and texts have the colour of the page around them, so that it reads in every
# theme: JupyterLab's, VS Code's, and in a saved notebook. All text is escaped: what a rank prints
# is data.

# What is smaller than code grows with it, where a class reads it from afar.
_SMALL = "font-size:calc(.92 * var(--jp-code-font-size,13px))"
_SMALLER = "font-size:calc(.85 * var(--jp-code-font-size,13px))"
_MONO = "font-family:var(--jp-code-font-family,monospace);font-size:var(--jp-code-font-size,13px)"
_WRAP = "word-break:normal;overflow-wrap:anywhere"
_SOFT = "background:rgba(127,127,127,.12)"
_LINE = "rgba(127,127,127,.5)"


# White on red reads on every paper.
_CROSS = (
    f'<span style="background:{ERROR};color:#fff;border-radius:3px;padding:0 4px;font-weight:bold">'
    "✗</span>"
)


def html(job: JobData, report: bool = True) -> str:
    parts = [_block(ranks_text(who), min(who), "\n".join(lines)) for who, lines in _output(job)]
    results = [_block(who, _first_rank(who), value, result=True) for who, value in _results(job)]
    body = "".join(parts + results)
    strip = "" if job.state == "running" else _strip(job)
    wrong = _report(job.report) if report and job.report else ""
    note = f"<div>note: {_escape(job.note)}</div>" if job.note else ""
    sign = {"running": "…", "ok": "✓", "failed": _CROSS, "interrupted": "■"}[job.state]
    seconds = f" · {job.seconds:.3g} s" if job.seconds else ""
    foot = f'<div style="{_SMALL};margin-top:4px">{sign} {_escape(job.summary())}{seconds}</div>'
    return (
        f'<div class="lockstep-job" style="line-height:1.45;color:inherit">'
        f"{body}{wrong}{strip}{note}{foot}</div>"
    )


def _escape(value: Any) -> str:
    return escaping.escape(str(value))


def _first_rank(who: str) -> int:
    digits = "".join(c if c.isdigit() else " " for c in who).split()
    return int(digits[0])


def _block(who: str, rank: int, content: str, result: bool = False) -> str:
    colour = RANKS[rank % len(RANKS)]
    arrow = '<span title="result"> →</span>' if result else ""
    ground = f"{_SOFT};" if result else ""
    return (
        f'<div style="display:flex;border-left:4px solid {colour};margin:1px 0;{ground}">'
        f'<div style="flex:0 0 7.5em;padding:1px 8px;{_SMALL};white-space:nowrap">'
        f"{_escape(who)}{arrow}</div>"
        f'<pre style="{_MONO};margin:0;padding:1px 4px;white-space:pre-wrap;{_WRAP};'
        f'background:transparent;color:inherit">{_escape(content)}</pre></div>'
    )


def _report(report: str) -> str:
    """The headline in bold, the marked lines of the learner's code standing out."""
    lines = []
    for at, line in enumerate(report.splitlines()):
        if at == 0:
            lines.append(f"{_CROSS} <b>{_escape(line)}</b>")
        elif line.lstrip().startswith("→"):
            lines.append(f"<b>{_escape(line)}</b>")
        else:
            lines.append(_escape(line))
    return (
        f'<pre role="alert" style="{_MONO};{_WRAP};margin:6px 0;padding:6px 10px;'
        f"white-space:pre-wrap;border-left:4px solid {ERROR};color:inherit;"
        f'{_SOFT}">' + "\n".join(lines) + "</pre>"
    )


# ── The strip ────────────────────────────────────────────────────────────────────────────────

_LANE = 1.8  # of a row, in the height of its letters (em)
_GAP = 0.18  # above and below a bar, in the same
# Operations in which nobody is done before all others, or the sender, have come.
_TOGETHER = ("all_", "reduce_scatter", "barrier", "recv")
_SIDES = {"left": "0", "middle": "-50%", "right": "-100%"}  # of a time's label at its place
_TICKS = 5  # at most, so that they have room on a telephone, too


def _strip(job: JobData) -> str:
    """Draw the calls of each rank until the job was over: one lane a rank, one bar a call.

    In HTML and not as a drawing, whose letters would shrink with it.
    """
    calls = [call for rank in job.calls for call in rank]
    if not calls or max(len(rank) for rank in job.calls) > _MOST_BARS:
        return ""
    start = min(call.start for call in calls)
    ends = [end.at for end in job.ends] or [start] * job.nproc
    over = max([call.end or call.start for call in calls] + ends)
    span = max(over - start, 1e-6)
    waits = _waits(job)
    lanes, used = [], dict[Look, set[str]]()
    for rank, own in enumerate(job.calls):
        until = max([ends[rank], *(call.end or call.start for call in own)])
        rows = _rows(own, until)
        bars = [_lane_line((until - start) / span)]
        for call, row in zip(own, rows, strict=True):
            waited = until if call.end is None else waits.get(id(call), call.start)
            look = _look(call)
            if call.end is not None:
                used.setdefault(look, set()).add(call.operation)
                place = (waited - start) / span, (call.end - start) / span
                bars.append(_bar(place, row, look, call.operation, _hover(call, start)))
            if waited > call.start:
                used.setdefault(WAITING, set())
                place = (call.start - start) / span, (waited - start) / span
                bars.append(_bar(place, row, WAITING, *_waiting(call, waited, start)))
        bars.append(_ending(job, rank, (until - start) / span))
        high = _LANE * (1 + max(rows, default=0))
        lanes.append(
            f'<div style="line-height:{_LANE}em;white-space:nowrap">rank {rank}</div>'
            f'<div style="position:relative;height:{high:g}em">{"".join(bars)}</div>'
        )
    grid = (
        "display:grid;grid-template-columns:max-content minmax(0,1fr);column-gap:8px;"
        f"max-width:71em;padding-right:14px;{_SMALLER}"
    )
    return (
        f'<div style="margin-top:6px"><div role="img" aria-label="{_escape(_spoken(job))}" '
        f'style="{grid}">{"".join(lanes)}<div></div>{_axis(span)}</div>{_legend(used)}</div>'
    )


def _look(call: Call) -> Look:
    return {"send": SEND, "recv": RECV}.get(call.operation, COLLECTIVE)


def _waits(job: JobData) -> dict[int, float]:
    """For each call (by id) that had to wait for another rank: until when.

    Nobody is done with an all-reduce before the last rank has called it, and with a receive before
    its send was called. Not where calls only queue what a GPU does, or hosts' clocks differ.
    """
    if job.nodes > 1 or any(reader.on_gpu or reader.dropped for reader in job.readers):
        return {}
    met: dict[Any, list[Call]] = {}
    for call in (call for own in job.calls for call in own):
        ways: tuple[int | None, ...] = ()
        if call.peer == ANY_SOURCE:
            continue
        if call.operation in POINT_TO_POINT:
            ways = (call.rank, call.peer, call.tag)
            if call.operation == "recv":
                ways = (call.peer, call.rank, call.tag)
        met.setdefault((call.group, ways, call.number), []).append(call)
    until: dict[int, float] = {}
    for (group, ways, _), calls in met.items():
        are_all = {call.rank for call in calls} >= set(ways[:2] or group.ranks)
        last = max(call.start for call in calls) if are_all else math.inf  # for ever
        for call in calls:
            if call.end is not None and call.operation.startswith(_TOGETHER):
                until[id(call)] = min(last, call.end)
    return until


def _waiting(call: Call, until: float, start: float) -> tuple[str, str]:
    """Return what stands in a bar that waits, and what is said over it."""
    lasted = quantity(until - call.start, "s")
    verb = "waits" if call.waited or call.end is not None else "is unfinished after"
    return f"{call.operation} {verb} {lasted}", f"{_hover(call, start)}\n{verb} {lasted}"


def _lane_line(until: float) -> str:
    return (
        f'<div style="position:absolute;left:0;width:{until:.3%};top:{_LANE / 2:g}em;'
        f'border-top:1px solid {_LINE}"></div>'
    )


def _bar(place: tuple[float, float], row: int, look: Look, label: str, hover: str) -> str:
    left, right = place
    is_waiting = look is WAITING
    # In pixels, of letters that are 7 wide where they are 11 high.
    fits = (right - left) * 640 > 7 * len(label)
    ground = hatched(look) if is_waiting else background(look)
    text = (
        f'<span style="background:{look.colour};color:{ink(look.colour)};padding:0 4px;'
        "display:inline-block;vertical-align:top;box-sizing:border-box;max-width:100%;"
        f'overflow:hidden;text-overflow:ellipsis">{_escape(label)}</span>'
    )
    return (
        f'<div title="{_escape(hover)}" style="position:absolute;left:{left:.3%};'
        f"width:{right - left:.3%};min-width:3px;top:{row * _LANE + _GAP:g}em;"
        f"height:{_LANE - 2 * _GAP:g}em;"
        f"box-sizing:border-box;overflow:hidden;white-space:nowrap;"
        f"line-height:{_LANE - 3 * _GAP:g}em;{ground};"
        f'border:1px {"dashed" if is_waiting else "solid"} {look.colour};border-radius:2px">'
        f"{text if fits else ''}</div>"
    )


def _ending(job: JobData, rank: int, at: float) -> str:
    """A cross where the rank failed; where others failed, a check mark where it was done."""
    how = job.ends[rank].how if job.ends else ""
    if job.state == "ok" or how not in ("raised", "died", "done"):
        return ""
    sign, said = (_CROSS, f"rank {rank} {how} here")
    if how == "done":
        sign, said = f'<span style="{_SOFT};padding:0 3px">✓ done</span>', "its job was done"
    side = "translateX(-100%)" if at > 0.9 else "none"
    return (
        f'<div title="{said}" style="position:absolute;left:{at:.3%};top:0;transform:{side};'
        f'line-height:{_LANE}em">{sign}</div>'
    )


def _axis(span: float) -> str:
    """Ticks at round times since the first call; the last is the end of the job."""
    power = 10.0 ** math.floor(math.log10(span / (_TICKS - 1)))
    step = next(n * power for n in (1, 2, 5, 10) if n * power * (_TICKS - 1) >= span * 0.999)
    times = [n * step for n in range(_TICKS) if n * step < span * 0.7]
    marks = [(time, "left" if time == 0 else "middle") for time in times] + [(span, "right")]
    ticks = "".join(
        f'<div style="position:absolute;white-space:nowrap;left:{time / span:.3%};'
        f'transform:translateX({_SIDES[side]})">'
        f"{quantity(time, 's')}</div>"
        for time, side in marks
    )
    return (
        f'<div style="position:relative;height:1.65em;border-top:1px solid {_LINE}">{ticks}</div>'
    )


def _legend(used: dict[Look, set[str]]) -> str:
    """Explain the colours and patterns."""
    parts = []
    for look, operations in used.items():
        ground = hatched(look) if look is WAITING else background(look)
        names = f": {', '.join(sorted(operations))}" if operations - {look.label} else ""
        parts.append(
            '<span><span style="display:inline-block;width:22px;'
            f"height:10px;vertical-align:-1px;{ground};"
            f'border:1px solid {look.colour}"></span> {_escape(look.label + names)}</span>'
        )
    return (
        f'<div style="{_SMALLER};display:flex;flex-wrap:wrap;gap:2px 14px">'
        f"{''.join(parts)}<span>time since the first call</span></div>"
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
    began = f"began at {quantity(call.start - start, 's')}"
    took = f"took {quantity(call.seconds, 's')}"
    if call.queued:
        began, took = f"queued at {quantity(call.start - start, 's')}", "done by the GPU since"
    if call.end is None:
        took = "never ended"
    return f"{call}\n{call.bytes} bytes · {began} · {took}"


def _spoken(job: JobData) -> str:
    """Say in words what the strip shows, for a screen reader."""

    def said(call: Call) -> str:
        if call.end is None:
            until = job.ends[call.rank].at if job.ends else call.start
            return f"{call.operation} unfinished after {quantity(until - call.start, 's')}"
        took = "queued" if call.queued else quantity(call.seconds, "s")
        return f"{call.operation} {took}"

    lanes = (
        f"rank {rank}: {', '.join(said(call) for call in own[:8]) or 'no calls'}"
        for rank, own in enumerate(job.calls)
    )
    return "Calls of each rank over time. " + "; ".join(lanes)
