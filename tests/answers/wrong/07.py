"""Wrong answers to the exercises of lab 07, written without sight of its checks; see judge.py."""

# Wrong answers for lab 07 (07_tracing.ipynb and 07_tracing_further.ipynb).
import itertools
import random
import statistics

import numpy as np
import torch
import torch.distributed as dist
from torch.profiler import ProfilerAction, profile, schedule
import os
from pathlib import Path
from torch.profiler import ProfilerActivity


# ============================================================================ recorded_steps


# %% recorded_steps: repeat-of-zero-records-nothing
# range(repeat) is empty for repeat = 0; the text says that the cycles then continue as long as the loop does.
def recorded_steps(wait, warmup, active, repeat, steps):
    cycle = wait + warmup + active
    kept = []
    for number in range(repeat):
        begin = number * cycle + wait + warmup
        kept += range(min(begin, steps), min(begin + active, steps))
    return kept


# %% recorded_steps: unfinished-cycle-dropped
# Keeps complete cycles only; if the loop ends within a cycle, what was active until then has to be kept.
def recorded_steps(wait, warmup, active, repeat, steps):
    cycle = wait + warmup + active
    complete = steps // cycle
    cycles = min(repeat, complete) if repeat else complete
    return [n * cycle + wait + warmup + i for n in range(cycles) for i in range(active)]


# %% recorded_steps: warm-up-kept
# Keeps the warm-up steps, in which the profiler runs but discards what it sees.
def recorded_steps(wait, warmup, active, repeat, steps):
    cycle = wait + warmup + active
    return [n for n in range(steps) if n % cycle >= wait and (not repeat or n // cycle < repeat)]


# %% recorded_steps: counted-from-one
# Numbers the steps from 1, as people do; the text says that they are counted from 0.
def recorded_steps(wait, warmup, active, repeat, steps):
    cycle = wait + warmup + active
    first = wait + warmup
    return [
        n + 1 for n in range(steps) if n % cycle >= first and (not repeat or n // cycle < repeat)
    ]


# %% recorded_steps: record-without-record-and-save
# Asks PyTorch's schedule for RECORD alone; the last active step of each cycle is RECORD_AND_SAVE, and is kept, too.
def recorded_steps(wait, warmup, active, repeat, steps):
    plan = schedule(wait=wait, warmup=warmup, active=active, repeat=repeat)
    return [n for n in range(steps) if plan(n) == ProfilerAction.RECORD]


# %% recorded_steps: one-cycle-too-many
# `<=` in place of `<`: the profiler stays off after `repeat` cycles, and not after repeat + 1.
def recorded_steps(wait, warmup, active, repeat, steps):
    cycle = wait + warmup + active
    first = wait + warmup
    return [n for n in range(steps) if n % cycle >= first and (not repeat or n // cycle <= repeat)]


# %% recorded_steps: waits-in-the-first-cycle-only
# Takes `wait` for steps that are skipped once at the start; the text says that each cycle begins with them.
def recorded_steps(wait, warmup, active, repeat, steps):
    cycle = warmup + active
    kept = []
    for n in range(wait, steps):
        number, at = divmod(n - wait, cycle)
        if at >= warmup and (not repeat or number < repeat):
            kept.append(n)
    return kept


# %% recorded_steps: warms-up-in-the-first-cycle-only
# Only the first cycle has a warm-up ("the profiler is warm by then"); the text says that each cycle has one.
def recorded_steps(wait, warmup, active, repeat, steps):
    kept, n, number = [], warmup, 0
    while n < steps and (not repeat or number < repeat):
        n += wait
        kept += range(min(n, steps), min(n + active, steps))
        n += active
        number += 1
    return kept


# %% recorded_steps: beyond-the-end
# Keeps a cycle that begins within the loop as a whole: the list holds steps that the loop no longer has.
def recorded_steps(wait, warmup, active, repeat, steps):
    cycle = wait + warmup + active
    kept, number = [], 0
    while number * cycle + wait + warmup < steps and (not repeat or number < repeat):
        begin = number * cycle + wait + warmup
        kept += range(begin, begin + active)
        number += 1
    return kept


# %% recorded_steps: endless-means-a-hundred
# Takes 100 cycles for "as long as the loop does": a longer loop with repeat = 0 is cut off.
def recorded_steps(wait, warmup, active, repeat, steps):
    cycle = wait + warmup + active
    kept = []
    for number in range(repeat or 100):
        begin = number * cycle + wait + warmup
        kept += range(min(begin, steps), min(begin + active, steps))
    return kept


# %% recorded_steps: iterator
# Returns an iterator that yields the right numbers once; the goal asks for a list.
def recorded_steps(wait, warmup, active, repeat, steps):
    cycle = wait + warmup + active
    first = wait + warmup
    return filter(
        lambda n: n % cycle >= first and (not repeat or n // cycle < repeat), range(steps)
    )


# %% recorded_steps: last-step-of-the-loop-forgotten
# range(steps - 1): if the loop ends with an active step, that one is missing. The goal's example ends differently.
def recorded_steps(wait, warmup, active, repeat, steps):
    cycle = wait + warmup + active
    first = wait + warmup
    return [
        n for n in range(steps - 1) if n % cycle >= first and (not repeat or n // cycle < repeat)
    ]


# ============================================================================ offsets


# %% offsets: mean-without-the-extremes
# Drops the smallest and the largest difference and takes the mean of the others: the median of three collectives, but
# not of five.
def offsets(ends):
    result = []
    for rank in range(len(ends[0])):
        apart = sorted(row[rank] - row[0] for row in ends)
        inner = apart[1:-1] or apart
        result.append(sum(inner) / len(inner))
    return result


# %% offsets: difference-of-medians
# The median of a rank's ends minus the median of rank 0's: the two may come from different collectives, and then it
# is not the median of the differences.
def offsets(ends):
    middle = [statistics.median(own) for own in zip(*ends)]
    return [one - middle[0] for one in middle]


# %% offsets: sign-reversed
# Rank 0's end minus the rank's: a clock that is ahead gets a negative number.
def offsets(ends):
    return [statistics.median(row[0] - row[rank] for row in ends) for rank in range(len(ends[0]))]


# %% offsets: against-the-rank-before
# Compares each rank with the rank before it and not with rank 0. (Even the sum of these would not do: medians do not
# add up.)
def offsets(ends):
    return [
        statistics.median(row[rank] - row[max(rank - 1, 0)] for row in ends)
        for rank in range(len(ends[0]))
    ]


# %% offsets: against-the-earliest
# Subtracts the earliest end of each collective, as in a plot that begins at 0; right only where rank 0's clock is the
# one that is furthest behind.
def offsets(ends):
    return [statistics.median(row[rank] - min(row) for row in ends) for rank in range(len(ends[0]))]


# %% offsets: rank-0-left-out
# Returns numbers for the ranks from 1 on; the goal wants one for each rank, rank 0's own is 0.
def offsets(ends):
    return [
        statistics.median(row[rank] - row[0] for row in ends) for rank in range(1, len(ends[0]))
    ]


# %% offsets: middle-without-sorting
# Takes the difference of the collective in the middle of the list; the median is the middle of the sorted ones.
def offsets(ends):
    result = []
    for rank in range(len(ends[0])):
        apart = [row[rank] - row[0] for row in ends]
        result.append(apart[len(apart) // 2])
    return result


# %% offsets: float32-differences
# The differences are right integers, but the median is taken in float32, which holds integers up to 2**24: clocks
# that are more than 17 ms apart are rounded.
def offsets(ends):
    ends = torch.tensor(ends)
    apart = (ends - ends[:, :1]).float()
    return apart.median(dim=0).values.tolist()


# %% offsets: four-ranks
# Written for the four ranks of the recording: other numbers of ranks raise an error or are cut off.
def offsets(ends):
    return [statistics.median(row[rank] - row[0] for row in ends) for rank in range(4)]


# %% offsets: microseconds
# Divides by 1000, since the tables are in µs; the ends are in nanoseconds, and so is their difference.
def offsets(ends):
    return [
        statistics.median(row[rank] - row[0] for row in ends) / 1000 for rank in range(len(ends[0]))
    ]


# %% offsets: each-rank-sorted-by-itself
# Sorts each rank's ends first, so that the n-th end of a rank is compared with the n-th of rank 0. Where an outlier
# changes the order, these are ends of different collectives.
def offsets(ends):
    columns = [sorted(own) for own in zip(*ends)]
    return [statistics.median(a - b for a, b in zip(own, columns[0])) for own in columns]


# ============================================================================ exposed


# %% exposed: overlapping-communication-counted-twice
# Merges compute but not communication: a moment at which two collectives run counts twice.
def exposed(compute, communication):
    merged = []
    for start, end in sorted(compute):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    total = 0
    for start, end in communication:
        hidden = sum(max(0, min(end, e) - max(start, s)) for s, e in merged)
        total += end - start - hidden
    return total


# %% exposed: overlapping-compute-subtracted-twice
# Merges communication but not compute: where two kernels hide the same moment, it is subtracted twice.
def exposed(compute, communication):
    merged = []
    for start, end in sorted(communication):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    total = 0
    for start, end in merged:
        hidden = sum(max(0, min(end, e) - max(start, s)) for s, e in compute)
        total += max(0, end - start - hidden)
    return total


# %% exposed: difference-of-lengths
# The length of all communication minus that of all compute: that would be right only if all compute lay beside
# communication.
def exposed(compute, communication):
    def length(spans):
        total, reached = 0, None
        for start, end in sorted(spans):
            if reached is None or start > reached:
                reached = start
            if end > reached:
                total, reached = total + end - reached, end
        return total

    return max(0, length(communication) - length(compute))


# %% exposed: lists-taken-as-sorted
# The merge takes the spans in the order in which they come; the goal says that they are in no particular order.
def exposed(compute, communication):
    def length(spans):
        total, reached = 0, None
        for start, end in spans:
            if reached is None or start > reached:
                reached = start
            if end > reached:
                total, reached = total + end - reached, end
        return total

    return length([*compute, *communication]) - length(compute)


# %% exposed: end-of-the-later-span
# Merging sets the end to that of the later span and not to the larger one: a span within another cuts it off.
def exposed(compute, communication):
    def length(spans):
        merged = []
        for start, end in sorted(spans):
            if merged and start <= merged[-1][1]:
                merged[-1][1] = end
            else:
                merged.append([start, end])
        return sum(end - start for start, end in merged)

    return length([*compute, *communication]) - length(compute)


# %% exposed: compute-without-gaps
# Takes everything from the first start to the last end of compute for computing: communication in the gaps between
# kernels is exposed, and not counted.
def exposed(compute, communication):
    covered = []
    for start, end in sorted(communication):
        if covered and start <= covered[-1][1]:
            covered[-1][1] = max(covered[-1][1], end)
        else:
            covered.append([start, end])
    if not compute:
        return sum(end - start for start, end in covered)
    first, last = min(s for s, _ in compute), max(e for _, e in compute)
    return sum(end - start - max(0, min(end, last) - max(start, first)) for start, end in covered)


# %% exposed: a-flag-in-place-of-a-counter
# The sweep notes with one flag whether something computes: if the shorter of two overlapping kernels ends, the flag
# goes off though the other one still runs.
def exposed(compute, communication):
    events = []
    for start, end in compute:
        events += [(start, 1, "compute"), (end, -1, "compute")]
    for start, end in communication:
        events += [(start, 1, "talk"), (end, -1, "talk")]
    computing, talks, total, before = False, 0, 0, None
    for time, change, what in sorted(events):
        if talks and not computing:
            total += time - before
        before = time
        if what == "compute":
            computing = change > 0
        else:
            talks += change
    return total


# %% exposed: stops-with-the-last-kernel
# The two pointers stop as soon as one of the lists is used up: communication after the last kernel, which is exposed
# most often, is not counted.
def exposed(compute, communication):
    def merge(spans):
        merged = []
        for start, end in sorted(spans):
            if merged and start <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], end)
            else:
                merged.append([start, end])
        return merged

    kernels, talks = merge(compute), merge(communication)
    i = j = total = 0
    while i < len(kernels) and j < len(talks):
        start, end = talks[j]
        if kernels[i][1] <= start:
            i += 1
        elif end <= kernels[i][0]:
            total += end - start
            j += 1
        else:
            total += max(0, kernels[i][0] - start)
            talks[j][0] = min(end, kernels[i][1])
            if talks[j][0] >= end:
                j += 1
            else:
                i += 1
    return total


# %% exposed: all-or-nothing
# A stretch of communication that meets any kernel counts as hidden as a whole; only the part beside the kernel is.
def exposed(compute, communication):
    merged = []
    for start, end in sorted(communication):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    total = 0
    for start, end in merged:
        if not any(s < end and start < e for s, e in compute):
            total += end - start
    return total


# %% exposed: only-the-first-kernel
# Subtracts the first kernel that overlaps a stretch of communication and stops looking: a long collective beside
# several kernels seems more exposed than it is.
def exposed(compute, communication):
    def merge(spans):
        merged = []
        for start, end in sorted(spans):
            if merged and start <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], end)
            else:
                merged.append([start, end])
        return merged

    total, kernels = 0, merge(compute)
    for start, end in merge(communication):
        total += end - start
        for s, e in kernels:
            if s < end and start < e:
                total -= min(end, e) - max(start, s)
                break
    return total


# %% exposed: compute-exposed
# The two are swapped: the time in which something computes and no communication runs.
def exposed(compute, communication):
    def length(spans):
        total, reached = 0, None
        for start, end in sorted(spans):
            if reached is None or start > reached:
                reached = start
            if end > reached:
                total, reached = total + end - reached, end
        return total

    return length([*compute, *communication]) - length(communication)


# ============================================================================ charged


# %% charged: a-wait-of-the-resolution-left-out
# `>` in place of `>=`: a wait that is exactly the resolution is not shorter, so it counts.
def charged(arrivals, resolution):
    result = [0] * len(arrivals[0])
    for row in arrivals:
        last = max(row)
        result[row.index(last)] += sum(last - one for one in row if last - one > resolution)
    return result


# %% charged: longest-wait-only
# Charges the longest wait, of the first rank that came; the goal wants the sum of what all others waited.
def charged(arrivals, resolution):
    result = [0] * len(arrivals[0])
    for row in arrivals:
        last = max(row)
        wait = last - min(row)
        result[row.index(last)] += wait if wait >= resolution else 0
    return result


# %% charged: resolution-subtracted
# Charges what a wait is longer than the resolution; a wait that counts counts as a whole (100 in the example, not 90).
def charged(arrivals, resolution):
    result = [0] * len(arrivals[0])
    for row in arrivals:
        last = max(row)
        result[row.index(last)] += sum(max(0, last - one - resolution) for one in row)
    return result


# %% charged: sum-compared-with-the-resolution
# Compares the sum of a collective's waits with the resolution: three waits of 5 are charged at a resolution of 10,
# though none of them can be seen.
def charged(arrivals, resolution):
    result = [0] * len(arrivals[0])
    for row in arrivals:
        last = max(row)
        waits = sum(last - one for one in row)
        if waits >= resolution:
            result[row.index(last)] += waits
    return result


# %% charged: whole-collective-or-nothing
# If the longest wait can be seen, all waits of the collective are charged, also those below the resolution (105 in
# the example).
def charged(arrivals, resolution):
    result = [0] * len(arrivals[0])
    for row in arrivals:
        last = max(row)
        if last - min(row) >= resolution:
            result[row.index(last)] += sum(last - one for one in row)
    return result


# %% charged: only-behind-the-second-last
# Charges what the last rank alone caused, its distance from the second last, for each of the others; the goal
# wants what they waited.
def charged(arrivals, resolution):
    result = [0] * len(arrivals[0])
    for row in arrivals:
        *_, second, last = sorted(row)
        if last - second >= resolution:
            result[row.index(last)] += (last - second) * (len(row) - 1)
    return result


# %% charged: resolution-of-the-totals
# Adds up all waits and compares each rank's total with the resolution: short waits add up over the collectives.
def charged(arrivals, resolution):
    result = [0] * len(arrivals[0])
    for row in arrivals:
        last = max(row)
        result[row.index(last)] += sum(last - one for one in row)
    return [total if total >= resolution else 0 for total in result]


# %% charged: everybody-who-came-later
# Charges each rank for those who came before it, and not only the last one.
def charged(arrivals, resolution):
    result = [0] * len(arrivals[0])
    for row in arrivals:
        for rank, one in enumerate(row):
            waits = [one - other for other in row if other < one]
            result[rank] += sum(wait for wait in waits if wait >= resolution)
    return result


# %% charged: last-collective-only
# `=` in place of `+=`: a rank that comes last in several collectives is charged for the last of them alone.
def charged(arrivals, resolution):
    result = [0] * len(arrivals[0])
    for row in arrivals:
        last = max(row)
        waits = [last - one for one in row]
        result[row.index(last)] = sum(wait for wait in waits if wait >= resolution)
    return result


# %% charged: rounded-to-the-resolution
# Rounds each wait down to a multiple of the resolution: that drops short waits, but makes the others shorter, too.
def charged(arrivals, resolution):
    result = [0] * len(arrivals[0])
    for row in arrivals:
        last = max(row)
        for one in row:
            wait = last - one
            result[row.index(last)] += wait // resolution * resolution if resolution else wait
    return result


# %% charged: shared-among-the-late
# Ranks that arrive within the resolution of the last one share its charge; the goal charges the last rank.
def charged(arrivals, resolution):
    result = [0] * len(arrivals[0])
    for row in arrivals:
        last = max(row)
        late = [rank for rank, one in enumerate(row) if last - one < resolution or one == last]
        waits = sum(last - one for one in row if last - one >= resolution)
        for rank in late:
            result[rank] += waits / len(late)
    return result


# %% charged: float32
# Arrivals as float32: nanoseconds since 1970 are rounded to 137 seconds, and even times near 0 from 17 ms on are
# rounded.
def charged(arrivals, resolution):
    times = torch.tensor(arrivals, dtype=torch.float32)
    last, who = times.max(dim=1)
    waits = last[:, None] - times
    waits[waits < resolution] = 0
    result = torch.zeros(times.shape[1]).index_add_(0, who, waits.sum(1))
    return [int(one) for one in result]


# ============================================================================ diagnoses


# %% diagnoses: longest-all-reduces-blamed
# A's rank is one whose all-reduces are long; a long all-reduce means a rank that was early. Rank 1 arrives last
# nine times of nine.
def diagnoses():
    return {
        "A": (3, "straggler", 0.13),
        "B": (None, "starved input", 0.44),
        "C": (2, "recompile", 0.6),
        "D": (0, "checkpoint", 0.5),
        "E": (None, "allocator thrashing", 0.76),
        "F": (None, "exposed communication", 0.67),
    }


# %% diagnoses: last-most-often
# D's rank is the one that came last most often (rank 3, 18 times); rank 0 came last in only 8 collectives, but cost
# the others ten times as much.
def diagnoses():
    return {
        "A": (1, "straggler", 0.13),
        "B": (None, "starved input", 0.44),
        "C": (2, "recompile", 0.6),
        "D": (3, "checkpoint", 0.5),
        "E": (None, "allocator thrashing", 0.76),
        "F": (None, "exposed communication", 0.67),
    }


# %% diagnoses: starved-rank
# B's rank is the one that waits least; all ranks are idle at the start of each step, so it has to be None.
def diagnoses():
    return {
        "A": (1, "straggler", 0.13),
        "B": (1, "starved input", 0.44),
        "C": (2, "recompile", 0.6),
        "D": (0, "checkpoint", 0.5),
        "E": (None, "allocator thrashing", 0.76),
        "F": (None, "exposed communication", 0.67),
    }


# %% diagnoses: busiest-rank-of-f
# F's rank is the one that computes longest and comes last 8 of 18 times; waiting is a small part of the collectives
# there, and nobody is to blame.
def diagnoses():
    return {
        "A": (1, "straggler", 0.13),
        "B": (None, "starved input", 0.44),
        "C": (2, "recompile", 0.6),
        "D": (0, "checkpoint", 0.5),
        "E": (None, "allocator thrashing", 0.76),
        "F": (3, "exposed communication", 0.67),
    }


# %% diagnoses: launch-bound-a-second-time
# E's GPUs wait for hosts, but those are in cudaMalloc and cudaFree; launch-bound was X, and A to F have the other six.
def diagnoses():
    return {
        "A": (1, "straggler", 0.13),
        "B": (None, "starved input", 0.44),
        "C": (2, "recompile", 0.6),
        "D": (0, "checkpoint", 0.5),
        "E": (None, "launch-bound", 0.76),
        "F": (None, "exposed communication", 0.67),
    }


# %% diagnoses: straggler-and-recompile-swapped
# In both one rank has more to do in every step; C's rank 2 compiles (ranges of Dynamo), and A's rank 1 has more work.
def diagnoses():
    return {
        "A": (1, "recompile", 0.13),
        "B": (None, "starved input", 0.44),
        "C": (2, "straggler", 0.6),
        "D": (0, "checkpoint", 0.5),
        "E": (None, "allocator thrashing", 0.76),
        "F": (None, "exposed communication", 0.67),
    }


# %% diagnoses: percent
# Shares in percent, as the tables have them; the goal wants numbers from 0 to 1.
def diagnoses():
    return {
        "A": (1, "straggler", 13),
        "B": (None, "starved input", 44),
        "C": (2, "recompile", 60),
        "D": (0, "checkpoint", 50),
        "E": (None, "allocator thrashing", 76),
        "F": (None, "exposed communication", 67),
    }


# %% diagnoses: calls-alone
# E's share is that of the calls that are to blame (what cause() says); the goal wants all the time in which the GPU
# waits for the host.
def diagnoses():
    return {
        "A": (1, "straggler", 0.13),
        "B": (None, "starved input", 0.44),
        "C": (2, "recompile", 0.6),
        "D": (0, "checkpoint", 0.5),
        "E": (None, "allocator thrashing", 0.38),
        "F": (None, "exposed communication", 0.67),
    }


# %% diagnoses: waiting-of-f
# F's share is the waiting part of the time in collectives, 16 %; the goal wants the cause's part of the breakdown.
def diagnoses():
    return {
        "A": (1, "straggler", 0.13),
        "B": (None, "starved input", 0.44),
        "C": (2, "recompile", 0.6),
        "D": (0, "checkpoint", 0.5),
        "E": (None, "allocator thrashing", 0.76),
        "F": (None, "exposed communication", 0.16),
    }


# %% diagnoses: relative-share
# A's share is relative: 2.5 % is 84 % less than 15.2 %. The goal asks how much smaller the share is: 13 percent
# of a step.
def diagnoses():
    return {
        "A": (1, "straggler", 0.84),
        "B": (None, "starved input", 0.44),
        "C": (2, "recompile", 0.6),
        "D": (0, "checkpoint", 0.5),
        "E": (None, "allocator thrashing", 0.76),
        "F": (None, "exposed communication", 0.67),
    }


# %% diagnoses: compute-as-the-share
# C's share is the compute of rank 2, 72 %, which holds its usual work, too; the goal wants the difference in exposed
# communication.
def diagnoses():
    return {
        "A": (1, "straggler", 0.13),
        "B": (None, "starved input", 0.44),
        "C": (2, "recompile", 0.72),
        "D": (0, "checkpoint", 0.5),
        "E": (None, "allocator thrashing", 0.76),
        "F": (None, "exposed communication", 0.67),
    }


# %% diagnoses: the-rank-that-waits-most
# F's share is that of rank 1, which waits most (83 %); the goal wants that of the rank that waits least.
def diagnoses():
    return {
        "A": (1, "straggler", 0.13),
        "B": (None, "starved input", 0.44),
        "C": (2, "recompile", 0.6),
        "D": (0, "checkpoint", 0.5),
        "E": (None, "allocator thrashing", 0.76),
        "F": (None, "exposed communication", 0.83),
    }


# ============================================================================ chance


# %% chance: strictly-larger
# `>` in place of `>=`: the real way itself, and all that are as large, are not counted (0 in place of 1/70).
def chance(before, after):
    values, real = before + after, sum(after)
    dealt = [sum(way) for way in itertools.combinations(values, len(after))]
    return sum(one > real for one in dealt) / len(dealt)


# %% chance: equal-hands-counted-once
# set() merges hands that hold equal values: two steps of the same length are still two values that are dealt.
def chance(before, after):
    values, real = sorted(before + after), sum(after)
    dealt = [sum(way) for way in set(itertools.combinations(values, len(after)))]
    return sum(one >= real for one in dealt) / len(dealt)


# %% chance: as-many-as-before
# Deals out hands of len(before) and compares their means: right where both sides have equally many steps.
def chance(before, after):
    n, m = len(before), len(after)
    dealt = [sum(way) for way in itertools.combinations(before + after, n)]
    return sum(one * m >= sum(after) * n for one in dealt) / len(dealt)


# %% chance: two-sided
# Counts ways in which the two means are as far apart, in either direction: twice as many.
def chance(before, after):
    values, n, m = before + after, len(before), len(after)
    total = sum(values)
    apart = lambda hand: abs(hand * n - (total - hand) * m)
    dealt = [sum(way) for way in itertools.combinations(values, m)]
    return sum(apart(one) >= apart(sum(after)) for one in dealt) / len(dealt)


# %% chance: sums-of-milliseconds
# Converts ns to ms first: sums of such floats differ in the last bit, so that some ways that are exactly as large as
# the real one are not counted.
def chance(before, after):
    before, after = [one / 1e6 for one in before], [one / 1e6 for one in after]
    mean = sum(after) / len(after)
    dealt = [sum(way) / len(way) for way in itertools.combinations(before + after, len(after))]
    return sum(one >= mean for one in dealt) / len(dealt)


# %% chance: without-the-real-way
# Leaves the real way out of both counts; the goal says that it is one of them.
def chance(before, after):
    dealt = [sum(way) for way in itertools.combinations(before + after, len(after))]
    return (sum(one >= sum(after) for one in dealt) - 1) / (len(dealt) - 1)


# %% chance: ten-thousand-shuffles
# Shuffles at random in place of all ways: near the share, and not the share.
def chance(before, after):
    draw, values, found = random.Random(0), before + after, 0
    for _ in range(10_000):
        draw.shuffle(values)
        found += sum(values[: len(after)]) >= sum(after)
    return found / 10_000


# %% chance: medians
# Compares medians, which are less sensitive to outliers; the goal asks for means.
def chance(before, after):
    real = statistics.median(after)
    dealt = [statistics.median(way) for way in itertools.combinations(before + after, len(after))]
    return sum(one >= real for one in dealt) / len(dealt)


# %% chance: with-replacement
# A bootstrap: draws each value anew from all, so a value may come several times; dealt out, each goes to one side.
def chance(before, after):
    dealt = [sum(way) for way in itertools.product(before + after, repeat=len(after))]
    return sum(one >= sum(after) for one in dealt) / len(dealt)


# %% chance: pairs-swapped
# Swaps the n-th step before with the n-th after or not (a test for pairs): 2**n ways, not all ways to deal.
def chance(before, after):
    dealt = [sum(way) for way in itertools.product(*zip(before, after))]
    return sum(one >= sum(after) for one in dealt) / len(dealt)


# %% chance: whole-means
# Integer division: means that differ by less than 1 count as equal, and so as "at least as large".
def chance(before, after):
    m = len(after)
    real = sum(after) // m
    dealt = [sum(way) // m for way in itertools.combinations(before + after, m)]
    return sum(one >= real for one in dealt) / len(dealt)


# %% chance: seventy
# The number of ways is the text's, 70, which holds for four steps a side only.
def chance(before, after):
    found = sum(
        sum(way) >= sum(after) for way in itertools.combinations(before + after, len(after))
    )
    return found / 70


# %% recorded_steps: keeps-the-warm-up-and-not-the-last
def recorded_steps(wait, warmup, active, repeat, steps):
    cycle = wait + warmup + active
    kept = []
    for step in range(steps):
        if repeat and step // cycle >= repeat:
            break
        if wait <= step % cycle < wait + active:
            kept.append(step)
    return kept


# %% recorded_steps: the-last-cycle-only
def recorded_steps(wait, warmup, active, repeat, steps):
    cycle, kept = [], []
    length = wait + warmup + active
    for step in range(steps):
        if repeat and step >= repeat * length:
            break
        if step % length == 0:
            cycle = []
        if step % length >= wait + warmup:
            cycle.append(step)
            kept = cycle
    return kept


# %% recorded_steps: a-step-at-which-the-trace-is-saved-is-lost
def recorded_steps(wait, warmup, active, repeat, steps):
    from torch.profiler import ProfilerAction, schedule

    plan = schedule(wait=wait, warmup=warmup, active=active, repeat=repeat)
    return [step for step in range(steps) if plan(step) == ProfilerAction.RECORD]


# %% recorded_steps: repeat-is-one-more
def recorded_steps(wait, warmup, active, repeat, steps):
    length = wait + warmup + active
    return [
        step
        for step in range(steps)
        if step % length >= wait + warmup and (repeat == 0 or step // length <= repeat)
    ]


# %% recorded_steps: counts-within-a-cycle
def recorded_steps(wait, warmup, active, repeat, steps):
    length = wait + warmup + active
    last = steps if repeat == 0 else min(steps, repeat * length)
    return [step % length for step in range(last) if step % length >= wait + warmup]


# %% recorded_steps: active-before-warm-up
def recorded_steps(wait, warmup, active, repeat, steps):
    cycle = wait + warmup + active
    end = repeat * cycle or steps
    return [s for s in range(min(end, steps)) if wait <= s % cycle < wait + active]


# %% profiled: step-before-train
def profiled(train, steps, first, count, folder):
    plan = schedule(wait=first - 1, warmup=1, active=count, repeat=1)

    def ready(profiler):
        profiler.export_chrome_trace(f"{folder}/rank{dist.get_rank()}.json")

    with profile(schedule=plan, on_trace_ready=ready) as profiler:
        for number in range(steps):
            profiler.step()
            train(number)


# %% profiled: no-step-at-all
def profiled(train, steps, first, count, folder):
    def ready(profiler):
        profiler.export_chrome_trace(f"{folder}/rank{dist.get_rank()}.json")

    plan = schedule(wait=first - 1, warmup=1, active=count, repeat=1)
    with profile(schedule=plan, on_trace_ready=ready):
        for number in range(steps):
            train(number)


# %% profiled: everything-is-recorded
def profiled(train, steps, first, count, folder):
    rank = dist.get_rank()
    with profile() as profiler:
        for number in range(steps):
            train(number)
    profiler.export_chrome_trace(f"{folder}/rank{rank}.json")


# %% profiled: waits-first-steps-and-warms-up-after
def profiled(train, steps, first, count, folder):
    rank = dist.get_rank()
    with profile(
        schedule=schedule(wait=first, warmup=1, active=count, repeat=1),
        on_trace_ready=lambda p: p.export_chrome_trace(f"{folder}/rank{rank}.json"),
    ) as profiler:
        for number in range(steps):
            train(number)
            profiler.step()


# %% profiled: no-warm-up
def profiled(train, steps, first, count, folder):
    rank = dist.get_rank()
    with profile(
        schedule=schedule(wait=first, warmup=0, active=count, repeat=1),
        on_trace_ready=lambda p: p.export_chrome_trace(f"{folder}/rank{rank}.json"),
    ) as profiler:
        for number in range(steps):
            train(number)
            profiler.step()


# %% profiled: repeats
def profiled(train, steps, first, count, folder):
    rank = dist.get_rank()

    def save(profiler):
        profiler.export_chrome_trace(f"{folder}/rank{rank}.json")

    with profile(
        schedule=schedule(wait=first - 1, warmup=1, active=count),
        on_trace_ready=save,
    ) as profiler:
        for number in range(steps):
            train(number)
            profiler.step()


# %% profiled: one-file-for-all
def profiled(train, steps, first, count, folder):
    def save(profiler):
        profiler.export_chrome_trace(f"{folder}/rank0.json")

    with profile(
        schedule=schedule(wait=first - 1, warmup=1, active=count, repeat=1),
        on_trace_ready=save,
    ) as profiler:
        for number in range(steps):
            train(number)
            profiler.step()


# %% profiled: only-rank-zero-writes
def profiled(train, steps, first, count, folder):
    def save(profiler):
        if dist.get_rank() == 0:
            profiler.export_chrome_trace(f"{folder}/rank0.json")

    with profile(
        schedule=schedule(wait=first - 1, warmup=1, active=count, repeat=1),
        on_trace_ready=save,
    ) as profiler:
        for number in range(steps):
            train(number)
            profiler.step()


# %% profiled: stops-after-the-recorded-steps
def profiled(train, steps, first, count, folder):
    rank = dist.get_rank()
    with profile(
        schedule=schedule(wait=first - 1, warmup=1, active=count, repeat=1),
        on_trace_ready=lambda p: p.export_chrome_trace(f"{folder}/rank{rank}.json"),
    ) as profiler:
        for number in range(first + count):
            train(number)
            profiler.step()


# %% profiled: skips-one-more
def profiled(train, steps, first, count, folder):
    rank = dist.get_rank()
    with profile(
        schedule=schedule(skip_first=1, wait=first - 1, warmup=1, active=count, repeat=1),
        on_trace_ready=lambda p: p.export_chrome_trace(f"{folder}/rank{rank}.json"),
    ) as profiler:
        for number in range(steps):
            train(number)
            profiler.step()


# %% profiled: files-in-the-working-directory
def profiled(train, steps, first, count, folder):
    rank = dist.get_rank()
    with profile(
        schedule=schedule(wait=first - 1, warmup=1, active=count, repeat=1),
        on_trace_ready=lambda p: p.export_chrome_trace(f"rank{rank}.json"),
    ) as profiler:
        for number in range(steps):
            train(number)
            profiler.step()


# %% profiled: records-up-to-number-count
def profiled(train, steps, first, count, folder):
    rank = dist.get_rank()
    with profile(
        schedule=schedule(wait=first - 1, warmup=1, active=count - first, repeat=1),
        on_trace_ready=lambda p: p.export_chrome_trace(f"{folder}/rank{rank}.json"),
    ) as profiler:
        for number in range(steps):
            train(number)
            profiler.step()


# %% profiled: step-only-while-recording
def profiled(train, steps, first, count, folder):
    rank = dist.get_rank()
    with profile(
        schedule=schedule(wait=first - 1, warmup=1, active=count, repeat=1),
        on_trace_ready=lambda p: p.export_chrome_trace(f"{folder}/rank{rank}.json"),
    ) as profiler:
        for number in range(steps):
            train(number)
            if first <= number < first + count:
                profiler.step()


# %% offsets: mean-after-dropping-nothing
def offsets(ends):
    import numpy as np

    ends = np.array(ends)
    ahead = ends - ends[:, :1]
    return ahead.mean(axis=0).tolist()


# %% offsets: median-over-ranks
def offsets(ends):
    result = []
    for row in ends:
        differences = sorted(end - row[0] for end in row)
        result.append(differences[len(differences) // 2])
    return result


# %% offsets: absolute
def offsets(ends):
    from statistics import median

    return [median(abs(row[rank] - row[0]) for row in ends) for rank in range(len(ends[0]))]


# %% exposed: only-the-first-overlap-is-taken-off
def exposed(compute, communication):
    total = 0
    for start, end in communication:
        left = end - start
        for begin, stop in compute:
            common = min(end, stop) - max(start, begin)
            if common > 0:
                left -= common
                break
        total += left
    return total


# %% exposed: compute-not-merged
def exposed(compute, communication):
    merged = []
    for start, end in sorted(communication):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    total = sum(end - start for start, end in merged)
    for start, end in merged:
        for begin, stop in compute:
            total -= max(0, min(end, stop) - max(start, begin))
    return total


# %% exposed: merges-without-the-larger-end
def exposed(compute, communication):
    def merge(spans):
        merged = []
        for start, end in sorted(spans):
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], end)
            else:
                merged.append((start, end))
        return merged

    def length(spans):
        return sum(end - start for start, end in merge(spans))

    return length([*compute, *communication]) - length(compute)


# %% exposed: the-whole-span
def exposed(compute, communication):
    if not communication:
        return 0
    start = min(one for one, _ in communication)
    end = max(one for _, one in communication)
    hidden = 0
    for begin, stop in compute:
        hidden += max(0, min(end, stop) - max(start, begin))
    return max(0, end - start - hidden)


# %% exposed: computing-without-communication
def exposed(compute, communication):
    def length(spans):
        total, reached = 0, None
        for start, end in sorted(spans):
            if reached is None or end > reached:
                total += end - (start if reached is None else max(start, reached))
                reached = end
        return total

    return length(compute + communication) - length(communication)


# %% exposed: after-the-last-computation
def exposed(compute, communication):
    end = max((d for _, d in compute), default=0)
    return sum(max(0, b - max(a, end)) for a, b in communication)


# %% exposed: ends-counted
def exposed(compute, communication):
    busy = {t for a, b in compute for t in range(a, b + 1)}
    talk = {t for a, b in communication for t in range(a, b + 1)}
    return len(talk - busy)


# %% exposed: span-for-span
def exposed(compute, communication):
    total = 0
    for (a, b), (c, d) in zip(sorted(communication), sorted(compute)):
        total += b - a - max(0, min(b, d) - max(a, c))
    return total


# %% charged: the-longest-wait-only
def charged(arrivals, resolution):
    total = [0] * len(arrivals[0])
    for row in arrivals:
        last = row.index(max(row))
        wait = max(row) - min(row)
        if wait >= resolution:
            total[last] += wait
    return total


# %% charged: waiting-to-the-one-before-the-last
def charged(arrivals, resolution):
    total = [0] * len(arrivals[0])
    for row in arrivals:
        second, latest = sorted(row)[-2:]
        wait = latest - second
        if wait >= resolution:
            total[row.index(latest)] += wait * (len(row) - 1)
    return total


# %% charged: each-late-one-is-charged-for-those-before-it
def charged(arrivals, resolution):
    total = [0] * len(arrivals[0])
    for row in arrivals:
        for rank, mine in enumerate(row):
            for other in row:
                if mine - other >= resolution:
                    total[rank] += mine - other
    return total


# %% charged: strictly-more-than-the-resolution
def charged(arrivals, resolution):
    total = [0] * len(arrivals[0])
    for row in arrivals:
        latest = max(row)
        total[row.index(latest)] += sum(latest - one for one in row if latest - one > resolution)
    return total


# %% charged: mean-of-the-waits
def charged(arrivals, resolution):
    found = [0] * len(arrivals[0])
    for row in arrivals:
        last = max(row)
        waits = [last - t for t in row if last - t >= resolution]
        found[row.index(last)] += sum(waits) // max(1, len(waits))
    return found


# %% charged: last-of-the-first-collective
def charged(arrivals, resolution):
    found = [0] * len(arrivals[0])
    for row in arrivals:
        last = max(row)
        found[arrivals[0].index(max(arrivals[0]))] += sum(
            last - t for t in row if last - t >= resolution
        )
    return found


# %% diagnoses: mean-share-of-the-steps-of-the-library-words
def diagnoses():
    from lockstep.course.labs.lab07 import case

    found = {}
    for letter in "ABCDEF":
        cause = case(letter).cause()
        found[letter] = (cause.rank, cause.word, cause.share)
    return found


# %% diagnoses: exposed-of-the-late-ranks-themselves
def diagnoses():
    return {
        "A": (1, "straggler", 0.025),
        "B": (None, "starved input", 0.44),
        "C": (2, "recompile", 0.24),
        "D": (0, "checkpoint", 0.32),
        "E": (None, "allocator thrashing", 0.76),
        "F": (None, "exposed communication", 0.67),
    }


# %% diagnoses: f-is-waiting
def diagnoses():
    return {
        "A": (1, "straggler", 0.13),
        "B": (None, "starved input", 0.44),
        "C": (2, "recompile", 0.6),
        "D": (0, "checkpoint", 0.5),
        "E": (None, "allocator thrashing", 0.76),
        "F": (None, "exposed communication", 0.16),
    }


# %% diagnoses: rank-one-in-e
def diagnoses():
    return {
        "A": (1, "straggler", 0.13),
        "B": (1, "starved input", 0.44),
        "C": (2, "recompile", 0.6),
        "D": (0, "checkpoint", 0.5),
        "E": (1, "allocator thrashing", 0.15),
        "F": (3, "exposed communication", 0.67),
    }


# %% chance: drawn-at-random
def chance(before, after):
    import random

    both, more = [*before, *after], 0
    for _ in range(1000):
        random.shuffle(both)
        more += sum(both[: len(after)]) >= sum(after)
    return more / 1000


# %% chance: without-the-real-one
def chance(before, after):
    from itertools import combinations

    both = before + after
    real = sum(after)
    sums = [sum(deal) for deal in combinations(both, len(after))]
    return (sum(one >= real for one in sums) - 1) / (len(sums) - 1)


# %% chance: equal-times-are-one
def chance(before, after):
    from itertools import combinations

    deals = set(combinations(sorted(before + after), len(after)))
    return sum(sum(deal) >= sum(after) for deal in deals) / len(deals)


# %% chance: one-more-way
def chance(before, after):
    ways = [sum(w) for w in itertools.combinations(before + after, len(after))]
    return (sum(w >= sum(after) for w in ways) + 1) / (len(ways) + 1)


# %% chance: pairs-not-larger
def chance(before, after):
    return sum(a <= b for a in before for b in after) / len(before) / len(after)


# %% recorded_steps: none-means-once
def recorded_steps(wait, warmup, active, repeat, steps):
    cycle = wait + warmup + active
    return [
        step
        for step in range(steps)
        if step // cycle < max(repeat, 1) and step % cycle >= wait + warmup
    ]


# %% recorded_steps: waits-only-once
def recorded_steps(wait, warmup, active, repeat, steps):
    kept, step, cycle = [], wait, 0
    while step < steps and (repeat == 0 or cycle < repeat):
        step += warmup
        kept += range(step, min(step + active, steps))
        step += active
        cycle += 1
    return kept


# %% recorded_steps: a-block-at-each-cycle-cut-off-late
def recorded_steps(wait, warmup, active, repeat, steps):
    cycle = wait + warmup + active
    last = repeat * cycle if repeat else steps
    kept = []
    for start in range(0, min(last, steps), cycle):
        kept.extend(range(start + wait + warmup, start + cycle))
    return kept


# %% profiled: no-repeat
def profiled(train, steps, first, count, folder):
    path = f"{folder}/rank{dist.get_rank()}.json"
    plan = schedule(wait=first - 1, warmup=1, active=count)
    with profile(schedule=plan, on_trace_ready=lambda p: p.export_chrome_trace(path)) as p:
        for number in range(steps):
            train(number)
            p.step()


# %% profiled: waits-one-too-many
def profiled(train, steps, first, count, folder):
    def ready(p):
        p.export_chrome_trace(f"{folder}/rank{dist.get_rank()}.json")

    plan = schedule(wait=first, warmup=1, active=count, repeat=1)
    with profile(schedule=plan, on_trace_ready=ready) as p:
        for number in range(steps):
            train(number)
            p.step()


# %% profiled: the-number-of-its-host
def profiled(train, steps, first, count, folder):
    def ready(p):
        p.export_chrome_trace(f"{folder}/rank{dist.get_rank() % 2}.json")

    plan = schedule(wait=first - 1, warmup=1, active=count, repeat=1)
    with profile(schedule=plan, on_trace_ready=ready) as p:
        for number in range(steps):
            train(number)
            p.step()


# %% profiled: step-before-the-training
def profiled(train, steps, first, count, folder):
    def ready(p):
        p.export_chrome_trace(f"{folder}/rank{dist.get_rank()}.json")

    plan = schedule(wait=first - 1, warmup=1, active=count, repeat=1)
    with profile(schedule=plan, on_trace_ready=ready) as p:
        for number in range(steps):
            p.step()
            train(number)


# %% profiled: stops-after-the-recording
def profiled(train, steps, first, count, folder):
    def ready(p):
        p.export_chrome_trace(f"{folder}/rank{dist.get_rank()}.json")

    plan = schedule(wait=first - 1, warmup=1, active=count, repeat=1)
    with profile(schedule=plan, on_trace_ready=ready) as p:
        for number in range(first + count):
            train(number)
            p.step()


# %% offsets: middle-by-size
def offsets(ends):
    found = []
    for rank in range(len(ends[0])):
        ahead = sorted((row[rank] - row[0] for row in ends), key=abs)
        found.append(ahead[len(ahead) // 2])
    return found


# %% offsets: in-single-precision
def offsets(ends):
    x = torch.tensor(ends, dtype=torch.float32)
    return (x - x[:, :1]).median(dim=0).values.tolist()


# %% exposed: merged-without-max
def merged(spans):
    joined = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1][1] = end
        else:
            joined.append([start, end])
    return joined


def exposed(compute, communication):
    both = sum(end - start for start, end in merged(compute + communication))
    return both - sum(end - start for start, end in merged(compute))


# %% exposed: overlaps-of-each-computation
def exposed(compute, communication):
    joined = []
    for start, end in sorted(communication):
        if joined and start <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], end)
        else:
            joined.append([start, end])
    total = sum(end - start for start, end in joined)
    for a, b in joined:
        for start, end in compute:
            total -= max(0, min(b, end) - max(a, start))
    return total


# %% exposed: takes-them-as-sorted
def exposed(compute, communication):
    def length(spans):
        total, until = 0, float("-inf")
        for start, end in spans:
            if end > until:
                total += end - max(start, until)
                until = end
        return total

    return length(sorted(compute + communication)) - length(compute)


# %% exposed: from-the-first-to-the-last
def exposed(compute, communication):
    if not communication:
        return 0
    begin = min(start for start, _ in communication)
    end = max(end for _, end in communication)
    busy, until = 0, begin
    for start, stop in sorted(compute):
        start, stop = max(start, until), min(stop, end)
        if stop > start:
            busy += stop - start
            until = stop
    return end - begin - busy


# %% exposed: some-computation-is-there
def exposed(compute, communication):
    def union(spans):
        ordered = sorted(spans)
        current_start, current_end = ordered[0]
        total = 0
        for start, end in ordered[1:]:
            if start > current_end:
                total += current_end - current_start
                current_start, current_end = start, end
            else:
                current_end = max(current_end, end)
        return total + current_end - current_start

    return union(compute + communication) - union(compute)


# %% charged: behind-the-one-before
def charged(arrivals, resolution):
    costs = [0] * len(arrivals[0])
    for row in arrivals:
        *_, second, last = sorted(row)
        late = last - second
        if late >= resolution:
            costs[row.index(last)] += late * (len(row) - 1)
    return costs


# %% charged: last-of-all-collectives
def charged(arrivals, resolution):
    ranks = range(len(arrivals[0]))
    late = max(ranks, key=lambda rank: sum(row[rank] for row in arrivals))
    costs = [0 for _ in ranks]
    for row in arrivals:
        waits = [row[late] - t for t in row]
        costs[late] += sum(wait for wait in waits if wait >= resolution and wait > 0)
    return costs


# %% diagnoses: mean-of-both-ranks
def diagnoses():
    return {
        "A": (1, "straggler", 0.127),
        "B": (None, "starved input", 0.444),
        "C": (2, "recompile", 0.60),
        "D": (0, "checkpoint", 0.498),
        "E": (None, "allocator thrashing", 0.679),
        "F": (None, "exposed communication", 0.672),
    }


# %% diagnoses: what-the-trace-does-not-see
def diagnoses():
    return {
        "A": (1, "straggler", 0.127),
        "B": (None, "starved input", 0.444),
        "C": (2, "recompile", 0.60),
        "D": (0, "checkpoint", 0.546),
        "E": (None, "allocator thrashing", 0.757),
        "F": (None, "exposed communication", 0.672),
    }


# %% diagnoses: who-was-last-most-often
def diagnoses():
    return {
        "A": (1, "straggler", 0.127),
        "B": (None, "starved input", 0.444),
        "C": (2, "recompile", 0.60),
        "D": (0, "checkpoint", 0.498),
        "E": (None, "allocator thrashing", 0.757),
        "F": (3, "exposed communication", 0.672),
    }


# %% diagnoses: all-that-is-idle
def diagnoses():
    return {
        "A": (1, "straggler", 0.127),
        "B": (None, "starved input", 0.4705),
        "C": (2, "recompile", 0.60),
        "D": (0, "checkpoint", 0.498),
        "E": (None, "allocator thrashing", 0.757),
        "F": (None, "exposed communication", 0.672),
    }


# %% chance: each-deal-by-value
def chance(before, after):
    ways = set(itertools.combinations(sorted(before + after), len(after)))
    return sum(sum(way) >= sum(after) for way in ways) / len(ways)


# %% chance: only-larger-ones
def chance(before, after):
    real = statistics.mean(after)
    ways = list(itertools.combinations(before + after, len(after)))
    return sum(statistics.mean(way) > real for way in ways) / len(ways)


# %% chance: both-directions
def chance(before, after):
    every, n = before + after, len(after)
    centre = statistics.fmean(every)
    far = abs(statistics.fmean(after) - centre)
    ways = list(itertools.combinations(every, n))
    return sum(abs(statistics.fmean(way) - centre) >= far for way in ways) / len(ways)


# %% recorded_steps: repeat-counts-steps
# `repeat` is taken as the number of steps that are kept at most.
def recorded_steps(wait, warmup, active, repeat, steps):
    cycle = wait + warmup + active
    kept = [n for n in range(steps) if n % cycle >= wait + warmup]
    return kept[:repeat] if repeat else kept


# %% recorded_steps: wait-once
# The wait comes only before the first cycle.
def recorded_steps(wait, warmup, active, repeat, steps):
    cycle = warmup + active
    kept = []
    for n in range(wait, steps):
        number, at = divmod(n - wait, cycle)
        if at >= warmup and (repeat == 0 or number < repeat):
            kept.append(n)
    return kept


# %% profiled: start-and-stop
# The profiler is started before the step, without a warm-up.
def profiled(train, steps, first, count, folder):
    recorder = profile(activities=[ProfilerActivity.CPU])
    for number in range(steps):
        if number == first:
            recorder.start()
        train(number)
        if number == first + count - 1:
            recorder.stop()
    recorder.export_chrome_trace(f"{folder}/rank{dist.get_rank()}.json")


# %% profiled: again-and-again
# repeat is left at 0: the cycle begins anew.
def profiled(train, steps, first, count, folder):
    def write(p):
        p.export_chrome_trace(os.path.join(folder, f"rank{dist.get_rank()}.json"))

    plan = schedule(wait=first - 1, warmup=1, active=count)
    with profile(schedule=plan, on_trace_ready=write) as recorder:
        for number in range(steps):
            train(number)
            recorder.step()


# %% profiled: step-before-train-once-more
# step() before train(): everything is one step late.
def profiled(train, steps, first, count, folder):
    write = lambda p: p.export_chrome_trace(str(Path(folder, f"rank{dist.get_rank()}.json")))
    plan = schedule(wait=first - 1, warmup=1, active=count, repeat=1)
    with profile(schedule=plan, on_trace_ready=write) as recorder:
        for number in range(steps):
            recorder.step()
            train(number)


# %% offsets: low-of-the-two-in-place
# Sorts rows in place.
def offsets(ends):
    n = len(ends[0])
    result = []
    for rank in range(n):
        column = [row[rank] for row in ends]
        column.sort()
        result.append(column[len(column) // 2])
    return [one - result[0] for one in result]


# %% offsets: integer-mean-without-extremes
def offsets(ends):
    result = []
    for rank in range(len(ends[0])):
        found = sorted(row[rank] - row[0] for row in ends)
        inner = found[1:-1] or found
        result.append(sum(inner) // len(inner))
    return result


# %% offsets: to-the-last-rank
def offsets(ends):
    return [int(statistics.median(row[r] - row[-1] for row in ends)) for r in range(len(ends[0]))]


# %% offsets: as-float32
def offsets(ends):
    table = np.array(ends, dtype=np.float32)
    return [int(one) for one in np.median(table - table[:, :1], axis=0)]


# %% exposed: ends-inclusive
# Counts the moment at which a span ends.
def exposed(compute, communication):
    busy = {t for a, b in compute for t in range(a, b + 1)}
    return len({t for a, b in communication for t in range(a, b + 1)} - busy)


# %% exposed: only-neighbours-merged
# Merges spans without sorting them.
def exposed(compute, communication):
    def merged(spans):
        found = []
        for a, b in spans:
            if found and a <= found[-1][1]:
                found[-1][1] = max(found[-1][1], b)
            else:
                found.append([a, b])
        return found

    total = sum(b - a for a, b in merged(communication))
    for a, b in merged(communication):
        for c, d in merged(compute):
            total -= max(0, min(b, d) - max(a, c))
    return total


# %% exposed: end-of-the-last-merged
# Takes the last span's end in place of the larger.
def exposed(compute, communication):
    def union(spans):
        found = []
        for a, b in sorted(spans):
            if found and a <= found[-1][1]:
                found[-1] = (found[-1][0], b)
            else:
                found.append((a, b))
        return found

    left = 0
    for a, b in union(communication):
        left += b - a
        for c, d in union(compute):
            left -= max(0, min(b, d) - max(a, c))
    return left


# %% charged: mean-wait
def charged(arrivals, resolution):
    total = [0] * len(arrivals[0])
    for row in arrivals:
        last = max(row)
        waits = [last - one for one in row if last - one >= resolution]
        if waits:
            total[row.index(last)] += sum(waits) // len(waits)
    return total


# %% charged: resolution-subtracted-once-more
def charged(arrivals, resolution):
    total = [0] * len(arrivals[0])
    for row in arrivals:
        late = int(np.argmax(row))
        total[late] += sum(max(0, row[late] - one - resolution) for one in row)
    return total


# %% charged: resolution-on-the-sum
def charged(arrivals, resolution):
    n = len(arrivals[0])
    total = np.zeros(n, dtype=int)
    for row in arrivals:
        waits = max(row) - np.array(row)
        if waits.sum() >= resolution:
            total[row.index(max(row))] += waits.sum()
    return total.tolist()


# %% charged: against-the-second
# The last one is charged its lead over the second to last, for each of the others.
def charged(arrivals, resolution):
    total = [0] * len(arrivals[0])
    for row in arrivals:
        *_, second, last = sorted(row)
        if last - second >= resolution:
            total[row.index(last)] += (last - second) * (len(row) - 1)
    return total


# %% chance: larger-only
def chance(before, after):
    every = [*before, *after]
    found = [sum(one) > sum(after) for one in itertools.combinations(every, len(after))]
    return (sum(found) + 1) / len(found)


# %% chance: sets-of-values
# Equal values are told apart no more: subsets are a set.
def chance(before, after):
    every = sorted([*before, *after])
    ways = set(itertools.combinations(every, len(after)))
    return sum(sum(way) >= sum(after) for way in ways) / len(ways)


# %% chance: sampled
def chance(before, after):
    dealt, draws = random.Random(0), 2000
    every = [*before, *after]
    hits = sum(sum(dealt.sample(every, len(after))) >= sum(after) for _ in range(draws))
    return hits / draws


# %% chance: mean-of-floor
def chance(before, after):
    every, n = [*before, *after], len(after)
    real = sum(after) // n
    ways = [sum(way) // n >= real for way in itertools.combinations(every, n)]
    return sum(ways) / len(ways)
