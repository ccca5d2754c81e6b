"""Right answers to the exercises of lab 07 in other ways than the solution's."""

import bisect
import itertools
import random
import statistics

import numpy as np
import torch


# %% recorded_steps: by-counting-down
def recorded_steps(wait, warmup, active, repeat, steps):
    found, step, cycles = [], 0, 0
    while step < steps and (repeat == 0 or cycles < repeat):
        step += wait + warmup
        found += [one for one in range(step, step + active) if one < steps]
        step += active
        cycles += 1
    return found


# %% recorded_steps: asks-torch
def recorded_steps(wait, warmup, active, repeat, steps):
    from torch.profiler import ProfilerAction, schedule

    plan = schedule(wait=wait, warmup=warmup, active=active, repeat=repeat)
    keep = (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)
    return [step for step in range(steps) if plan(step) in keep]


# %% recorded_steps: list-of-states
def recorded_steps(wait, warmup, active, repeat, steps):
    states = ["off"] * wait + ["warm"] * warmup + ["on"] * active
    whole = states * (repeat or steps)
    return [at for at, state in enumerate(whole[:steps]) if state == "on"]


# %% recorded_steps: numpy
def recorded_steps(wait, warmup, active, repeat, steps):
    number = np.arange(steps)
    cycle, place = np.divmod(number, wait + warmup + active)
    return number[(place >= wait + warmup) & ((repeat == 0) | (cycle < repeat))].tolist()


# %% recorded_steps: generator
def recorded_steps(wait, warmup, active, repeat, steps):
    cycle = wait + warmup + active
    begins = range(0, steps if not repeat else min(steps, repeat * cycle), cycle)
    every = (begin + wait + warmup + at for begin in begins for at in range(active))
    return sorted(filter(lambda one: one < steps, every))


# %% profiled: start-and-stop
def profiled(train, steps, first, count, folder):
    from torch.profiler import ProfilerActivity, profile, schedule

    rank = torch.distributed.get_rank()
    profiler = profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=first - 1, warmup=1, active=count, repeat=1),
        on_trace_ready=lambda p: p.export_chrome_trace(f"{folder}/rank{rank}.json"),
    )
    profiler.start()
    for number in range(steps):
        train(number)
        profiler.step()
    profiler.stop()


# %% profiled: skip-first
def profiled(train, steps, first, count, folder):
    import os

    from torch.profiler import profile, schedule

    def ready(profiler):
        profiler.export_chrome_trace(f"{folder}/rank{os.environ['RANK']}.json")

    plan = schedule(skip_first=first - 1, wait=0, warmup=1, active=count, repeat=1)
    with profile(schedule=plan, on_trace_ready=ready, record_shapes=True) as profiler:
        for number in range(steps):
            train(number)
            profiler.step()
    return profiler


# %% profiled: step-between
def profiled(train, steps, first, count, folder):
    from pathlib import Path

    from torch.profiler import profile, schedule

    path = Path(folder) / f"rank{torch.distributed.get_rank()}.json"
    plan = schedule(wait=first - 1, warmup=1, active=count, repeat=1)
    with profile(schedule=plan, on_trace_ready=lambda p: p.export_chrome_trace(str(path))) as p:
        for number in range(steps):
            if number > 0:
                p.step()
            with torch.profiler.record_function("my range"):
                train(number)


# %% profiled: own-schedule
def profiled(train, steps, first, count, folder):
    from torch.profiler import ProfilerAction, profile

    def plan(step):
        if first <= step < first + count - 1:
            return ProfilerAction.RECORD
        named = {
            first - 1: ProfilerAction.WARMUP,
            first + count - 1: ProfilerAction.RECORD_AND_SAVE,
        }
        return named.get(step, ProfilerAction.NONE)

    def ready(profiler):
        rank = torch.distributed.get_rank()
        profiler.export_chrome_trace(f"{folder}/rank{rank}.json")

    with profile(schedule=plan, on_trace_ready=ready) as profiler:
        for number in range(steps):
            train(number)
            profiler.step()


# %% profiled: written-afterwards
def profiled(train, steps, first, count, folder):
    from torch.profiler import profile, schedule

    plan = schedule(wait=first - 1, warmup=1, active=count, repeat=1)
    with profile(schedule=plan) as profiler:
        for number in range(steps):
            train(number)
            profiler.step()
    profiler.export_chrome_trace(f"{folder}/rank{torch.distributed.get_rank()}.json")


# %% offsets: sorted-middle
def offsets(ends):
    found = []
    for rank in range(len(ends[0])):
        every = sorted(row[rank] - row[0] for row in ends)
        found.append(every[len(every) // 2])
    return found


# %% offsets: numpy
def offsets(ends):
    times = np.array(ends)
    return np.median(times - times[:, :1], axis=0).tolist()


# %% offsets: torch
def offsets(ends):
    times = torch.tensor(ends)
    return (times - times[:, :1]).median(dim=0).values.tolist()


# %% offsets: transposed
def offsets(ends):
    first, *others = zip(*ends, strict=True)
    ahead = [
        statistics.median_low(a - b for a, b in zip(one, first, strict=True)) for one in others
    ]
    return [0, *ahead]


# %% offsets: median-by-least-distance
def offsets(ends):
    def middle(values):
        return min(values, key=lambda one: sum(abs(one - other) for other in values))

    return [middle([row[rank] - row[0] for row in ends]) for rank in range(len(ends[0]))]


# %% exposed: moments
def exposed(compute, communication):
    talks = {at for first, last in communication for at in range(first, last)}
    works = {at for first, last in compute for at in range(first, last)}
    return len(talks - works)


# %% exposed: sweep
def exposed(compute, communication):
    changes = []
    for kind, spans in enumerate((compute, communication)):
        for first, last in spans:
            changes += [(first, kind, 1), (last, kind, -1)]
    total, before, running = 0, 0, [0, 0]
    for at, kind, change in sorted(changes):
        if running[1] and not running[0]:
            total += at - before
        running[kind] += change
        before = at
    return total


# %% exposed: unions
def exposed(compute, communication):
    def length(spans):
        total, reached = 0, None
        for first, last in sorted(spans):
            if reached is None or first > reached:
                reached = first
            total += max(0, last - reached)
            reached = max(reached, last)
        return total

    return length(compute + communication) - length(compute)


# %% exposed: numpy-mask
def exposed(compute, communication):
    end = max(last for _, last in compute + communication)
    works, talks = np.zeros(end, bool), np.zeros(end, bool)
    for first, last in compute:
        works[first:last] = True
    for first, last in communication:
        talks[first:last] = True
    return int((talks & ~works).sum())


# %% exposed: subtracting
def exposed(compute, communication):
    left = list(communication)
    for first, last in compute:
        left = [
            piece
            for a, b in left
            for piece in ((a, min(b, first)), (max(a, last), b))
            if piece[0] < piece[1]
        ]
    bounds = sorted({time for span in left for time in span})
    return sum(
        b - a
        for a, b in itertools.pairwise(bounds)
        if any(first <= a and b <= last for first, last in left)
    )


# %% charged: loops
def charged(arrivals, resolution):
    found = [0 for _ in arrivals[0]]
    for row in arrivals:
        last = 0
        for rank, time in enumerate(row):
            if time > row[last]:
                last = rank
        for time in row:
            if row[last] - time >= resolution:
                found[last] += row[last] - time
    return found


# %% charged: numpy
def charged(arrivals, resolution):
    times = np.array(arrivals)
    waits = times.max(axis=1, keepdims=True) - times
    waits[waits < resolution] = 0
    return np.bincount(times.argmax(axis=1), waits.sum(axis=1), times.shape[1]).tolist()


# %% charged: sorted
def charged(arrivals, resolution):
    found = dict.fromkeys(range(len(arrivals[0])), 0)
    for row in arrivals:
        order = sorted(range(len(row)), key=row.__getitem__)
        last = order[-1]
        found[last] += sum(w for one in order if (w := row[last] - row[one]) >= resolution)
    return list(found.values())


# %% charged: torch
def charged(arrivals, resolution):
    times = torch.tensor(arrivals)
    last = times.max(dim=1)
    waits = last.values[:, None] - times
    waits = torch.where(waits < resolution, 0, waits).sum(dim=1)
    return torch.zeros(times.shape[1], dtype=torch.int64).index_add(0, last.indices, waits).tolist()


# %% charged: by-rank
def charged(arrivals, resolution):
    def of(rank):
        rows = [row for row in arrivals if row[rank] == max(row)]
        return sum(row[rank] - one for row in rows for one in row if row[rank] - one >= resolution)

    return [of(rank) for rank in range(len(arrivals[0]))]


# %% diagnoses: other-shares
def diagnoses():
    return {
        "A": (1, "Straggler", 0.125),
        "B": (None, "starved_input", 0.45),
        "C": (2, "recompile", 0.635),
        "D": (0, "checkpoint", 0.43),
        "E": ("all", "allocator_thrashing", 0.77),
        "F": (None, "Exposed-Communication", 0.66),
    }


# %% diagnoses: lists
def diagnoses():
    found = {}
    for letter, *said in [
        ("D", 0, "checkpoint", 0.5),
        ("E", None, "allocator thrashing", np.float32(0.72)),
        ("A", 1, "straggler", 0.13),
        ("F", None, "exposed communication", 0.69),
        ("C", np.int64(2), "recompile", 0.58),
        ("B", None, "starved input", 0.43),
    ]:
        found[letter.lower()] = said
    return found


# %% diagnoses: rough
def diagnoses():
    rows = [
        (1, "straggler", 0.14),
        (None, "starved input", 0.42),
        (2, "recompile", 0.6),
        (0, "checkpoint", 0.35),
        (None, "allocator thrashing", 0.72),
        (None, "exposed communication", 0.68),
    ]
    return dict(zip("ABCDEF", rows, strict=True))


# %% diagnoses: by-the-goal
def diagnoses():
    from lockstep.course.labs.lab07 import case

    def less(letter, rank):
        parts = {one.rank: one.exposed / one.length for one in case(letter).breakdown().totals}
        return statistics.median(parts[r] for r in parts if r != rank) - parts[rank]

    late = case("B").breakdown().of(3)
    last, first = case("E").breakdown().of(1), case("F").breakdown().of(3)
    return {
        "A": (1, "straggler", less("A", 1)),
        "B": (None, "starved input", late.host_bound / late.length),
        "C": (2, "recompile", less("C", 2)),
        "D": (0, "checkpoint", less("D", 0)),
        "E": (None, "allocator thrashing", last.host_bound / last.length),
        "F": (None, "exposed communication", first.exposed / first.length),
    }


# %% diagnoses: fractions-and-the-example
def diagnoses():
    from fractions import Fraction

    return {
        "note": "by breakdown and collectives",
        "X": (None, "launch-bound", 0.72),
        "A": (1, "straggler", Fraction(13, 100)),
        "B": (None, "starved input", Fraction(42, 100)),
        "C": (2, "RECOMPILE", 0.58),
        "D": (0, "checkpoint", Fraction(1, 2)),
        "E": (None, "allocator thrashing", Fraction(3, 4)),
        "F": (None, "exposed communication", Fraction(2, 3)),
    }


# %% chance: masks
def chance(before, after):
    values = before + after
    ways = [
        sum(one for at, one in enumerate(values) if mask >> at & 1)
        for mask in range(1 << len(values))
        if mask.bit_count() == len(after)
    ]
    return sum(one >= sum(after) for one in ways) / len(ways)


# %% chance: means-with-fractions
def chance(before, after):
    from fractions import Fraction

    values = before + after
    hits = count = 0
    for chosen in itertools.combinations(range(len(values)), len(after)):
        new = [values[at] for at in chosen]
        old = [one for at, one in enumerate(values) if at not in chosen]
        more = Fraction(sum(new), len(new)) - Fraction(sum(old), len(old))
        hits += more >= Fraction(sum(after), len(after)) - Fraction(sum(before), len(before))
        count += 1
    return hits / count


# %% chance: a-fraction
def chance(before, after):
    from fractions import Fraction

    ways = [sum(one) for one in itertools.combinations(before + after, len(after))]
    return Fraction(sum(one >= sum(after) for one in ways), len(ways))


# %% chance: which-are-before
def chance(before, after):
    ways = [sum(one) for one in itertools.combinations(before + after, len(before))]
    return sum(one <= sum(before) for one in ways) / len(ways)


# %% chance: bisected
def chance(before, after):
    ways = sorted(map(sum, itertools.combinations([*after, *before], len(after))))
    return 1 - bisect.bisect_left(ways, sum(after)) / len(ways)


# %% chance: numpy
def chance(before, after):
    values = np.array([*before, *after])
    random.seed(0)
    ways = np.array(list(itertools.combinations(range(len(values)), len(after))))
    return float((values[ways].sum(axis=1) >= sum(after)).mean())
