"""Which operator a kernel was launched in, among those that record what they communicate.

Two ways lead from a kernel to that operator. Its launch (rank and correlation) began on a thread
while the operator ran there: that is what the profiler saw. Or both have one External id. Recorders
of 2023 to 2025 wrote the correlation into the External id of launches and kernels, so that the two
ranges of numbers may overlap by chance; hence nesting goes first, an External id that equals the
correlation says nothing, and one that names an operator which did not run at the launch neither.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...joins import innermost
from ...slices import NONE, Column, Kind
from . import kinds

Mask = NDArray[np.bool_]


class Recorders:
    """For each row the operator that may say what it communicates, NONE for none (`row`).

    nested: whether that is known by the place of the launch, not by the External id. itself:
    whether that operator itself launched the row, and no operator inside of it did.
    """

    def __init__(self, columns: dict[str, Column], names: list[str], kernels: Mask, sized: Mask):
        """sized: the rows that say how much they communicate; of operators inside each other such
        a one is taken, and of these the innermost."""
        self._start, self._lane = columns["start"], columns["lane"]
        self._end = self._start + columns["duration"]
        rows = len(self._start)
        self.row = np.full(rows, NONE, np.int64)
        self.nested, self.itself = np.zeros(rows, bool), np.zeros(rows, bool)
        may = np.array([kinds.records_collective(one) or "c10d" in one for one in names], bool)
        on_cpu = np.isin(columns["kind"], (Kind.OPERATOR, Kind.ANNOTATION))
        operators = np.flatnonzero(may[columns["name"]] & on_cpu)
        if not len(operators):
            return
        of_interest = np.flatnonzero(kernels)
        launch = _launches(columns, of_interest)
        self._by_nesting(of_interest, launch, operators, np.flatnonzero(on_cpu), sized)
        self._by_external_id(columns, of_interest, launch, operators)

    def _by_nesting(
        self, kernels: Column, launch: Column, operators: Column, on_cpu: Column, sized: Mask
    ) -> None:
        launched = np.flatnonzero(launch != NONE)
        lanes = self._lane[launch[launched]]
        for lane in np.unique(self._lane[operators]):
            mine = launched[lanes == lane]
            rows, calls = kernels[mine], self._start[launch[mine]]
            of_lane = operators[self._lane[operators] == lane]
            inner = self._around(of_lane, calls)
            saying = self._around(of_lane[sized[of_lane]], calls)
            self.row[rows] = np.where(saying == NONE, inner, saying)
            self.nested[rows] = inner != NONE
            # A copy that a collective makes on the way is an operator's inside of it.
            inside = on_cpu[self._lane[on_cpu] == lane]
            inside = inside[self._around(of_lane, self._start[inside]) != NONE]
            self.itself[rows] = (inner != NONE) & (self._around(inside, calls) == inner)

    def _around(self, rows: Column, times: Column) -> Column:
        """For each time the innermost of these rows of one lane that holds it, or NONE."""
        at = innermost(self._start[rows], self._end[rows], times)
        return np.where(at == NONE, NONE, rows[at]) if len(rows) else at

    def _by_external_id(
        self, columns: dict[str, Column], kernels: Column, launch: Column, operators: Column
    ) -> None:
        external, correlation = columns["external"], columns["correlation"]
        said = np.where((external > 0) & (external != correlation), external, NONE)
        own = said[kernels]
        own = np.where((own == NONE) & (launch != NONE), said[launch], own)
        left = np.flatnonzero((own != NONE) & (self.row[kernels] == NONE))
        operators = operators[said[operators] != NONE]
        if not len(left) or not len(operators):
            return
        found = look_up(external, operators, own[left])
        called = self._start[launch[left]]
        ran = (self._start[found] <= called) & (called < self._end[found])
        found = np.where(ran | (launch[left] == NONE), found, NONE)
        self.row[kernels[left]] = found
        self.itself[kernels[left]] = found != NONE


def _launches(columns: dict[str, Column], kernels: Column) -> Column:
    """For each of these rows the row of its launch, NONE where the file does not have it."""
    calls = (columns["kind"] == Kind.LAUNCH) & (columns["correlation"] > 0)
    calls = np.flatnonzero(calls)
    if not len(calls):
        return np.full(len(kernels), NONE, np.int64)
    return look_up(columns["correlation"], calls, columns["correlation"][kernels])


def look_up(column: Column, rows: Column, values: Column) -> Column:
    """For each value the first of these rows whose column has it, NONE where there is none."""
    rows = rows[np.argsort(column[rows], kind="stable")]
    at = np.minimum(np.searchsorted(column[rows], values), len(rows) - 1)
    return np.where(column[rows[at]] == values, rows[at], NONE)
