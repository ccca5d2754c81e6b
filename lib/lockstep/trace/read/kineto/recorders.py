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

from ...joins import innermost, look_up
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
        self._columns, rows = columns, len(columns["start"])
        self.row = np.full(rows, NONE, np.int64)
        self.nested, self.itself = np.zeros(rows, bool), np.zeros(rows, bool)
        may = np.array([kinds.records_collective(one) or "c10d" in one for one in names], bool)
        on_cpu = np.isin(columns["kind"], (Kind.OPERATOR, Kind.ANNOTATION))
        operators = np.flatnonzero(may[columns["name"]] & on_cpu)
        if not len(operators):
            return
        of_interest = np.flatnonzero(kernels)
        correlation = columns["correlation"]
        calls = np.flatnonzero((columns["kind"] == Kind.LAUNCH) & (correlation > 0))
        launch = look_up(correlation, calls, correlation[of_interest])
        self._by_nesting(of_interest, launch, operators, np.flatnonzero(on_cpu), sized)
        self._by_external_id(of_interest, launch, operators)

    def _by_nesting(
        self, kernels: Column, launch: Column, operators: Column, on_cpu: Column, sized: Mask
    ) -> None:
        columns = self._columns
        start, lane_of = columns["start"], columns["lane"]
        launched = np.flatnonzero(launch != NONE)
        lanes = lane_of[launch[launched]]
        for lane in np.unique(lane_of[operators]):
            mine = launched[lanes == lane]
            rows, calls = kernels[mine], start[launch[mine]]
            of_lane = operators[lane_of[operators] == lane]
            inner = around(columns, of_lane, calls)
            saying = around(columns, of_lane[sized[of_lane]], calls)
            self.row[rows] = np.where(saying == NONE, inner, saying)
            self.nested[rows] = inner != NONE
            # A copy that a collective makes on the way is an operator's inside of it.
            inside = on_cpu[lane_of[on_cpu] == lane]
            inside = inside[around(columns, of_lane, start[inside]) != NONE]
            self.itself[rows] = (inner != NONE) & (around(columns, inside, calls) == inner)

    def _by_external_id(self, kernels: Column, launch: Column, operators: Column) -> None:
        columns = self._columns
        external, start = columns["external"], columns["start"]
        said = np.where((external > 0) & (external != columns["correlation"]), external, NONE)
        own = said[kernels]
        own = np.where((own == NONE) & (launch != NONE), said[launch], own)
        left = np.flatnonzero((own != NONE) & (self.row[kernels] == NONE))
        operators = operators[said[operators] != NONE]
        found = look_up(external, operators, own[left])
        called = start[launch[left]]
        ran = (start[found] <= called) & (called < start[found] + columns["duration"][found])
        found = np.where(ran | (launch[left] == NONE), found, NONE)
        self.row[kernels[left]] = found
        self.itself[kernels[left]] = found != NONE


def around(columns: dict[str, Column], rows: Column, times: Column) -> Column:
    """For each time the innermost of these rows of one lane that holds it, or NONE."""
    start = columns["start"][rows]
    at = innermost(start, start + columns["duration"][rows], times)
    return np.where(at == NONE, NONE, rows[at]) if len(rows) else at
