"""Lab 13, faults and checkpoints: the trials of its exercises, and the signs of mistakes.

Writers are killed in processes of their own (`apart`), at lines and in steps, and never by
time; two write at once where one does so before a line of the other.
"""

from __future__ import annotations

import io
import itertools
import json
import math
import os
import random
import re
import shutil
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...models.checkpoints import best_interval, expected_time
from ..apart import Apart, apart, killed_at
from ..judging import Noted, Number, Run, Tensor, Trial, judged
from ..judging.stores import Watch, watched
from ..judging.values import make

# ── culprit ──────────────────────────────────────────────────────────────────────────────────

_ENTRIES = 6  # of a recorder's ring, at most


def _entry(seq: int, op: str, nbytes: int, line: str, completed: bool) -> dict[str, Any]:
    state = "completed" if completed else "scheduled"
    return {"seq": seq, "op": op, "bytes": nbytes, "state": state, "line": line}


def _hang(
    draw: random.Random, how: str, ranks: int, culprit: int, at: int, ahead: int
) -> dict[int, list[dict[str, Any]]]:
    """The last entries of ranks that hang in call `at`; all but the culprit and one other, which
    has completed one less, have called as many more as `ahead` says, at most."""
    ops = [draw.choice(("all_reduce", "all_gather", "reduce_scatter")) for _ in range(at + ahead)]
    sizes = [4 * draw.randint(1, 1 << 20) for _ in ops]
    lines = [f"train.py:{draw.randint(10, 99)}" for _ in ops]
    dumps = {}
    other = (culprit + 1) % ranks
    for rank in range(ranks):
        more = 0 if rank == other else draw.randint(min(1, ahead), ahead)
        entries = []
        for seq in range(1, at + more + 1):
            op, size, line = ops[seq - 1], sizes[seq - 1], lines[seq - 1]
            if rank == culprit and seq >= at:
                if how == "never called":
                    break
                if how == "another call" and seq == at:
                    op, line = "broadcast", "train.py:7"
                if how == "another size" and seq == at:
                    size, line = size + 4, "train.py:8"
                if how == "a call too many":  # all its later calls are one behind
                    op, size, line = [
                        ("barrier", 4, "train.py:9"),
                        *zip(ops[at - 1 :], sizes[at - 1 :], lines[at - 1 :], strict=True),
                    ][seq - at]
            elif rank == other and seq in (at - 1, at):
                line = f"train.py:{100 + seq}"  # as after `if rank == 0:`
            entries.append(_entry(seq, op, size, line, seq < at - (rank == other)))
        dumps[rank] = entries[-_ENTRIES - draw.randint(0, 1) * (rank == culprit) :]
    return dumps


@judged("culprit", lab="13")
def culprit(draw: random.Random) -> Iterator[Trial]:
    """`culprit(dumps)`: the rank at fault, the number of the call, and its own last line."""
    for like, how, ranks, who, at, ahead in (
        ("a rank that never came", "never called", 4, 2, 6, 0),
        ("a rank that never came, while others called more", "never called", 4, 1, 5, 2),
        ("rank 0 that never came, and old entries lost", "never called", 3, 0, 40, 1),
        ("a rank in another collective", "another call", 4, 3, 5, 0),
        ("a rank in another collective, and later calls", "another call", 5, 1, 9, 3),
        ("another number of bytes", "another size", 4, 0, 6, 2),
        ("a rank with a call too many", "a call too many", 4, draw.randrange(4), 7, 3),
        ("eight ranks", "never called", 8, draw.randrange(8), draw.randint(20, 30), 2),
    ):
        dumps = _hang(draw, how, ranks, who, at, ahead)
        (line,) = [one["line"] for one in dumps[who] if one["seq"] <= at][-1:]
        order = draw.sample(sorted(dumps), ranks)  # files are found in any order
        yield Trial(
            0, given=[({rank: dumps[rank] for rank in order},)], right=[(who, at, line)], like=like
        )


def _named(run: Run, rank: int) -> tuple[Any, ...]:
    got = run.got(rank)
    return tuple(got) if isinstance(got, tuple | list) and len(got) == 3 else (None, None, None)


def _part_of(place: int, what: str) -> Callable[[Run, int], Any]:
    """Only this part of the answer is wrong."""

    def sign(run: Run, rank: int) -> Any:
        got, right = _named(run, rank), run.right(rank)
        others = [at for at in range(3) if at != place]
        wrong = got[place] != right[place] and all(got[at] == right[at] for at in others)
        return wrong and {"named": got[place], what: right[place]}

    return sign


culprit.shows("its-line", _part_of(2, "line"))
culprit.shows("its-number", _part_of(1, "number"))


# ── Checkpoints ──────────────────────────────────────────────────────────────────────────────

_MOST_LINES = 20  # at which one commit is killed
_A_MOMENT = 0.3  # seconds in which another writer is done, if it need not wait for the first one


def _part(step: int, rank: int, ranks: int, size: int) -> bytes:
    """What this rank has to keep: no two parts begin alike, and none is all of a kind."""
    if not size:
        return b""
    mark = struct.pack("<qii", step, rank, ranks)
    return (mark * (size // len(mark) + 1))[:size]


Story = Sequence[tuple[int, int, Sequence[int]]]  # step, ranks, and which of them commit


class _Folder:
    """A folder with checkpoints, and what must be found in it."""

    def __init__(self, answer: Any, folder: Path, size: int):
        self.answer, self.folder, self._size = answer, folder, size
        self.done: dict[tuple[int, int], set[int]] = {}
        self.found_before: set[int] = set()  # steps

    def commit(self, step: int, rank: int, ranks: int) -> None:
        self.answer(str(self.folder)).commit(step, rank, ranks, self.part(step, rank, ranks))

    def part(self, step: int, rank: int, ranks: int) -> bytes:
        return _part(step, rank, ranks, self._size)

    def note(self, step: int, rank: int, ranks: int) -> None:
        self.done.setdefault((step, ranks), set()).add(rank)

    def newest(self, *also: int) -> tuple[int, list[bytes]] | None:
        """The newest whole checkpoint; also: step, rank and ranks of one part more."""
        done = {key: set(parts) for key, parts in self.done.items()}
        if also:
            done.setdefault((also[0], also[2]), set()).add(also[1])
        whole = [key for key, parts in done.items() if len(parts) == key[1]]
        if not whole:
            return None
        step, ranks = max(whole)
        return step, [self.part(step, rank, ranks) for rank in range(ranks)]

    def found(self) -> Any:
        return self.answer(str(self.folder)).latest_complete()

    def copy(self) -> _Folder:
        other = _Folder(self.answer, self.folder.with_name(f"copy-{next(_copies)}"), self._size)
        shutil.copytree(self.folder, other.folder)
        other.done = {key: set(parts) for key, parts in self.done.items()}
        other.found_before = self.found_before
        return other

    def state(self) -> list[tuple[Any, ...]]:
        """What a writer changes: it differs where one that is killed leaves something else."""
        found: list[tuple[Any, ...]] = []
        for path in sorted(self.folder.rglob("*")):
            one = path.stat()
            small = path.read_bytes() if path.is_file() and one.st_size < 1000 else b""
            found.append((str(path), one.st_ino, one.st_size, one.st_mtime_ns, small))
        return found


_copies = itertools.count()


def _kept(answer: Any, story: Story, last: tuple[int, int, int], how: str, size: int) -> Noted:
    """Play the story, then let the last part's writer end in this way."""
    problems: list[dict[str, Any]] = []

    def look(folder: _Folder, when: str, *also: int, surely: bool = True) -> bool:
        """Note what is wrong with the newest checkpoint; with `also`, a part more may be there."""
        allowed = [folder.newest(*also)] + ([folder.newest()] if also and not surely else [])
        try:
            found: Any = folder.found()
        except Exception as error:
            if when == "at first":
                raise
            problems.append({"what": "latest-raises", "when": when, "said": _brief(error)})
            return False
        what = _judge(found, allowed, folder)
        if found and not what:
            folder.found_before.add(found[0])
        if what:
            right = " or ".join(dict.fromkeys(_shown(one) for one in allowed))
            problems.append({"what": what, "when": when, "got": _shown(found), "right": right})
        return not what

    with tempfile.TemporaryDirectory() as place:
        folder = _Folder(answer, Path(place, "kept"), size)
        folder.folder.mkdir()
        look(folder, "at first, with nothing committed")
        for step, ranks, some in story:
            for rank in some:
                folder.commit(step, rank, ranks)
                folder.note(step, rank, ranks)
                if not look(folder, f"after rank {rank} of {ranks} committed step {step}"):
                    return Noted("whole", {"problems": problems[:1]})
        for when, ended, copy in _endings(folder, last, how, size):
            surely = ended.how == "returned"
            if how == "at once" and (not surely or ended.value):
                problems.append({"what": "raises-at-once", "when": when, "said": ended.value})
                break
            whole = look(copy, when, *last, surely=surely)
            if not whole and surely and how in ("full", "at once"):
                problems[0]["what"] = {"full": "swallowed", "at once": "lost-at-once"}[how]
            if whole:
                try:
                    copy.commit(*last)
                except Exception as error:
                    said = {"what": "not-again", "when": when, "said": _brief(error)}
                    problems.append(said)
                else:
                    look(copy, f"{when}, and it was committed once more", *last)
            if problems:
                break
    return Noted("whole", {"problems": problems[:1]})


def _endings(
    folder: _Folder, last: tuple[int, int, int], how: str, size: int
) -> Iterator[tuple[str, Apart, _Folder]]:
    step, rank, ranks = last
    who = f"the writer of rank {rank}'s part of step {step}"
    if how in ("full", "killed while writing"):
        copy, kills = folder.copy(), how == "killed while writing"
        end = apart(lambda: copy.commit(*last), room=size // 2, kills=kills)
        said = "was killed when half of it was written" if kills else "found the disk full"
        yield f"after {who} {said}", end, copy
        return
    counted, libraries = folder.copy(), how.endswith("libraries")
    states = [counted.state()]
    changed: list[int] = []  # the lines before which the folder was changed

    def note(line: int) -> None:
        if (state := counted.state()) != states[-1]:
            states.append(state)
            changed.append(line)

    def commits() -> list[int]:
        counted.commit(*last)
        return changed

    run = apart(commits, each_line=note, libraries=libraries)
    places = [*range(1, run.lines + 1)]
    if run.how == "returned" and how != "at once":  # elsewhere a kill leaves the same
        places = sorted({*places[:1], *run.value, *places[-1:]})
    for at in places[:: -(-len(places) // _MOST_LINES) or 1]:
        copy = folder.copy()
        if how == "at once":
            other = (step, (rank + 1) % ranks, ranks)
            copy.note(*other)
            who = f"rank {other[1]} committed step {step} before line {at} of rank {rank}'s commit"
            yield f"when {who}", _at_once(copy, last, other, at), copy
            continue
        commit = lambda copy=copy: copy.commit(*last)  # noqa: E731
        end = apart(commit, each_line=killed_at(at), libraries=libraries)
        yield f"after {who} was killed before line {at} of the {run.lines} that it runs", end, copy


def _at_once(
    folder: _Folder, last: tuple[int, int, int], other: tuple[int, int, int], at: int
) -> Apart:
    """Let another writer commit before this line of the last one, which waits for it a moment: not
    for ever, as the other one may wait for a lock. The value says what the other one raised."""

    def both() -> str:
        go, tell, said, says = *os.pipe(), *os.pipe()
        if not (pid := os.fork()):  # here, so that it has none of the first one's files
            sys.settrace(None)
            os.close(tell)
            os.read(go, 1)
            try:
                folder.commit(*other)
            except Exception as error:
                os.write(says, _brief(error).encode())
            finally:
                os._exit(0)
        starts.append(tell)
        others.append(pid)
        try:
            folder.commit(*last)
        finally:
            os.close(tell)
            os.close(says)
            if others:
                os.waitpid(others.pop(), 0)
        return os.read(said, 1000).decode()

    starts: list[int] = []
    others: list[int] = []

    def start(line: int) -> None:
        if line == at:
            os.write(starts[0], b".")
            until = time.monotonic() + _A_MOMENT
            while others and time.monotonic() < until:
                if os.waitpid(others[0], os.WNOHANG)[0]:
                    others.pop()
                else:
                    time.sleep(0.002)

    return apart(both, each_line=start)


def _judge(found: Any, allowed: Sequence[Any], folder: _Folder) -> str:
    """Say what is wrong with what is called the newest checkpoint; "" where nothing is."""
    right = allowed[0]
    if found is None:
        gone = right and right[0] in folder.found_before
        return "" if None in allowed else "old-is-gone" if gone else "none"
    if not isinstance(found, tuple | list) or len(found) != 2:
        return "no-pair"
    step, parts = found
    if not isinstance(parts, list | tuple) or not all(isinstance(one, bytes) for one in parts):
        return "no-bytes"
    if (step, list(parts)) in [one for one in allowed if one]:
        return ""
    for ranks in {ranks for number, ranks in folder.done if number == step} | {len(parts)}:
        whole = [folder.part(step, rank, ranks) for rank in range(ranks)]
        if sorted(parts) == sorted(whole):
            if right and step == right[0]:
                return "part-order"
            return "order-of-names" if right and str(step) > str(right[0]) else "older"
        if any(own != one and one.startswith(own) for own, one in zip(parts, whole, strict=False)):
            return "half"
    by_ranks = {
        ranks: [folder.part(step, rank, ranks) for rank in range(ranks)]
        for number, ranks in folder.done
        if number == step
    }
    mixed = all(any(one in whole for whole in by_ranks.values()) for one in parts)
    apart = not any(all(one in whole for one in parts) for whole in by_ranks.values())
    return "mixed" if by_ranks and mixed and apart else "incomplete"


def _shown(found: Any) -> str:
    if not isinstance(found, tuple | list) or len(found) != 2:
        return repr(found)[:80]
    step, parts = found
    if not isinstance(parts, list | tuple) or not all(isinstance(one, bytes) for one in parts):
        return repr(found)[:80]
    return f"step {step} with parts of {', '.join(str(len(one)) for one in parts)} bytes"


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:160]


@judged("Checkpoints", lab="13", play=_kept, silent=True)
def Checkpoints(draw: random.Random) -> Iterator[Trial]:
    """`Checkpoints(folder)`: parts that are whole or do not count."""
    four, size = range(4), draw.randint(150_000, 200_000)
    for like, story, last, how, nbytes in (
        ("steps 5, 9, 10 and 100", [(5, 2, (1, 0)), (9, 2, (0, 1)), (10, 2, (0, 1))], (100, 0, 2),
         "killed", 40),
        ("a first checkpoint", [(0, 4, (3, 1, 0))], (0, 2, 4), "killed", size),
        ("a second checkpoint", [(10, 4, four), (20, 4, (0, 1, 2))], (20, 3, 4), "killed", size),
        ("a full disk", [(7, 3, (0, 1, 2)), (8, 3, (2, 0))], (8, 1, 3), "full", size),
        ("a writer killed while it writes", [(7, 3, (0, 1, 2)), (8, 3, (2, 0))], (8, 1, 3),
         "killed while writing", size),
        ("a step that four ranks began and three wrote", [(3, 4, four), (6, 4, (0, 1, 2)),
         (6, 3, (0, 1))], (6, 2, 3), "killed", 64),
        ("a step that three ranks began and four wrote", [(3, 3, (0, 1, 2)), (6, 3, (0, 2)),
         (6, 4, (0, 1, 3))], (6, 2, 4), "killed", 64),
        ("twelve ranks", [(1, 12, range(12)), (2, 12, range(11))], (2, 11, 12), "killed", 32),
        ("an empty part", [(4, 2, (0, 1)), (5, 2, (0,))], (5, 1, 2), "killed", 0),
        ("a part of a whole step, once more", [(4, 2, (0, 1)), (8, 2, (0, 1))], (8, 1, 2), "killed",
         64),
        ("a step whole by four ranks, begun by three", [(2, 4, four), (6, 4, four), (6, 3, (0,))],
         (6, 1, 3), "killed", 64),
        ("a lower step after a higher one", [(9, 2, (0, 1)), (6, 2, (0,))], (6, 1, 2), "killed",
         64),
        ("two ranks that commit at once", [(3, 3, (0, 1, 2)), (4, 3, (0,))], (4, 1, 3), "at once",
         64),
        ("a writer killed within what it calls", [(1, 2, (0, 1)), (2, 2, (0,))], (2, 1, 2),
         "killed in libraries", size),
    ):  # fmt: skip
        yield Trial(
            0, given=[(story, last, how, nbytes)], right=["whole"], patience=40.0, like=like
        )  # fmt: skip


def _problem(what: str) -> Callable[[Run, int], Any]:
    def sign(run: Run, rank: int) -> Any:
        found = [one for one in run.noted[rank]["problems"] if one["what"] == what]
        return bool(found) and {"got": "", "right": "", "said": ""} | found[0]

    return sign


for _what in (
    "no-pair", "no-bytes", "half", "part-order", "mixed", "incomplete", "older", "order-of-names",
    "none", "old-is-gone", "latest-raises", "swallowed", "not-again", "raises-at-once",
    "lost-at-once",
):  # fmt: skip
    Checkpoints.demands(_what, _problem(_what))


# ── train ────────────────────────────────────────────────────────────────────────────────────


class _Training:
    """A small training, as the lab has it; a file counts its steps over all processes."""

    def __init__(self, seed: int, folder: Path, dies_in: int = 0):
        import torch
        from torch import nn

        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.25), nn.Linear(4, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=3, gamma=0.5)
        self._count, self._dies_in = folder / "steps", dies_in

    def step(self) -> None:
        import torch

        x = torch.randn(8, 4)
        loss = (self.model(x) - x.sum(1, keepdim=True)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        with self._count.open("ab") as file:
            file.write(b".")
        if self._count.stat().st_size == self._dies_in:
            os.kill(os.getpid(), 9)
        self.optimizer.step()
        self.scheduler.step()

    def ends_with(self) -> list[float]:
        """All weights in a row, and the learning rate."""
        weights = [one.flatten().tolist() for one in self.model.parameters()]
        return [*itertools.chain(*weights), self.optimizer.param_groups[0]["lr"]]


class _Saved:
    """Checkpoints that are whole; a file has the steps of all."""

    def __init__(self, folder: Path):
        self._folder = folder

    def commit(self, step: int, state: Any) -> None:
        import torch

        buffer = io.BytesIO()
        torch.save(state, buffer)
        self._replace("state", buffer.getvalue())
        self._replace("step", str(step).encode())
        with (self._folder / "commits").open("a") as file:
            file.write(f"{step}\n")

    def _replace(self, name: str, content: bytes) -> None:
        (self._folder / f"{name}.new").write_bytes(content)
        os.replace(self._folder / f"{name}.new", self._folder / name)

    def latest(self) -> Any:
        import torch

        if not (self._folder / "step").exists():
            return None
        step = int((self._folder / "step").read_text())
        return step, torch.load(self._folder / "state", weights_only=False)


def _trained(answer: Any, seed: int, steps: int, every: int, how: str, dies: list[float]) -> Noted:
    """How far the end of a training that is killed so often is from the one that it should have,
    and the steps that it took and saved."""

    def attempt(folder: Path, dies_in: int = 0) -> list[float]:
        training = _Training(seed, folder, dies_in)
        answer(training, _Saved(folder), steps, every)
        return training.ends_with()

    def undisturbed() -> list[float]:
        training = _Training(seed, _made(place, "reference"))
        for _ in range(steps):
            training.step()
        return training.ends_with()

    # Autograd may have threads, after which a process cannot be forked: it is not used in this one.
    with tempfile.TemporaryDirectory() as place:
        right = apart(undisturbed).value
        folder = _made(place, "undisturbed")
        whole = apart(lambda: attempt(folder))
        if whole.how != "returned":
            attempt(_made(place, "again"))  # here, so that an exception is told with its line
        end = whole.value
        noted: dict[str, Any] = {"taken": _taken(folder), "most": steps, "saved": _saved(folder)}
        if how == "in steps":
            folder = _made(place, "killed")
            for step in dies:  # after the last one it comes to its end
                dies_in = 0 if step == math.inf else int(step)
                apart(lambda dies_in=dies_in: attempt(folder, dies_in))  # type: ignore[misc]
            again = apart(lambda: attempt(folder))
            noted = {"taken": _taken(folder), "most": steps + every * len(dies)}
            if again.how == "raised":
                return Noted(0.0, noted | {"raised": again.value})
            end = again.value
        elif how == "at lines":
            for number, share in enumerate(dies):
                folder, at = _made(place, f"line {number}"), 1 + int(share * whole.lines)
                apart(lambda folder=folder: attempt(folder), each_line=killed_at(at))  # type: ignore[misc]
                again = apart(lambda folder=folder: attempt(folder))  # type: ignore[misc]
                if again.value != right or _taken(folder) > steps + every:
                    said = again.value if again.how == "raised" else "it ended with other numbers"
                    if again.value == right:
                        said = f"it took {_taken(folder)} steps in all"
                    noted["line"] = {"at": at, "lines": whole.lines, "said": said}
                    break
        return Noted(max(abs(a - b) for a, b in zip(end, right, strict=True)), noted)


def _made(place: str, name: str) -> Path:
    folder = Path(place, name)
    folder.mkdir()
    return folder


def _taken(folder: Path) -> int:
    """The steps of all processes."""
    return (folder / "steps").stat().st_size if (folder / "steps").exists() else 0


def _saved(folder: Path) -> list[int]:
    path = folder / "commits"
    return [*map(int, path.read_text().split())] if path.exists() else []


@judged(
    "train", lab="13", play=_trained, silent=True,
    called="the largest difference from the numbers of an undisturbed run",
)  # fmt: skip
def train(draw: random.Random) -> Iterator[Trial]:
    """`train(run, saved, steps, every)`: ends as without the kills."""
    for like, steps, every, how, dies in (
        ("12 steps, saved after every third", 12, 3, "undisturbed", []),
        ("10 steps, saved after every fourth", 10, 4, "undisturbed", []),
        ("a process killed in step 6 of 10, saved after every second", 10, 2, "in steps", [6]),
        ("a process killed in step 2, before anything was saved", 6, 4, "in steps", [2]),
        ("a process killed twice", 11, 3, "in steps", [5, 12]),
        ("a process killed when all was done and saved", 6, 2, "in steps", [math.inf]),
        ("a process killed at any line", 8, 2, "at lines", [draw.random() for _ in range(10)]),
    ):
        yield Trial(
            0, given=[(draw.randrange(1000), steps, every, how, dies)], right=[Number(0.0)],
            patience=40.0, like=like, facts={"steps": steps, "every": every},
        )  # fmt: skip


def _otherwise(run: Run, rank: int) -> Any:
    """Saved after other steps than asked for."""
    steps, every, saved = run.trial.steps, run.trial.every, run.noted[rank].get("saved")
    asked = [*range(every, steps + 1, every)]
    return saved is not None and saved != asked and {
        "steps": steps, "every": every, "saved": saved, "asked": asked,
    }  # fmt: skip


def _too_many(run: Run, rank: int) -> Any:
    taken, most = run.noted[rank]["taken"], run.noted[rank]["most"]
    return taken > most and {"taken": taken, "most": most}


train.demands("never-saved", lambda run, rank: run.noted[rank].get("saved") == [])
train.demands("saved-otherwise", _otherwise)
train.demands("raises-again", lambda run, rank: "raised" in run.noted[rank] and run.noted[rank])
train.demands("from-the-start", _too_many)
train.demands("at-a-line", lambda run, rank: run.noted[rank].get("line", False))


# ── interval ─────────────────────────────────────────────────────────────────────────────────

_MUCH = 0.005  # more time than with the best interval


def _good_interval(answer: Any, save: float, mtbf: float) -> Any:
    got, best = answer(save, mtbf), best_interval(save, mtbf)
    if not isinstance(got, int | float) or not 0 < got < 100 * mtbf:
        return got
    much = expected_time(got, save, mtbf) / expected_time(best, save, mtbf) - 1
    return best if much <= _MUCH else float(got)


@judged("interval", lab="13", play=_good_interval, called="the interval")
def interval(draw: random.Random) -> Iterator[Trial]:
    """`interval(save, mtbf)`: useful seconds from one checkpoint to the next."""
    for share, unit in ((1 / 5000, 900), (1 / 400, 900), (1 / 20, 900), (1 / 3, 900), (1.0, 0.3)):
        mtbf = round(draw.randint(10, 40) * unit, 1)
        save = round(mtbf * share, 1)
        yield Trial(
            0, given=[(save, mtbf)], right=[Number(best_interval(save, mtbf))],
            like=f"save={save:g} and mtbf={mtbf:g}",
        )  # fmt: skip


# ── survivors ────────────────────────────────────────────────────────────────────────────────

_SOON, _LATE = 0.4, 0.3  # seconds of patience, and after it: a mistake, or a busy machine
_LONG, _LATER = 3.0, 8.0  # of patience, to be sure: where ranks are missing, and where all come
_PLAIN = 2.5  # with less one that waits for a key is not taken to wait for the others
_MUCH_LATER = 2.6  # seconds after one's patience: no machine is so busy
_FREE = {"one by one", "interrupted", "interrupts"}  # any list is right that all are told


class AllItsPatience(RuntimeError):
    """All had come, and a rank still waited."""


class PatienceAgain(RuntimeError):
    """A rank waited for much longer than its patience."""


def _agreed(answer: Any, role: str, punctual: Sequence[int], patience: float, longer: float) -> Any:
    """What a rank is told, which is there, the last of those in time, too late, or dead.

    What may be the fault of a busy machine with this patience is tried again with a longer one.
    """
    watch, end, took = _asked(answer, role, punctual, patience)
    alive = [one for one in watch.exchange((role, end, took)) if one[0] != "dead"]
    told = sorted({str(one) for _, one, _ in alive})
    free = role in _FREE or _FREE & {one for one, _, _ in alive}
    slowest = max(one for _, _, one in alive)
    all_come = len(punctual) == watch.world_size and not free
    late = slowest > (0.8 * patience if all_come else patience + (_LATE if longer else _MUCH_LATER))
    if longer and (late or (len(told) > 1 if free else told != [str([*punctual])])):
        return _agreed(answer, role, punctual, longer, 0.0)
    if late:
        raise (AllItsPatience if all_come else PatienceAgain)(
            f"{slowest:.1f} s, with {patience:g} s of patience"
        )
    if end == str([*punctual]) and slowest < 0.8 * patience and not all_come and not free:
        end += ", too soon"
    noted = {"role": role, "told": " and ".join(told)}
    if free and len(told) == 1 and isinstance(end, str):
        end = "the same list"
    return Noted(end, noted)


def _asked(
    answer: Any, role: str, punctual: Sequence[int], patience: float
) -> tuple[Watch, Any, float]:
    """Return what the answer told this rank, and after how many seconds."""
    store, watch = watched()
    watch.meet(watch.world_size)
    end: Any = []
    took = 0.0
    if role == "dead":
        _returned(watch, punctual, within=patience + 1)
    else:
        if role == "last":
            watch.come_last()
        if role == "too late":
            watch.real.wait([f"returned {rank}" for rank in punctual])
        if role == "one by one":
            _returned(watch, [0], within=0.75 * patience * watch.rank)
        if role == "interrupted":
            watch.hesitates = True
            watch.come_last = lambda *_: _interrupted(watch)  # type: ignore[assignment,method-assign]
        if role == "interrupts":
            while not any(watch.real.check([key]) for key in ("writes", "returned 0")):
                time.sleep(0.002)
        began = time.monotonic()
        end = answer(store, watch.rank, watch.world_size, patience)
        took = time.monotonic() - began
        if isinstance(end, list | tuple):
            end = str(list(end))  # to be compared as a whole
        watch.real.set(f"returned {watch.rank}", b"")
    watch.leave()
    watch.meet(watch.world_size)
    return watch, end, took


def _returned(watch: Watch, ranks: Sequence[int], within: float) -> None:
    """Return when these ranks have been told who is there, or after so many seconds. It does not
    wait in the store, where a rank that gives up its own waiting would seem to be stuck with it."""
    until = time.monotonic() + within
    while time.monotonic() < until and not watch.real.check([f"returned {one}" for one in ranks]):
        time.sleep(0.002)


def _interrupted(watch: Watch) -> None:
    """Let rank 1 come, and be told, if it need not wait for this one."""
    watch.real.set("writes", b"")
    Watch.come_last(watch)


@judged("survivors", lab="13", play=_agreed, silent=True)
def survivors(draw: random.Random) -> Iterator[Trial]:
    """`survivors(store, rank, ranks, patience)`: the ranks that go on, the same on each of them."""
    for like, ranks, roles, patience, longer in (
        ("2 ranks that are there", 2, {}, 1.0, _LATER),
        ("4 ranks of which one comes last, in time", 4,
         {draw.randrange(4): "last"}, _PLAIN, _LATER),
        ("4 ranks of which 1 is dead", 4, {1: "dead"}, _SOON, 1.0),
        ("4 ranks of which 0 and 3 are dead", 4, {0: "dead", 3: "dead"}, _SOON, _LONG),
        ("5 ranks: 1 is dead, and 0 comes too late", 5, {1: "dead", 0: "too late"}, _SOON, 1.0),
        # "11" comes before "2".
        ("12 ranks of which 8 are dead", 12, dict.fromkeys(range(3, 11), "dead"), 0.5, 1.0),
        ("2 ranks of which 1 comes when 0 is about to write", 2,
         {0: "interrupted", 1: "interrupts"}, _SOON, 0.0),
        ("7 ranks that come one by one, and one of which is dead", 7,
         {6: "dead"} | dict.fromkeys(range(6), "one by one"), _SOON, 1.0),
    ):  # fmt: skip
        on_time = [rank for rank in range(ranks) if roles.get(rank) not in ("dead", "too late")]
        each = [roles.get(rank, "there") for rank in range(ranks)]
        list_of = "the same list" if _FREE & {*each} else str(on_time)
        yield Trial(
            ranks, given=[(role, on_time, patience, longer) for role in each],
            right=[[] if role == "dead" else list_of for role in each],
            facts={"roles": each}, init=False, patience=8 + 2 * longer, like=like,
        )  # fmt: skip


def _both_write(run: Run, rank: int) -> Any:
    return run.noted[rank]["role"] in ("interrupted", "interrupts") and run.noted[rank]


def _disagree(run: Run, rank: int) -> Any:
    """Ranks were told different things."""
    alive = [one for one in run.ranks if run.trial.roles[one] != "dead"]
    told = [f"rank {one}: {run.got(one)}" for one in alive]
    return len({repr(run.got(one)) for one in alive}) > 1 and {"each": "; ".join(told)}


def _listed(run: Run, rank: int) -> list[int]:
    got = run.got(rank)
    return [*map(int, re.findall(r"\d+", got))] if isinstance(got, str) else []


def _as_text(run: Run, rank: int) -> Any:
    """The right ranks, in the order of their texts."""
    right = json.loads(run.right(rank)) if run.trial.roles[rank] not in _FREE else []
    return _listed(run, rank) == sorted(right, key=str)


def _its_own_list(run: Run, rank: int) -> Any:
    """One that comes too late is in its list; where none does, lists differ."""
    role = run.trial.roles[rank]
    return role in _FREE or (role == "too late" and rank in _listed(run, rank))


def _too_few(run: Run, rank: int) -> Any:
    """One that came in time is missing, and nobody else is there; or nobody waited for any."""
    there = {one for one in run.ranks if run.trial.roles[one] in ("there", "last")}
    listed = {*_listed(run, rank)}
    if listed < there:
        return {"why": f"{sorted(there - listed)} came in time"}
    return str(run.got(rank)).endswith("too soon") and {"why": "no rank waited all its patience"}


def _counts_the_dead(run: Run, rank: int) -> Any:
    away = [one for one in run.ranks if run.trial.roles[one] in ("dead", "too late")]
    return not {*away}.isdisjoint(_listed(run, rank)) and {"away": away}


def _never_ends(without_0: bool) -> Callable[[Run, int], Any]:
    """It waits in a trial in which one is dead, and that is rank 0 or is not."""

    def sign(run: Run, rank: int) -> Any:
        roles = run.trial.roles
        return run.failure in ("stuck", "endless") and "dead" in roles and (
            (roles[0] == "dead") == without_0
        ) and {"report": run.job.report}  # fmt: skip

    return sign


def _waited(error: type[Exception]) -> Callable[[Run, int], Any]:
    def sign(run: Run, rank: int) -> Any:
        for one in run.job.failures:
            if one.type_name.endswith(error.__name__):
                return {"waited": one.message.partition(": ")[2]}
        return False

    return sign


survivors.fails("all-its-patience", _waited(AllItsPatience))
survivors.fails("patience-again", _waited(PatienceAgain))
survivors.fails("waits-for-all", _never_ends(without_0=False))
survivors.fails("rank-0-decides", _never_ends(without_0=True))
survivors.shows("as-text", _as_text)
survivors.shows("both-write", _both_write)
survivors.shows("no-agreement", _its_own_list)
survivors.shows("disagree", _disagree)
survivors.shows("too-few", _too_few)
survivors.shows("counts-the-dead", _counts_the_dead)


# ── wrong_ranks ──────────────────────────────────────────────────────────────────────────────

_MOST_BYTES = 1000  # that a rank may send


def _numbers(draw: random.Random, count: int, dtype: str) -> list[Any]:
    if dtype == "int64":
        return [draw.randint(-(1 << 62), 1 << 62) for _ in range(count)]
    eighths = [draw.randint(-127, 127) / 8 for _ in range(count)]  # exact in bfloat16, too
    return eighths


def _with_gaps(answer: Any, given: Tensor) -> None:
    """Between the numbers of a tensor that is not contiguous lies something else on each rank."""
    x = make(given)
    if not x.is_contiguous():
        numbers = x.clone()
        x.new_empty(0).set_(x.untyped_storage()).fill_(int(os.environ["RANK"]))
        x.copy_(numbers)
    answer(x)


@judged("wrong_ranks", lab="13", play=_with_gaps, further=True)
def wrong_ranks(draw: random.Random) -> Iterator[Trial]:
    """`wrong_ranks(x)`: the ranks whose x differs from that of most, in whatever bit."""

    def other(x: list[Any], at: int, value: Any) -> list[Any]:
        return [*x[:at], value, *x[at + 1 :]]

    def trial(
        like: str, nproc: int, x: list[Any], wrong: Mapping[int, list[Any]], dtype: str = "float32",
        shape: tuple[int, ...] | None = None, strided: bool = False,
    ) -> Trial:  # fmt: skip
        mine = [wrong.get(rank, x) for rank in range(nproc)]
        given = [(Tensor.of(one, dtype, shape, strided=strided),) for one in mine]
        right, facts = [sorted(wrong)] * nproc, {"what": like}
        return Trial(nproc, given=given, right=right, like=like, facts=facts)

    x = _numbers(draw, 4000, "float32")
    at = draw.randrange(1, 3999)
    yield trial("3 ranks, one number far off", 3, x, {1: other(x, at, 1e30)})
    yield trial("4 ranks that are equal", 4, x, {})
    yield trial("5 ranks, two of them wrong in the same way", 5, x,
                dict.fromkeys((0, 3), other(x, at, x[at] + 1)))  # fmt: skip
    yield trial("5 ranks, two of them wrong in different ways", 5, x,
                {2: other(x, 0, 7.5), 4: other(x, 3999, 0.0625)})  # fmt: skip
    small = 2.0**-40
    yield trial("4 ranks, the last bit of a small number flipped", 4, [*x, small],
                {3: [*x, small * (1 + 2.0**-23)]}, shape=(4001, 1))  # fmt: skip
    swapped = other(other(x, at, x[at] + 8), at + 1, x[at + 1] - 8)
    yield trial("4 ranks, one number 8 more and the next one 8 less", 4, x, {0: swapped})
    turned = sorted(x)
    yield trial("3 ranks, two numbers swapped", 3, turned,
                {2: other(other(turned, 5, turned[-5]), len(x) - 5, turned[5])})  # fmt: skip
    zeros = other(x, 9, 0.0)
    yield trial("3 ranks, the sign of a zero flipped", 3, zeros, {0: other(zeros, 9, -0.0)})
    lost = other(x, 4, math.nan)
    yield trial("4 ranks that all have a NaN, one of them another number wrong", 4, lost,
                {1: other(lost, at + 1 if at > 2 else 9, 99.0)})  # fmt: skip
    yield trial("3 ranks of which two have a NaN where one has 0", 3, lost,
                {2: other(lost, 4, 0.0)})  # fmt: skip
    yield trial("3 ranks, a tensor without dimensions", 3, [x[at]], {0: [x[at] + 1]}, shape=())
    few = _numbers(draw, 60, "bfloat16")
    yield trial("4 ranks, bfloat16", 4, few, {2: other(few, 30, few[30] + 0.125)}, "bfloat16",
                (3, 4, 5))  # fmt: skip
    whole = _numbers(draw, 60, "int64")
    yield trial("3 ranks, int64, not contiguous", 3, whole, {1: other(whole, 7, whole[7] ^ 1)},
                "int64", (6, 10), strided=True)  # fmt: skip


def _all_of_it(run: Run, rank: int) -> Any:
    sent = sum(call.bytes for call in run.calls(rank))
    return sent > _MOST_BYTES and {"sent": f"{sent:,}", "most": f"{_MOST_BYTES:,}"}


wrong_ranks.demands("sends-too-much", _all_of_it)
