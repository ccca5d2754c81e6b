"""Lab 13's own answers, killed at a hundred random moments, by time and not by line."""

import io
import os
import random
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lockstep
import torch

KILLS, STEPS, EVERY = 100, 200, 2


def child(work: Callable[[], object]) -> tuple[int, int]:
    """Fork a process that does this; return its pid, and a pipe that closes with it."""
    reading, writing = os.pipe()
    if pid := os.fork():
        os.close(writing)
        return pid, reading
    status = 1
    try:
        work()
        status = 0
    finally:
        os._exit(status)


class Run:
    """A training with a memory, a schedule and random numbers."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 1), torch.nn.Dropout(0.25))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 3, gamma=0.99)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.randn(8, 4)).square().mean().backward()
        self.optimizer.step()
        self.scheduler.step()

    def weights(self) -> list[float]:
        return torch.cat([one.flatten() for one in self.model.parameters()]).tolist()


class Saved:
    def __init__(self, kept: Any):
        self._kept = kept

    def commit(self, step: int, state: Any) -> None:
        torch.save(state, buffer := io.BytesIO())
        self._kept.commit(step, 0, 1, buffer.getvalue())

    def latest(self) -> Any:
        found = self._kept.latest_complete()
        return found and (found[0], torch.load(io.BytesIO(found[1][0])))


def test_no_kill_at_a_random_moment_costs_a_checkpoint_or_a_number(
    tmp_path: Path, capsys: Any
) -> None:
    torch.set_num_threads(1)  # so that this process can be forked
    checkpoints, train = lockstep.solution("Checkpoints"), lockstep.solution("train")
    undisturbed, folder, draw = tmp_path / "undisturbed", tmp_path / "killed", random.Random(0)
    undisturbed.mkdir()
    folder.mkdir()
    plain = Run()
    began = time.perf_counter()
    train(plain, Saved(checkpoints(undisturbed)), STEPS, EVERY)
    whole = time.perf_counter() - began
    newest, kills, ends = 0, 0, 0
    while kills < KILLS or not ends:
        ended = folder / "weights"

        def attempt(ended: Path = ended) -> None:
            run = Run()
            train(run, Saved(checkpoints(folder)), STEPS, EVERY)
            ended.write_text(repr(run.weights()))

        pid, pipe = child(attempt)
        patience = draw.uniform(0, whole / 8) if kills < KILLS else None
        over, _, _ = select.select([pipe], [], [], patience)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(pipe)
        found = checkpoints(folder).latest_complete()
        assert (found[0] if found else 0) >= newest, "a checkpoint was lost"
        newest = found[0] if found else 0
        if over:
            assert ended.read_text() == repr(plain.weights())
            ends, newest = ends + 1, 0
            for file in folder.iterdir():
                file.unlink()
        else:
            kills += 1
