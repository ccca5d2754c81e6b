"""Are lab 13's answers, `Checkpoints` and `train`, what they must be whenever a rank is killed?

Ranks train together, and one of them is killed at a random moment: by time, and not by line. The
others are ended, as torchrun's agent does, and all are started again, until so many kills have been
made and a run has come to its end. A checkpoint is lost if the latest whole one is an earlier one
than before; an end is wrong if a rank's weights are not those of a run without kills.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lockstep import carry_on
from lockstep.base.machine import Machine
from torch import nn

from .experiment import Experiment, Result, device_name

KILLS, STEPS, EVERY = 100, 200, 2
Answers = tuple[Any, Any]  # `Checkpoints`, `train`
PATIENCE = 60.0  # seconds in which ranks come to their end, or wait for each other


# ── On a rank ────────────────────────────────────────────────────────────────────────────────


class Training:
    """A training with a memory, a schedule and random numbers, and gradients of all ranks."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 1), nn.Dropout(0.25))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 3, gamma=0.99)
        torch.manual_seed(seed)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.randn(8, 4)).square().mean().backward()
        for one in self.model.parameters():
            dist.all_reduce(one.grad)
        self.optimizer.step()
        self.scheduler.step()


class Saved:
    """The state that `train` is given: the parts of this rank in `Checkpoints`."""

    def __init__(self, kept: Any, rank: int, ranks: int):
        self._kept, self._place = kept, (rank, ranks)

    def commit(self, step: int, state: Any) -> None:
        torch.save(state, buffer := io.BytesIO())
        self._kept.commit(step, *self._place, buffer.getvalue())

    def latest(self) -> Any:
        found = self._kept.latest_complete()
        return found and (found[0], torch.load(io.BytesIO(found[1][self._place[0]])))


def _rank(answers: Answers, folder: Path, ranks: int, meets: Path, rank: int) -> None:
    """Train to the end, and write down the weights."""
    checkpoints, train = answers
    dist.init_process_group(
        "gloo",
        f"file://{meets}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=PATIENCE),
    )
    training = Training(rank)
    train(training, Saved(checkpoints(folder), rank, ranks), STEPS, EVERY)
    weights = torch.cat([one.detach().flatten() for one in training.model.parameters()])
    (folder / f"weights {rank}").write_text(repr(weights.tolist()))
    dist.barrier()


# ── Beside the ranks ─────────────────────────────────────────────────────────────────────────


def _quietly(work: Callable[[], object]) -> None:
    """Do this in a process whose errors nobody sees: gloo says at length that a rank is gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    work()


def _attempt(work: Callable[[int], object], ranks: int, victim: int, patience: float) -> bool:
    """Start all ranks, and kill one after `patience` seconds; return whether it was over before."""
    fork = multiprocessing.get_context("fork")
    started = [fork.Process(target=_quietly, args=[partial(work, rank)]) for rank in range(ranks)]
    for one in started:
        one.start()
    started[victim].join(patience)
    over = not started[victim].is_alive()
    if not over:
        started[victim].kill()
    for one in started:
        if not over:
            one.terminate()
        one.join()
    return over


def _weights(folder: Path, ranks: int) -> list[str]:
    files = [folder / f"weights {rank}" for rank in range(ranks)]
    return [file.read_text() if file.exists() else "none" for file in files]


def killed(kills: int, ranks: int, answers: Answers | None = None) -> Iterator[dict[str, Any]]:
    """Kill so often; after each kill, yield all that was found so far."""
    torch.set_num_threads(1)  # so that this process can be forked
    answers = answers or (carry_on("Checkpoints"), carry_on("train"))
    Training(0)  # the first optimizer imports for seconds
    draw = random.Random(0)
    found: dict[str, Any] = {"world_size": ranks, "steps": STEPS, "every": EVERY, "kills": []}
    with tempfile.TemporaryDirectory() as place:
        plain, folder = Path(place, "plain"), Path(place, "killed")
        plain.mkdir()
        folder.mkdir()

        def attempt(folder: Path, victim: int = 0, patience: float = PATIENCE) -> bool:
            meets = Path(place, "meets")
            meets.unlink(missing_ok=True)
            work = partial(_rank, answers, folder, ranks, meets)
            return _attempt(work, ranks, victim, patience)

        began = time.perf_counter()
        attempt(plain)
        found |= {"undisturbed": time.perf_counter() - began, "ends": []}
        right, newest = _weights(plain, ranks), 0
        while len(found["kills"]) < kills or not found["ends"]:
            victim, after = draw.randrange(ranks), draw.uniform(0, found["undisturbed"] / 2)
            over = attempt(folder, victim, after if len(found["kills"]) < kills else PATIENCE)
            latest = answers[0](folder).latest_complete()
            before, newest = newest, latest[0] if latest else 0
            if over:
                found["ends"].append({"right": _weights(folder, ranks) == right})
                shutil.rmtree(folder)
                folder.mkdir()
                newest = 0
                continue
            halves = [*folder.glob("*.new")]
            kill = {"rank": victim, "after": after, "half_written": len(halves)}
            found["kills"].append(kill | {"before": before, "latest": newest})
            for half in halves:
                half.unlink()
            yield found
    yield found


def run(machine: Machine, nproc: int) -> Iterator[Result]:
    what = f"lab 13's answers: one of {nproc} ranks killed at {KILLS} random moments, gloo"
    for found in killed(KILLS, nproc):
        yield Result(f"faults/kills-{device_name(machine)}-x{nproc}.json", what, found)


EXPERIMENT = Experiment(
    "kills",
    "whether lab 13's answers lose a checkpoint, or end with other numbers, when ranks are killed",
    minutes=5,
    run=run,
    least=2,
    ranks=3,
    gpus=False,
    writes={
        "faults/kills-*.json": ("world_size", "steps", "every", "kills", "ends", "undisturbed")
    },
)
