"""A hang after the fact: what the ranks' flight recorders say of their last collectives.

PyTorch keeps each rank's last communications in a ring. NCCL's watchdog writes them to
`TORCH_NCCL_DEBUG_INFO_TEMP_FILE` + rank when a collective times out (TORCH_NCCL_DUMP_ON_TIMEOUT=1,
TORCH_FR_BUFFER_SIZE=2000); `fr_trace_json` of a rank's debug server gives the same as JSON.

Of gloo the state in a dump is always "scheduled" and its groups' ranks are not said; that a
collective is over shows in `retired`, and members are taken to be all ranks for the default group
and those that used it for the others. Sends and receives of gloo are not in the dumps.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...base.formatting import printable, ranks_text
from ...base.provenance import Provenance
from ...calls.diagnose import contradiction
from ...calls.flight import COALESCED, PARTS, recorded
from ...calls.record import Call, Group
from ...figures.table import table
from ..slices import TraceError
from .pickles import line_outside_torch, read_plain

_RANK = re.compile(r"(\d+)(?:\.json|\.pkl|\.pickle)?$")
_STATES = {"scheduled": "queued", "started": "running", "completed": "done"}


@dataclass(frozen=True)
class Entry:
    """One collective of one rank, as its recorder has it.

    call: its number counts from 1, and its start from the Unix epoch; recorders do not say the
    root. state: "queued" (called; that NCCL has begun it is only known under
    TORCH_NCCL_ENABLE_TIMING=1), "running" or "done". where: the innermost Python line outside of
    torch that called it, "" if unknown.
    """

    call: Call
    state: str
    where: str

    def __str__(self) -> str:
        return str(self.call)


@dataclass(frozen=True)
class Missing:
    """A collective that some ranks of its group have entered and others have not."""

    entry: Entry
    waiting: tuple[int, ...]
    missing: tuple[int, ...]

    def __str__(self) -> str:
        verb = "waits" if len(self.waiting) == 1 else "wait"
        text = (
            f"{ranks_text(self.waiting)} {verb} in {self.entry}"
            f"{f' ({self.entry.where})' if self.entry.where else ''} for "
            f"{ranks_text(self.missing)}, which never called it"
        )
        return text[0].upper() + text[1:]


@dataclass(frozen=True)
class Hang:
    """The diagnosis of a hang, by the dumps of flight recorders.

    ranks: that left a dump. absent: members of a group that left none. entered, completed: for
    each rank, its last collective that was called, and the last that is done (None: none is known).
    missing: collectives that not all ranks have entered, by time. mismatches: where ranks called
    different things under one number, in sentences. stuck: collectives that all have entered and
    that are not done, by time. notes: what is assumed or not known.
    """

    ranks: tuple[int, ...]
    absent: tuple[int, ...]
    entered: Mapping[int, Entry | None]
    completed: Mapping[int, Entry | None]
    missing: tuple[Missing, ...]
    mismatches: tuple[str, ...]
    stuck: tuple[Entry, ...]
    notes: tuple[str, ...]
    stamp: Provenance = field(default_factory=lambda: Provenance("recorded", "flight recorder"))

    @property
    def verdict(self) -> str:
        """The first thing to look at, in a sentence."""
        if self.mismatches:
            return self.mismatches[0]
        if self.missing:
            return (
                f"{self.missing[0]}. Every rank of a group must call the same collectives in the "
                "same order."
            )
        if self.absent:
            return (
                f"{ranks_text(self.absent).capitalize()} left no dump: gone, or stuck before the "
                "first collective. The dumps of the others agree."
            )
        if self.stuck:
            return (
                f"All ranks have entered {self.stuck[0]}, and it is not done: the network, or a "
                "GPU that does other work first."
            )
        return "All collectives in the dumps are done on all ranks: nothing hangs in one."

    def _rows(self) -> list[tuple[str, str, str, str]]:
        return [
            (
                f"rank {rank}",
                str(self.entered[rank] or "none"),
                self.entered[rank].state if self.entered[rank] else "",  # type: ignore[union-attr]
                str(self.completed[rank] or "none"),
            )
            for rank in self.ranks
        ]

    def __str__(self) -> str:
        lines = [self.verdict]
        lines += [one for one in self.mismatches if one != self.verdict]
        if self.mismatches or len(self.missing) > 1:
            lines += [str(one) for one in self.missing[not self.mismatches :]]
        lines += [
            f"{rank}: last called {entered}{f' ({state})' if state else ''}; last done {completed}"
            for rank, entered, state, completed in self._rows()
        ]
        return printable("\n".join([*lines, *self.notes]))

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        columns = ("", "last called", "state", "last done")
        shown = table(self.verdict, columns, self._rows(), stamp=self.stamp)
        return {**shown._repr_mimebundle_(), "text/plain": str(self)}


def flight(folder: str | Path, *, stamp: Provenance | None = None) -> Hang:
    """Read the flight-recorder dumps of all ranks, one file a rank.

    folder: holds files whose names end in the rank: pickles as NCCL's watchdog writes them, or
    JSON as `fr_trace_json` answers; other files are left alone. Raises TraceError where there are
    none, where two are of one rank, and for a file that is neither (a pickle can run programs, so
    only plain values are read, see `pickles`).
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise TraceError(f"{folder.name} is not a folder: give the one with a dump of each rank")
    entries: dict[int, list[Entry]] = {}
    named: dict[int, str] = {}
    full: list[int] = []
    for path in sorted(folder.iterdir()):
        found = _RANK.search(path.name)
        if not found or path.name.startswith(".") or not path.is_file():
            continue
        rank = int(found[1])
        if rank in named:
            raise TraceError(f"{named[rank]} and {path.name} are both of rank {rank}")
        named[rank] = path.name
        dump = _read(path)
        try:
            entries[rank] = _entries(rank, dump)
            if any(int(one["record_id"]) > 0 for one in dump["entries"][:1]):
                full.append(rank)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise TraceError(
                f"{path.name}: an entry is not as PyTorch writes it "
                f"({type(error).__name__}: {str(error)[:200]})"
            ) from None
    if not entries:
        raise TraceError(
            f"{folder.name} holds no dumps: files whose names end in the rank, such as "
            "nccl_trace_rank_0. Set TORCH_NCCL_DEBUG_INFO_TEMP_FILE and TORCH_FR_BUFFER_SIZE "
            "before the ranks start"
        )
    entries, assumed = _with_members(entries)
    notes = []
    if assumed:
        notes.append(
            "the dumps do not say which ranks are in a group: taken for all ranks (default group) "
            "or those that used it"
        )
    if full:
        notes.append(f"{ranks_text(full)}: the recorder was full, so the oldest entries are lost")
    stamp = stamp or Provenance("recorded", f"flight recorder, {folder.name}")
    return _judge(entries, full, notes, stamp)


def _read(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        is_json = file.read(1) == b"{"
    if is_json:
        try:
            dump = json.loads(path.read_text(encoding="utf-8", errors="replace"))
        except (ValueError, RecursionError) as error:
            raise TraceError(f"{path.name} is not JSON, or is cut off: {error}") from None
    else:
        dump = read_plain(path)
    if not isinstance(dump, dict) or not isinstance(dump.get("entries"), list):
        raise TraceError(
            f"{path.name} is not a dump of a flight recorder: it has no list `entries`"
        )
    return dump


def _entries(rank: int, dump: Mapping[str, Any]) -> list[Entry]:
    """A rank's collectives, by call; sends and receives are left out, as they have no number."""
    members = {
        str(name): tuple(json.loads(group["ranks"]))
        for name, group in (dump.get("pg_config") or {}).items()
    }
    found = []
    for one in dump["entries"]:
        call = recorded(one)
        if one.get("is_p2p") or call.peer is not None or call.operation in {*PARTS, COALESCED}:
            continue
        name, description = one["process_group"]
        ranks = members.get(str(name), ())
        name = "default" if description == "default_pg" else str(name)
        over = call.backend == "gloo" and one.get("retired")
        state = "done" if over else _STATES.get(one["state"], one["state"])
        start = int(one["time_created_ns"]) / 1e9
        made = Call(
            rank=rank,
            operation=call.operation,
            group=Group(name, ranks),
            number=int(one["collective_seq_id"]),
            shapes=call.shapes,
            dtype=call.dtype,
            bytes=call.bytes,
            peer=None,
            tag=0,
            asynchronous=False,
            start=start,
            end=start if state == "done" else None,
        )
        found.append(Entry(made, state, line_outside_torch(one.get("frames"))[0]))
    return sorted(found, key=lambda entry: entry.call.start)


def _with_members(entries: dict[int, list[Entry]]) -> tuple[dict[int, list[Entry]], bool]:
    """The same, with groups whose ranks no dump says taken for those that may be in them."""
    users: dict[str, set[int]] = {}
    for rank, own in entries.items():
        for one in own:
            users.setdefault(one.call.group.name, set()).add(rank)
    assumed = False

    def known(group: Group) -> Group:
        nonlocal assumed
        if group.ranks:
            return group
        assumed = True
        ranks = range(max(entries) + 1) if group.is_default else sorted(users[group.name])
        return Group(group.name, tuple(ranks))

    whole = {
        rank: [replace(one, call=replace(one.call, group=known(one.call.group))) for one in own]
        for rank, own in entries.items()
    }
    return whole, assumed


def _judge(
    entries: Mapping[int, list[Entry]], full: Container[int], notes: list[str], stamp: Provenance
) -> Hang:
    calls: dict[tuple[Group, int], dict[int, Entry]] = {}
    reached: dict[tuple[Group, int], int] = {}  # (group, rank) → the last number that it called
    for rank, own in entries.items():
        for one in own:
            call = one.call
            calls.setdefault((call.group, call.number), {})[rank] = one
            key = (call.group, rank)
            reached[key] = max(call.number, reached.get(key, 0))

    def unknown(rank: int) -> float:
        """The last number of a rank without an entry: any, where the ring has lost some."""
        return math.inf if rank in full else 0

    missing, mismatches, stuck = [], [], []
    in_order = sorted(calls.values(), key=lambda of: min(one.call.start for one in of.values()))
    for of in in_order:
        verdict = contradiction({rank: one.call for rank, one in sorted(of.items())})
        if verdict:
            mismatches.append(verdict.sentence)
        first = of[min(of)].call
        late = [
            rank
            for rank in first.group.ranks
            if rank in entries and reached.get((first.group, rank), unknown(rank)) < first.number
        ]
        waiting = sorted(rank for rank, entry in of.items() if entry.state != "done")
        if late and waiting:
            missing.append(Missing(of[waiting[0]], tuple(waiting), tuple(late)))
        elif waiting and not verdict:
            stuck.append(of[waiting[0]])
    done = {rank: [one for one in own if one.state == "done"] for rank, own in entries.items()}
    members = {rank for group, _ in calls for rank in group.ranks}
    return Hang(
        ranks=tuple(sorted(entries)),
        absent=tuple(sorted(members - entries.keys())),
        entered={rank: own[-1] if own else None for rank, own in entries.items()},
        completed={rank: own[-1] if own else None for rank, own in done.items()},
        missing=tuple(missing),
        mismatches=tuple(mismatches),
        stuck=tuple(stuck),
        notes=tuple(notes),
        stamp=stamp,
    )
