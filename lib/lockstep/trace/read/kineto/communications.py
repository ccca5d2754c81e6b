"""Which slices communicate, by which evidence, and what is known of each."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...joins import grouped
from ...slices import NONE, Collective, Column, Kind, Numbering
from . import kinds
from .about import ranks_in
from .recorders import Recorders, around
from .rows import Said

Mask = NDArray[np.bool_]
# See `kinds`; of several the first counts.
_EVIDENCE = ("metadata", "launch", "external id", "name")
_METADATA, _LAUNCH, _EXTERNAL, _NAME = range(len(_EVIDENCE))


def find_communications(
    columns: dict[str, Column],
    names: list[str],
    said: list[Said],
    about: dict[str, Any],
    notes: list[str],
) -> list[Collective]:
    """Tells communication from computation among kernels (changes "kind"), and adds the column
    "collective". See `kinds` for the evidence."""
    on_gpu = columns["kind"] == Kind.COMPUTE
    sized = [one.elements_in >= 0 or one.bytes_in >= 0 for one in said]
    sized.append(False)  # the last place is for NONE, which is −1
    recorders = Recorders(columns, names, on_gpu, np.array(sized, bool)[columns["said"]])
    evidence = _evidence(columns, names, recorders, on_gpu)
    communicates = evidence != NONE
    columns["kind"][communicates] = Kind.COMMUNICATION
    recorder = recorders.row
    # Kernels that do not say their sequence have that of the operator that launched them.
    sequence = columns["sequence"]
    silent = (recorder != NONE) & (sequence < 0)
    sequence[silent] = sequence[recorder[silent]]
    sequence[~communicates] = NONE  # of an operator: it names the same collective a second time
    rows = np.flatnonzero(communicates)
    clues = _clues(columns, names, rows, evidence[rows], recorder[rows])
    distinct, row = np.unique(clues, axis=1, return_inverse=True)  # far fewer than rows
    groups = {one["name"]: one for one in about.get("groups", [])}
    known = Numbering()
    numbers = []
    for how, fact, *clue in distinct.T.tolist():
        words = said[fact] if fact != NONE else Said()
        kernel, operator, annotation = ("" if name == NONE else names[name] for name in clue)
        operation = _operation(words, how, kernel, operator, annotation)
        numbers.append(known[_collective(operation, words, _EVIDENCE[how], groups, about)])
    columns["collective"] = np.full(len(communicates), NONE, np.int32)
    columns["collective"][rows] = np.array(numbers, np.int32)[row.ravel()] if len(rows) else NONE
    about["communication"] = _counts(list(known), columns, rows, on_gpu)
    short = {one.group for one in known if one.group and not one.ranks}
    if short:
        which = ", ".join(sorted(short)[:5])
        notes.append(f"the ranks of process groups are not (or not all) given: {which}")
    return list(known)


def _evidence(
    columns: dict[str, Column], names: list[str], recorders: Recorders, on_gpu: Mask
) -> Column:
    """For each row by what it is known to communicate, NONE where it does not."""
    name, recorder = columns["name"], recorders.row
    named = np.array([kinds.is_communication(one) for one in names], bool)[name] & on_gpu
    records = np.array([kinds.records_collective(one) for one in names], bool)
    linked = recorder != NONE
    by_recorder = linked & (named | (recorders.itself & records[name[recorder]]))
    by_itself = (on_gpu & (columns["said"] != NONE)) | (columns["kind"] == Kind.COMMUNICATION)
    ways = (by_itself, by_recorder & recorders.nested, by_recorder, named)
    return np.select(ways, (_METADATA, _LAUNCH, _EXTERNAL, _NAME), NONE)


def _clues(
    columns: dict[str, Column], names: list[str], rows: Column, evidence: Column, recorder: Column
) -> Column:
    """For each of these rows what tells its collective: the evidence; the index of what is said;
    the names of itself, of the operator that launched it, of the annotation around it, or NONE."""
    said, name = columns["said"], columns["name"]
    of_recorder = np.where(recorder == NONE, NONE, said[recorder])
    return np.stack(
        (
            evidence,
            np.where(evidence == _METADATA, said[rows], of_recorder),
            name[rows],
            np.where(recorder == NONE, NONE, name[recorder]),
            _annotated(columns, names, rows),
        )
    )


def _annotated(columns: dict[str, Column], names: list[str], rows: Column) -> Column:
    """For each of these rows the name of the annotation nccl:… that the GPU saw around it."""
    nccl = np.array([one.startswith("nccl:") for one in names], bool)
    marks = np.flatnonzero(nccl[columns["name"]] & (columns["kind"] == Kind.GPU_ANNOTATION))
    found = np.full(len(rows), NONE, np.int64)
    for lane, here in grouped(columns["lane"][rows]):
        mark = around(columns, marks[columns["lane"][marks] == lane], columns["start"][rows[here]])
        found[here] = np.where(mark == NONE, NONE, columns["name"][mark])
    return found


def _operation(said: Said, evidence: int, kernel: str, operator: str, annotation: str) -> str:
    """The first that anything tells, the most certain first; "" if nothing does."""
    return (
        kinds.operation(said.collective)
        or (kinds.operation(operator) if evidence in (_LAUNCH, _EXTERNAL) else "")
        or kinds.operation_of_kernel(kernel)
        or kinds.operation(annotation)
    )


def _collective(
    operation: str,
    said: Said,
    evidence: str,
    groups: dict[str, dict[str, Any]],
    about: dict[str, Any],
) -> Collective:
    group = said.group
    if not group and len(groups) == 1:  # there is no other that it could be
        group = next(iter(groups))
    ranks = ranks_in(said.ranks, said.size) or tuple(groups.get(group, {}).get("ranks", ()))
    if not ranks and said.size == about.get("world_size"):
        ranks = tuple(range(said.size))
    peer = {"send": said.destination, "recv": said.source}.get(operation, NONE)
    size_in, size_out = said.bytes_in, said.bytes_out
    return Collective(
        operation=operation,
        group=group,
        ranks=ranks,
        bytes_in=size_in if size_in >= 0 else kinds.bytes_of(said.elements_in, said.dtype),
        bytes_out=size_out if size_out >= 0 else kinds.bytes_of(said.elements_out, said.dtype),
        dtype=said.dtype,
        peer=max(peer, NONE),
        evidence=evidence,
    )


def _counts(
    known: list[Collective], columns: dict[str, Column], rows: Column, on_gpu: Mask
) -> dict[str, int]:
    """Count communication slices by evidence, and those without an operation."""
    which = columns["collective"][rows]
    times = columns["duration"][rows]
    by_name = np.array([one.evidence == "name" for one in known] or [False], bool)[which]
    unknown = np.array([not one.operation for one in known] or [False], bool)[which]
    return {
        "slices": len(rows),
        "kernels": int(on_gpu[rows].sum()),
        "by_name": int(by_name.sum()),
        "unknown": int(unknown.sum()),
        "time": int(times.sum()),
        "time_by_name": int(times[by_name].sum()),
        "time_unknown": int(times[unknown].sum()),
    }
