"""Wrong answers to the exercises of lab 13, written without sight of its checks; see judge.py."""

import copy
import hashlib
import json
import math
import os
import random
import re
import shutil
import time
import zlib
from collections import Counter, defaultdict
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist


def as_lists(dumps):
    return [dumps[rank] for rank in range(len(dumps))]


def line_until(entries, number):
    return [entry["line"] for entry in entries if entry["seq"] <= number][-1]


def first_difference(dumps, call=lambda entry: (entry["op"], entry["bytes"])):
    """The usual right answer, for another idea of what a call is."""
    dumps = as_lists(dumps)
    ends = [entries[-1]["seq"] for entries in dumps]
    by_number = defaultdict(dict)
    for rank, entries in enumerate(dumps):
        for entry in entries:
            by_number[entry["seq"]][rank] = call(entry)
    for number in sorted(by_number):
        behind = [rank for rank, end in enumerate(ends) if end < number]
        if len(behind) == 1:
            return behind[0], number
        usual, times = Counter(by_number[number].values()).most_common(1)[0]
        odd = [rank for rank, one in by_number[number].items() if one != usual]
        if len(odd) == 1 and times > 1:
            return odd[0], number
    return 0, 0


class Parts:
    """What most of the wrong Checkpoints have, and is not wrong."""

    def __init__(self, folder):
        self.folder = Path(folder)

    def commit(self, step, rank, ranks, part):
        new = self.folder / f"new-{step}-{rank}-{ranks}"
        new.write_bytes(part)
        os.replace(new, self.folder / f"{step}-{rank}-{ranks}")

    def found(self):
        parts = defaultdict(dict)
        for file in self.folder.iterdir():
            if name := re.fullmatch(r"(\d+)-(\d+)-(\d+)", file.name):
                step, rank, ranks = map(int, name.groups())
                parts[step, ranks][rank] = file
        return parts

    def latest_complete(self):
        parts = self.found()
        whole = [key for key, files in parts.items() if len(files) == key[1]]
        if not whole:
            return None
        key = max(whole)
        return key[0], [parts[key][rank].read_bytes() for rank in range(key[1])]


def load(run, state):
    run.model.load_state_dict(state["model"])
    run.optimizer.load_state_dict(state["optimizer"])
    run.scheduler.load_state_dict(state["scheduler"])
    torch.set_rng_state(state["random"])


def state_of(run):
    return copy.deepcopy(
        {
            "model": run.model.state_dict(),
            "optimizer": run.optimizer.state_dict(),
            "scheduler": run.scheduler.state_dict(),
            "random": torch.get_rng_state(),
        }
    )


def here(store, ranks):
    return [rank for rank in range(ranks) if store.check([f"alive{rank}"])]


def until_all(store, ranks, patience):
    """Wait as one should; those that came."""
    end = time.monotonic() + patience
    while len(came := here(store, ranks)) < ranks and time.monotonic() < end:
        if store.check(["list"]):
            break
        time.sleep(0.005)
    return came


def bits(x):
    flat = x.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return flat.view(torch.uint8).cpu().numpy().tobytes()


def all_digests(digest):
    digests = [None] * dist.get_world_size()
    dist.all_gather_object(digests, digest)
    return digests


def unlike_most(values):
    usual = Counter(values).most_common(1)[0][0]
    return [rank for rank, value in enumerate(values) if value != usual]


# %% culprit: fewest-entries
def culprit(dumps):
    dumps = as_lists(dumps)
    rank = min(range(len(dumps)), key=lambda rank: len(dumps[rank]))
    return rank, dumps[rank][-1]["seq"] + 1, dumps[rank][-1]["line"]


# %% culprit: its-last-call-and-not-the-next
def culprit(dumps):
    rank, number = first_difference(dumps)
    last = [entry for entry in dumps[rank] if entry["seq"] <= number][-1]
    return rank, last["seq"], last["line"]


# %% culprit: who-is-behind-alone
def culprit(dumps):
    dumps = as_lists(dumps)
    rank = min(range(len(dumps)), key=lambda rank: dumps[rank][-1]["seq"])
    return rank, dumps[rank][-1]["seq"] + 1, dumps[rank][-1]["line"]


# %% culprit: who-calls-otherwise-alone
def culprit(dumps):
    by_number = defaultdict(dict)
    for rank in range(len(dumps)):
        for entry in dumps[rank]:
            by_number[entry["seq"]][rank] = entry["op"], entry["bytes"]
    for number in sorted(by_number):
        usual = Counter(by_number[number].values()).most_common(1)[0][0]
        for rank, call in by_number[number].items():
            if call != usual:
                return rank, number, line_until(dumps[rank], number)
    return None


# %% culprit: lost-is-never-came
def culprit(dumps):
    calls = [{entry["seq"]: entry for entry in entries} for entries in as_lists(dumps)]
    for number in range(min(map(min, calls)), max(map(max, calls)) + 1):
        came = [own.get(number) for own in calls]
        votes = [one and (one["op"], one["bytes"]) for one in came]
        usual = Counter(votes).most_common(1)[0][0]
        for rank, vote in enumerate(votes):
            if vote != usual:
                before = [entry for own, entry in calls[rank].items() if own <= number]
                return rank, number, before[-1]["line"] if before else None


# %% culprit: places-in-the-list
def culprit(dumps):
    dumps = as_lists(dumps)
    for at in range(max(map(len, dumps))):
        votes = [(own[at]["op"], own[at]["bytes"]) if at < len(own) else None for own in dumps]
        usual = Counter(votes).most_common(1)[0][0]
        for rank, vote in enumerate(votes):
            if vote != usual:
                number = dumps[rank][at]["seq"] if vote else dumps[rank][-1]["seq"] + 1
                return rank, number, line_until(dumps[rank], number)


# %% culprit: places-from-the-end
def culprit(dumps):
    dumps = as_lists(dumps)
    common = min(map(len, dumps))
    tails = [own[-common:] for own in dumps]
    for at in range(common):
        votes = [(own[at]["seq"], own[at]["op"], own[at]["bytes"]) for own in tails]
        usual = Counter(votes).most_common(1)[0][0]
        for rank, vote in enumerate(votes):
            if vote != usual:
                return rank, usual[0], line_until(dumps[rank], usual[0])


# %% culprit: unlike-rank-0
def culprit(dumps):
    first = {entry["seq"]: (entry["op"], entry["bytes"]) for entry in dumps[0]}
    for rank in range(1, len(dumps)):
        for entry in dumps[rank]:
            number = entry["seq"]
            if number in first and first[number] != (entry["op"], entry["bytes"]):
                return rank, number, entry["line"]
        if dumps[rank][-1]["seq"] < max(first):
            return rank, dumps[rank][-1]["seq"] + 1, dumps[rank][-1]["line"]
    return 0, max(first) + 1, dumps[0][-1]["line"]


# %% culprit: operations-alone
def culprit(dumps):
    rank, number = first_difference(dumps, lambda entry: entry["op"])
    return rank, number, line_until(dumps[rank], number or 1 << 60)


# %% culprit: bytes-alone
def culprit(dumps):
    rank, number = first_difference(dumps, lambda entry: entry["bytes"])
    return rank, number, line_until(dumps[rank], number or 1 << 60)


# %% culprit: the-very-last-line
def culprit(dumps):
    rank, number = first_difference(dumps)
    return rank, number, dumps[rank][-1]["line"]


# %% culprit: the-line-before-it
def culprit(dumps):
    rank, number = first_difference(dumps)
    before = [entry["line"] for entry in dumps[rank] if entry["seq"] < number]
    return rank, number, before[-1] if before else None


# %% culprit: the-line-of-the-others
def culprit(dumps):
    rank, number = first_difference(dumps)
    lines = [
        entry["line"]
        for other in range(len(dumps))
        for entry in dumps[other]
        if other != rank and entry["seq"] == number
    ]
    return rank, number, Counter(lines).most_common(1)[0][0]


# %% culprit: state-counts-too
def culprit(dumps):
    call = lambda entry: (entry["op"], entry["bytes"], entry["state"])
    rank, number = first_difference(dumps, call)
    return rank, number, line_until(dumps[rank], number or 1 << 60)


# %% culprit: line-counts-too
def culprit(dumps):
    call = lambda entry: (entry["op"], entry["bytes"], entry["line"])
    rank, number = first_difference(dumps, call)
    return rank, number, line_until(dumps[rank], number or 1 << 60)


# %% culprit: who-is-not-done
def culprit(dumps):
    for rank in range(len(dumps)):
        for entry in dumps[rank]:
            if entry["state"] != "completed":
                return rank, entry["seq"], entry["line"]


# %% culprit: who-is-furthest
def culprit(dumps):
    dumps = as_lists(dumps)
    rank = max(range(len(dumps)), key=lambda rank: dumps[rank][-1]["seq"])
    return rank, dumps[rank][-1]["seq"], dumps[rank][-1]["line"]


# %% culprit: the-call-the-others-wait-in
# The last call that most have, not the first that one does not have.
def culprit(dumps):
    rank, number = first_difference(dumps)
    ends = Counter(dumps[other][-1]["seq"] for other in range(len(dumps)) if other != rank)
    number = ends.most_common(1)[0][0]
    return rank, number, line_until(dumps[rank], number)


# %% culprit: the-last-difference
def culprit(dumps):
    by_number = defaultdict(dict)
    for rank in range(len(dumps)):
        for entry in dumps[rank]:
            by_number[entry["seq"]][rank] = entry["op"], entry["bytes"]
    found = None
    ends = {rank: dumps[rank][-1]["seq"] for rank in range(len(dumps))}
    for number in sorted(by_number):
        usual, times = Counter(by_number[number].values()).most_common(1)[0]
        for rank in ends:
            call = by_number[number].get(rank, usual if ends[rank] >= number else None)
            if call != usual and times > 1:
                found = rank, number, line_until(dumps[rank], number)
    return found


# %% culprit: rank-and-line-swapped
def culprit(dumps):
    rank, number = first_difference(dumps)
    return rank, line_until(dumps[rank], number), number


# %% culprit: behind-before-otherwise
# Asks first who ended before the others, whatever came earlier.
def culprit(dumps):
    dumps = as_lists(dumps)
    ends = [own[-1]["seq"] for own in dumps]
    least = min(ends)
    if ends.count(least) == 1:
        rank = ends.index(least)
        return rank, least + 1, dumps[rank][-1]["line"]
    rank, number = first_difference(dumps)
    return rank, number, line_until(dumps[rank], number)


# %% Checkpoints: written-in-place
class Checkpoints(Parts):
    def commit(self, step, rank, ranks, part):
        (self.folder / f"{step}-{rank}-{ranks}").write_bytes(part)


# %% Checkpoints: steps-sorted-as-text
class Checkpoints(Parts):
    def latest_complete(self):
        parts = self.found()
        whole = [key for key, files in parts.items() if len(files) == key[1]]
        if whole:
            key = max(whole, key=str)
            return key[0], [parts[key][rank].read_bytes() for rank in range(key[1])]


# %% Checkpoints: ranks-sorted-as-text
class Checkpoints(Parts):
    def latest_complete(self):
        parts = self.found()
        whole = [key for key, files in parts.items() if len(files) == key[1]]
        if whole:
            step, ranks = max(whole)
            return step, [f.read_bytes() for f in sorted(self.folder.glob(f"{step}-*-{ranks}"))]


# %% Checkpoints: in-the-order-of-the-folder
class Checkpoints(Parts):
    def latest_complete(self):
        parts = self.found()
        whole = [key for key, files in parts.items() if len(files) == key[1]]
        if whole:
            key = max(whole)
            return key[0], [file.read_bytes() for file in parts[key].values()]


# %% Checkpoints: numbers-of-ranks-mixed
# The name has no number of ranks; the last commit says how many there are.
class Checkpoints(Parts):
    def commit(self, step, rank, ranks, part):
        for name, data in ((f"{step}-{rank}", part), (f"{step}-ranks", str(ranks).encode())):
            new = self.folder / f"new {rank}"
            new.write_bytes(data)
            new.replace(self.folder / name)

    def latest_complete(self):
        steps = {int(file.name.split("-")[0]) for file in self.folder.glob("*-ranks")}
        for step in sorted(steps, reverse=True):
            ranks = int((self.folder / f"{step}-ranks").read_text())
            files = [self.folder / f"{step}-{rank}" for rank in range(ranks)]
            if all(file.exists() for file in files):
                return step, [file.read_bytes() for file in files]
        return None


# %% Checkpoints: highest-rank-plus-one
# Counts the ranks by the files there: without the last part it seems whole.
class Checkpoints(Parts):
    def latest_complete(self):
        parts = self.found()
        whole = [key for key, own in parts.items() if len(own) == max(own) + 1]
        if whole:
            key = max(whole)
            return key[0], [parts[key][rank].read_bytes() for rank in range(len(parts[key]))]


# %% Checkpoints: unfinished-files-count
class Checkpoints(Parts):
    def commit(self, step, rank, ranks, part):
        new = self.folder / f"{step}-{rank}-{ranks}.tmp"
        new.write_bytes(part)
        new.rename(self.folder / f"{step}-{rank}-{ranks}")

    def found(self):
        parts = defaultdict(dict)
        for file in sorted(self.folder.iterdir()):
            step, rank, ranks = map(int, re.findall(r"\d+", file.name)[:3])
            parts[step, ranks][rank] = file
        return parts


# %% Checkpoints: step-0-is-none
class Checkpoints(Parts):
    def latest_complete(self):
        best = 0
        for (step, ranks), files in self.found().items():
            if len(files) == ranks and step > best:
                best = step
                parts = [files[rank].read_bytes() for rank in range(ranks)]
        return (best, parts) if best else None


# %% Checkpoints: an-empty-part-is-none
class Checkpoints(Parts):
    def latest_complete(self):
        for (step, ranks), files in sorted(self.found().items(), reverse=True):
            parts = [files[rank].read_bytes() if rank in files else b"" for rank in range(ranks)]
            if all(parts):
                return step, parts
        return None


# %% Checkpoints: one-unfinished-name-for-all
class Checkpoints(Parts):
    def commit(self, step, rank, ranks, part):
        new = self.folder / "new"
        new.write_bytes(part)
        os.replace(new, self.folder / f"{step}-{rank}-{ranks}")


# %% Checkpoints: kept-in-memory
class Checkpoints:
    parts = {}  # noqa: RUF012

    def __init__(self, folder):
        self.own = self.parts.setdefault(str(folder), defaultdict(dict))

    def commit(self, step, rank, ranks, part):
        self.own[step, ranks][rank] = part

    def latest_complete(self):
        whole = [key for key, parts in self.own.items() if len(parts) == key[1]]
        if whole:
            key = max(whole)
            return key[0], [self.own[key][rank] for rank in range(key[1])]


# %% Checkpoints: newest-step-or-none
class Checkpoints(Parts):
    def latest_complete(self):
        parts = self.found()
        if parts:
            step, ranks = max(parts)
            if len(parts[step, ranks]) == ranks:
                return step, [parts[step, ranks][rank].read_bytes() for rank in range(ranks)]
        return None


# %% Checkpoints: the-old-one-goes-first
class Checkpoints(Parts):
    def commit(self, step, rank, ranks, part):
        name = self.folder / f"{step}-{rank}-{ranks}"
        name.unlink(missing_ok=True)
        super().commit(step, rank, ranks, part)


# %% Checkpoints: the-disk-is-never-full
class Checkpoints(Parts):
    def commit(self, step, rank, ranks, part):
        try:
            super().commit(step, rank, ranks, part)
        except OSError as error:
            print(f"could not save step {step}: {error}")


# %% Checkpoints: own-older-parts-go
# Each rank keeps its newest part, while the others have not theirs yet.
class Checkpoints(Parts):
    def commit(self, step, rank, ranks, part):
        super().commit(step, rank, ranks, part)
        for (other, _), files in self.found().items():
            if other < step and rank in files:
                files[rank].unlink()


# %% Checkpoints: the-last-rank-says-whole
class Checkpoints(Parts):
    def commit(self, step, rank, ranks, part):
        super().commit(step, rank, ranks, part)
        if rank == ranks - 1:
            (self.folder / f"whole {step} {ranks}").touch()

    def latest_complete(self):
        whole = [tuple(map(int, f.name.split()[1:])) for f in self.folder.glob("whole *")]
        if whole:
            step, ranks = max(whole)
            files = [self.folder / f"{step}-{rank}-{ranks}" for rank in range(ranks)]
            return step, [file.read_bytes() for file in files]


# %% Checkpoints: the-mark-before-the-data
class Checkpoints(Parts):
    def commit(self, step, rank, ranks, part):
        (self.folder / f"{step}-{rank}-{ranks}").touch()
        super().commit(step, rank, ranks, part)


# %% Checkpoints: written-last-instead-of-highest
class Checkpoints(Parts):
    def latest_complete(self):
        parts = self.found()
        whole = [key for key, files in parts.items() if len(files) == key[1]]
        if whole:
            key = max(whole, key=lambda key: max(f.stat().st_mtime_ns for f in parts[key].values()))
            return key[0], [parts[key][rank].read_bytes() for rank in range(key[1])]


# %% Checkpoints: stumbles-over-what-a-kill-left
class Checkpoints(Parts):
    def commit(self, step, rank, ranks, part):
        new = self.folder / f"{step}-{rank}-{ranks}-new"
        new.write_bytes(part)
        new.rename(self.folder / f"{step}-{rank}-{ranks}")

    def found(self):
        parts = defaultdict(dict)
        for file in self.folder.iterdir():
            step, rank, ranks = map(int, file.name.split("-"))
            parts[step, ranks][rank] = file
        return parts


# %% Checkpoints: another-number-of-ranks-clears
class Checkpoints(Parts):
    def commit(self, step, rank, ranks, part):
        for (other, number), files in self.found().items():
            if other == step and number != ranks:
                for file in files.values():
                    file.unlink(missing_ok=True)
        super().commit(step, rank, ranks, part)


# %% Checkpoints: a-folder-for-a-step
# The folder has parts of whatever number of ranks; those of the most ranks are returned.
class Checkpoints:
    def __init__(self, folder):
        self.folder = Path(folder)

    def commit(self, step, rank, ranks, part):
        place = self.folder / str(step)
        place.mkdir(exist_ok=True)
        new = place / f"new{rank}"
        new.write_bytes(part)
        new.rename(place / str(rank))
        (place / f"ranks {ranks}").touch()

    def latest_complete(self):
        for place in sorted(self.folder.iterdir(), key=lambda place: int(place.name), reverse=True):
            numbers = [int(file.name.split()[1]) for file in place.glob("ranks *")]
            for ranks in sorted(numbers, reverse=True):
                files = [place / str(rank) for rank in range(ranks)]
                if all(file.exists() for file in files):
                    return int(place.name), [file.read_bytes() for file in files]
        return None


# %% Checkpoints: copied-into-place
class Checkpoints(Parts):
    def commit(self, step, rank, ranks, part):
        new = self.folder / f"new{rank}"
        new.write_bytes(part)
        shutil.copyfile(new, self.folder / f"{step}-{rank}-{ranks}")
        new.unlink()


# %% Checkpoints: a-folder-made-without-exist-ok
class Checkpoints(Parts):
    def commit(self, step, rank, ranks, part):
        place = self.folder / f"{step}-{ranks}"
        if not place.exists():
            place.mkdir()
        (place / f"{rank}.new").write_bytes(part)
        (place / f"{rank}.new").rename(place / str(rank))

    def latest_complete(self):
        places = [tuple(map(int, place.name.split("-"))) for place in self.folder.iterdir()]
        for step, ranks in sorted(places):
            files = [self.folder / f"{step}-{ranks}" / str(rank) for rank in range(ranks)]
            if all(file.exists() for file in files):
                return step, [file.read_bytes() for file in files]


# %% Checkpoints: parts-as-a-dictionary
class Checkpoints(Parts):
    def latest_complete(self):
        found = super().latest_complete()
        return found and (found[0], dict(enumerate(found[1])))


# %% Checkpoints: everything-in-one-file
# Read, changed, and replaced as a whole: of two that do it at once, one is lost.
class Checkpoints:
    def __init__(self, folder):
        self.file = Path(folder) / "all.json"

    def read(self):
        return json.loads(self.file.read_text()) if self.file.exists() else []

    def commit(self, step, rank, ranks, part):
        known = [one for one in self.read() if one[:3] != [step, ranks, rank]]
        new = self.file.with_name(f"new {rank}")
        new.write_text(json.dumps([*known, [step, ranks, rank, part.hex()]]))
        new.replace(self.file)

    def latest_complete(self):
        found = defaultdict(dict)
        for step, ranks, rank, part in self.read():
            found[step, ranks][rank] = bytes.fromhex(part)
        whole = [key for key in found if len(found[key]) == key[1]]
        if whole:
            key = max(whole)
            return key[0], [found[key][rank] for rank in range(key[1])]


# %% Checkpoints: no-checkpoint-is-an-error
class Checkpoints(Parts):
    def latest_complete(self):
        parts = self.found()
        key = max(key for key, files in parts.items() if len(files) == key[1])
        return key[0], [parts[key][rank].read_bytes() for rank in range(key[1])]


# %% Checkpoints: never-again-the-same-step
class Checkpoints(Parts):
    def commit(self, step, rank, ranks, part):
        if (self.folder / f"{step}-{rank}-{ranks}").exists():
            raise FileExistsError(step)
        super().commit(step, rank, ranks, part)


# %% train: random-numbers-forgotten
def train(run, saved, steps, every):
    done = 0
    if found := saved.latest():
        done, state = found
        run.model.load_state_dict(state["model"])
        run.optimizer.load_state_dict(state["optimizer"])
        run.scheduler.load_state_dict(state["scheduler"])
    for step in range(done + 1, steps + 1):
        run.step()
        if step % every == 0:
            saved.commit(step, state_of(run))


# %% train: optimizer-forgotten
def train(run, saved, steps, every):
    done = 0
    if found := saved.latest():
        done, state = found
        run.model.load_state_dict(state["model"])
        run.scheduler.load_state_dict(state["scheduler"])
        torch.set_rng_state(state["random"])
    for step in range(done + 1, steps + 1):
        run.step()
        if step % every == 0:
            saved.commit(step, state_of(run))


# %% train: schedule-forgotten
def train(run, saved, steps, every):
    done = 0
    if found := saved.latest():
        done, state = found
        run.model.load_state_dict(state["model"])
        run.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])
    for step in range(done + 1, steps + 1):
        run.step()
        if step % every == 0:
            saved.commit(step, state_of(run))


# %% train: weights-forgotten
def train(run, saved, steps, every):
    done = 0
    if found := saved.latest():
        done, state = found
        run.optimizer.load_state_dict(state["optimizer"])
        run.scheduler.load_state_dict(state["scheduler"])
        torch.set_rng_state(state["random"])
    for step in range(done + 1, steps + 1):
        run.step()
        if step % every == 0:
            saved.commit(step, state_of(run))


# %% train: one-step-again
# Keeps the number of the last step, from 0, and goes on with that.
def train(run, saved, steps, every):
    first = 0
    if found := saved.latest():
        first, state = found
        load(run, state)
    for step in range(first, steps):
        run.step()
        if (step + 1) % every == 0:
            saved.commit(step, state_of(run))


# %% train: one-step-left-out
def train(run, saved, steps, every):
    first = 0
    if found := saved.latest():
        load(run, found[1])
        first = found[0] + 1
    for step in range(first, steps):
        run.step()
        if (step + 1) % every == 0:
            saved.commit(step + 1, state_of(run))


# %% train: counted-from-0
# Saves after the first step, and then one after each multiple.
def train(run, saved, steps, every):
    done = 0
    if found := saved.latest():
        done, state = found
        load(run, state)
    for step in range(done, steps):
        run.step()
        if step % every == 0:
            saved.commit(step + 1, state_of(run))


# %% train: saved-before-the-step
def train(run, saved, steps, every):
    done = 0
    if found := saved.latest():
        done, state = found
        load(run, state)
    for step in range(done + 1, steps + 1):
        state = state_of(run)
        run.step()
        if step % every == 0:
            saved.commit(step, state)


# %% train: as-many-steps-again
def train(run, saved, steps, every):
    done = 0
    if found := saved.latest():
        done, state = found
        load(run, state)
    for step in range(done + 1, done + steps + 1):
        run.step()
        if step % every == 0:
            saved.commit(step, state_of(run))


# %% train: random-numbers-of-the-beginning
def train(run, saved, steps, every):
    done, begin = 0, torch.get_rng_state()
    if found := saved.latest():
        done, state = found
        load(run, state)
    for step in range(done + 1, steps + 1):
        run.step()
        if step % every == 0:
            saved.commit(step, state_of(run) | {"random": begin})


# %% train: a-seed-for-each-step
# The numbers are the same with and without kills, but not those of the training.
def train(run, saved, steps, every):
    done = 0
    if found := saved.latest():
        done, state = found
        load(run, state)
    for step in range(done + 1, steps + 1):
        torch.manual_seed(step)
        run.step()
        if step % every == 0:
            saved.commit(step, state_of(run))


# %% train: from-the-start-each-time
def train(run, saved, steps, every):
    for step in range(1, steps + 1):
        run.step()
        if step % every == 0:
            saved.commit(step, state_of(run))


# %% train: saved-at-the-end-only
def train(run, saved, steps, every):
    done = 0
    if found := saved.latest():
        done, state = found
        load(run, state)
    for _ in range(done, steps):
        run.step()
    saved.commit(steps, state_of(run))


# %% train: nothing-to-do-nothing-loaded
# All steps are done: it leaves with a new run's weights.
def train(run, saved, steps, every):
    done, state = saved.latest() or (0, None)
    if done >= steps:
        return
    if state:
        load(run, state)
    for step in range(done + 1, steps + 1):
        run.step()
        if step % every == 0:
            saved.commit(step, state_of(run))


# %% train: intervals-from-the-restart
# With a schedule of its own after each restart, and a checkpoint before the first step.
def train(run, saved, steps, every):
    done = 0
    if found := saved.latest():
        done, state = found
        load(run, state)
    for count, step in enumerate(range(done, steps)):
        if count % every == 0:
            saved.commit(step, state_of(run))
        run.step()


# %% train: random-numbers-too-early
# Asks for random numbers after it has set them: a look whether the model works.
def train(run, saved, steps, every):
    done = 0
    if found := saved.latest():
        done, state = found
        load(run, state)
        run.model(torch.randn(1, 4))
    for step in range(done + 1, steps + 1):
        run.step()
        if step % every == 0:
            saved.commit(step, state_of(run))


# %% train: evaluated-before-saving
# Leaves the model in eval(): dropout is off from then on.
def train(run, saved, steps, every):
    done = 0
    if found := saved.latest():
        done, state = found
        load(run, state)
    for step in range(done + 1, steps + 1):
        run.step()
        if step % every == 0:
            run.model.eval()
            saved.commit(step, state_of(run))


# %% train: always-something-to-load
def train(run, saved, steps, every):
    done, state = saved.latest()
    load(run, state)
    for step in range(done + 1, steps + 1):
        run.step()
        if step % every == 0:
            saved.commit(step, state_of(run))


# %% train: schedule-caught-up
# The schedule's steps are played again on the optimizer that was loaded: it halves twice.
def train(run, saved, steps, every):
    done = 0
    if found := saved.latest():
        done, state = found
        run.model.load_state_dict(state["model"])
        run.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])
        for _ in range(done):
            run.scheduler.step()
    for step in range(done + 1, steps + 1):
        run.step()
        if step % every == 0:
            saved.commit(step, state_of(run))


# %% train: a-new-run
# Makes another Training, and the one that was handed over stays as it was.
def train(run, saved, steps, every):
    run = copy.deepcopy(run)
    done = 0
    if found := saved.latest():
        done, state = found
        load(run, state)
    for step in range(done + 1, steps + 1):
        run.step()
        if step % every == 0:
            saved.commit(step, state_of(run))


# %% train: after-every-step
def train(run, saved, steps, every):
    done = 0
    if found := saved.latest():
        done, state = found
        load(run, state)
    for step in range(done + 1, steps + 1):
        run.step()
        saved.commit(step, state_of(run))


# %% interval: young
def interval(save, mtbf):
    return math.sqrt(2 * save * mtbf)


# %% interval: young-less-the-checkpoint
def interval(save, mtbf):
    return math.sqrt(2 * save * mtbf) - save


# %% interval: two-forgotten
def interval(save, mtbf):
    return math.sqrt(save * mtbf)


# %% interval: no-root
def interval(save, mtbf):
    return 2 * save * mtbf


# %% interval: with-the-checkpoint
# From the beginning of one checkpoint to that of the next.
def interval(save, mtbf):
    x = 1.0
    for _ in range(10_000):
        x = 1 - math.exp(-(x + save / mtbf))
    return x * mtbf + save


# %% interval: not-by-the-useful-second
# The least time of a stretch, instead of that of a useful second: the shortest stretch.
def interval(save, mtbf):
    steps = np.geomspace(1e-4, 3, 10_000) * mtbf
    return steps[np.argmin(mtbf * np.expm1((steps + save) / mtbf))]


# %% interval: by-the-whole-stretch
# Divided by τ + save instead of τ.
def interval(save, mtbf):
    steps = np.geomspace(1e-4, 3, 10_000) * mtbf
    return steps[np.argmin(np.expm1((steps + save) / mtbf) / (steps + save))]


# %% interval: the-checkpoint-cannot-fail
# e^(τ/mtbf) - 1 + save: no failure comes while it saves.
def interval(save, mtbf):
    steps = np.geomspace(1e-4, 3, 10_000) * mtbf
    return steps[np.argmin((mtbf * np.expm1(steps / mtbf) + save) / steps)]


# %% interval: searched-in-whole-minutes
def interval(save, mtbf):
    takes = lambda t: math.expm1((t + save) / mtbf) / t
    return 60 * min(range(1, 10_000), key=lambda minutes: takes(min(60 * minutes, 600 * mtbf)))


# %% interval: in-minutes
def interval(save, mtbf):
    x = 1.0
    for _ in range(10_000):
        x = 1 - math.exp(-(x + save / mtbf))
    return x * mtbf / 60


# %% interval: in-units-of-mtbf
def interval(save, mtbf):
    x = 1.0
    for _ in range(10_000):
        x = 1 - math.exp(-(x + save / mtbf))
    return x


# %% interval: at-most-mtbf
def interval(save, mtbf):
    return min(math.sqrt(2 * save * mtbf), mtbf)


# %% interval: stopped-too-early
# A fixed point that comes slowly where save is short.
def interval(save, mtbf):
    x = 1.0
    for _ in range(20):
        x = 1 - math.exp(-(x + save / mtbf))
    return x * mtbf


# %% interval: half-an-interval
def interval(save, mtbf):
    x = 1.0
    for _ in range(10_000):
        x = 1 - math.exp(-(x + save / mtbf))
    return x * mtbf / 2


# %% interval: young-of-both
# mtbf + save in place of mtbf, as the formula of 1974 is often corrected, but the wrong way.
def interval(save, mtbf):
    return math.sqrt(2 * save * (mtbf + save))


# %% interval: arguments-swapped
def interval(mtbf, save):
    small = math.sqrt(save / (2 * mtbf))
    return math.sqrt(2 * save * mtbf) * (1 + small / 3 + small**2 / 9) - save


# %% interval: between-save-and-mtbf
# Searches from save upwards: the best may be shorter than a checkpoint.
def interval(save, mtbf):
    steps = np.linspace(save, mtbf, 10_000)
    return steps[np.argmin(np.expm1((steps + save) / mtbf) / steps)]


# %% survivors: everybody-on-its-own
def survivors(store, rank, ranks, patience):
    store.set(f"alive{rank}", "")
    return until_all(store, ranks, patience)


# %% survivors: patience-for-each
def survivors(store, rank, ranks, patience):
    store.set(f"alive{rank}", "")
    came = []
    for other in range(ranks):
        end = time.monotonic() + patience
        while not store.check([f"alive{other}"]) and time.monotonic() < end:
            time.sleep(0.005)
        if store.check([f"alive{other}"]):
            came.append(other)
    return json.loads(store.compare_set("list", "", json.dumps(came)))


# %% survivors: rank-0-decides
def survivors(store, rank, ranks, patience):
    store.set(f"alive{rank}", "")
    if rank == 0:
        store.set("list", json.dumps(until_all(store, ranks, patience)))
    return json.loads(store.get("list"))


# %% survivors: its-own-proposal
def survivors(store, rank, ranks, patience):
    store.set(f"alive{rank}", "")
    came = until_all(store, ranks, patience)
    store.compare_set("list", "", json.dumps(came))
    return came


# %% survivors: the-last-one-decides
# set() instead of compare_set(): a later one writes over what others have read.
def survivors(store, rank, ranks, patience):
    store.set(f"alive{rank}", "")
    store.set("list", json.dumps(until_all(store, ranks, patience)))
    return json.loads(store.get("list"))


# %% survivors: looks-and-then-writes
# check() and set() are two calls, and another may come between them.
def survivors(store, rank, ranks, patience):
    store.set(f"alive{rank}", "")
    came = until_all(store, ranks, patience)
    if not store.check(["list"]):
        store.set("list", json.dumps(came))
    return json.loads(store.get("list"))


# %% survivors: names-as-text
def survivors(store, rank, ranks, patience):
    store.set(f"alive{rank}", "")
    came = until_all(store, ranks, patience)
    text = ",".join(map(str, came))
    return store.compare_set("list", "", text).decode().split(",")


# %% survivors: text-sorted
def survivors(store, rank, ranks, patience):
    store.set(f"alive{rank}", "")
    came = sorted(map(str, until_all(store, ranks, patience)))
    return [int(one) for one in store.compare_set("list", "", ",".join(came)).split(b",")]


# %% survivors: in-the-order-in-which-they-came
def survivors(store, rank, ranks, patience):
    store.set(f"alive{rank}", str(store.add("count", 1)))
    came = until_all(store, ranks, patience)
    came.sort(key=lambda other: int(store.get(f"alive{other}")))
    return json.loads(store.compare_set("list", "", json.dumps(came)))


# %% survivors: late-and-in-all-the-same
def survivors(store, rank, ranks, patience):
    store.set(f"alive{rank}", "")
    came = until_all(store, ranks, patience)
    decided = json.loads(store.compare_set("list", "", json.dumps(came)))
    return sorted({*decided, rank})


# %% survivors: late-is-an-error
def survivors(store, rank, ranks, patience):
    store.set(f"alive{rank}", "")
    came = until_all(store, ranks, patience)
    decided = json.loads(store.compare_set("list", "", json.dumps(came)))
    if rank not in decided:
        raise RuntimeError(f"rank {rank} came too late")
    return decided


# %% survivors: always-all-its-patience
def survivors(store, rank, ranks, patience):
    store.set(f"alive{rank}", "")
    time.sleep(patience)
    came = here(store, ranks)
    return json.loads(store.compare_set("list", "", json.dumps(came)))


# %% survivors: as-many-as-came
# Counts them, and takes the first ones.
def survivors(store, rank, ranks, patience):
    count = store.add("count", 1)
    end = time.monotonic() + patience
    while count < ranks and time.monotonic() < end and not store.check(["list"]):
        count = store.add("count", 0)
        time.sleep(0.005)
    return json.loads(store.compare_set("list", "", json.dumps(list(range(count)))))


# %% survivors: says-too-late-that-it-is-there
def survivors(store, rank, ranks, patience):
    came = until_all(store, ranks, patience)
    store.set(f"alive{rank}", "")
    came = sorted({*came, rank})
    return json.loads(store.compare_set("list", "", json.dumps(came)))


# %% survivors: looks-only-once
def survivors(store, rank, ranks, patience):
    store.set(f"alive{rank}", "")
    came = here(store, ranks)
    return json.loads(store.compare_set("list", "", json.dumps(came)))


# %% survivors: get-waits-for-the-dead
def survivors(store, rank, ranks, patience):
    store.set(f"alive{rank}", str(rank))
    came = [int(store.get(f"alive{other}")) for other in range(ranks)]
    return json.loads(store.compare_set("list", "", json.dumps(came)))


# %% survivors: an-exception-for-the-dead
def survivors(store, rank, ranks, patience):
    store.set(f"alive{rank}", "")
    store.wait([f"alive{other}" for other in range(ranks)], timedelta(seconds=patience))
    return json.loads(store.compare_set("list", "", json.dumps(here(store, ranks))))


# %% survivors: one-short-for-itself
# The rank that decides leaves itself out.
def survivors(store, rank, ranks, patience):
    store.set(f"alive{rank}", "")
    came = [other for other in until_all(store, ranks, patience) if other != rank]
    return json.loads(store.compare_set("list", "", json.dumps(came)))


# %% survivors: the-dead
def survivors(store, rank, ranks, patience):
    store.set(f"alive{rank}", "")
    came = until_all(store, ranks, patience)
    gone = sorted(set(range(ranks)) - set(came))
    return json.loads(store.compare_set("list", "", json.dumps(gone)))


# %% survivors: patience-in-milliseconds
def survivors(store, rank, ranks, patience):
    store.set(f"alive{rank}", "")
    came = until_all(store, ranks, patience / 1000)
    return json.loads(store.compare_set("list", "", json.dumps(came)))


# %% survivors: patience-from-anew-with-each-that-comes
def survivors(store, rank, ranks, patience):
    store.set(f"alive{rank}", "")
    end, came = time.monotonic() + patience, 0
    while came < ranks and time.monotonic() < end and not store.check(["list"]):
        if len(here(store, ranks)) > came:
            came, end = len(here(store, ranks)), time.monotonic() + patience
        time.sleep(0.005)
    return json.loads(store.compare_set("list", "", json.dumps(here(store, ranks))))


# %% survivors: cleared-for-the-next-time
def survivors(store, rank, ranks, patience):
    store.set(f"alive{rank}", "")
    came = until_all(store, ranks, patience)
    decided = json.loads(store.compare_set("list", "", json.dumps(came)))
    store.delete_key("list")
    return decided


# %% survivors: all-have-to-have-read-it
# Waits behind the list until all ranks have it, the dead ones too.
def survivors(store, rank, ranks, patience):
    store.set(f"alive{rank}", "")
    came = until_all(store, ranks, patience)
    decided = json.loads(store.compare_set("list", "", json.dumps(came)))
    store.add("read", 1)
    end = time.monotonic() + patience
    while store.add("read", 0) < ranks and time.monotonic() < end:
        time.sleep(0.005)
    return decided


# %% wrong_ranks: unlike-rank-0
def wrong_ranks(x):
    digests = all_digests(hashlib.sha256(bits(x)).digest())
    return [rank for rank, digest in enumerate(digests) if digest != digests[0]]


# %% wrong_ranks: equal-values
# Compares numbers: zeros of both signs are equal, and NaN is equal to nothing.
def wrong_ranks(x):
    values = all_digests(x.detach().cpu().flatten().tolist())
    return [
        rank
        for rank, value in enumerate(values)
        if 2 * sum(value == other for other in values) <= len(values)
    ]


# %% wrong_ranks: the-whole-tensor
def wrong_ranks(x):
    x = x.detach().contiguous()
    every = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(every, x)
    return unlike_most([bits(one) for one in every])


# %% wrong_ranks: a-sum
def wrong_ranks(x):
    return unlike_most(all_digests(x.double().sum().item()))


# %% wrong_ranks: sum-of-bytes
# Two that changed places, or two flips that cancel, have the same sum.
def wrong_ranks(x):
    return unlike_most(all_digests(sum(bits(x))))


# %% wrong_ranks: sum-and-maximum
def wrong_ranks(x):
    x = x.detach().double()
    return unlike_most(all_digests((x.sum().item(), x.abs().max().item())))


# %% wrong_ranks: first-thousand-bytes
def wrong_ranks(x):
    return unlike_most(all_digests(bits(x)[:900]))


# %% wrong_ranks: printed
# Text of a long tensor has dots in the middle.
def wrong_ranks(x):
    return unlike_most(all_digests(hashlib.sha256(str(x).encode()).digest()))


# %% wrong_ranks: its-memory-as-it-lies
# Of a tensor that is not contiguous it takes all that is between.
def wrong_ranks(x):
    storage = bytes(x.detach().cpu().untyped_storage())
    return unlike_most(all_digests(hashlib.sha256(storage).digest()))


# %% wrong_ranks: as-float32
def wrong_ranks(x):
    return unlike_most(all_digests(hashlib.sha256(bits(x.float())).digest()))


# %% wrong_ranks: numpy-of-any-dtype
# NumPy has no bfloat16.
def wrong_ranks(x):
    data = x.detach().cpu().numpy().tobytes()
    return unlike_most(all_digests(hashlib.sha256(data).digest()))


# %% wrong_ranks: view-of-what-is-not-contiguous
def wrong_ranks(x):
    data = x.view(-1).view(torch.uint8).numpy().tobytes()
    return unlike_most(all_digests(hashlib.sha256(data).digest()))


# %% wrong_ranks: bytes-of-a-tensor-without-dimensions
def wrong_ranks(x):
    data = x.detach().contiguous().view(torch.uint8).cpu().numpy().tobytes()
    return unlike_most(all_digests(hashlib.sha256(data).digest()))


# %% wrong_ranks: the-right-ones
def wrong_ranks(x):
    digests = all_digests(hashlib.sha256(bits(x)).digest())
    usual = Counter(digests).most_common(1)[0][0]
    return [rank for rank, digest in enumerate(digests) if digest == usual]


# %% wrong_ranks: rank-0-knows
def wrong_ranks(x):
    digests = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(hashlib.sha256(bits(x)).digest(), digests)
    return unlike_most(digests) if dist.get_rank() == 0 else []


# %% wrong_ranks: its-neighbours
# Wrong is who differs from the one before.
def wrong_ranks(x):
    digests = all_digests(hashlib.sha256(bits(x)).digest())
    return [rank for rank in range(len(digests)) if digests[rank] != digests[rank - 1]]


# %% wrong_ranks: one-at-most
def wrong_ranks(x):
    return unlike_most(all_digests(hashlib.sha256(bits(x)).digest()))[:1]


# %% wrong_ranks: rare-ones
# Wrong is whose digest nobody else has: two that are wrong in the same way are not.
def wrong_ranks(x):
    digests = all_digests(hashlib.sha256(bits(x)).digest())
    return [rank for rank, digest in enumerate(digests) if digests.count(digest) == 1]


# %% wrong_ranks: mean-of-checksums
def wrong_ranks(x):
    sums = all_digests(zlib.crc32(bits(x)))
    usual = sum(sums) / len(sums)
    return [rank for rank, one in enumerate(sums) if one != usual]


# %% wrong_ranks: one-bit-of-the-digest
def wrong_ranks(x):
    return unlike_most(all_digests(hashlib.sha256(bits(x)).digest()[0] & 1))


# %% wrong_ranks: nan-cleaned
def wrong_ranks(x):
    clean = x.detach().clone()
    if clean.is_floating_point():
        clean = torch.nan_to_num(clean)
    return unlike_most(all_digests(hashlib.sha256(bits(clean)).digest()))


# %% wrong_ranks: itself-alone
# Each says whether it is wrong itself.
def wrong_ranks(x):
    found = unlike_most(all_digests(hashlib.sha256(bits(x)).digest()))
    return [dist.get_rank()] if dist.get_rank() in found else []


# %% wrong_ranks: a-set
def wrong_ranks(x):
    return set(unlike_most(all_digests(hashlib.sha256(bits(x)).digest())))


# %% wrong_ranks: some-at-random
def wrong_ranks(x):
    data = bits(x)
    some = random.Random(0).sample(range(len(data)), min(500, len(data)))
    return unlike_most(all_digests(bytes(data[at] for at in some)))
