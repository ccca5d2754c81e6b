"""Wrong answers to the exercises of lab 07, each under the mistake that its check has to name."""

import itertools
import statistics

import torch

RIGHT = {
    "A": (1, "straggler", 0.13),
    "B": (None, "starved input", 0.44),
    "C": (2, "recompile", 0.6),
    "D": (0, "checkpoint", 0.5),
    "E": (None, "allocator thrashing", 0.75),
    "F": (None, "exposed communication", 0.67),
}


def moments(spans):
    return {at for first, last in spans for at in range(first, last)}


def disjoint(spans):
    found: list[list[int]] = []
    for first, last in sorted(spans):
        if found and first <= found[-1][1]:
            found[-1][1] = max(found[-1][1], last)
        else:
            found.append([first, last])
    return found


def moved_back(spans):
    """Disjoint spans, but a span inside of another one ends that one, too."""
    found: list[list[int]] = []
    for first, last in sorted(spans):
        if found and first <= found[-1][1]:
            found[-1][1] = last
        else:
            found.append([first, last])
    return found


# %% recorded_steps: with-warm-up
def recorded_steps(wait, warmup, active, repeat, steps):
    cycle = wait + warmup + active
    last = steps if repeat == 0 else min(steps, repeat * cycle)
    return [step for step in range(last) if step % cycle >= wait]


# %% recorded_steps: without-wait
def recorded_steps(wait, warmup, active, repeat, steps):
    cycle = warmup + active
    last = steps if repeat == 0 else min(steps, repeat * cycle)
    return [step for step in range(last) if step % cycle >= warmup]


# %% recorded_steps: without-wait
def recorded_steps(wait, warmup, active, repeat, steps):
    cycle = warmup + active  # and waits before the first one only
    last = min(steps, wait + repeat * cycle) if repeat else steps
    return [step for step in range(wait, last) if (step - wait) % cycle >= warmup]


# %% recorded_steps: without-wait
def recorded_steps(wait, warmup, active, repeat, steps):
    cycle = wait + warmup + active
    last = steps if repeat == 0 else min(steps, repeat * cycle)
    return [step for step in range(last) if step % cycle >= warmup]


# %% recorded_steps: repeat-ignored
def recorded_steps(wait, warmup, active, repeat, steps):
    cycle = wait + warmup + active
    return [step for step in range(steps) if step % cycle >= wait + warmup]


# %% recorded_steps: repeat-counts-steps
def recorded_steps(wait, warmup, active, repeat, steps):
    cycle = wait + warmup + active
    kept = [step for step in range(steps) if step % cycle >= wait + warmup]
    return kept[:repeat] if repeat else kept


# %% recorded_steps: first-cycle-only
def recorded_steps(wait, warmup, active, repeat, steps):
    first = wait + warmup
    return list(range(first, min(first + active, steps)))


# %% recorded_steps: zero-is-none
def recorded_steps(wait, warmup, active, repeat, steps):
    cycle = wait + warmup + active
    return [s for s in range(min(steps, repeat * cycle)) if s % cycle >= wait + warmup]


# %% recorded_steps: zero-is-none
def recorded_steps(wait, warmup, active, repeat, steps):
    cycle = wait + warmup + active
    last = min(steps, max(repeat, 1) * cycle)
    return [step for step in range(last) if step % cycle >= wait + warmup]


# %% recorded_steps: endless-loop
def recorded_steps(wait, warmup, active, repeat, steps):
    cycle = wait + warmup + active
    last = repeat * cycle if repeat else steps
    return [step for step in range(last) if step % cycle >= wait + warmup]


# %% recorded_steps: endless-loop
def recorded_steps(wait, warmup, active, repeat, steps):
    kept: list[int] = []
    first = wait + warmup
    while first < steps and (repeat == 0 or len(kept) < repeat * active):
        kept += range(first, first + active)
        first += wait + warmup + active
    return kept


# %% recorded_steps: endless-loop
def recorded_steps(wait, warmup, active, repeat, steps):
    cycle = wait + warmup + active
    cycles = repeat or -(-steps // cycle)
    return [n * cycle + wait + warmup + at for n in range(cycles) for at in range(active)]


# %% recorded_steps: from-one
def recorded_steps(wait, warmup, active, repeat, steps):
    cycle = wait + warmup + active
    last = steps if repeat == 0 else min(steps, repeat * cycle)
    return [step + 1 for step in range(last) if step % cycle >= wait + warmup]


# %% recorded_steps: how-many
def recorded_steps(wait, warmup, active, repeat, steps):
    cycle = wait + warmup + active
    last = steps if repeat == 0 else min(steps, repeat * cycle)
    return sum(step % cycle >= wait + warmup for step in range(last))


# %% recorded_steps: only-warm-up
def recorded_steps(wait, warmup, active, repeat, steps):
    cycle = ["off"] * wait + ["warmup"] * warmup + ["active"] * active
    plan = (cycle * (repeat or steps))[:steps]
    return [step for step, what in enumerate(plan) if what == "warmup"]


# %% recorded_steps: without-warm-up
def recorded_steps(wait, warmup, active, repeat, steps):
    cycle = wait + active
    last = min(steps, warmup + repeat * cycle) if repeat else steps
    return [step for step in range(warmup, last) if (step - warmup) % cycle >= wait]


# %% recorded_steps: without-warm-up
def recorded_steps(wait, warmup, active, repeat, steps):
    cycle = wait + active
    last = min(steps, repeat * cycle) if repeat else steps
    return [step for step in range(last) if step % cycle >= wait]


# %% recorded_steps: whole-cycles-only
def recorded_steps(wait, warmup, active, repeat, steps):
    cycle = wait + warmup + active
    cycles = min(repeat or steps, steps // cycle)
    first = wait + warmup
    return [n * cycle + first + step for n in range(cycles) for step in range(active)]


# %% recorded_steps: whole-cycles-only
def recorded_steps(wait, warmup, active, repeat, steps):
    cycle = wait + warmup + active
    kept: list[int] = []
    for first in range(0, steps, cycle):
        if first + cycle <= steps and (not repeat or first // cycle < repeat):
            kept += range(first + wait + warmup, first + cycle)
    return kept


# %% recorded_steps: first-missing
def recorded_steps(wait, warmup, active, repeat, steps):
    cycle = wait + warmup + active
    last = min(steps, repeat * cycle) if repeat else steps
    return [step for step in range(last) if step % cycle > wait + warmup]


# %% recorded_steps: one-cycle-more
def recorded_steps(wait, warmup, active, repeat, steps):
    cycle, kept = wait + warmup + active, []
    for step in range(steps):
        if repeat and step // cycle > repeat:
            break
        if step % cycle >= wait + warmup:
            kept.append(step)
    return kept


# %% recorded_steps: last-missing
def recorded_steps(wait, warmup, active, repeat, steps):
    cycle = wait + warmup + active
    last = min(steps, repeat * cycle) if repeat else steps
    return [step for step in range(last) if wait + warmup <= step % cycle < cycle - 1]


# %% recorded_steps: one-early
def recorded_steps(wait, warmup, active, repeat, steps):
    cycle = wait + warmup + active
    last = min(steps, repeat * cycle) if repeat else steps
    return [step for step in range(last) if step % cycle >= wait + warmup - 1]


# %% recorded_steps: last-cycle-only
def recorded_steps(wait, warmup, active, repeat, steps):
    cycle = wait + warmup + active
    last = min(steps, repeat * cycle) if repeat else steps
    kept: list[int] = []
    for step in range(last):
        if step % cycle == 0:
            kept = []
        if step % cycle >= wait + warmup:
            kept.append(step)
    return kept


# %% recorded_steps: last-cycle-only
def recorded_steps(wait, warmup, active, repeat, steps):
    kept: list[int] = []
    cycle = wait + warmup + active
    last = min(steps, repeat * cycle) if repeat else steps
    for first in range(wait + warmup, last, cycle):
        kept = list(range(first, min(first + active, last)))
    return kept


# %% recorded_steps: within-the-cycle
def recorded_steps(wait, warmup, active, repeat, steps):
    cycle = wait + warmup + active
    last = min(steps, repeat * cycle) if repeat else steps
    return [step % cycle for step in range(last) if step % cycle >= wait + warmup]


# %% recorded_steps: thrown-away
def recorded_steps(wait, warmup, active, repeat, steps):
    cycle = wait + warmup + active
    last = min(steps, repeat * cycle) if repeat else steps
    return [step for step in range(last) if step % cycle < wait + warmup]


# %% recorded_steps: active-first
def recorded_steps(wait, warmup, active, repeat, steps):
    cycle = wait + warmup + active
    last = min(steps, repeat * cycle) if repeat else steps
    return [step for step in range(last) if wait <= step % cycle < wait + active]


# %% recorded_steps: endless-loop
def recorded_steps(wait, warmup, active, repeat, steps):
    cycle = wait + warmup + active
    last = min(steps, repeat * cycle) if repeat else steps
    return [n + at for n in range(0, last, cycle) for at in range(wait + warmup, cycle)]


# %% recorded_steps: from-one
def recorded_steps(wait, warmup, active, repeat, steps):
    cycle = wait + warmup + active
    kept = (step for step in range(1, steps + 1) if step % cycle >= wait + warmup)
    return [step for step in kept if not repeat or step // cycle < repeat]


# %% profiled: never-recorded
def profiled(train, steps, first, count, folder):
    from torch.profiler import profile, schedule

    def ready(profiler):
        rank = torch.distributed.get_rank()
        profiler.export_chrome_trace(f"{folder}/rank{rank}.json")

    plan = schedule(wait=first - 1, warmup=1, active=count, repeat=1)
    with profile(schedule=plan, on_trace_ready=ready):
        for number in range(steps):
            train(number)


# %% profiled: no-file
def profiled(train, steps, first, count, folder):
    from torch.profiler import profile, schedule

    plan = schedule(wait=first - 1, warmup=1, active=count, repeat=1)
    with profile(schedule=plan) as profiler:
        for number in range(steps):
            train(number)
            profiler.step()


# %% profiled: another-file
def profiled(train, steps, first, count, folder):
    from torch.profiler import profile, schedule

    def ready(profiler):
        profiler.export_chrome_trace(f"{folder}/trace.json")

    plan = schedule(wait=first - 1, warmup=1, active=count, repeat=1)
    with profile(schedule=plan, on_trace_ready=ready) as profiler:
        for number in range(steps):
            train(number)
            profiler.step()


# %% profiled: another-file
def profiled(train, steps, first, count, folder):
    from torch.profiler import profile, schedule, tensorboard_trace_handler

    plan = schedule(wait=first - 1, warmup=1, active=count, repeat=1)
    ready = tensorboard_trace_handler(folder)
    with profile(schedule=plan, on_trace_ready=ready) as profiler:
        for number in range(steps):
            train(number)
            profiler.step()


# %% profiled: not-each-rank
def profiled(train, steps, first, count, folder):
    from torch.profiler import profile, schedule

    def ready(profiler):
        if torch.distributed.get_rank() == 0:
            profiler.export_chrome_trace(f"{folder}/rank0.json")

    plan = schedule(wait=first - 1, warmup=1, active=count, repeat=1)
    with profile(schedule=plan, on_trace_ready=ready) as profiler:
        for number in range(steps):
            train(number)
            profiler.step()


# %% profiled: not-each-rank
def profiled(train, steps, first, count, folder):
    from torch.profiler import profile, schedule

    if torch.distributed.get_rank() > 0:
        for number in range(steps):
            train(number)
        return

    def ready(profiler):
        profiler.export_chrome_trace(f"{folder}/rank0.json")

    plan = schedule(wait=first - 1, warmup=1, active=count, repeat=1)
    with profile(schedule=plan, on_trace_ready=ready) as profiler:
        for number in range(steps):
            train(number)
            profiler.step()


# %% profiled: another-folder
def profiled(train, steps, first, count, folder):
    from torch.profiler import profile, schedule

    def ready(profiler):
        profiler.export_chrome_trace(f"rank{torch.distributed.get_rank()}.json")

    plan = schedule(wait=first - 1, warmup=1, active=count, repeat=1)
    with profile(schedule=plan, on_trace_ready=ready) as profiler:
        for number in range(steps):
            train(number)
            profiler.step()


# %% profiled: no-schedule
def profiled(train, steps, first, count, folder):
    from torch.profiler import profile

    def ready(profiler):
        rank = torch.distributed.get_rank()
        profiler.export_chrome_trace(f"{folder}/rank{rank}.json")

    with profile(on_trace_ready=ready) as profiler:
        for number in range(steps):
            train(number)
            profiler.step()


# %% profiled: step-first
def profiled(train, steps, first, count, folder):
    from torch.profiler import profile, schedule

    def ready(profiler):
        rank = torch.distributed.get_rank()
        profiler.export_chrome_trace(f"{folder}/rank{rank}.json")

    plan = schedule(wait=first - 1, warmup=1, active=count, repeat=1)
    with profile(schedule=plan, on_trace_ready=ready) as profiler:
        for number in range(steps):
            profiler.step()
            train(number)


# %% profiled: repeat-forgotten
def profiled(train, steps, first, count, folder):
    from torch.profiler import profile, schedule

    def ready(profiler):
        rank = torch.distributed.get_rank()
        profiler.export_chrome_trace(f"{folder}/rank{rank}.json")

    plan = schedule(wait=first - 1, warmup=1, active=count)
    with profile(schedule=plan, on_trace_ready=ready) as profiler:
        for number in range(steps):
            train(number)
            profiler.step()


# %% profiled: one-late
def profiled(train, steps, first, count, folder):
    from torch.profiler import profile, schedule

    def ready(profiler):
        rank = torch.distributed.get_rank()
        profiler.export_chrome_trace(f"{folder}/rank{rank}.json")

    plan = schedule(wait=first, warmup=1, active=count, repeat=1)
    with profile(schedule=plan, on_trace_ready=ready) as profiler:
        for number in range(steps):
            train(number)
            profiler.step()


# %% profiled: one-early
def profiled(train, steps, first, count, folder):
    from torch.profiler import profile, schedule

    def ready(profiler):
        rank = torch.distributed.get_rank()
        profiler.export_chrome_trace(f"{folder}/rank{rank}.json")

    plan = schedule(wait=first - 1, warmup=0, active=count, repeat=1)
    with profile(schedule=plan, on_trace_ready=ready) as profiler:
        for number in range(steps):
            train(number)
            profiler.step()


# %% profiled: one-more
def profiled(train, steps, first, count, folder):
    from torch.profiler import profile, schedule

    def ready(profiler):
        rank = torch.distributed.get_rank()
        profiler.export_chrome_trace(f"{folder}/rank{rank}.json")

    plan = schedule(wait=first - 1, warmup=1, active=count + 1, repeat=1)
    with profile(schedule=plan, on_trace_ready=ready) as profiler:
        for number in range(steps):
            train(number)
            profiler.step()


# %% profiled: stops-early
def profiled(train, steps, first, count, folder):
    from torch.profiler import profile, schedule

    def ready(profiler):
        rank = torch.distributed.get_rank()
        profiler.export_chrome_trace(f"{folder}/rank{rank}.json")

    plan = schedule(wait=first - 1, warmup=1, active=count, repeat=1)
    with profile(schedule=plan, on_trace_ready=ready) as profiler:
        for number in range(steps):
            train(number)
            profiler.step()
            if number == first + count - 1:
                break


# %% profiled: no-warm-up
def profiled(train, steps, first, count, folder):
    from torch.profiler import profile, schedule

    def ready(profiler):
        rank = torch.distributed.get_rank()
        profiler.export_chrome_trace(f"{folder}/rank{rank}.json")

    plan = schedule(wait=first, warmup=0, active=count, repeat=1)
    with profile(schedule=plan, on_trace_ready=ready) as profiler:
        for number in range(steps):
            train(number)
            profiler.step()


# %% offsets: behind
def offsets(ends):
    return [statistics.median(row[0] - row[r] for row in ends) for r in range(len(ends[0]))]


# %% offsets: mean
def offsets(ends):
    return [statistics.mean(row[r] - row[0] for row in ends) for r in range(len(ends[0]))]


# %% offsets: first-only
def offsets(ends):
    return [end - ends[0][0] for end in ends[0]]


# %% offsets: first-only
def offsets(ends):
    return [end - ends[-1][0] for end in ends[-1]]


# %% offsets: to-neighbour
def offsets(ends):
    ranks = range(1, len(ends[0]))
    return [0] + [statistics.median(row[r] - row[r - 1] for row in ends) for r in ranks]


# %% offsets: to-the-mean
def offsets(ends):
    ranks = range(len(ends[0]))
    return [statistics.median(row[r] - statistics.fmean(row) for row in ends) for r in ranks]


# %% offsets: median-of-ends
def offsets(ends):
    middle = [statistics.median(column) for column in zip(*ends, strict=True)]
    return [one - middle[0] for one in middle]


# %% offsets: median-of-ends
def offsets(ends):
    columns = [sorted(column) for column in zip(*ends, strict=True)]  # each rank by itself
    pairs = [zip(column, columns[0], strict=True) for column in columns]
    return [statistics.median(end - zero for end, zero in pair) for pair in pairs]


# %% offsets: unsorted
def offsets(ends):
    return [end - ends[len(ends) // 2][0] for end in ends[len(ends) // 2]]


# %% offsets: to-the-first
def offsets(ends):
    return [statistics.median(row[r] - min(row) for row in ends) for r in range(len(ends[0]))]


# %% offsets: to-the-first
def offsets(ends):
    first = [statistics.median(row[r] - min(row) for row in ends) for r in range(len(ends[0]))]
    return [one - first[0] for one in first]


# %% offsets: without-sign
def offsets(ends):
    return [statistics.median(abs(row[r] - row[0]) for row in ends) for r in range(len(ends[0]))]


# %% offsets: microseconds
def offsets(ends):
    return [statistics.median(row[r] - row[0] for row in ends) / 1e3 for r in range(len(ends[0]))]


# %% offsets: rounded
def offsets(ends):
    times = torch.tensor(ends)
    return (times - times[:, :1]).float().median(dim=0).values.tolist()


# %% offsets: extreme
def offsets(ends):
    return [max(row[r] - row[0] for row in ends) for r in range(len(ends[0]))]


# %% offsets: extreme
def offsets(ends):
    return [min(row[r] - row[0] for row in ends) for r in range(len(ends[0]))]


# %% offsets: float32
def offsets(ends):
    times = torch.tensor(ends, dtype=torch.float32)
    return (times - times[:, :1]).median(dim=0).values.tolist()


# %% offsets: without-rank-0
def offsets(ends):
    return [statistics.median(row[r] - row[0] for row in ends) for r in range(1, len(ends[0]))]


# %% offsets: by-collective
def offsets(ends):
    return [statistics.median(end - row[0] for end in row) for row in ends]


# %% offsets: by-size
def offsets(ends):
    every = [[row[r] - row[0] for row in ends] for r in range(len(ends[0]))]
    return [sorted(ahead, key=abs)[len(ends) // 2] for ahead in every]


# %% offsets: trimmed-mean
def offsets(ends):
    every = [sorted(row[r] - row[0] for row in ends) for r in range(len(ends[0]))]
    return [statistics.mean(ahead[1:-1] or ahead) for ahead in every]


# %% exposed: hidden
def exposed(compute, communication):
    return len(moments(communication) & moments(compute))


# %% exposed: all-of-it
def exposed(compute, communication):
    return sum(last - first for first, last in communication)


# %% exposed: all-of-it
def exposed(compute, communication):
    return len(moments(communication))


# %% exposed: idle-compute
def exposed(compute, communication):
    return len(moments(compute) - moments(communication))


# %% exposed: lengths-only
def exposed(compute, communication):
    talks = sum(last - first for first, last in communication)
    return max(0, talks - sum(last - first for first, last in compute))


# %% exposed: lengths-only
def exposed(compute, communication):
    talks = sum(last - first for first, last in communication)
    return talks - sum(last - first for first, last in compute)


# %% exposed: lengths-only
def exposed(compute, communication):
    return max(0, len(moments(communication)) - len(moments(compute)))


# %% exposed: hidden-twice
def exposed(compute, communication):
    total = 0
    for first, last in communication:
        total += last - first
        for start, end in compute:
            total -= max(0, min(last, end) - max(first, start))
    return total


# %% exposed: hidden-twice
def exposed(compute, communication):
    total = 0
    for first, last in communication:
        left = last - first
        for start, end in compute:
            left -= max(0, min(last, end) - max(first, start))
        total += max(0, left)
    return total


# %% exposed: hidden-twice
def exposed(compute, communication):
    total = len(moments(communication))
    for first, last in communication:
        for start, end in compute:
            total -= max(0, min(last, end) - max(first, start))
    return total


# %% exposed: hidden-twice
def exposed(compute, communication):
    total = 0
    for first, last in disjoint(communication):
        total += last - first
        for start, end in compute:
            total -= max(0, min(last, end) - max(first, start))
    return total


# %% exposed: hidden-twice
def exposed(compute, communication):
    total = 0
    for first, last in disjoint(communication):
        hidden = sum(max(0, min(last, end) - max(first, start)) for start, end in compute)
        total += max(0, last - first - hidden)
    return total


# %% exposed: end-moved-back
def exposed(compute, communication):
    busy, talking = moved_back(compute), moved_back(communication)
    hidden = sum(max(0, min(b, d) - max(a, c)) for a, b in busy for c, d in talking)
    return sum(last - first for first, last in talking) - hidden


# %% exposed: end-moved-back
def exposed(compute, communication):
    def length(spans):
        return sum(last - first for first, last in moved_back(spans))

    return length(compute + communication) - length(compute)


# %% exposed: end-moved-back
def exposed(compute, communication):
    return len(moments(communication) - moments(moved_back(compute)))


# %% exposed: communication-twice
def exposed(compute, communication):
    return sum(len(moments([span]) - moments(compute)) for span in communication)


# %% exposed: a-flag
def exposed(compute, communication):
    events = [(at, 1, at == span[0]) for span in compute for at in span]
    events += [(at, 0, at == span[0]) for span in communication for at in span]
    total = talks = before = 0
    computing = False
    for at, computes, begins in sorted(events):
        if talks and not computing:
            total += at - before
        before = at
        if computes:
            computing = begins
        else:
            talks += 1 if begins else -1
    return total


# %% exposed: a-flag
def exposed(compute, communication):
    events = [(at, "compute", at == span[0]) for span in compute for at in span]
    events += [(at, "talk", at == span[0]) for span in communication for at in span]
    running, total, before = {"compute": False, "talk": False}, 0, 0
    for at, what, begins in sorted(events):
        if running["talk"] and not running["compute"]:
            total += at - before
        running[what], before = begins, at
    return total


# %% exposed: no-gaps
def exposed(compute, communication):
    first = min((one for one, _ in compute), default=0)
    last = max((one for _, one in compute), default=0)
    return len(moments(communication) - set(range(first, last)))


# %% exposed: first-overlap-only
def exposed(compute, communication):
    total = 0
    for first, last in communication:
        total += last - first
        for start, end in compute:
            if start < last and first < end:
                total -= min(last, end) - max(first, start)
                break
    return total


# %% exposed: first-overlap-only
def exposed(compute, communication):
    total = 0
    for first, last in disjoint(communication):
        total += last - first
        for start, end in disjoint(compute):
            if start < last and first < end:
                total -= min(last, end) - max(first, start)
                break
    return total


# %% exposed: all-or-nothing
def exposed(compute, communication):
    busy = moments(compute)
    return len(moments(span for span in communication if not moments([span]) & busy))


# %% exposed: all-or-nothing
def exposed(compute, communication):
    busy = moments(compute)
    return len(moments(span for span in disjoint(communication) if not moments([span]) & busy))


# %% exposed: first-overlap-only
def exposed(compute, communication):
    total = sum(last - first for first, last in communication)
    pairs = zip(sorted(communication), sorted(compute), strict=False)
    return total - sum(max(0, min(b, d) - max(a, c)) for (a, b), (c, d) in pairs)


# %% exposed: after-the-last
def exposed(compute, communication):
    over = max((last for _, last in compute), default=0)
    return sum(1 for at in moments(communication) if at >= over)


# %% exposed: after-the-last
def exposed(compute, communication):
    over = max((last for _, last in compute), default=0)
    return sum(max(0, last - max(first, over)) for first, last in communication)


# %% exposed: ends-included
def exposed(compute, communication):
    busy, talking = (
        {at for first, last in spans for at in range(first, last + 1)}
        for spans in (compute, communication)
    )
    return len(talking - busy)


# %% exposed: unsorted
def exposed(compute, communication):
    def joined(spans):
        total, until = 0, float("-inf")
        for first, last in spans:
            total += max(0, last - max(first, until))
            until = max(until, last)
        return total

    return joined(sorted(compute + communication)) - joined(compute)


# %% exposed: unsorted
def exposed(compute, communication):
    def joined(spans):
        found = []
        for first, last in spans:
            if found and first <= found[-1][1]:
                found[-1][1] = max(found[-1][1], last)
            else:
                found.append([first, last])
        return found

    shown = 0
    for first, last in joined(communication):
        hidden = (min(last, end) - max(first, start) for start, end in joined(compute))
        shown += last - first - sum(max(0, one) for one in hidden)
    return shown


# %% exposed: pauses-too
def exposed(compute, communication):
    first = min((one for one, _ in communication), default=0)
    last = max((one for _, one in communication), default=0)
    return len(set(range(first, last)) - moments(compute))


# %% charged: the-first
def charged(arrivals, resolution):
    found = [0] * len(arrivals[0])
    for row in arrivals:
        waits = [max(row) - time for time in row]
        found[row.index(min(row))] += sum(wait for wait in waits if wait >= resolution)
    return found


# %% charged: who-waited
def charged(arrivals, resolution):
    found = [0] * len(arrivals[0])
    for row in arrivals:
        for rank, time in enumerate(row):
            if max(row) - time >= resolution:
                found[rank] += max(row) - time
    return found


# %% charged: who-waited
def charged(arrivals, resolution):
    return [sum(max(row) - row[rank] for row in arrivals) for rank in range(len(arrivals[0]))]


# %% charged: every-wait
def charged(arrivals, resolution):
    found = [0] * len(arrivals[0])
    for row in arrivals:
        found[row.index(max(row))] += sum(max(row) - time for time in row)
    return found


# %% charged: at-the-resolution
def charged(arrivals, resolution):
    found = [0] * len(arrivals[0])
    for row in arrivals:
        waits = [max(row) - time for time in row]
        found[row.index(max(row))] += sum(wait for wait in waits if wait > resolution)
    return found


# %% charged: longest-wait
def charged(arrivals, resolution):
    found = [0] * len(arrivals[0])
    for row in arrivals:
        wait = max(row) - min(row)
        found[row.index(max(row))] += wait if wait >= resolution else 0
    return found


# %% charged: longest-wait
def charged(arrivals, resolution):
    found = [0] * len(arrivals[0])
    for row in arrivals:
        found[row.index(max(row))] += max(row) - min(row)
    return found


# %% charged: after-the-last-but-one
def charged(arrivals, resolution):
    found = [0] * len(arrivals[0])
    for row in arrivals:
        before, last = sorted(row)[-2:]
        if last - before >= resolution:
            found[row.index(last)] += last - before
    return found


# %% charged: after-the-last-but-one
def charged(arrivals, resolution):
    found = [0] * len(arrivals[0])
    for row in arrivals:
        before, last = sorted(row)[-2:]
        if last - before >= resolution:
            found[row.index(last)] += (last - before) * (len(row) - 1)
    return found


# %% charged: last-kept
def charged(arrivals, resolution):
    found = [0] * len(arrivals[0])
    for row in arrivals:
        waits = [max(row) - time for time in row]
        found[row.index(max(row))] = sum(one for one in waits if one >= resolution)
    return found


# %% charged: how-often
def charged(arrivals, resolution):
    found = [0] * len(arrivals[0])
    for row in arrivals:
        found[row.index(max(row))] += max(row) - min(row) >= resolution
    return found


# %% charged: how-often
def charged(arrivals, resolution):
    found = [0] * len(arrivals[0])
    for row in arrivals:
        found[row.index(max(row))] += 1
    return found


# %% charged: after-the-first
def charged(arrivals, resolution):
    found = [0] * len(arrivals[0])
    for row in arrivals:
        for rank, time in enumerate(row):
            if time - min(row) >= resolution:
                found[rank] += time - min(row)
    return found


# %% charged: after-the-first
def charged(arrivals, resolution):
    return [sum(row[rank] - min(row) for row in arrivals) for rank in range(len(arrivals[0]))]


# %% charged: all-or-nothing
def charged(arrivals, resolution):
    found = [0] * len(arrivals[0])
    for row in arrivals:
        if max(row) - min(row) >= resolution:
            found[row.index(max(row))] += sum(max(row) - time for time in row)
    return found


# %% charged: all-or-nothing
def charged(arrivals, resolution):
    found = [0] * len(arrivals[0])
    for row in arrivals:
        waits = sum(max(row) - time for time in row)
        if waits >= resolution:
            found[row.index(max(row))] += waits
    return found


# %% charged: all-or-nothing
def charged(arrivals, resolution):
    found = [0] * len(arrivals[0])
    for row in arrivals:
        found[row.index(max(row))] += sum(max(row) - time for time in row)
    return [one if one >= resolution else 0 for one in found]


# %% charged: less-the-resolution
def charged(arrivals, resolution):
    found = [0] * len(arrivals[0])
    for row in arrivals:
        found[row.index(max(row))] += sum(max(0, max(row) - time - resolution) for time in row)
    return found


# %% charged: everybody-late
def charged(arrivals, resolution):
    found = [0] * len(arrivals[0])
    for row in arrivals:
        for rank, late in enumerate(row):
            found[rank] += sum(late - time for time in row if late - time >= resolution)
    return found


# %% charged: only-short-waits
def charged(arrivals, resolution):
    found = [0] * len(arrivals[0])
    for row in arrivals:
        waits = [max(row) - time for time in row]
        found[row.index(max(row))] += sum(wait for wait in waits if wait < resolution)
    return found


# %% charged: the-first
def charged(arrivals, resolution):
    found = [0] * len(arrivals[0])
    for row in arrivals:
        waits = [time - min(row) for time in row]
        found[row.index(min(row))] += sum(wait for wait in waits if wait >= resolution)
    return found


# %% charged: one-for-all
def charged(arrivals, resolution):
    found = [0] * len(arrivals[0])
    for row in arrivals:
        waits = [max(row) - time for time in row if max(row) - time >= resolution]
        found[row.index(max(row))] += sum(waits) // max(1, len(waits))
    return found


# %% charged: one-for-all
def charged(arrivals, resolution):
    found = [0] * len(arrivals[0])
    for row in arrivals:
        waits = [max(row) - time for time in row if max(row) - time >= resolution]
        found[row.index(max(row))] += statistics.fmean(waits or [0])
    return found


# %% charged: one-for-all
def charged(arrivals, resolution):
    found = [0] * len(arrivals[0])
    for row in arrivals:
        wait = max(row) - statistics.median(row)
        found[row.index(max(row))] += wait if wait >= resolution else 0
    return found


# %% charged: one-rank-for-all
def charged(arrivals, resolution):
    found = [0] * len(arrivals[0])
    late = max(range(len(found)), key=lambda rank: sum(row[rank] for row in arrivals))
    for row in arrivals:
        waits = [row[late] - time for time in row]
        found[late] += sum(one for one in waits if one >= max(resolution, 1))
    return found


# %% charged: one-rank-for-all
def charged(arrivals, resolution):
    found = [0] * len(arrivals[0])
    late = max(range(len(found)), key=lambda rank: sum(row[rank] for row in arrivals))
    for row in arrivals:
        waits = [max(row) - time for time in row]
        found[late] += sum(one for one in waits if one >= resolution)
    return found


# %% diagnoses: no-dict
def diagnoses():
    return [(1, "straggler", 0.15), (None, "starved input", 0.42)]


# %% diagnoses: missing-case
def diagnoses():
    return {"A": (1, "straggler", 0.15), "X": (None, "launch-bound", 0.7)}


# %% diagnoses: no-triple
def diagnoses():
    return RIGHT | {"B": ("rank 1", "starved input", 0.42)}


# %% diagnoses: unknown-cause
def diagnoses():
    return RIGHT | {"B": (None, "slow disk", 0.42)}


# %% diagnoses: percent
def diagnoses():
    return RIGHT | {"B": (None, "starved input", 42)}


# %% diagnoses: unknown-rank
def diagnoses():
    return RIGHT | {"A": (4, "straggler", 0.15)}


# %% diagnoses: victim-named
def diagnoses():
    return RIGHT | {"A": (0, "straggler", 0.15)}


# %% diagnoses: not-all
def diagnoses():
    return RIGHT | {"C": (None, "recompile", 0.8)}


# %% diagnoses: not-one
def diagnoses():
    return RIGHT | {"E": (1, "allocator thrashing", 0.4)}  # the last of two busy hosts


# %% diagnoses: wrong-cause
def diagnoses():
    return RIGHT | {"D": (0, "allocator thrashing", 0.58)}


# %% diagnoses: share-of-one
def diagnoses():
    return RIGHT | {"A": (1, "straggler", 18.12 / 3 / 15.9)}  # what collectives() says, a rank


# %% diagnoses: share-of-all
def diagnoses():
    return RIGHT | {"F": (None, "exposed communication", 0.16)}  # the part that is waiting


# %% diagnoses: share-of-one
def diagnoses():
    return RIGHT | {"A": (1, "straggler", 0.15)}  # what the others have of it, a rank


# %% chance: not-the-seen
def chance(before, after):
    ways = [sum(one) for one in itertools.combinations(before + after, len(after))]
    return sum(one > sum(after) for one in ways) / len(ways)


# %% chance: not-the-seen
def chance(before, after):
    ways = [sum(one) for one in itertools.combinations(before + after, len(after))]
    return (sum(one >= sum(after) for one in ways) - 1) / (len(ways) - 1)


# %% chance: not-the-seen
def chance(before, after):
    ways = [sum(one) for one in itertools.combinations(before + after, len(after))]
    return (sum(one >= sum(after) for one in ways) - 1) / len(ways)


# %% chance: less
def chance(before, after):
    ways = [sum(one) for one in itertools.combinations(before + after, len(after))]
    return sum(one <= sum(after) for one in ways) / len(ways)


# %% chance: each-once
def chance(before, after):
    ways = set(itertools.combinations(sorted(before + after), len(after)))
    return sum(sum(one) >= sum(after) for one in ways) / len(ways)


# %% chance: each-once
def chance(before, after):
    ways = {sum(one) for one in itertools.combinations(before + after, len(after))}
    return sum(one >= sum(after) for one in ways) / len(ways)


# %% chance: both-sides
def chance(before, after):
    values = before + after
    ways = [sum(one) for one in itertools.combinations(values, len(after))]
    middle = sum(values) * len(after) / len(values)
    return sum(abs(one - middle) >= abs(sum(after) - middle) for one in ways) / len(ways)


# %% chance: complement
def chance(before, after):
    ways = [sum(one) for one in itertools.combinations(before + after, len(after))]
    return 1 - sum(one >= sum(after) for one in ways) / len(ways)


# %% chance: pairs
def chance(before, after):
    return sum(one >= other for one in before for other in after) / (len(before) * len(after))


# %% chance: other-size
def chance(before, after):
    n, real = len(before), sum(after) / len(after)
    ways = [sum(one) / n for one in itertools.combinations(before + after, n)]
    return sum(one >= real for one in ways) / len(ways)


# %% chance: whole-means
def chance(before, after):
    n = len(after)
    ways = [sum(one) // n for one in itertools.combinations(before + after, n)]
    return sum(one >= sum(after) // n for one in ways) / len(ways)


# %% chance: medians
def chance(before, after):
    ways = [statistics.median(one) for one in itertools.combinations(before + after, len(after))]
    return sum(one >= statistics.median(after) for one in ways) / len(ways)


# %% chance: how-many
def chance(before, after):
    ways = [sum(one) for one in itertools.combinations(before + after, len(after))]
    return sum(one >= sum(after) for one in ways)


# %% chance: values-come-again
def chance(before, after):
    ways = [sum(one) for one in itertools.product(before + after, repeat=len(after))]
    return sum(one >= sum(after) for one in ways) / len(ways)


# %% chance: in-fractions
def chance(before, after):
    before, after = ([one / 1e6 for one in values] for values in (before, after))
    ways = [sum(one) for one in itertools.combinations(before + after, len(after))]
    return sum(one >= sum(after) for one in ways) / len(ways)


# %% chance: in-fractions
def chance(before, after):
    before, after = ([one / 1e6 for one in values] for values in (before, after))
    n = len(after)
    ways = [sum(one) / n for one in itertools.combinations(before + after, n)]
    return sum(one >= sum(after) / n for one in ways) / len(ways)


# %% chance: pairs
def chance(before, after):
    return sum(one > other for one in before for other in after) / (len(before) * len(after))


# %% chance: pairs
def chance(before, after):
    return sum(one <= other for one in before for other in after) / (len(before) * len(after))


# %% chance: pairs
def chance(before, after):
    return sum(one < other for one in before for other in after) / (len(before) * len(after))


# %% chance: other-size
def chance(before, after):
    ways = [sum(one) for one in itertools.combinations(before + after, len(before))]
    return sum(one >= sum(after) for one in ways) / len(ways)


# %% chance: values-come-again
def chance(before, after):
    n = len(after)
    ways = [sum(one) for one in itertools.combinations_with_replacement(before + after, n)]
    return sum(one >= sum(after) for one in ways) / len(ways)


# %% chance: real-one-again
def chance(before, after):
    ways = [sum(one) for one in itertools.combinations(before + after, len(after))]
    return (sum(one >= sum(after) for one in ways) + 1) / (len(ways) + 1)


# %% chance: against-before
def chance(before, after):
    n, mean = len(after), sum(before) / len(before)
    ways = [sum(one) / n for one in itertools.combinations(before + after, n)]
    return sum(one >= mean for one in ways) / len(ways)


# %% chance: both-sides
def chance(before, after):
    values = before + after
    ways = [statistics.fmean(one) for one in itertools.combinations(values, len(after))]
    middle = statistics.fmean(values)
    far = abs(statistics.fmean(after) - middle)
    return sum(abs(one - middle) >= far for one in ways) / len(ways)
