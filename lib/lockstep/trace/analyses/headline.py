"""Three sentences: what holds the steps back, by how much, and where to look."""

from __future__ import annotations

from ...base.formatting import in_one_line, milliseconds, percent, ranks_text
from ..slices import Slices, TraceError
from .breakdown import Breakdown, Spent, breakdown
from .cause import DRIVER, LITTLE, within
from .collectives import Collectives
from .kernels import kernels
from .launches import launches
from .wording import shortened


def headline(trace: Slices, met: Collectives | str, skip: int = 0) -> tuple[str, ...]:
    """Say in three sentences what takes most of the time besides computing, or else what computes.

    met: the collectives on one clock, or why there are none. Shares are of the time of all ranks
    together. Where the breakdown refuses, the one sentence says why.
    """
    try:
        found = breakdown(trace, skip=skip).whole
    except TraceError as error:
        return (f"What holds the steps back cannot be said: {error}.",)
    first = [f"{why}: it is left out." for why in found.unseen.values()]
    first += [f"{doubt}." for doubt in found.doubts]
    if left_out := list(found.lossy):
        first.append(f"What follows leaves out {ranks_text(left_out)}.")
    shares = {
        "communication": _share(found, "exposed"),
        "host": _share(found, "host_bound"),
        "dependency": _share(found, "dependency"),
        "copies": _share(found, "copies"),
        "nothing": _share(found, "other"),
    }
    worst = max(shares, key=lambda one: shares[one])
    if shares[worst] < LITTLE:
        worst = "compute"
    return (*first, *_SENTENCES[worst](trace, found, met))


def _share(found: Breakdown, what: str) -> float:
    length = sum(one.length for one in found.totals)
    return sum(getattr(one, what) for one in found.totals) / max(length, 1)


def _by_how_much(found: Breakdown, what: str) -> str:
    """12.3 % of the time, 3 to 40 % by rank (most on rank 3)."""

    def of(one: Spent) -> float:
        return float(getattr(one, what)) / max(one.length, 1)

    said = f"{percent(_share(found, what), 1)} of the time"
    if len(found.totals) < 2:
        return said
    most, least = max(found.totals, key=of), min(found.totals, key=of)
    apart = f"{percent(of(least), 1)} to {percent(of(most), 1)}"
    return f"{said} ({apart}; most on {ranks_text([most.rank])})"


def _communication(trace: Slices, found: Breakdown, met: Collectives | str) -> tuple[str, ...]:
    first = (
        f"Communication holds the steps back: {_by_how_much(found, 'exposed')} goes to "
        "communication that no computation hides."
    )
    if isinstance(met, str):
        return first, f"How much of it is waiting for others cannot be said: {met}."
    if not len(met):
        return (
            first,
            "How much of it is waiting for others cannot be said: the traces hold no collective "
            "that several ranks have recorded.",
            "Load the traces of all ranks of one group together.",
        )
    part = f"{percent(met.share)} of the communication is waiting for the rank that comes last"
    if met.share < 0.5 or not met.stragglers:
        return (
            first,
            f"Only {part}: the rest is transfer.",
            "Look at sizes and bus bandwidths in collectives(), and at what could run meanwhile.",
        )
    names = met.late()
    late = [one for one in met.stragglers if one.rank in names] or met.stragglers[:1]
    who = ranks_text(one.rank for one in late)
    times, cost = sum(one.times for one in late), sum(one.caused for one in late)
    often = "once" if times == 1 else f"{times:,} times"
    came = f"{who} came last {often} and cost the others {milliseconds(cost)} ms"
    if not names:
        return (
            first,
            f"{part}, and that is no rank in particular: {came}, the most of all.",
            "Look at what differs from step to step, and at what each did in collectives().",
        )
    doing = next((str(one) for one in late[0].doing if one.where != "nothing recorded"), "")
    come = "does before it comes" if len(late) == 1 else "do before they come"
    tells = f": {doing}." if doing else ", of which its trace tells nothing."
    return first, f"{part}: {came}.", f"Look at what {who} {come}{tells}"


def _host(trace: Slices, found: Breakdown, met: Collectives | str) -> tuple[str, ...]:
    ranks = {one.rank for one in found.totals}
    queues = [one for one in launches(trace).queues if one.rank in ranks]
    queue = max(queues, key=lambda one: one.share)
    look = (
        "Look at launches() and at the operators around the longest stretches: many small "
        "kernels call for fusion or a CUDA graph; long pauses point to data loading or "
        "Python."
    )
    look = _allocates(trace, found, queue.rank) or look
    waited = ""
    if not isinstance(met, str) and queue.rank in met.late():
        waited = f", and the others waited {milliseconds(met.caused()[queue.rank])} ms for it"
    return (
        f"The host holds the steps back: for {_by_how_much(found, 'host_bound')} the GPU idles "
        "because what runs next has not been launched.",
        f"On rank {queue.rank} that happens {queue.stretches:,} times, for "
        f"{milliseconds(queue.longest)} ms at most; nothing is queued for "
        f"{percent(queue.empty / max(queue.length, 1))} of its time{waited}.",
        look,
    )


def _allocates(trace: Slices, found: Breakdown, rank: int) -> str:
    """Return what to do where the host waits for the driver's memory; "" where it hardly does."""
    here = within(trace, found, rank, DRIVER)
    if here.share <= LITTLE:
        return ""
    return (
        f"For {percent(here.share)} of its steps the host is in {here.named}: keep "
        "the sizes of tensors the same from step to step, and do not empty PyTorch's "
        "cache within steps."
    )


def _dependency(trace: Slices, found: Breakdown, met: Collectives | str) -> tuple[str, ...]:
    return (
        f"Dependencies hold the steps back: for {_by_how_much(found, 'dependency')} the GPU idles "
        "although what runs next has been launched.",
        "It waits for an event of another stream, for another rank, or for what is before it in a "
        "graph.",
        "Look at critical_path(), which goes back from the end to what each piece waited for.",
    )


def _copies(trace: Slices, found: Breakdown, met: Collectives | str) -> tuple[str, ...]:
    return (
        f"Copies hold the steps back: for {_by_how_much(found, 'copies')} copies or memsets run "
        "and no kernel does.",
        _largest(trace),
        "Look at copies between host and GPU: pinned memory and a stream of their own hide them.",
    )


def _nothing(trace: Slices, found: Breakdown, met: Collectives | str) -> tuple[str, ...]:
    worst = max(found.totals, key=lambda one: one.other / max(one.length, 1))
    if look := _allocates(trace, found, worst.rank):
        first = f"nothing runs, for {_by_how_much(found, 'other')}"
        return f"The host holds the steps back: nothing is launched and {first}.", look
    return (
        f"What holds the steps back is not in the trace: for {_by_how_much(found, 'other')} "
        "nothing runs, and no launch says why.",
        _largest(trace),
        "Record whole steps, with ProfilerActivity.CPU and CUDA: then launches are in the trace.",
    )


def _compute(trace: Slices, found: Breakdown, met: Collectives | str) -> tuple[str, ...]:
    return (
        f"Computation holds the steps back: it takes {_by_how_much(found, 'compute')}, and nothing "
        f"else more than {percent(LITTLE)}.",
        _largest(trace),
        "Look at kernels(), by_phase() and by_annotation(): only faster or fewer kernels help.",
    )


def _largest(trace: Slices) -> str:
    groups = kernels(trace, 1).groups
    if not groups:
        return "Nothing ran on a GPU: these are times of CPUs."
    name = in_one_line(shortened(groups[0].name))
    return (
        f"The GPUs' largest share, {percent(groups[0].share, 1)}, is {groups[0].count:,} × {name}."
    )


_SENTENCES = {
    "communication": _communication,
    "host": _host,
    "dependency": _dependency,
    "copies": _copies,
    "nothing": _nothing,
    "compute": _compute,
}
