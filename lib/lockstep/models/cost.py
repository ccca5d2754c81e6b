"""The cost of communication by models: α–β models, and the formulas of collectives.

A message of s bytes takes α + β·s seconds (Hockney 1994, "The communication challenge for MPP:
Intel Paragon and Meiko CS-2"): α is what every message costs, 1/β the bandwidth. A collective is
counted in rounds of such messages. The formulas take the number of ranks, the bytes, and a `Line`;
the bytes are, as in nccl-tests, those of a rank's larger buffer: what all_gather and gather put
out, what reduce_scatter and all_to_all take in.

Not modelled: the arithmetic of a reduction, ranks that come late, links that several messages
share, a message that a GPU splits and pipelines, and that a library picks another algorithm or
protocol for another size. Where a measured curve leaves its formula, look in this list first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Line:
    """The cost of one message: `alpha` seconds, and `beta` seconds a byte, with standard errors.

    `line(nbytes)` is seconds; a number or an array.
    """

    alpha: float
    beta: float
    alpha_error: float = 0.0
    beta_error: float = 0.0

    @overload
    def __call__(self, nbytes: float) -> float: ...
    @overload
    def __call__(self, nbytes: Sequence[float] | Array) -> Array: ...
    def __call__(self, nbytes: Any) -> Any:
        size = nbytes if isinstance(nbytes, int | float) else np.asarray(nbytes, np.float64)
        return self.alpha + self.beta * size

    @property
    def bandwidth(self) -> float:
        """Bytes a second, 1/β; infinite where the sizes do not tell (β is not above 0)."""
        return 1 / self.beta if self.beta > 0 else math.inf

    def __str__(self) -> str:
        return (
            f"α = {_seconds(self.alpha, self.alpha_error)}, "
            f"1/β = {_gigabytes(self.beta, self.beta_error)}"
        )


def fit(nbytes: ArrayLike, seconds: ArrayLike) -> Line:
    """The line through measured times: least squares of the relative errors.

    So 1 % counts the same at 1 kB and at 1 GB; absolute errors would leave α to chance. The
    standard errors say how far scatter moves α and β if the line is right; nan with two points.

    Raises ValueError for fewer than two different sizes, and for times that are not above 0.
    """
    size, time = _sweep(nbytes, seconds)
    columns = np.stack([np.ones_like(size), size], axis=1)
    values, errors = _relative_least_squares(columns, time)
    return Line(*values, *errors)


@dataclass(frozen=True)
class CollectiveFit:
    """The time of a collective of n ranks, from measurements: `fitted(n, nbytes)` is seconds.

    launch + alpha·rounds + beta·(bus factor)·s: `launch` seconds for every call, `alpha` for every
    round (2(n − 1) in an all_reduce, n − 1 in the others, 1 in a send), `beta` a byte on the
    slowest link; with their standard errors. deviation: the median relative distance of the
    measurements from the fit, which says more than the standard errors where the curve is not of
    this form. Rounds and bytes are those of a ring: a sweep of trees is not of this form.

    On the recorded rings of 2 and 4 H200s, the fit of one predicts the other with a median error
    of 4 %, from 1 MiB on 10 to 13 %. max(launch, …) in place of the sum comes no nearer there (in
    gather it does). With all of the time of small messages in `alpha` the error is half and more,
    because what they take is the launch.

    Not modelled: that the wire's time hides behind the launch where it is shorter; that 1/β itself
    grows with n and with s; other protocols and algorithms at other sizes; more than one host.
    """

    operation: str
    ranks: tuple[int, ...]
    launch: float
    alpha: float
    beta: float
    launch_error: float
    alpha_error: float
    beta_error: float
    deviation: float

    @overload
    def __call__(self, n: int, nbytes: float) -> float: ...
    @overload
    def __call__(self, n: int, nbytes: Sequence[float] | Array) -> Array: ...
    def __call__(self, n: int, nbytes: Any) -> Any:
        size = nbytes if isinstance(nbytes, int | float) else np.asarray(nbytes, np.float64)
        share = self.beta * bus_factor(self.operation, n)
        return self.launch + self.alpha * _ring_rounds(self.operation, n) + share * size

    @property
    def bandwidth(self) -> float:
        """Bus bandwidth of messages that are large enough: bytes a second, 1/β."""
        return 1 / self.beta if self.beta > 0 else math.inf

    def __str__(self) -> str:
        ranks = ", ".join(map(str, self.ranks))
        return (
            f"{self.operation} on {ranks} ranks: launch "
            f"{_seconds(self.launch, self.launch_error)}, α = "
            f"{_seconds(self.alpha, self.alpha_error)} a round, bus bandwidth "
            f"{_gigabytes(self.beta, self.beta_error)}; median deviation "
            f"{100 * self.deviation:.1f} %"
        )


def fit_collective(
    operation: str, sweeps: Mapping[int, tuple[ArrayLike, ArrayLike]]
) -> CollectiveFit:
    """One fit through the sweeps of a collective; `sweeps[n]` is (sizes, seconds) of n ranks.

    Least squares of the relative errors, as in `fit`. What a call costs and what a round costs can
    be told apart by several numbers of ranks only: with one, all of it is `launch`, `alpha` is 0
    and its error nan. An `alpha` that would be negative is 0, too, with the error it had.

    Raises ValueError as `fit` and `bus_factor` do.
    """
    if not sweeps:
        raise ValueError("a fit needs the sweep of some number of ranks")
    parts = {n: _sweep(*sweeps[n]) for n in sorted(sweeps)}
    time = np.concatenate([seconds for _, seconds in parts.values()])
    launch = np.ones_like(time)
    rounds = np.concatenate(
        [np.full(len(size), float(_ring_rounds(operation, n))) for n, (size, _) in parts.items()]
    )
    share = np.concatenate([bus_factor(operation, n) * size for n, (size, _) in parts.items()])
    alpha, alpha_error = 0.0, math.nan
    if len(np.unique(rounds)) > 1:
        columns = np.stack([launch, share, rounds], axis=1)
        (base, beta, alpha), (base_error, beta_error, alpha_error) = _relative_least_squares(
            columns, time
        )
    if alpha <= 0:
        alpha = 0.0
        columns = np.stack([launch, share], axis=1)
        (base, beta), (base_error, beta_error) = _relative_least_squares(columns, time)
    known = base + beta * share + alpha * rounds
    off = float(np.median(np.abs(known / time - 1)))
    errors = (base_error, alpha_error, beta_error)
    return CollectiveFit(operation, tuple(parts), base, alpha, beta, *errors, off)


def _ring_rounds(operation: str, n: int) -> int:
    """Return how many messages follow each other around a ring, or along a chain."""
    if operation in ("send", "recv"):
        return 1
    return (2 if operation == "all_reduce" else 1) * (_whole(n) - 1)


def _seconds(value: float, error: float) -> str:
    """A time with its error, in words: 17.7 ± 0.52 µs, 1.38 ± 0.2 ms."""
    for unit, size in ("µs", 1e-6), ("ms", 1e-3):
        if abs(value) < 1000 * size:
            return f"{value / size:.3g} ± {float(f'{error / size:.2g}'):g} {unit}"
    return f"{value:.3g} ± {error:.2g} s"


def _gigabytes(beta: float, error: float) -> str:
    """1/β with its error, in words."""
    return f"{1e-9 / beta:.3g} ± {1e-9 * error / beta**2:.2g} GB/s" if beta > 0 else "unknown"


def _relative_least_squares(columns: Array, time: Array) -> tuple[list[float], list[float]]:
    """Coefficients of the columns, and their standard errors, for the least relative errors."""
    weighted = columns / time[:, None]
    # Bytes and ones differ by nine orders of magnitude: of one scale they are solved without loss.
    scale = np.linalg.norm(weighted, axis=0)
    values, _, rank, _ = np.linalg.lstsq(weighted / scale, np.ones_like(time), rcond=None)
    count, unknowns = columns.shape
    if rank < unknowns:
        raise ValueError(f"these measurements cannot tell {unknowns} unknowns apart")
    if count == unknowns:
        return (values / scale).tolist(), [math.nan] * unknowns
    rest = float(np.sum((weighted / scale @ values - 1) ** 2)) / (count - unknowns)
    inverse = np.linalg.inv((weighted / scale).T @ (weighted / scale))
    return (values / scale).tolist(), (np.sqrt(np.diag(inverse) * rest) / scale).tolist()


def _sweep(nbytes: ArrayLike, seconds: ArrayLike) -> tuple[Array, Array]:
    size, time = np.asarray(nbytes, np.float64), np.asarray(seconds, np.float64)
    if size.ndim != 1 or size.shape != time.shape:
        raise ValueError(
            "one time for each size is needed, in two lists of the same length; "
            f"there are {size.size} sizes and {time.size} times"
        )
    if len(different := np.unique(size)) < 2:
        raise ValueError(
            "a line needs messages of two different sizes or more; "
            f"there is {'none' if not len(different) else f'only {different[0]:,.0f} bytes'}"
        )
    for wrong in np.flatnonzero(~((time > 0) & np.isfinite(time))):
        raise ValueError(
            f"a time must be above 0 seconds; that of {size[wrong]:,.0f} bytes is {time[wrong]:g}"
        )
    for wrong in np.flatnonzero(~((size >= 0) & np.isfinite(size))):
        raise ValueError(f"a message has 0 bytes or more, not {size[wrong]:g}")
    return size, time


# ── Collectives ──────────────────────────────────────────────────────────────────────────────


def ring_all_reduce(n: int, nbytes: float, line: Line) -> float:
    """2(n − 1)·α + 2(n − 1)/n·s·β: reduce-scatter, then all-gather, around a ring.

    Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations":
    no algorithm in which ranks only send to each other sends fewer bytes from the busiest rank. A
    switch that adds up (NVLink SHARP) is not modelled.
    """
    return ring_reduce_scatter(n, nbytes, line) + ring_all_gather(n, nbytes, line)


def recursive_doubling_all_reduce(n: int, nbytes: float, line: Line) -> float:
    """log₂ n·(α + s·β): all exchange all they have with a partner 1, 2, 4, … ranks away.

    Thakur, Rabenseifner and Gropp 2005, "Optimization of collective communication operations in
    MPICH", on all-reduce. Where n is not a power of two, the ranks above the next lower one hand
    over their part first and get the result last: two more rounds.
    """
    rounds = _whole(n).bit_length() - 1
    return (rounds + (0 if n == 1 << rounds else 2)) * line(nbytes)


def tree_all_reduce(n: int, nbytes: float, line: Line) -> float:
    """2⌈log₂ n⌉·(α + s·β): a binomial tree to one rank, and back.

    Both halves after Thakur, Rabenseifner and Gropp 2005 (broadcast and reduce of short
    messages). NCCL's trees are pipelined and two at once: see `double_tree_all_reduce`.
    """
    return 2 * binomial_broadcast(n, nbytes, line)


def double_tree_all_reduce(n: int, nbytes: float, line: Line) -> float:
    """2⌈log₂ n⌉·α + 2·s·β, of two ranks 2·α + s·β: two binary trees, each with half of the bytes.

    Sanders, Speck and Träff 2009, "Two-tree algorithms for full bandwidth broadcast, reduction and
    scan"; in NCCL since 2.4. A rank is inside of one tree and a leaf of the other, so it sends s
    on the way up and s on the way down. The limit of many small pieces: filling the pipeline is
    left out. Within one host NCCL's tree is a chain, with n − 1 for log₂ n and the same bytes.
    """
    if _whole(n) == 1:
        return 0.0
    return 2 * _rounds(n) * line.alpha + (1 if n == 2 else 2) * nbytes * line.beta


def ring_all_gather(n: int, nbytes: float, line: Line) -> float:
    """(n − 1)·α + (n − 1)/n·s·β: each part goes round the ring.

    Thakur, Rabenseifner and Gropp 2005, on all-gather of long messages.
    """
    return (_whole(n) - 1) * line(nbytes / n)


def ring_reduce_scatter(n: int, nbytes: float, line: Line) -> float:
    """(n − 1)·α + (n − 1)/n·s·β: each part goes round the ring, and grows by a term a rank.

    Patarasuk and Yuan 2009; the same as Thakur, Rabenseifner and Gropp's pairwise exchange (2005).
    """
    return (_whole(n) - 1) * line(nbytes / n)


def binomial_broadcast(n: int, nbytes: float, line: Line) -> float:
    """⌈log₂ n⌉·(α + s·β): in each round, twice as many ranks have it.

    Thakur, Rabenseifner and Gropp 2005, on broadcast of short messages.
    """
    return _rounds(n) * line(nbytes)


def hierarchical_all_reduce(
    n: int, nodes: int, nbytes: float, inside: Line, between: Line
) -> float:
    """Reduce-scatter inside of each node, all-reduce of the parts between nodes, all-gather inside.

    With g = n/nodes ranks a node: 2(g − 1)·α + 2(g − 1)/g·s·β inside, and between nodes a ring
    all-reduce of s/g bytes, in g groups at once: `between` is the line of one rank while the
    others of its node send, too. Cho et al. 2019, "BlueConnect: Decomposing all-reduce for deep
    learning on heterogeneous network hierarchy".
    """
    if _whole(n) % _whole(nodes):
        raise ValueError(f"{n} ranks on {nodes} nodes: every node must have as many as the others")
    local = n // nodes
    return (
        ring_reduce_scatter(local, nbytes, inside)
        + ring_all_reduce(nodes, nbytes / local, between)
        + ring_all_gather(local, nbytes, inside)
    )


def crossover(f: Formula, g: Formula, n: int, line: Line) -> float:
    """At how many bytes f and g take equally long.

    f, g: formulas of n, bytes and a line, and straight in the bytes, as all here are. Raises
    ValueError where one is quicker at every size.
    """
    far = 1e12
    f_start, g_start = f(n, 0.0, line), g(n, 0.0, line)
    slope = ((f(n, far, line) - f_start) - (g(n, far, line) - g_start)) / far
    ahead = g_start - f_start
    size = ahead / slope if slope else math.nan
    # What differs by rounding only does not differ.
    same = 1e-12 * max(f(n, far, line), g(n, far, line))
    if abs(slope * far) <= same or not size > 0:
        raise ValueError(
            f"{_name(f)} and {_name(g)} do not cross on {n} ranks: one of them is quicker, or they "
            "are the same, at every size"
        )
    return size


def _name(formula: Formula) -> str:
    return str(getattr(formula, "__name__", formula))


def _whole(n: int) -> int:
    if n != int(n) or n < 1:
        raise ValueError(f"there must be 1 rank or more, not {n}")
    return int(n)


def _rounds(n: int) -> int:
    """⌈log₂ n⌉"""
    return (_whole(n) - 1).bit_length()


Formula = Callable[[int, float, Line], float]

# ── Bandwidths ───────────────────────────────────────────────────────────────────────────────

_RING = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
_ONCE = ("broadcast", "reduce", "send", "recv")


@overload
def bus_factor(operation: str, n: float) -> float: ...
@overload
def bus_factor(operation: str, n: Sequence[float] | Array) -> Array: ...
def bus_factor(operation: str, n: Any) -> Any:
    """Bus bandwidth is this × algorithm bandwidth; n may be an array.

    It tells what the slowest link must have carried if ranks only send to each other, so that it
    can be compared with the hardware whatever n is: 2(n − 1)/n for all_reduce; (n − 1)/n for
    all_gather, reduce_scatter, all_to_all, gather and scatter; 1 for broadcast, reduce, send and
    recv. Where a switch adds up (NVLink SHARP), links carry less. NVIDIA's nccl-tests,
    doc/PERFORMANCE.md and, for all_to_all, gather, scatter and send, the sources.

    Raises ValueError for another operation, and for less than one rank.
    """
    ranks = np.asarray(n, np.float64)
    if (ranks < 1).any():
        raise ValueError(f"there must be 1 rank or more, not {ranks.min():g}")
    if operation == "all_reduce":
        factor = 2 * (ranks - 1) / ranks
    elif operation in _RING:
        factor = (ranks - 1) / ranks
    elif operation in _ONCE:
        factor = np.ones_like(ranks)
    else:
        known = ", ".join(("all_reduce", *_RING, *_ONCE))
        raise ValueError(f"no bus factor is known for {operation!r}; there are: {known}")
    return factor if factor.ndim else float(factor)


def algorithm_bandwidth(nbytes: float, seconds: float) -> float:
    """Bytes a second, as the program sees it: the size by the time (nccl-tests' "algbw")."""
    if not seconds > 0:
        raise ValueError(f"a time must be above 0 seconds, not {seconds:g}")
    return nbytes / seconds


def bus_bandwidth(operation: str, n: int, nbytes: float, seconds: float) -> float:
    """Bytes a second on the slowest link (nccl-tests' "busbw"); see `bus_factor`."""
    return bus_factor(operation, n) * algorithm_bandwidth(nbytes, seconds)


# ── Pipelines ────────────────────────────────────────────────────────────────────────────────


def bubble(stages: int, microbatches: int, chunks: int = 1) -> float:
    """(p − 1)/(v·m + p − 1): the part of a pipeline's time in which a rank has nothing to do.

    Huang et al. 2019, "GPipe", for p equal stages, m equal microbatches, and messages that take no
    time; 1F1B has the same. v: chunks of the model on each rank, for interleaved 1F1B, with m a
    multiple of p: Narayanan et al. 2021, "Efficient large-scale language model training on GPU
    clusters using Megatron-LM", section 2.2. They count the bubble against the useful time:
    (p − 1)/(v·m).
    """
    _require_work(stages, microbatches)
    if chunks < 1:
        raise ValueError(f"a rank has 1 chunk of the model or more, not {chunks}")
    return (stages - 1) / (chunks * microbatches + stages - 1)


def zero_bubble(stages: int, microbatches: int) -> float:
    """(p − 1)/(3m + p − 1): the idle part of ZB-H1, which fills the bubble of 1F1B with weight
    gradients.

    (p − 1)(F + B − W) of a stage's time is idle, m(F + B + W) is not: Qi et al. 2023, "Zero bubble
    pipeline parallelism", section 2.3, for m ≥ p; here F, B and W take equally long.
    """
    _require_work(stages, microbatches)
    return (stages - 1) / (3 * microbatches + stages - 1)


def _require_work(stages: int, microbatches: int) -> None:
    if stages < 1 or microbatches < 1:
        raise ValueError(
            f"a pipeline needs 1 stage and 1 microbatch or more, not {stages} and {microbatches}"
        )
