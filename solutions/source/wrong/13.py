"""Wrong answers to the exercises of lab 13, each under the mistake that its check has to name."""

import hashlib
import json
import math
import os
import re
import time
import zlib
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist


def by_number(dumps):
    return {rank: {one["seq"]: one for one in own} for rank, own in dumps.items()}


def line_at(own, number):
    return own[min(number, max(own))]["line"]


def did(own, number):
    return number in own and (own[number]["op"], own[number]["bytes"])


def numbers_of(called):
    first = max(min(own) for own in called.values())
    return range(first, max(max(own) for own in called.values()) + 1)


class Plain:
    """Right but for what the answers below it change."""

    def __init__(self, folder):
        self.folder = Path(folder)

    def path(self, step, rank, ranks):
        return self.folder / f"{step}-{rank}-of-{ranks}"

    def commit(self, step, rank, ranks, part):
        path = self.path(step, rank, ranks)
        path.with_suffix(".new").write_bytes(part)
        os.replace(path.with_suffix(".new"), path)

    def there(self):
        found = {}
        for file in self.folder.iterdir():
            if match := re.fullmatch(r"(\d+)-(\d+)-of-(\d+)", file.name):
                step, rank, ranks = map(int, match.groups())
                found.setdefault((step, ranks), {})[rank] = file
        return found

    def read(self, key):
        parts = self.there()[key]
        return key[0], [parts[rank].read_bytes() for rank in sorted(parts)]

    def latest_complete(self):
        whole = [key for key, parts in self.there().items() if len(parts) == key[1]]
        return self.read(max(whole)) if whole else None


def whole_state(run):
    return {
        "model": run.model.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "scheduler": run.scheduler.state_dict(),
        "random": torch.get_rng_state(),
    }


def load(run, state, but=()):
    for name in ("model", "optimizer", "scheduler"):
        if name not in but:
            getattr(run, name).load_state_dict(state[name])
    if "random" not in but:
        torch.set_rng_state(state["random"])


def expected(t, save, mtbf):
    return math.expm1((t + save) / mtbf) / t


def gathered(own):
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, own)
    return every


def unlike_most(every):
    usual = Counter(every).most_common(1)[0][0]
    return [rank for rank, one in enumerate(every) if one != usual]


def seen_by(store, ranks):
    return [one for one in range(ranks) if store.check([f"here {one}"])]


# %% culprit: last-entries
def culprit(dumps):
    last = {rank: own[-1] for rank, own in dumps.items()}
    usual = Counter((one["op"], one["seq"]) for one in last.values()).most_common(1)[0][0]
    for rank, one in last.items():
        if (one["op"], one["seq"]) != usual:
            return rank, usual[1], one["line"]
    return 0, usual[1], last[0]["line"]


# %% culprit: fewest-entries
def culprit(dumps):
    rank = min(dumps, key=lambda one: len(dumps[one]))
    return rank, dumps[rank][-1]["seq"] + 1, dumps[rank][-1]["line"]


# %% culprit: a-waiting-rank
def culprit(dumps):
    called = by_number(dumps)
    for number in numbers_of(called):
        there = [rank for rank in sorted(called) if number in called[rank]]
        if len({(called[r][number]["op"], called[r][number]["bytes"]) for r in there}) > 1 or (
            len(there) < len(called)
        ):
            return there[0], number, called[there[0]][number]["line"]


# %% culprit: only-missing
def culprit(dumps):
    called = by_number(dumps)
    rank = min(called, key=lambda one: max(called[one]))
    return rank, max(called[rank]) + 1, called[rank][max(called[rank])]["line"]


# %% culprit: only-operations
def culprit(dumps):
    called = by_number(dumps)
    for number in numbers_of(called):
        did = {rank: own.get(number, {"op": None})["op"] for rank, own in called.items()}
        usual = Counter(did.values()).most_common(1)[0][0]
        for rank, one in did.items():
            if one != usual:
                return rank, number, line_at(called[rank], number)
    return 0, number, line_at(called[0], number)


# %% culprit: rank-0-is-right
def culprit(dumps):
    called = by_number(dumps)
    for number in numbers_of(called):
        for rank in sorted(called):
            if did(called[rank], number) != did(called[0], number):
                return rank, number, line_at(called[rank], number)


# %% culprit: one-late
def culprit(dumps):
    called = by_number(dumps)
    for number in numbers_of(called):
        each = {rank: did(own, number) for rank, own in called.items()}
        usual = Counter(each.values()).most_common(1)[0][0]
        for rank, one in each.items():
            if one != usual:
                return rank, number - 1, line_at(called[rank], number - 1)


# %% culprit: by-place
def culprit(dumps):
    for at in range(max(map(len, dumps.values()))):
        did = {
            rank: (own[at]["op"], own[at]["bytes"]) if at < len(own) else None
            for rank, own in dumps.items()
        }
        usual = Counter(did.values()).most_common(1)[0][0]
        for rank, one in did.items():
            if one != usual:
                entry = dumps[rank][min(at, len(dumps[rank]) - 1)]
                return rank, entry["seq"] + (at >= len(dumps[rank])), entry["line"]


# %% culprit: its-line
def culprit(dumps):
    called = by_number(dumps)
    for number in numbers_of(called):
        each = {rank: did(own, number) for rank, own in called.items()}
        usual = Counter(each.values()).most_common(1)[0][0]
        for rank, one in each.items():
            if one != usual:
                others = [r for r in sorted(called) if each[r] == usual]
                return rank, number, line_at(called[others[0]], number)


# %% culprit: its-number
def culprit(dumps):
    called = by_number(dumps)
    for number in numbers_of(called):
        each = {rank: did(own, number) for rank, own in called.items()}
        usual = Counter(each.values()).most_common(1)[0][0]
        for rank, one in each.items():
            if one != usual:
                return rank, max(called[rank]), line_at(called[rank], number)


# %% Checkpoints: half
class Checkpoints(Plain):
    def commit(self, step, rank, ranks, part):
        self.path(step, rank, ranks).write_bytes(part)


# %% Checkpoints: half
class Checkpoints(Plain):
    def commit(self, step, rank, ranks, part):
        with self.path(step, rank, ranks).open("wb") as file:
            file.write(part)
            file.flush()
            os.fsync(file.fileno())


# %% Checkpoints: incomplete
class Checkpoints(Plain):
    def latest_complete(self):
        there = self.there()
        return self.read(max(there)) if there else None


# %% Checkpoints: order-of-names
class Checkpoints(Plain):
    def latest_complete(self):
        whole = [key for key, parts in self.there().items() if len(parts) == key[1]]
        return self.read(max(whole, key=lambda key: str(key[0]))) if whole else None


# %% Checkpoints: part-order
class Checkpoints(Plain):
    def read(self, key):
        parts = self.there()[key]
        return key[0], [parts[rank].read_bytes() for rank in sorted(parts, key=str)]


# %% Checkpoints: mixed
class Checkpoints(Plain):
    def path(self, step, rank, ranks):
        return self.folder / f"{step}-{rank}"

    def commit(self, step, rank, ranks, part):
        super().commit(step, rank, ranks, part)
        new = self.folder / "ranks.new"
        new.write_text(str(ranks))
        os.replace(new, self.folder / f"{step}-ranks")

    def there(self):
        found = {}
        for file in self.folder.glob("*-ranks"):
            step, ranks = int(file.name.partition("-")[0]), int(file.read_text())
            parts = {r: self.folder / f"{step}-{r}" for r in range(ranks)}
            found[step, ranks] = {r: path for r, path in parts.items() if path.exists()}
        return found


# %% Checkpoints: older
class Checkpoints(Plain):
    def latest_complete(self):
        whole = [key for key, parts in self.there().items() if len(parts) == key[1]]
        return self.read(min(whole)) if whole else None


# %% Checkpoints: old-is-gone
class Checkpoints(Plain):
    def commit(self, step, rank, ranks, part):
        for (number, _), parts in self.there().items():
            for file in parts.values() if number < step else ():
                file.unlink()
        super().commit(step, rank, ranks, part)


# %% Checkpoints: none
class Checkpoints(Plain):
    def latest_complete(self):
        found = super().latest_complete()
        return found if found and found[0] else None


# %% Checkpoints: latest-raises
class Checkpoints(Plain):
    def there(self):
        found = {}
        for file in self.folder.iterdir():
            step, rank, _, ranks = file.name.split("-")
            found.setdefault((int(step), int(ranks)), {})[int(rank)] = file
        return found


# %% Checkpoints: swallowed
class Checkpoints(Plain):
    def commit(self, step, rank, ranks, part):
        try:
            super().commit(step, rank, ranks, part)
        except OSError as error:
            print("could not save:", error)


# %% Checkpoints: not-again
class Checkpoints(Plain):
    def commit(self, step, rank, ranks, part):
        path = self.path(step, rank, ranks)
        with path.with_suffix(".new").open("xb") as file:
            file.write(part)
        os.replace(path.with_suffix(".new"), path)


# %% Checkpoints: no-pair
class Checkpoints(Plain):
    def latest_complete(self):
        found = super().latest_complete()
        return found and found[1]


# %% Checkpoints: no-bytes
class Checkpoints(Plain):
    def latest_complete(self):
        found = super().latest_complete()
        return found and (found[0], b"".join(found[1]))


# %% train: no-optimizer
def train(run, saved, steps, every):
    first, state = saved.latest() or (0, None)
    if state:
        load(run, state, but=["optimizer"])
    for step in range(first, steps):
        run.step()
        if (step + 1) % every == 0:
            saved.commit(step + 1, whole_state(run))


# %% train: no-scheduler
def train(run, saved, steps, every):
    first, state = saved.latest() or (0, None)
    if state:
        load(run, state, but=["scheduler"])
    for step in range(first, steps):
        run.step()
        if (step + 1) % every == 0:
            saved.commit(step + 1, whole_state(run))


# %% train: no-random-state
def train(run, saved, steps, every):
    first, state = saved.latest() or (0, None)
    if state:
        load(run, state, but=["random"])
    for step in range(first, steps):
        run.step()
        if (step + 1) % every == 0:
            saved.commit(step + 1, whole_state(run))


# %% train: no-model
def train(run, saved, steps, every):
    first, state = saved.latest() or (0, None)
    if state:
        load(run, state, but=["model"])
    for step in range(first, steps):
        run.step()
        if (step + 1) % every == 0:
            saved.commit(step + 1, whole_state(run))


# %% train: saved-otherwise
def train(run, saved, steps, every):
    first, state = saved.latest() or (0, None)
    if state:
        load(run, state)
    for step in range(first, steps):
        run.step()
        if step % every == 0:
            saved.commit(step + 1, whole_state(run))


# %% train: saved-otherwise
def train(run, saved, steps, every):
    first, state = saved.latest() or (0, None)
    if state:
        load(run, state)
    for step in range(first, steps):
        run.step()
        saved.commit(step + 1, whole_state(run))


# %% train: a-step-twice
def train(run, saved, steps, every):
    first, state = saved.latest() or (0, None)
    if state:
        load(run, state)
        first -= 1
    for step in range(first, steps):
        run.step()
        if (step + 1) % every == 0:
            saved.commit(step + 1, whole_state(run))


# %% train: a-step-less
def train(run, saved, steps, every):
    first, state = saved.latest() or (0, None)
    if state:
        load(run, state)
        first += 1
    for step in range(first, steps):
        run.step()
        if (step + 1) % every == 0:
            saved.commit(step + 1, whole_state(run))


# %% train: random-first
def train(run, saved, steps, every):
    first, state = saved.latest() or (0, None)
    if state:
        load(run, state)
    for step in range(first, steps):
        random = torch.get_rng_state()
        run.step()
        if (step + 1) % every == 0:
            saved.commit(step + 1, whole_state(run) | {"random": random})


# %% train: never-saved
def train(run, saved, steps, every):
    for _ in range(steps):
        run.step()


# %% train: from-the-start
def train(run, saved, steps, every):
    for step in range(steps):
        run.step()
        if (step + 1) % every == 0:
            saved.commit(step + 1, whole_state(run))


# %% train: raises-again
def train(run, saved, steps, every):
    first, state = saved.latest() or (0, None)
    if state:
        run.model.load_state_dict(state["weights"])
    for step in range(first, steps):
        run.step()
        if (step + 1) % every == 0:
            saved.commit(step + 1, whole_state(run))


# %% interval: young
def interval(save, mtbf):
    return math.sqrt(2 * save * mtbf)


# %% interval: young-less-save
def interval(save, mtbf):
    return max(1e-3, math.sqrt(2 * save * mtbf) - save)


# %% interval: no-square-root
def interval(save, mtbf):
    return 2 * save * mtbf


# %% interval: no-two
def interval(save, mtbf):
    return math.sqrt(save * mtbf)


# %% interval: mtbf-itself
def interval(save, mtbf):
    return mtbf


# %% interval: with-the-save
def interval(save, mtbf):
    tried = [mtbf * 1.01**-k for k in range(2000)]
    return save + min(tried, key=lambda t: expected(t, save, mtbf))


# %% interval: save-forgotten
def interval(save, mtbf):
    tried = [mtbf * 1.01**-k for k in range(2000)]
    return min(tried, key=lambda t: expected(t, 0.0, mtbf))


# %% interval: too-coarse
def interval(save, mtbf):
    return min((mtbf * k / 10 for k in range(1, 11)), key=lambda t: expected(t, save, mtbf))


# %% wrong_ranks: sums
def wrong_ranks(x):
    return unlike_most(gathered(x.double().sum().item()))


# %% wrong_ranks: sums
def wrong_ranks(x):
    return unlike_most(gathered((x.sum().item(), x.abs().max().item())))


# %% wrong_ranks: sums-of-bits
def wrong_ranks(x):
    return unlike_most(gathered(x.contiguous().flatten().view(torch.uint8).long().sum().item()))


# %% wrong_ranks: places
def wrong_ranks(x):
    few = x.contiguous().flatten()[::100].contiguous().view(torch.uint8)
    return unlike_most(gathered(bytes(few.tolist())))


# %% wrong_ranks: values
def wrong_ranks(x):
    mean = torch.arange(x.numel()) % 977
    numbers = x.contiguous().flatten().double()
    return unlike_most(gathered((numbers * (mean + 1)).sum().item()))


# %% wrong_ranks: values
def wrong_ranks(x):
    return unlike_most(gathered(hash(tuple((x + 0).contiguous().flatten().tolist()))))


# %% wrong_ranks: close
def wrong_ranks(x):
    numbers = [round(one, 3) for one in x.contiguous().flatten().tolist()]
    return unlike_most(gathered(zlib.crc32(repr(numbers).encode())))


# %% wrong_ranks: rank-0-is-right
def wrong_ranks(x):
    bits = x.contiguous().flatten().view(torch.uint8).numpy().tobytes()
    every = gathered(hashlib.sha256(bits).digest())
    return [rank for rank, one in enumerate(every) if one != every[0]]


# %% wrong_ranks: the-right-ones
def wrong_ranks(x):
    bits = x.contiguous().flatten().view(torch.uint8).numpy().tobytes()
    every = gathered(hashlib.sha256(bits).digest())
    wrong = unlike_most(every)
    return [rank for rank in range(len(every)) if rank not in wrong]


# %% wrong_ranks: only-one
def wrong_ranks(x):
    bits = x.contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return unlike_most(gathered(hashlib.sha256(bits).digest()))[:1]


# %% wrong_ranks: by-float32
def wrong_ranks(x):
    bits = x.float().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return unlike_most(gathered(hashlib.sha256(bits).digest()))


# %% wrong_ranks: sends-too-much
def wrong_ranks(x):
    every = gathered(x.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return unlike_most(every)


# %% survivors: no-agreement
def survivors(store, rank, ranks, patience):
    store.set(f"here {rank}", "")
    until = time.monotonic() + patience
    while len(seen_by(store, ranks)) < ranks and time.monotonic() < until:
        time.sleep(0.01)
    return seen_by(store, ranks)


# %% survivors: too-few
def survivors(store, rank, ranks, patience):
    store.set(f"here {rank}", "")
    here = seen_by(store, ranks)
    return json.loads(store.compare_set("members", "", json.dumps(here)))


# %% survivors: no-agreement
def survivors(store, rank, ranks, patience):
    store.set(f"here {rank}", "")
    until = time.monotonic() + patience
    while len(seen_by(store, ranks)) < ranks and time.monotonic() < until:
        time.sleep(0.01)
    store.set("members", json.dumps(seen_by(store, ranks)))
    return json.loads(store.get("members"))


# %% survivors: as-text
def survivors(store, rank, ranks, patience):
    store.set(f"here {rank}", "")
    until = time.monotonic() + patience
    while len(seen_by(store, ranks)) < ranks and time.monotonic() < until:
        time.sleep(0.01)
    here = sorted(map(str, seen_by(store, ranks)))
    return [int(one) for one in json.loads(store.compare_set("members", "", json.dumps(here)))]


# %% survivors: too-few
def survivors(store, rank, ranks, patience):
    store.set(f"here {rank}", "")
    until = time.monotonic() + patience
    while len(seen_by(store, ranks)) < ranks and time.monotonic() < until:
        time.sleep(0.01)
    here = [one for one in seen_by(store, ranks) if one != rank]
    return json.loads(store.compare_set("members", "", json.dumps(here)))


# %% survivors: counts-the-dead
def survivors(store, rank, ranks, patience):
    return json.loads(store.compare_set("members", "", json.dumps([*range(ranks)])))


# %% survivors: no-agreement
def survivors(store, rank, ranks, patience):
    store.set(f"here {rank}", "")
    until = time.monotonic() + patience
    while len(seen_by(store, ranks)) < ranks and time.monotonic() < until:
        time.sleep(0.01)
    decided = json.loads(store.compare_set("members", "", json.dumps(seen_by(store, ranks))))
    return sorted({*decided, rank})


# %% survivors: rank-0-decides
def survivors(store, rank, ranks, patience):
    store.set(f"here {rank}", "")
    until = time.monotonic() + patience
    while len(seen_by(store, ranks)) < ranks and time.monotonic() < until:
        time.sleep(0.01)
    if rank == 0:
        store.set("members", json.dumps(seen_by(store, ranks)))
    return json.loads(store.get("members"))


# %% survivors: waits-for-all
def survivors(store, rank, ranks, patience):
    store.set(f"here {rank}", "")
    store.wait([f"here {one}" for one in range(ranks)])
    return list(range(ranks))
