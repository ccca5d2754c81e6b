"""Right answers to the exercises of lab 13 in other styles than the solutions'."""

import contextlib
import json
import math
import os
import tempfile
import time
import zlib
from datetime import timedelta
from itertools import count
from pathlib import Path

import torch
import torch.distributed as dist


# %% culprit: sets-of-ranks
def culprit(dumps):
    table = {}
    for rank, entries in dumps.items():
        for entry in entries:
            table.setdefault(entry["seq"], {})[rank] = entry
    begin = max(own[0]["seq"] for own in dumps.values())
    for number in sorted(one for one in table if one >= begin):
        kinds = {}
        for rank in dumps:
            entry = table[number].get(rank)
            kinds.setdefault(entry and (entry["op"], entry["bytes"]), []).append(rank)
        if len(kinds) > 1:
            (rank,) = min(kinds.values(), key=len)
            before = [one for one in dumps[rank] if one["seq"] <= number]
            return rank, number, before[-1]["line"]


# %% culprit: a-list
def culprit(dumps):
    own = {rank: {e["seq"]: e for e in entries} for rank, entries in dumps.items()}
    for number in count(max(min(one) for one in own.values())):
        did = [
            str(one.get(number) and (one[number]["op"], one[number]["bytes"]))
            for one in own.values()
        ]
        for rank, what in zip(own, did, strict=True):
            if did.count(what) == 1:
                return [
                    rank,
                    number,
                    dumps[rank][-1]["line"]
                    if number not in own[rank]
                    else own[rank][number]["line"],
                ]


# %% Checkpoints: a-folder-a-step
class Checkpoints:
    """A folder for each step and number of ranks; a file's end says that it is whole."""

    def __init__(self, folder):
        self.root = folder

    def commit(self, step, rank, ranks, part):
        place = os.path.join(self.root, f"step_{step:012d}_of_{ranks}")
        os.makedirs(place, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=place, prefix="part-", delete=False) as file:
            file.write(part)
        os.rename(file.name, os.path.join(place, f"{rank}.whole"))

    def latest_complete(self):
        for name in sorted(os.listdir(self.root), reverse=True):
            place = Path(self.root, name)
            ranks = int(name.rpartition("_")[2])
            parts = [place / f"{rank}.whole" for rank in range(ranks)]
            if all(map(os.path.exists, parts)):
                return [int(name.split("_")[1]), [one.read_bytes() for one in parts]]
        return None


# %% Checkpoints: with-a-sum
class Checkpoints:
    """No renaming: a part counts if its own end says how long it is, and its sum."""

    def __init__(self, folder):
        self.folder = Path(folder)

    def commit(self, step, rank, ranks, part):
        end = json.dumps([len(part), zlib.crc32(part)]).encode().ljust(64)
        (self.folder / f"{step}.{ranks}.{rank}").write_bytes(part + end)

    def _read(self, step, ranks, rank):
        with contextlib.suppress(OSError, ValueError):
            whole = (self.folder / f"{step}.{ranks}.{rank}").read_bytes()
            part, end = whole[:-64], json.loads(whole[-64:])
            if end == [len(part), zlib.crc32(part)]:
                return part
        return None

    def latest_complete(self):
        keys = {tuple(map(int, file.name.split(".")))[:2] for file in self.folder.iterdir()}
        for step, ranks in sorted(keys, reverse=True):
            parts = [self._read(step, ranks, rank) for rank in range(ranks)]
            if None not in parts:
                return step, parts


# %% Checkpoints: done-files
class Checkpoints:
    """A mark beside each part, made when that is written."""

    def __init__(self, folder):
        self.folder = Path(folder)

    def commit(self, step, rank, ranks, part):
        base = self.folder / str(step) / str(ranks)
        base.mkdir(parents=True, exist_ok=True)
        if (base / f"{rank}.done").exists():
            return  # it is there, with the same bytes
        with open(base / f"{rank}.bin", "wb") as file:
            file.write(part)
            file.flush()
            os.fsync(file.fileno())
        (base / f"{rank}.done").touch()

    def latest_complete(self):
        best = None
        for of_step in self.folder.iterdir():
            for ranks in of_step.iterdir():
                done = len(list(ranks.glob("*.done"))) == int(ranks.name)
                if done and (best is None or int(of_step.name) > best[0]):
                    best = int(of_step.name), ranks
        if best is None:
            return None
        step, place = best
        return step, [(place / f"{r}.bin").read_bytes() for r in range(int(place.name))]


# %% train: while
def train(run, saved, steps, every):
    done = 0
    latest = saved.latest()
    if latest:
        done, kept = latest
        run.model.load_state_dict(kept["model"])
        run.optimizer.load_state_dict(kept["optimizer"])
        run.scheduler.load_state_dict(kept["schedule"])
        torch.random.set_rng_state(kept["rng"])
    while done < steps:
        run.step()
        done += 1
        if done % every:
            continue
        saved.commit(
            done,
            {
                "model": run.model.state_dict(),
                "optimizer": run.optimizer.state_dict(),
                "schedule": run.scheduler.state_dict(),
                "rng": torch.random.get_rng_state(),
            },
        )


# %% train: in-chunks
def train(run, saved, steps, every):
    names = ["model", "optimizer", "scheduler"]
    begin = 0
    if latest := saved.latest():
        begin, kept = latest
        for name in names:
            getattr(run, name).load_state_dict(kept[name])
        torch.default_generator.set_state(kept["generator"])
    for end in range(begin + every, steps + 1, every):
        for _ in range(every):
            run.step()
        state = {name: getattr(run, name).state_dict() for name in names}
        saved.commit(end, state | {"generator": torch.default_generator.get_state()})
    for _ in range(steps % every):
        run.step()


# %% train: replayed-schedule
# The schedule is a function of the step: it is played again, and not kept.
def train(run, saved, steps, every):
    start = 0
    if (kept := saved.latest()) is not None:
        start, (model, optimizer, random) = kept
        for _ in range(start):
            run.scheduler.step()
        run.model.load_state_dict(model)
        run.optimizer.load_state_dict(optimizer)
        torch.set_rng_state(random)
    for step in range(start + 1, steps + 1):
        run.step()
        if step % every == 0:
            parts = run.model.state_dict(), run.optimizer.state_dict(), torch.get_rng_state()
            saved.commit(step, parts)


# %% interval: daly
# The higher-order estimate of Daly's paper.
def interval(save, mtbf):
    if save >= 2 * mtbf:
        return mtbf
    x = save / (2 * mtbf)
    return math.sqrt(2 * save * mtbf) * (1 + math.sqrt(x) / 3 + x / 9) - save


# %% interval: newton
def interval(save, mtbf):
    t = min(math.sqrt(2 * save * mtbf), mtbf) / mtbf
    for _ in range(50):
        f = (t - 1) * math.exp(t) + math.exp(-save / mtbf)
        t -= f / (t * math.exp(t))
    return t * mtbf


# %% interval: golden-section
def interval(save, mtbf):
    def cost(t):
        return math.expm1((t + save) / mtbf) / t

    low, high = mtbf * 1e-6, mtbf
    for _ in range(100):
        a, b = high - (high - low) * 0.618, low + (high - low) * 0.618
        low, high = (low, b) if cost(a) < cost(b) else (a, high)
    return torch.tensor(low).item()


# %% wrong_ranks: crc-in-a-tensor
def wrong_ranks(x):
    bits = x.cpu().contiguous().flatten().view(torch.uint8)
    own = torch.tensor([zlib.crc32(bits.numpy())], dtype=torch.int64, device=x.device)
    every = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(every, own)
    numbers = [one.item() for one in every]
    usual = max(set(numbers), key=numbers.count)
    return [rank for rank, one in enumerate(numbers) if one != usual]


# %% wrong_ranks: median
# More than half are equal, so the one in the middle is one of them.
def wrong_ranks(x):
    own = torch.tensor([zlib.adler32(x.contiguous().flatten().view(torch.uint8).numpy().tobytes())])
    own = (
        own * 2**31 + zlib.crc32(x.contiguous().flatten().view(torch.uint8).numpy().tobytes()) // 2
    )
    every = torch.empty(dist.get_world_size(), dtype=torch.int64)
    dist.all_gather_into_tensor(every, own)
    return (every != every.median()).nonzero().flatten().tolist()


# %% survivors: append-to-a-counter
def survivors(store, rank, ranks, patience):
    store.set(f"alive/{rank}", b"1")
    deadline = time.time() + patience
    for other in range(ranks):
        left = max(0.0, deadline - time.time())
        with contextlib.suppress(dist.DistError, RuntimeError):
            store.wait([f"alive/{other}"], timedelta(seconds=left + 0.001))
    here = [other for other in range(ranks) if store.check([f"alive/{other}"])]
    return json.loads(store.compare_set("decided", "", json.dumps(here)).decode())


# %% survivors: who-adds-first
# The first to add one to a counter writes the list; the others wait for it.
def survivors(store, rank, ranks, patience):
    store.set(f"{rank}", "here")
    end = time.monotonic() + patience
    while time.monotonic() < end and not all(store.check([str(r)]) for r in range(ranks)):
        time.sleep(0.005)
    if store.add("deciders", 1) == 1:
        store.set("list", " ".join(str(r) for r in range(ranks) if store.check([str(r)])))
    return [int(one) for one in store.get("list").decode().split()]
