"""Right answers to the exercises of lab 07, written without sight of its checks; see judge.py."""

# Right answers for lab 07 (07_tracing.ipynb and 07_tracing_further.ipynb).
import bisect
import functools
import heapq
import itertools
import math
import statistics
from collections import Counter, defaultdict
from fractions import Fraction

import numpy as np
import torch
import torch.distributed as dist
from lockstep.course.labs.lab07 import case  # as the notebook's cell "look" has it
from torch.profiler import ProfilerAction, profile, schedule
from pathlib import Path


# ============================================================================ recorded_steps


# %% recorded_steps: comprehension
# divmod's two numbers, one condition each.
def recorded_steps(wait, warmup, active, repeat, steps):
    cycle, first = wait + warmup + active, wait + warmup
    return [n for n in range(steps) if n % cycle >= first and (repeat == 0 or n // cycle < repeat)]


# %% recorded_steps: pytorch-s-own-schedule
# Asks the schedule itself: RECORD and RECORD_AND_SAVE are kept.
def recorded_steps(wait, warmup, active, repeat, steps):
    plan = schedule(wait=wait, warmup=warmup, active=active, repeat=repeat)
    kept = {ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE}
    return [step for step in range(steps) if plan(step) in kept]


# %% recorded_steps: endless-pattern-of-letters
# A pattern of letters, repeated for ever or `repeat` times, zipped with the numbers of the steps.
def recorded_steps(wait, warmup, active, repeat, steps):
    pattern = "." * wait + "w" * warmup + "A" * active
    letters = itertools.cycle(pattern) if repeat == 0 else pattern * repeat
    return [number for number, letter in zip(range(steps), letters) if letter == "A"]


# %% recorded_steps: slices-of-a-range
# Slices a range of all steps for each cycle: a slice ends by itself where the range does.
def recorded_steps(wait, warmup, active, repeat, steps):
    every, cycle, kept = range(steps), wait + warmup + active, []
    for number, begin in enumerate(every[::cycle]):
        if number == repeat != 0:
            break
        kept.extend(every[begin : begin + cycle][wait + warmup :])
    return kept


# %% recorded_steps: numpy-mask
# Arrays and a mask; back to Python's ints at the end.
def recorded_steps(wait, warmup, active, repeat, steps):
    step = np.arange(steps)
    mask = step % (wait + warmup + active) >= wait + warmup
    if repeat:
        mask &= step < repeat * (wait + warmup + active)
    return np.flatnonzero(mask).tolist()


# %% recorded_steps: generator-of-phases
# A generator walks through the phases of a cycle as the profiler would, one step at a time.
def recorded_steps(wait, warmup, active, repeat, steps):
    def phases():
        for _ in itertools.count() if repeat == 0 else range(repeat):
            for phase, length in (("off", wait), ("warm", warmup), ("active", active)):
                yield from itertools.repeat(phase, length)
        yield from itertools.repeat("off")

    walk = phases()
    return list(itertools.compress(range(steps), (next(walk) == "active" for _ in range(steps))))


# ============================================================================ offsets


# %% offsets: statistics-median
# statistics.median of the differences.
def offsets(ends):
    return [statistics.median(row[rank] - row[0] for row in ends) for rank in range(len(ends[0]))]


# %% offsets: numpy-sorted
# Integers of numpy all the way, and the middle of the sorted differences.
def offsets(ends):
    ends = np.array(ends, dtype=np.int64)
    return np.sort(ends - ends[:, [0]], axis=0)[len(ends) // 2].tolist()


# %% offsets: torch-median
# torch's median of int64, which needs no floats.
def offsets(ends):
    ends = torch.tensor(ends, dtype=torch.int64)
    return torch.median(ends.sub(ends[:, 0].unsqueeze(1)), dim=0).values.tolist()


# %% offsets: quickselect
# A recursive search for the middle one, without sorting.
def _select(values, k):
    pivot = values[len(values) // 2]
    below, above = [v for v in values if v < pivot], [v for v in values if v > pivot]
    if k < len(below):
        return _select(below, k)
    if k >= len(values) - len(above):
        return _select(above, k - (len(values) - len(above)))
    return pivot


def offsets(ends):
    first, *others = zip(*ends)
    apart = lambda own: [mine - theirs for mine, theirs in zip(own, first)]
    return [0] + [_select(apart(own), len(first) // 2) for own in others]


# %% offsets: heap
# The largest of the smaller half, the middle one included, by heapq; columns by zip.
def offsets(ends):
    half = len(ends) // 2 + 1
    shifted = ([one - row[0] for one in row] for row in ends)
    return [heapq.nsmallest(half, column)[-1] for column in zip(*shifted)]


# %% offsets: least-absolute-error
# The median is the difference that has the smallest sum of absolute distances to all others.
def offsets(ends):
    def middle(values):
        return min(values, key=lambda v: sum(abs(v - other) for other in values))

    return [middle([row[rank] - row[0] for row in ends]) for rank, _ in enumerate(ends[0])]


# ============================================================================ exposed


# %% exposed: sweep
# Events in the order of time, and two counters.
def exposed(compute, communication):
    change = defaultdict(lambda: [0, 0])
    for which, spans in enumerate((compute, communication)):
        for start, end in spans:
            change[start][which] += 1
            change[end][which] -= 1
    total = computing = talking = before = 0
    for time in sorted(change):
        if talking and not computing:
            total += time - before
        computing, talking, before = computing + change[time][0], talking + change[time][1], time
    return total


# %% exposed: difference-of-two-unions
# What communication adds to the union: |compute or communication| - |compute|.
def exposed(compute, communication):
    def length(spans):
        total, reached = 0, None
        for start, end in sorted(spans):
            begin = start if reached is None else max(start, reached)
            if end > begin:
                total += end - begin
                reached = end
        return total

    return length([*compute, *communication]) - length(compute)


# %% exposed: subtraction-by-reduce
# Cuts out of each collective what is counted already, and then each kernel; keeps a list of the pieces that are left.
def exposed(compute, communication):
    def cut(spans, kernel):
        s, e = kernel
        pieces = itertools.chain.from_iterable(
            ((start, min(end, s)), (max(start, e), end)) for start, end in spans
        )
        return [(start, end) for start, end in pieces if start < end]

    left = []
    for span in communication:
        left += functools.reduce(cut, [*left, *compute], [span])
    return sum(end - start for start, end in left)


# %% exposed: numpy-elementary-stretches
# All boundaries cut time into stretches; running sums say what runs in each. In int64.
def exposed(compute, communication):
    at = np.unique(np.array([*compute, *communication], dtype=np.int64))

    def active(spans):
        change = np.zeros(len(at) + 1, dtype=np.int64)
        for start, end in spans:
            change[np.searchsorted(at, start)] += 1
            change[np.searchsorted(at, end)] -= 1
        return change.cumsum()[: max(len(at) - 1, 0)] > 0

    return int(np.diff(at)[active(communication) & ~active(compute)].sum())


# %% exposed: bits-of-an-integer
# Each elementary stretch is a bit of an integer: sets are ors, and "not" is and-not.
def exposed(compute, communication):
    at = sorted({time for span in (*compute, *communication) for time in span})

    def bits(spans):
        whole = 0
        for start, end in spans:
            i, j = bisect.bisect_left(at, start), bisect.bisect_left(at, end)
            whole |= (1 << j) - (1 << i)
        return whole

    bare = bits(communication) & ~bits(compute)
    return sum(b - a for i, (a, b) in enumerate(itertools.pairwise(at)) if bare >> i & 1)


# %% exposed: spans-class
# A small class of sets of moments with union, intersection and length: |talk| - |talk and compute|.
class Spans:
    def __init__(self, spans):
        self.spans = []
        for start, end in sorted(spans):
            if self.spans and start <= self.spans[-1][1]:
                start, last = self.spans.pop()
                end = max(last, end)
            self.spans.append((start, end))

    def __and__(self, other):
        both = [(max(a, c), min(b, d)) for a, b in self.spans for c, d in other.spans]
        return Spans([(start, end) for start, end in both if start < end])

    def length(self):
        return sum(end - start for start, end in self.spans)


def exposed(compute, communication):
    talks = Spans(communication)
    return talks.length() - (talks & Spans(compute)).length()


# ============================================================================ charged


# %% charged: loop
# The plain way.
def charged(arrivals, resolution):
    result = [0] * len(arrivals[0])
    for row in arrivals:
        last = max(row)
        waits = [last - one for one in row]
        result[row.index(last)] += sum(wait for wait in waits if wait >= resolution)
    return result


# %% charged: numpy
# Arrays of int64, and np.add.at for ranks that come last several times.
def charged(arrivals, resolution):
    times = np.array(arrivals, dtype=np.int64)
    waits = times.max(axis=1, keepdims=True) - times
    cost = np.where(waits < resolution, 0, waits).sum(axis=1)
    result = np.zeros(times.shape[1], dtype=np.int64)
    np.add.at(result, times.argmax(axis=1), cost)
    return result.tolist()


# %% charged: torch-one-hot
# The last rank as a one-hot row, and a sum over collectives by einsum, in int64.
def charged(arrivals, resolution):
    times = torch.tensor(arrivals, dtype=torch.int64)
    last, who = times.max(dim=1)
    waits = last.unsqueeze(1) - times
    cost = waits.masked_fill(waits < resolution, 0).sum(1)
    blamed = torch.nn.functional.one_hot(who, times.shape[1])
    return torch.einsum("c,cr->r", cost, blamed).tolist()


# %% charged: counter
# Pairs (time, rank) and a Counter of nanoseconds. (Of two ranks that come last together it takes the higher one; the
# goal doesn't say which.)
def charged(arrivals, resolution):
    cost = Counter()
    for row in arrivals:
        (last, who), *others = sorted(zip(row, itertools.count()), reverse=True)
        cost[who] += sum(last - time for time, _ in others if last - time >= resolution)
    return [cost[rank] for rank in range(len(arrivals[0]))]


# %% charged: rank-by-rank
# From the rank's point of view: a sum over the collectives in which it was the last.
def charged(arrivals, resolution):
    def wait(late, early):
        return (late - early) * (late - early >= resolution)

    def of(rank):
        mine = (row for row in arrivals if max(range(len(row)), key=row.__getitem__) == rank)
        return sum(wait(row[rank], other) for row in mine for other in row)

    return list(map(of, range(len(arrivals[0]))))


# %% charged: sorted-with-bisect
# Sorts each collective; bisect finds how many came early enough, and the sum is their number times the last, minus
# their times.
def charged(arrivals, resolution):
    def blame(result, row):
        order = sorted(row)
        early = order[: bisect.bisect_right(order, order[-1] - resolution)]
        cost = len(early) * order[-1] - sum(early)
        at = row.index(order[-1])
        return [*result[:at], result[at] + cost, *result[at + 1 :]]

    return functools.reduce(blame, arrivals, [0 for _ in arrivals[0]])


# ============================================================================ diagnoses


# %% diagnoses: read-off-the-tables
# Numbers from the tables, rounded to two digits.
def diagnoses():
    return {
        "A": (1, "straggler", 0.13),
        "B": (None, "starved input", 0.44),
        "C": (2, "recompile", 0.60),
        "D": (0, "checkpoint", 0.50),
        "E": (None, "allocator thrashing", 0.76),
        "F": (None, "exposed communication", 0.67),
    }


# %% diagnoses: shares-by-breakdown
# The ranks and words are found by looking; the shares are computed from the breakdowns by the goal's two rules.
def diagnoses():
    def part(one, name):
        return getattr(one, name) / one.length

    def less(letter, rank):
        shares = {one.rank: part(one, "exposed") for one in case(letter).breakdown().totals}
        own = shares.pop(rank)
        return statistics.mean(shares.values()) - own

    def alike(letter, name):
        least = min(case(letter).breakdown().totals, key=lambda one: part(one, "exposed"))
        return part(least, name)

    return {
        "A": (1, "straggler", less("A", 1)),
        "B": (None, "starved input", alike("B", "host_bound")),
        "C": (2, "recompile", less("C", 2)),
        "D": (0, "checkpoint", less("D", 0)),
        "E": (None, "allocator thrashing", alike("E", "host_bound")),
        "F": (None, "exposed communication", alike("F", "exposed")),
    }


# %% diagnoses: library-corrected
# Asks cause() for everything, and replaces E's share, of which the notebook says that the library means another one.
def diagnoses():
    found = {letter: case(letter).cause() for letter in "ABCDEF"}
    result = {
        a: (one.ranks[0] if one.ranks else None, one.word, one.share) for a, one in found.items()
    }
    least = min(case("E").breakdown().totals, key=lambda one: one.communication)
    rank, word, _ = result["E"]
    result["E"] = (rank, word, least.host_bound / least.length)
    return result


# %% diagnoses: exact-fractions
# The shares as exact fractions of nanoseconds, which are numbers, too; the pooled share of the others.
def diagnoses():
    spent = {letter: case(letter).breakdown().totals for letter in "ABCDEF"}

    def pooled(rows, name):
        return Fraction(sum(getattr(one, name) for one in rows), sum(one.length for one in rows))

    def against(letter, rank):
        own = [one for one in spent[letter] if one.rank == rank]
        others = [one for one in spent[letter] if one.rank != rank]
        return pooled(others, "exposed") - pooled(own, "exposed")

    one_late = {("A", 1): "straggler", ("C", 2): "recompile", ("D", 0): "checkpoint"}
    answer = {
        letter: (rank, word, against(letter, rank)) for (letter, rank), word in one_late.items()
    }
    all_alike = {"B": ("starved input", "host_bound"), "E": ("allocator thrashing", "host_bound")}
    all_alike["F"] = ("exposed communication", "exposed")
    for letter, (word, name) in all_alike.items():
        least = min(spent[letter], key=lambda one: Fraction(one.exposed, one.length))
        answer[letter] = (None, word, pooled([least], name))
    return answer


# %% diagnoses: built-by-zip
# Columns zipped into tuples; the keys come in another order, which a dict does not mind. The shares are rounded
# otherwise, within a percent.
def diagnoses():
    ranks = (None, None, 0, 2, None, 1)
    causes = "exposed communication,allocator thrashing,checkpoint,recompile,starved input,straggler".split(
        ","
    )
    shares = np.array([672, 757, 498, 601, 444, 127]) / 1000
    return dict(zip("FEDCBA", zip(ranks, causes, map(float, shares))))


# %% diagnoses: numpy-in-one-table
# One array of exposed and host-bound shares for each case; the rank that is late is found as the one that waits least.
def diagnoses():
    result = {}
    words = {"A": "straggler", "C": "recompile", "D": "checkpoint"}
    words |= {"B": "starved input", "E": "allocator thrashing", "F": "exposed communication"}
    for letter in sorted(words):
        totals = case(letter).breakdown().totals
        shares = np.array([[one.exposed, one.host_bound] for one in totals]) / [
            [one.length] for one in totals
        ]
        at = int(shares[:, 0].argmin())
        if letter in "ACD":
            rank, share = totals[at].rank, np.delete(shares[:, 0], at).mean() - shares[at, 0]
        else:
            rank, share = None, shares[at, 0 if letter == "F" else 1]
        result[letter] = (rank, words[letter], float(share))
    return result


# ============================================================================ chance


# %% chance: combinations
# All hands by itertools; equal sizes, so sums compare like means.
def chance(before, after):
    real = sum(after)
    dealt = [sum(way) for way in itertools.combinations([*before, *after], len(after))]
    return sum(one >= real for one in dealt) / len(dealt)


# %% chance: counting-without-dealing
# Counts how many hands of each size have each sum, value by value, and never lists a hand.
def chance(before, after):
    hands = [Counter({0: 1})] + [Counter() for _ in after]
    for value in (*before, *after):
        for size in range(len(after), 0, -1):
            for total, ways in hands[size - 1].items():
                hands[size][total + value] += ways
    found = sum(ways for total, ways in hands[-1].items() if total >= sum(after))
    return found / hands[-1].total()


# %% chance: recursion
# Gives each value to one side or to the other; an exact fraction until the end.
def chance(before, after):
    values, real = (*before, *after), sum(after)

    def count(at, left, total):
        if left == 0:
            return int(total >= real)
        if len(values) - at < left:
            return 0
        return count(at + 1, left - 1, total + values[at]) + count(at + 1, left, total)

    return float(Fraction(count(0, len(after), 0), math.comb(len(values), len(after))))


# %% chance: numpy-of-all-hands
# A table of all index combinations, and the mean of a mask.
def chance(before, after):
    values = np.array([*before, *after], dtype=np.int64)
    hands = np.array(list(itertools.combinations(range(len(values)), len(after))))
    return float((values[hands].sum(axis=1) >= sum(after)).mean())


# %% chance: dealt-to-the-other-side
# Deals to the side *before*: the sum after is large where the sum before is small. Means as exact fractions,
# and a float only at the end.
def chance(before, after):
    whole, size = sum(before) + sum(after), len(after)
    real = Fraction(sum(after), size)
    means = [
        Fraction(whole - sum(way), size)
        for way in itertools.combinations([*after, *before], len(before))
    ]
    return float(Fraction(len([mean for mean in means if mean >= real]), len(means)))


# %% chance: bit-patterns
# Each way is a pattern of bits: all integers with as many ones as there are steps after.
def chance(before, after):
    values = list(before) + list(after)
    ways = [bits for bits in range(1 << len(values)) if bits.bit_count() == len(after)]
    hand = lambda bits: sum(value for at, value in enumerate(values) if bits >> at & 1)
    return statistics.fmean(hand(bits) >= sum(after) for bits in ways)


# %% recorded_steps: a-clock
def recorded_steps(wait, warmup, active, repeat, steps):
    kept, at, cycles = [], 0, 0
    for step in range(steps):
        if at >= wait + warmup:
            kept.append(step)
        at += 1
        if at == wait + warmup + active:
            at, cycles = 0, cycles + 1
            if repeat and cycles == repeat:
                return kept
    return kept


# %% recorded_steps: numpy
def recorded_steps(wait, warmup, active, repeat, steps):
    import numpy as np

    length = wait + warmup + active
    number = np.arange(steps)
    keep = number % length >= wait + warmup
    if repeat:
        keep &= number < repeat * length
    return [int(one) for one in number[keep]]


# %% profiled: start-and-stop
def profiled(train, steps, first, count, folder):
    def ready(profiler):
        profiler.export_chrome_trace(f"{folder}/rank{dist.get_rank()}.json")

    profiler = profile(
        schedule=schedule(wait=first - 1, warmup=1, active=count, repeat=1),
        on_trace_ready=ready,
    )
    profiler.start()
    for number in range(steps):
        train(number)
        profiler.step()
    profiler.stop()


# %% profiled: skip-first
def profiled(train, steps, first, count, folder):
    from pathlib import Path

    def ready(profiler):
        file = Path(folder) / f"rank{dist.get_rank()}.json"
        profiler.export_chrome_trace(str(file))

    plan = schedule(skip_first=first - 1, wait=0, warmup=1, active=count, repeat=1)
    with profile(schedule=plan, on_trace_ready=ready) as profiler:
        for number in range(steps):
            train(number)
            profiler.step()


# %% profiled: a-schedule-of-its-own
def profiled(train, steps, first, count, folder):
    import os

    from torch.profiler import ProfilerAction

    def plan(step):
        if step == first - 1:
            return ProfilerAction.WARMUP
        if first <= step < first + count - 1:
            return ProfilerAction.RECORD
        if step == first + count - 1:
            return ProfilerAction.RECORD_AND_SAVE
        return ProfilerAction.NONE

    name = os.path.join(folder, f"rank{dist.get_rank()}.json")
    with profile(schedule=plan, on_trace_ready=lambda p: p.export_chrome_trace(name)) as p:
        for number in range(steps):
            train(number)
            p.step()


# %% profiled: no-step-after-the-last
def profiled(train, steps, first, count, folder):
    rank = dist.get_rank()

    def ready(profiler):
        profiler.export_chrome_trace(f"{folder}/rank{rank}.json")

    plan = schedule(wait=first - 1, warmup=1, active=count, repeat=1)
    with profile(schedule=plan, on_trace_ready=ready) as profiler:
        for number in range(steps):
            if number:
                profiler.step()
            train(number)


# %% profiled: the-loop-in-three-parts
def profiled(train, steps, first, count, folder):
    import torch

    for number in range(first - 1):
        train(number)
    with profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=1, active=count, repeat=1),
        on_trace_ready=lambda p: p.export_chrome_trace(f"{folder}/rank{dist.get_rank()}.json"),
    ) as profiler:
        for number in range(first - 1, first + count):
            train(number)
            profiler.step()
    for number in range(first + count, steps):
        train(number)


# %% profiled: exports-at-the-end
def profiled(train, steps, first, count, folder):
    rank = dist.get_rank()
    plan = schedule(wait=first - 1, warmup=1, active=count, repeat=1)
    profiler = profile(schedule=plan)
    profiler.start()
    for number in range(steps):
        train(number)
        profiler.step()
    profiler.stop()
    profiler.export_chrome_trace(f"{folder}/rank{rank}.json")


# %% profiled: exported-in-the-loop
def profiled(train, steps, first, count, folder):
    plan = schedule(wait=first - 1, warmup=1, active=count, repeat=1)
    saved = []

    def ready(profiler):
        path = f"{folder}/rank{dist.get_rank()}.json"
        profiler.export_chrome_trace(path)
        saved.append(path)

    with profile(schedule=plan, on_trace_ready=ready, record_shapes=True) as profiler:
        number = 0
        while number < steps:
            train(number)
            profiler.step()
            number += 1
    return saved


# %% offsets: numpy
def offsets(ends):
    import numpy as np

    ends = np.asarray(ends, dtype=np.int64)
    return np.median(ends - ends[:, [0]], axis=0).astype(int).tolist()


# %% offsets: zip
def offsets(ends):
    from statistics import median_low

    first, *_ = columns = list(zip(*ends))
    return [median_low([end - zero for end, zero in zip(column, first)]) for column in columns]


# %% exposed: events
def exposed(compute, communication):
    events = []
    for kind, spans in enumerate((compute, communication)):
        for start, end in spans:
            events += [(start, kind, 1), (end, kind, -1)]
    events.sort()
    running, total, before = [0, 0], 0, None
    for at, kind, change in events:
        if before is not None and running[1] and not running[0]:
            total += at - before
        running[kind] += change
        before = at
    return total


# %% exposed: cuts-pieces
def exposed(compute, communication):
    pieces = []
    for span in communication:
        new = [span]
        for one, two in [*compute, *pieces]:
            cut = []
            for start, end in new:
                if two <= start or one >= end:
                    cut.append((start, end))
                    continue
                if start < one:
                    cut.append((start, one))
                if two < end:
                    cut.append((two, end))
            new = cut
        pieces += new
    return sum(end - start for start, end in pieces)


# %% charged: numpy-add-at
def charged(arrivals, resolution):
    import numpy as np

    arrivals = np.array(arrivals)
    waits = arrivals.max(axis=1, keepdims=True) - arrivals
    waits[waits < resolution] = 0
    total = np.zeros(arrivals.shape[1], dtype=int)
    np.add.at(total, arrivals.argmax(axis=1), waits.sum(axis=1))
    return total.tolist()


# %% charged: a-counter
def charged(arrivals, resolution):
    from collections import Counter

    bill = Counter()
    for row in arrivals:
        last = max(range(len(row)), key=row.__getitem__)
        for one in row:
            wait = row[last] - one
            if not wait < resolution:
                bill[last] += wait
    return [bill[rank] for rank in range(len(arrivals[0]))]


# %% diagnoses: read-off
def diagnoses():
    return dict(
        A=(1, "straggler", 0.13),
        B=(None, "starved input", 0.42),
        C=(2, "recompile", 0.6),
        D=(0, "checkpoint", 0.5),
        E=(None, "allocator thrashing", 0.75),
        F=(None, "exposed communication", 0.67),
    )


# %% diagnoses: computed
def diagnoses():
    from lockstep.course.labs.lab07 import case

    def late(letter, rank):
        shares = {one.rank: one.exposed / one.length for one in case(letter).breakdown().totals}
        mine = shares.pop(rank)
        return sum(shares.values()) / len(shares) - mine

    def alike(letter, part):
        one = min(case(letter).breakdown().totals, key=lambda one: one.exposed)
        return getattr(one, part) / one.length

    return {
        "A": (1, "straggler", late("A", 1)),
        "B": (None, "starved input", alike("B", "host_bound")),
        "C": (2, "recompile", late("C", 2)),
        "D": (0, "checkpoint", late("D", 0)),
        "E": (None, "allocator thrashing", alike("E", "host_bound")),
        "F": (None, "exposed communication", alike("F", "exposed")),
    }


# %% chance: bits
def chance(before, after):
    values = [*before, *after]
    ways = larger = 0
    for mask in range(1 << len(values)):
        if mask.bit_count() == len(after):
            ways += 1
            total = sum(v for at, v in enumerate(values) if mask >> at & 1)
            larger += total >= sum(after)
    return larger / ways


# %% chance: fractions
def chance(before, after):
    from fractions import Fraction
    from itertools import combinations

    both = list(before) + list(after)
    real = Fraction(sum(after), len(after))
    seen = [
        Fraction(sum(both[at] for at in deal), len(after)) >= real
        for deal in combinations(range(len(both)), len(after))
    ]
    return float(Fraction(sum(seen), len(seen)))


# %% recorded_steps: cycles-one-after-the-other
def recorded_steps(wait, warmup, active, repeat, steps):
    kept, start, left = [], 0, repeat or steps
    while left and start < steps:
        start += wait + warmup
        kept += [step for step in range(start, start + active) if step < steps]
        start += active
        left -= 1
    return kept


# %% recorded_steps: flags-in-a-row
def recorded_steps(wait, warmup, active, repeat, steps):
    flags = [False] * (wait + warmup) + [True] * active
    row = itertools.cycle(flags) if repeat == 0 else iter(flags * repeat)
    return list(itertools.compress(range(steps), row))


# %% profiled: skips-the-first
def profiled(train, steps, first, count, folder):
    import pathlib

    path = str(pathlib.Path(folder, f"rank{dist.get_rank()}.json"))
    profiler = profile(
        schedule=schedule(skip_first=first - 1, wait=0, warmup=1, active=count, repeat=1),
        on_trace_ready=lambda one: one.export_chrome_trace(path),
    )
    profiler.start()
    for number in range(steps):
        train(number)
        profiler.step()
    profiler.stop()


# %% profiled: steps-from-an-iterator
def profiled(train, steps, first, count, folder):
    rank = dist.get_rank()
    with profile(
        schedule=schedule(wait=first - 1, warmup=1, active=count, repeat=1),
        on_trace_ready=lambda p: p.export_chrome_trace(f"{folder}/rank{rank}.json"),
    ) as p:
        numbers = iter(range(steps))
        while (number := next(numbers, None)) is not None:
            train(number)
            p.step()


# %% offsets: sorted-columns
def offsets(ends):
    rows = [[t - row[0] for t in row] for row in ends]
    return [sorted(column)[len(ends) // 2] for column in zip(*rows)]


# %% exposed: between-neighbouring-bounds
def exposed(compute, communication):
    bounds = sorted({t for span in compute + communication for t in span})
    total = 0
    for a, b in itertools.pairwise(bounds):
        talks = any(start <= a and b <= end for start, end in communication)
        works = any(start <= a and b <= end for start, end in compute)
        total += (b - a) * (talks and not works)
    return total


# %% exposed: counts-up-and-down
def exposed(compute, communication):
    events = []
    for kind, spans in enumerate((compute, communication)):
        for start, end in spans:
            events += [(start, kind, 1), (end, kind, -1)]
    running, total, last = [0, 0], 0, 0
    for at, kind, change in sorted(events):
        if running[1] and not running[0]:
            total += at - last
        running[kind] += change
        last = at
    return total


# %% exposed: cuts-pieces-off
def exposed(compute, communication):
    pieces, done = [], float("-inf")
    for start, end in sorted(communication):
        start = max(start, done)
        if end > start:
            pieces.append((start, end))
            done = end
    for a, b in compute:
        rest = []
        for start, end in pieces:
            rest += [(start, min(end, a)), (max(start, b), end)] if a < end and b > start else [
                (start, end)
            ]
        pieces = [(start, end) for start, end in rest if start < end]
    return sum(end - start for start, end in pieces)


# %% charged: numpy-waits
def charged(arrivals, resolution):
    table = np.array(arrivals)
    waits = table.max(axis=1, keepdims=True) - table
    cost = np.where(waits >= resolution, waits, 0).sum(axis=1)
    totals = np.zeros(table.shape[1], dtype=np.int64)
    np.add.at(totals, table.argmax(axis=1), cost)
    return totals.tolist()


# %% diagnoses: two-digits
def diagnoses():
    causes = "straggler", "starved input", "recompile", "checkpoint"
    causes += "allocator thrashing", "exposed communication"
    ranks, shares = (1, None, 2, 0, None, None), (0.13, 0.44, 0.60, 0.50, 0.76, 0.67)
    return dict(zip("ABCDEF", zip(ranks, causes, shares)))


# %% diagnoses: computed-from-the-breakdown
def diagnoses():
    from lockstep.course.labs.lab07 import case

    def less(letter, rank):
        share = {x.rank: x.exposed / x.length for x in case(letter).breakdown().totals}
        own = share.pop(rank)
        return sum(share.values()) / len(share) - own

    def part(letter, rank, name):
        one = case(letter).breakdown().of(rank)
        return getattr(one, name) / one.length

    return {
        "A": (1, "straggler", less("A", 1)),
        "B": (None, "starved input", part("B", 1, "host_bound")),
        "C": (2, "recompile", less("C", 2)),
        "D": (0, "checkpoint", less("D", 0)),
        "E": (None, "allocator thrashing", part("E", 1, "host_bound")),
        "F": (None, "exposed communication", part("F", 3, "exposed")),
    }


# %% diagnoses: lists-and-numpy-numbers
def diagnoses():
    found = {"A": (1, "straggler"), "C": (2, "recompile"), "D": (0, "checkpoint")}
    found |= dict.fromkeys("BEF", (None,))
    rest = {"B": "starved input", "E": "allocator thrashing", "F": "exposed communication"}
    shares = np.array([0.1272, 0.4437, 0.6003, 0.4981, 0.7569, 0.6717])
    for letter, share in zip("ABCDEF", shares):
        cause = () if letter not in rest else (rest[letter],)
        found[letter] = (*found[letter], *cause, share)
    return found


# %% chance: by-places
def chance(before, after):
    values, k = [*before, *after], len(after)
    ways = list(itertools.combinations(range(len(values)), k))
    large = [way for way in ways if sum(values[at] for at in way) >= sum(after)]
    return len(large) / len(ways)


# %% chance: counts-sums
def chance(before, after):
    ways = Counter({(0, 0): 1})
    for value in before + after:
        more = Counter({(k + 1, total + value): n for (k, total), n in ways.items()})
        ways = ways + more
    sums = {total: n for (k, total), n in ways.items() if k == len(after)}
    return sum(n for total, n in sums.items() if total >= sum(after)) / sum(sums.values())


# %% chance: masks-of-bits
def chance(before, after):
    values = before + after
    hits = ways = 0
    for mask in range(1 << len(values)):
        if mask.bit_count() == len(after):
            ways += 1
            hits += sum(v for i, v in enumerate(values) if mask >> i & 1) >= sum(after)
    return hits / ways


# %% recorded_steps: walks-the-cycles
def recorded_steps(wait, warmup, active, repeat, steps):
    kept, at, cycles = [], 0, itertools.count(1)
    for number in cycles:
        at += wait + warmup
        kept.extend(n for n in range(at, at + active) if n < steps)
        at += active
        if at >= steps or number == repeat:
            return kept


# %% profiled: own-schedule
def profiled(train, steps, first, count, folder):
    def plan(number):
        if number == first - 1:
            return ProfilerAction.WARMUP
        if first <= number < first + count - 1:
            return ProfilerAction.RECORD
        if number == first + count - 1:
            return ProfilerAction.RECORD_AND_SAVE
        return ProfilerAction.NONE

    target = Path(folder) / f"rank{dist.get_rank()}.json"
    with profile(schedule=plan, on_trace_ready=lambda p: p.export_chrome_trace(str(target))) as p:
        for number in range(steps):
            train(number)
            p.step()


# %% offsets: numpy-by-column
def offsets(ends):
    table = np.asarray(ends, dtype=np.int64)
    return np.median(table.T - table[:, 0], axis=1).astype(np.int64).tolist()


# %% exposed: sweep-of-changes
def exposed(compute, communication):
    changes = sorted(
        [(a, 0, 1) for a, _ in compute]
        + [(b, 0, -1) for _, b in compute]
        + [(a, 1, 1) for a, _ in communication]
        + [(b, 1, -1) for _, b in communication]
    )
    running, total, last = [0, 0], 0, None
    for at, which, change in changes:
        if running[1] > 0 and running[0] == 0:
            total += at - last
        running[which] += change
        last = at
    return total


# %% charged: numpy-rows
def charged(arrivals, resolution):
    table = np.array(arrivals, dtype=np.int64)
    waits = table.max(axis=1, keepdims=True) - table
    waits[waits < resolution] = 0
    total = np.zeros(table.shape[1], dtype=np.int64)
    np.add.at(total, table.argmax(axis=1), waits.sum(axis=1))
    return total.tolist()


# %% chance: counted-by-sums
def chance(before, after):
    ways = [{0: 1}] + [{} for _ in after]
    for value in [*before, *after]:
        for many in range(len(after), 0, -1):
            for total, count in ways[many - 1].items():
                ways[many][total + value] = ways[many].get(total + value, 0) + count
    last = ways[-1]
    return float(Fraction(sum(c for t, c in last.items() if t >= sum(after)), sum(last.values())))
