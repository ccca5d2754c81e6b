"""Lab 10, pipeline parallelism: the trials of its exercises, and the signs of what goes wrong."""

from __future__ import annotations

import math
import random
import textwrap
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from ...base.formatting import counted
from ...calls.record import ANY_SOURCE
from ...models import pipeline
from ..judging import Noted, Number, Run, Tensor, Trial, judged, numbers_in, same, takes
from ..judging.values import make, show
from .messages import collective, slow, tensors, too_small, waits_in

_one_f_one_b = pipeline.SCHEDULES["1F1B"]
MOST_SPARE = 6  # tensors of a stage that may be alive when a step begins, and are not needed


# ── most_kept ────────────────────────────────────────────────────────────────────────────────


@judged("most_kept", lab="10", silent=True)
def most_kept(draw: random.Random) -> Iterator[Trial]:
    """`most_kept(steps)`: the most microbatches that a stage keeps at once in this order."""
    few = draw.randint(3, 6)
    for like, steps in (
        ("one after the other", [*_one_f_one_b(0, 2, 2)]),
        ("GPipe", _all_f_all_b(3)),
        ("1F1B", [*_one_f_one_b(0, 3, 4)]),
        ("more forwards later", ["F0", "B0", "F1", "F2", "B1", "B2"]),
        ("one backward between forwards", ["F0", "F1", "B0", "F2", "F3", "B1", "B2", "B3"]),
        ("the first backward last", ["F0", "F1", "B1", "F2", "B2", "F3", "B3", "B0"]),
        ("the last microbatch first", ["F3", "B3", "F2", "F1", "B2", "F0", "B1", "B0"]),
        ("the last backward first", [*_all_f_all_b(few)[:few], *reversed(_all_f_all_b(few)[few:])]),
        ("more than ten at once", _all_f_all_b(draw.randint(12, 15))),
        ("two forwards for each backward", _two_then_one(draw.randint(11, 14))),
        ("hundreds at once", _all_f_all_b(300)),
        ("no steps", []),
    ):
        yield _kept(like, steps)


def _kept(like: str, steps: list[str]) -> Trial:
    facts = {"steps": textwrap.shorten(" ".join(steps), 120, placeholder=" …")}
    right = [Number(pipeline.kept(steps))]
    return Trial(
        0, [(steps,)], right, facts, like=like,
        smaller=lambda: (
            _kept(like, [one for one in steps if one[1:] != number])
            for number in dict.fromkeys(step[1:] for step in steps)
        ),
    )  # fmt: skip


def _two_then_one(microbatches: int) -> list[str]:
    """An order that keeps the most in its middle: more than it has forwards in a row, or before
    the first backward."""
    steps = ["F0", "B0"]
    for number in range(1, microbatches - 1, 2):
        steps += [f"F{number}", f"F{number + 1}", f"B{len(steps) // 3 + 1}"]
    done = sum(one[0] == "B" for one in steps)
    if microbatches % 2 == 0:
        steps.append(f"F{microbatches - 1}")
    return steps + [f"B{number}" for number in range(done, microbatches)]


# ── one_f_one_b ──────────────────────────────────────────────────────────────────────────────


def _all_f_all_b(microbatches: int) -> list[str]:
    return [*pipeline.SCHEDULES["GPipe"](0, 1, microbatches)]


def _planned(answer: Any, stage: int, stages: int, microbatches: int) -> Any:
    """The steps, under a name: so that one that is not there is no matter of length."""
    steps = answer(stage, stages, microbatches)
    if isinstance(steps, list | tuple) and all(isinstance(one, str) for one in steps):
        return {"steps": list(steps)}
    return steps


@judged("one_f_one_b", lab="10", play=_planned, silent=True)
def one_f_one_b(draw: random.Random) -> Iterator[Trial]:
    """`one_f_one_b(stage, stages, microbatches)`: the order of one stage's work under 1F1B."""
    few = draw.randint(5, 7)
    for stages, microbatches in ((4, 8), (3, draw.randint(11, 13)), (few, few - 3), (2, 1)):
        for stage in range(stages):
            yield Trial(
                0,
                given=[(stage, stages, microbatches)],
                right=[{"steps": _one_f_one_b(stage, stages, microbatches)}],
                facts={"stage": stage, "stages": stages, "microbatches": microbatches},
            )


def _steps(run: Run) -> list[str]:
    return list(run.got(0)["steps"])


def _incomplete(run: Run, rank: int) -> Any:
    steps, wanted = _steps(run), _all_f_all_b(run.trial.microbatches)
    if sorted(steps) == sorted(wanted):
        return False
    missing = [one for one in wanted if one not in steps]
    other = [one for one in steps if one not in wanted]
    twice = [one for one in wanted if steps.count(one) > 1]
    why = (
        f"{missing[0]} is not there"
        if missing
        else f"there is no {other[0]}"
        if other
        else f"{twice[0]} is there {steps.count(twice[0])} times"
    )
    return {"count": len(steps), "enough": len(wanted), "why": why}


def _too_early(run: Run, rank: int) -> Any:
    """A backward before its own forward."""
    steps = _steps(run)
    early = [
        one for at, one in enumerate(steps) if one[0] == "B" and "F" + one[1:] not in steps[:at]
    ]
    return bool(early) and {"step": early[0], "forward": "F" + early[0][1:]}


def _not_first_in_first_out(run: Run, rank: int) -> Any:
    for way in "FB":
        numbers = [int(one[1:]) for one in _steps(run) if one[0] == way]
        if numbers != sorted(numbers):
            return {"way": way, "numbers": ", ".join(map(str, numbers))}
    return False


def _before_a_backward(steps: list[str]) -> int:
    return next(at for at, one in enumerate(steps) if one[0] == "B")


def _wrong_warm_up(run: Run, rank: int) -> Any:
    made, right = _before_a_backward(_steps(run)), _before_a_backward(run.right(0)["steps"])
    behind = run.trial.stages - 1 - run.trial.stage
    why = (
        f"{behind} to begin with, and the one of the first pair"
        if right > behind
        else f"there are no more than {right}"
    )
    return made != right and {"made": made, "first": right, "behind": behind, "why": why}


def _wrong_turn(run: Run, rank: int) -> Any:
    pairs = zip(_steps(run), run.right(0)["steps"], strict=True)
    at, (step, other) = next((at, pair) for at, pair in enumerate(pairs) if pair[0] != pair[1])
    return {"at": at, "step": step, "other": other}


one_f_one_b.shows("incomplete", _incomplete)
one_f_one_b.shows("too-early", _too_early)
one_f_one_b.shows("last-first", _not_first_in_first_out)
one_f_one_b.shows("wrong-warm-up", _wrong_warm_up)
one_f_one_b.shows("wrong-turn", _wrong_turn)


# ── run_stage ────────────────────────────────────────────────────────────────────────────────


class Stage:
    """A stage of a pipeline that notes what it is given, and what of it stays alive.

    A backward adds its number to what it passes on, so that no two gradients are the same.
    """

    def __init__(self, weight: float, inputs: Sequence[Any]):
        self.weight = weight
        self.did: list[str] = []
        self.given: list[Any] = []
        self.kept: dict[str, Any] = {}
        self.most_spare = 0
        self.began: list[float] = []  # on the clock of the record of calls
        self._inputs = {id(one) for one in inputs}  # which their owner keeps
        self._needed: set[int] = set()  # of the forwards whose backward is still to come
        self._seen: list[weakref.ref[Any]] = []

    def forward(self, number: int, x: Any) -> Any:
        self._note(f"F{number}", x)
        self.kept[str(number)] = x
        self._needed.add(id(x))
        return self._returned(x * self.weight)

    def backward(self, number: int, grad: Any) -> Any:
        self._note(f"B{number}", grad)
        if str(number) in self.kept:  # as it is now: a later message may be put into it
            self._needed.discard(id(self.kept[str(number)]))
            self.kept[str(number)] = self.kept[str(number)].clone()
        return self._returned(grad * self.weight + int(number))

    def _note(self, step: str, given: Any) -> None:
        self.began.append(time.perf_counter())
        alive = {id(one) for ref in self._seen if (one := ref()) is not None}
        self.most_spare = max(self.most_spare, len(alive - self._needed))
        self._seen = [ref for ref in self._seen if ref() is not None]
        self.did.append(step)
        self.given.append(given.clone())
        if id(given) not in self._inputs:
            self._seen.append(weakref.ref(given))

    def _returned(self, result: Any) -> Any:
        self._seen.append(weakref.ref(result))
        return result


def _staged(
    answer: Any, order: list[str], weight: float, inputs: list[Tensor], pauses: list[float]
) -> Noted:
    """Return what the stage did, what it was given, and what of that it had left for each
    backward."""
    mine = make(inputs)
    stage = Stage(weight, mine)
    with slow("recv", pauses):
        answer(list(order), stage, mine)
    end = {"did": stage.did, "given": stage.given, "kept": list(stage.kept.values())}
    return Noted(end, {"spare": stage.most_spare, "began": stage.began})


@judged("run_stage", lab="10", play=_staged, silent=True)
def run_stage(draw: random.Random) -> Iterator[Trial]:
    """`run_stage(order, stage, inputs)`: one stage of a pipeline, in any right order."""
    for stages in (draw.randint(3, 5), 8):  # more ranks than messages may be under way
        few = draw.randint(stages, 6) if stages < 6 else 10
        for microbatches, scheduled in ((few, False), (16, True)):
            yield _pipeline(draw, stages, microbatches, scheduled)


def _pipeline(draw: random.Random, stages: int, microbatches: int, one_by_one: bool) -> Trial:
    """All forwards, then all backwards, or 1F1B; one stage comes late to each of its messages."""
    shape = (3,) if one_by_one else (1, 2)
    dtype = "float64" if one_by_one else "float32"
    inputs = tensors(draw, microbatches, dtype, shape)
    weights = [draw.choice((-3.0, -0.5, 0.5, 1.5, 2.0)) for _ in range(stages)]
    schedule = pipeline.SCHEDULES["1F1B" if one_by_one else "GPipe"]
    orders = [schedule(rank, stages, microbatches) for rank in range(stages)]
    given: dict[tuple[int, str], Tensor] = {}  # by stage and step
    for number, x in enumerate(inputs):
        numbers = list(x.numbers)
        for rank in range(stages):
            given[rank, f"F{number}"] = Tensor.of(numbers, dtype, shape)
            numbers = [one * weights[rank] for one in numbers]
        grads = [1.0] * len(numbers)
        for rank in reversed(range(stages)):
            given[rank, f"B{number}"] = Tensor.of(grads, dtype, shape)
            grads = [one * weights[rank] + number for one in grads]
    right = [
        {
            "did": orders[rank],
            "given": [given[rank, step] for step in orders[rank]],
            "kept": [given[rank, f"F{number}"] for number in range(microbatches)],
        }
        for rank in range(stages)
    ]
    late = draw.randrange(stages)
    pauses = [[0.001] * microbatches if rank == late else [] for rank in range(stages)]
    return Trial(
        stages,
        given=[(orders[rank], weights[rank], inputs, pauses[rank]) for rank in range(stages)],
        right=right,
        facts={"microbatches": microbatches, "given_to": given},
    )


def _without_ends(run: Run, rank: int) -> Any:
    """Whether the first stage and the last one, or a rank and itself, are made neighbours."""
    ends = {0, run.nproc - 1}
    around = [
        c for c in run.calls(rank) if c.peer == rank or (run.nproc > 2 and {rank, c.peer} == ends)
    ]
    return run.failure == "stuck" and bool(around) and {"call": around[0]}


def _nothing_sent(run: Run, rank: int) -> Any:
    """Whether ranks wait for messages, and nobody has begun to send one."""
    waiting = waits_in(run, rank) == "recv" and not any(run.sends(one) for one in run.ranks)
    return waiting and {"call": run.calls(rank)[-1]}


def _blocking_sends(run: Run, rank: int) -> Any:
    """Whether this rank and the next one both wait for the end of a send."""
    both = rank + 1 < run.nproc and waits_in(run, rank) == waits_in(run, rank + 1) == "send"
    return both and {"next": rank + 1}


def _neighbours_receive(run: Run, rank: int) -> Any:
    both = rank + 1 < run.nproc and waits_in(run, rank) == waits_in(run, rank + 1) == "recv"
    return both and {"next": rank + 1}


def _own_order(run: Run, rank: int) -> Any:
    did, right = run.got(rank)["did"], run.right(rank)["did"]
    return did != right and {"did": " ".join(did) or "nothing", "order": " ".join(right)}


def _overwritten(run: Run, rank: int) -> Any:
    """A microbatch that was given rightly to a forward, and was another one at its backward."""
    got, right = run.got(rank), run.right(rank)
    if not same(got["given"], right["given"]):
        return False
    wrong = [at for at, x in enumerate(right["kept"]) if not same(got["kept"][at], x)]
    return bool(wrong) and {"number": wrong[0]}


def _wrong_given(run: Run, rank: int) -> tuple[str, Any, Tensor]:
    """The first step to which this rank's stage was given something wrong, and the two."""
    got, right = run.got(rank), run.right(rank)
    for step, x, other in zip(right["did"], got["given"], right["given"], strict=True):
        if not same(x, other):
            return step, x, other
    raise ValueError("it was given all that is right")


def _last_gradient(run: Run, rank: int) -> Any:
    last = run.nproc - 1
    if last not in run.wrong or not _is_given(run, last, "B"):
        return False
    _, x, other = _wrong_given(run, last)
    return {"last": last, "given": show(list(x.numbers)), "kind": x, "wanted": other}


def _first_input(run: Run, rank: int) -> Any:
    if 0 not in run.wrong or not _is_given(run, 0, "F"):
        return False
    step, x, other = _wrong_given(run, 0)
    return {"number": step[1:], "given": show(x), "wanted": show(other)}


def _is_given(run: Run, rank: int, way: str) -> bool:
    """Whether the first wrong thing that was given to a rank's stage was for a step of this way."""
    return not same(run.got(rank)["given"], run.right(rank)["given"]) and (
        _wrong_given(run, rank)[0].startswith(way)
    )


def _another_microbatch(run: Run, rank: int) -> Any:
    step, x, _ = _wrong_given(run, rank)
    for other in _all_f_all_b(run.trial.microbatches):
        if other[0] == step[0] and same(x, run.trial.given_to[rank, other]):
            return {"step": step, "other": other}
    return False


def _own_inputs(run: Run, rank: int) -> Any:
    """Whether a stage that is not the first was given the first one's input."""
    step, x, _ = _wrong_given(run, rank)
    own = rank > 0 and step[0] == "F" and same(x, run.trial.given_to[0, step])
    return own and {"step": step, "number": step[1:]}


def _not_computed(run: Run, rank: int) -> Any:
    """Whether a stage was given what the pipeline's end began with, as if none were between."""
    step, x, _ = _wrong_given(run, rank)
    end = 0 if step[0] == "F" else run.nproc - 1
    return rank != end and same(x, run.trial.given_to[end, step]) and {"step": step, "end": end}


def _went_on(run: Run, rank: int) -> Any:
    """A receive that had not ended when its rank made the next call."""
    pairs = [pair for at in run.ranks for pair in pairwise(run.calls(at))]
    early = [
        one
        for one, after in pairs
        if one.operation == "recv" and (one.end is None or one.end > after.start)
    ]
    return bool(early) and {"call": early[0], "whose": early[0].rank}


def _given(run: Run, rank: int) -> Any:
    step, x, other = _wrong_given(run, rank)
    return {"step": step, "given": show(x), "wanted": show(other)}


def _from_anybody(run: Run, rank: int) -> Any:
    """A receive from whoever sends first, of a rank that has two neighbours."""
    middle = range(1, run.nproc - 1)
    calls = [call for one in middle for call in run.receives(one) if call.peer == ANY_SOURCE]
    return bool(calls) and {"call": calls[0], "whose": calls[0].rank, "contrast": ""}


def _where_given(sign: Callable[[Run, int], Any]) -> Callable[[Run, int], Any]:
    """Only of ranks whose stage was given something wrong, at the right steps."""
    return lambda run, rank: (
        run.got(rank)["did"] == run.right(rank)["did"]
        and not same(run.got(rank)["given"], run.right(rank)["given"])
        and sign(run, rank)
    )


def _other_messages(run: Run, rank: int) -> Any:
    neighbours = (rank > 0) + (rank < run.nproc - 1)
    each = neighbours * run.trial.microbatches
    wanted = ["recv"] * each + ["send"] * each
    called = {one: run.operations(rank).count(one) for one in run.operations(rank)}
    said = ", ".join(f"{times} {one}" for one, times in called.items()) or "nothing"
    return sorted(run.operations(rank)) != wanted and {"calls": said, "each": each}


def _hoards(run: Run, rank: int) -> Any:
    """Whether more tensors lived when a step began than a stage needs, or more sends had begun that
    nobody had waited for."""
    open_sends = [
        sum(one.start <= began and (one.end is None or one.end > began) for one in run.sends(rank))
        for began in run.noted[rank]["began"]
    ]
    spare, sent = run.noted[rank]["spare"], max(open_sends, default=0)
    over = max(spare, sent) > MOST_SPARE
    return over and {"spare": spare, "sent": sent, "most": MOST_SPARE}


run_stage.fails("ring", _without_ends)
run_stage.fails("too-small", too_small)
run_stage.fails("from-anybody", _from_anybody)
run_stage.fails("nothing-sent-on", _nothing_sent)
run_stage.fails("blocking-sends", _blocking_sends)
run_stage.fails("both-receive", _neighbours_receive)
run_stage.shows("own-order", _own_order)
run_stage.shows("from-anybody", _from_anybody)
run_stage.shows("one-buffer", _overwritten)
run_stage.shows("last-gradient", _where_given(_last_gradient))
run_stage.shows("first-input", _where_given(_first_input))
run_stage.shows("another-microbatch", _where_given(_another_microbatch))
run_stage.shows("own-inputs", _where_given(_own_inputs))
run_stage.shows("not-computed", _where_given(_not_computed))
run_stage.shows("went-on", _where_given(_went_on))
run_stage.shows("given", _where_given(_given))
run_stage.demands("uses-a-collective", collective)
run_stage.demands("too-much", _other_messages)
run_stage.demands("hoards", _hoards)


# ── train_step ───────────────────────────────────────────────────────────────────────────────


def _trained(
    answer: Any,
    weight: Tensor,
    bias: Tensor,
    inputs: list[Tensor],
    targets: list[Tensor],
    pauses: list[float],
) -> list[Any]:
    """The loss that the last rank returned, the gradients, and the weights after it."""
    import torch
    import torch.distributed as dist

    linear = torch.nn.Linear(weight.shape[1], weight.shape[0], dtype=torch.float64)
    with torch.no_grad():
        linear.weight.copy_(make(weight))
        linear.bias.copy_(make(bias))
    layer = torch.nn.Sequential(linear, torch.nn.Tanh())
    with slow("recv", pauses):
        loss = answer(layer, make(inputs), make(targets))
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in layer.parameters()]
    is_last = dist.get_rank() == dist.get_world_size() - 1
    return [loss if is_last else "", *grads, *layer.parameters()]


@judged("train_step", lab="10", play=_trained)
def train_step(draw: random.Random) -> Iterator[Trial]:
    """`train_step(layer, inputs, targets)`: gradients of a model whose layers are on all ranks."""
    for stages in (draw.choice((3, 4)), 2, draw.choice((3, 5)), 1):
        microbatches, rows, width = draw.randint(3, 6), draw.randint(2, 4), draw.randint(2, 4)
        inputs, targets = (
            np.array(
                [
                    [[draw.randint(-16, 16) / 8 for _ in range(width)] for _ in range(rows)]
                    for _ in range(microbatches)
                ]
            )
            for _ in range(2)
        )
        weights = [
            np.array([[draw.randint(-12, 12) / 8 for _ in range(width)] for _ in range(width)])
            for _ in range(stages)
        ]
        biases = [np.array([draw.randint(-8, 8) / 8 for _ in range(width)]) for _ in range(stages)]
        late = draw.randrange(stages)
        facts = {"inputs": inputs, "targets": targets, "weights": weights, "biases": biases}
        facts |= {"microbatches": microbatches}
        yield Trial(
            stages,
            given=[
                (
                    _tensor(weights[rank]),
                    _tensor(biases[rank]),
                    [_tensor(one) for one in inputs],
                    # What is like one of them is no place for a message.
                    [replace(_tensor(one), strided=True) for one in targets],
                    [0.001] * microbatches if rank == late else [],
                )
                for rank in range(stages)
            ],
            right=_ends(facts),
            facts=facts,
        )


def _tensor(numbers: Any) -> Tensor:
    return Tensor.of(numbers.flatten().tolist(), "float64", numbers.shape)


def _ends(facts: dict[str, Any]) -> list[Any]:
    """For each rank: the loss or "", the gradients of weight and bias, and both unchanged."""
    weights, biases, losses = facts["weights"], facts["biases"], _losses(facts)
    given = _activations(facts)
    back = 2 * (given[-1] - facts["targets"]) / given[-1].size
    ends: list[Any] = []
    for rank in reversed(range(len(weights))):
        inner = back * (1 - given[rank + 1] ** 2)
        grads = (np.swapaxes(inner, 1, 2) @ given[rank]).sum(axis=0), inner.sum(axis=(0, 1))
        loss = "" if ends else Number(float(losses.mean()))
        ends.append([loss, *map(_tensor, (*grads, weights[rank], biases[rank]))])
        back = inner @ weights[rank]
    return ends[::-1]


def _activations(facts: dict[str, Any]) -> list[Any]:
    """What each rank is given, and what the last one puts out; of all microbatches."""
    given = [facts["inputs"]]
    for weight, bias in zip(facts["weights"], facts["biases"], strict=True):
        given.append(np.tanh(given[-1] @ weight.T + bias))
    return given


def _losses(facts: dict[str, Any]) -> Any:
    return ((_activations(facts)[-1] - facts["targets"]) ** 2).mean(axis=(1, 2))


def _one_rank(run: Run, rank: int) -> bool:
    return run.nproc == 1


def _other_loss(run: Run, rank: int) -> Any:
    """Whether the loss alone is wrong, and what it is instead."""
    (got, *grads), (mean, *right) = run.got(rank), run.right(rank)
    if rank < run.nproc - 1 or not same(grads, right):
        return False
    losses = _losses(run.trial.facts)
    known = {
        "the sum over the microbatches": losses.sum(),
        "the last microbatch's loss": losses[-1],
        "the last microbatch's share of it": losses[-1] / len(losses),
        "the first microbatch's loss": losses[0],
        "the mean, divided by their number once more": losses.mean() / len(losses),
    }
    (loss,) = numbers_in(got)
    what = next((name for name, one in known.items() if same(loss, Number(float(one)))), "")
    what = what and f"; {show(loss)} is {what}"
    return {"loss": show(loss), "mean": show(mean.value), "what": what}


def _times(run: Run, at: int) -> float | None:
    """By which all gradients of a rank are too large, where that is one number."""
    pairs = zip(*(numbers_in(one[1:3]) for one in (run.got(at), run.right(at))), strict=True)
    found = [got / right for got, right in pairs if right]
    return found[0] if all(math.isclose(one, found[0], abs_tol=1e-6) for one in found) else None


def _scaled(run: Run, rank: int) -> Any:
    """Whether the gradients of each rank are wrong by one factor."""
    times = [_times(run, at) for at in run.ranks]
    known = [one for one in times if one is not None]
    if len(known) < run.nproc or all(math.isclose(one, 1, rel_tol=1e-6) for one in known):
        return False
    factors = [f"{one:.4g}" for one in known]
    alike = factors[0] if len(set(factors)) == 1 else ""
    return {"factors": alike or ", ".join(factors), "elements": run.trial.targets[0].size}


def _gradients_from(run: Run, rank: int) -> Any:
    """Whether the gradients are right on the last rank, and from which one on."""
    right = [same(run.got(at)[1:3], run.right(at)[1:3]) for at in run.ranks]
    if run.nproc < 2 or not right[-1] or all(right):
        return False
    bad = max(at for at, one in enumerate(right) if not one)
    return {"bad": bad, "good": bad + 1}


def _last_wrong(run: Run, rank: int) -> Any:
    """Whether the loss is right, and the gradients of the last rank are wrong already."""
    last = run.nproc - 1
    loss = same(run.got(last)[0], run.right(last)[0])
    wrong = not same(run.got(last)[1:3], run.right(last)[1:3])
    return loss and wrong and {"last": last}


def _sums_over_ranks(run: Run, rank: int) -> Any:
    calls = [call for call in run.collectives(rank) if "reduce" in call.operation]
    return bool(calls) and {"call": calls[0]}


def _no_input_gradient(run: Run, rank: int) -> Any:
    said = [f.message for f in run.job.failures if f.rank == rank]
    return any("NoneType" in one for one in said)


def _stepped(run: Run, rank: int) -> bool:
    return not same(run.got(rank)[3:], run.right(rank)[3:])


def _graph_gone(run: Run, rank: int) -> bool:
    """Whether autograd was asked for what has no graph."""
    said = [f.message for f in run.job.failures if f.rank == rank]
    return any("does not require grad" in one for one in said)


train_step.fails("one-rank", _one_rank)
train_step.fails("too-small", too_small)
train_step.fails("no-input-gradient", _no_input_gradient)
train_step.fails("no-graph", _graph_gone)
train_step.fails("ring", _without_ends)
train_step.fails("nothing-sent-on", _nothing_sent)
train_step.fails("both-receive", _neighbours_receive)
train_step.shows("other-loss", _other_loss)
train_step.shows("stepped", _stepped)
train_step.shows("went-on", _went_on)
train_step.shows("sums-over-ranks", _sums_over_ranks)
train_step.shows("scaled", _scaled)
train_step.shows("gradients-from", _gradients_from)
train_step.shows("last-wrong", _last_wrong)
train_step.demands("uses-a-collective", collective)
train_step.demands("too-much", _other_messages)


# ── split_backward ───────────────────────────────────────────────────────────────────────────


def _halves(
    answer: Any,
    weights: Tensor,
    x: Tensor,
    grad: Tensor,
    before: Tensor | None,
    between: Tensor | None,
) -> Noted:
    """The input's gradient, the weights' before and after the second half, whether that is there,
    and whether the weights' gradient was computed before. before, between: gradients that are there
    before the first half, and that another microbatch adds between the two. Noted is whether the
    second half is a function, and computed the input's gradient. Where the weights have a column
    more than rows, it is a bias."""
    import torch

    width, columns = weights.shape
    linear = torch.nn.Linear(width, width, bias=columns > width, dtype=torch.float64)

    def parted(numbers: Tensor) -> list[Any]:
        made = make(numbers)
        return [made[:, :width].contiguous(), *made[:, width:].T.contiguous()]

    computed: list[bool] = []
    again: list[bool] = []
    parameters = list(linear.parameters())
    for at, one in enumerate(parameters):
        one.data = parted(weights)[at]
        one.grad = None if before is None else parted(before)[at]
        one.register_hook(lambda _: computed.append(True))
    mine = make(x).requires_grad_()
    y = linear(mine).tanh()
    got = answer(y, mine, list(parameters), make(grad))
    too_early = bool(computed)
    halves: Any = got if isinstance(got, tuple | list) and len(got) == 2 else (got, None)
    first, later = halves

    def held() -> Any:
        grads = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]
        return torch.column_stack(grads)

    early, called = held(), takes(later)
    if called:
        if between is not None:
            for one, more in zip(parameters, parted(between), strict=True):
                one.grad = more if one.grad is None else one.grad + more
        mine.register_hook(lambda _: again.append(True))
        later()
    end = [first, early, held(), called, too_early]
    return Noted(end, {"function": callable(later), "again": bool(again)})


@judged("split_backward", lab="10", play=_halves, silent=True)
def split_backward(draw: random.Random) -> Iterator[Trial]:
    """`split_backward(y, x, weights, grad)`: the input's gradient now, the weights' later."""
    for rows, width, bias, first, second, like in (
        (3, 3, False, 0, 0, "no gradient before"),
        (2, 4, False, 1, 0, "a gradient that is there already"),
        (4, 2, True, 0, 0, "two weights, of which the second is a bias"),
        (3, 2, True, 0, 1, "another microbatch's gradient between the two halves"),
        (2, 3, True, 1, 1, "gradients before and between the two halves"),
    ):
        weights, x, grad, before, between = (
            np.array([[draw.randint(1, 16) / 8 for _ in range(columns)] for _ in range(count)])
            for columns, count in (
                (width + bias, width), (width, rows), (width, rows), (width + bias, width),
                (width + bias, width),
            )
        )  # fmt: skip
        weights *= [[draw.choice((-1, 1)) for _ in range(width + bias)] for _ in range(width)]
        seen = np.column_stack([x, np.ones(rows)])[:, : width + bias]  # a bias sees ones
        inner = grad * (1 - np.tanh(seen @ weights.T) ** 2)
        had = first * before
        after = had + second * between + inner.T @ seen
        given = map(_tensor, (weights, x, grad))
        parts = _tensor(inner @ weights[:, :width]), _tensor(had), _tensor(after)
        yield Trial(
            0,
            given=[
                (*given, _tensor(before) if first else None, _tensor(between) if second else None)
            ],
            right=[[*parts, True, False]],
            like=like,
        )


def _not_called_later(run: Run, rank: int) -> bool:
    return run.got(rank)[3] is False


split_backward.shows(
    "wants-arguments",
    lambda run, rank: _not_called_later(run, rank) and run.noted[rank]["function"],
)
split_backward.shows("one-half", _not_called_later)
split_backward.demands("input-again", lambda run, rank: run.noted[rank]["again"])


# ── interleaved, zero_bubble ─────────────────────────────────────────────────────────────────
# Any schedule that meets its goal is right: the signs read what the model says of it.


def _all_ranks(answer: Any, ranks: int, *asked: int) -> list[Any]:
    """Return what the answer says for each rank."""
    return [answer(rank, ranks, *asked) for rank in range(ranks)]


@judged("interleaved", lab="10", play=_all_ranks, silent=True, further=True)
def interleaved(draw: random.Random) -> Iterator[Trial]:
    """`interleaved(rank, ranks, chunks, microbatches)`: a schedule of several chunks a rank."""
    odd = draw.choice((3, 5))
    few = draw.choice((2, 4))
    for ranks, chunks, microbatches in (
        (4, 2, 8), (odd, 3, 2 * odd), (2, few, 6), (5, 2, 5), (3, 1, 6)
    ):  # fmt: skip
        yield Trial(
            0,
            given=[(ranks, chunks, microbatches)],
            right=[...],
            facts={
                "ranks": ranks,
                "chunks": chunks,
                "microbatches": microbatches,
                "length": 2 * chunks * microbatches + 2 * (ranks - 1),
                "most": [2 * (ranks - 1 - r) + (chunks - 1) * ranks + 1 for r in range(ranks)],
                "ways": "FB",
            },
            like=f"{ranks} ranks of {counted(chunks, 'chunk')} and {microbatches} microbatches",
        )


@judged("zero_bubble", lab="10", play=_all_ranks, silent=True, further=True)
def zero_bubble(draw: random.Random) -> Iterator[Trial]:
    """`zero_bubble(stage, stages, microbatches)`: 1F1B with weight steps in its bubble."""
    for stages, microbatches in ((4, 8), (3, draw.randint(6, 9)), (5, draw.randint(6, 9)), (2, 2)):
        yield Trial(
            0,
            given=[(stages, microbatches)],
            right=[...],
            facts={
                "ranks": stages,
                "chunks": 1,
                "microbatches": microbatches,
                "length": 3 * microbatches + stages - 1,
                "most": [stages] * stages,
                "ways": "FBW",
            },
            like=f"{stages} stages and {microbatches} microbatches",
        )


def _orders(run: Run) -> list[list[str]]:
    return [list(order) for order in run.got(0)]


def _no_steps(run: Run, rank: int) -> Any:
    """Whether some rank has no list of steps."""
    for at, order in enumerate(run.got(0)):
        if not isinstance(order, list | tuple) or any(type(one) is not str for one in order):
            return {"stage": at, "given": show(order)}
        for one in order:
            try:
                pipeline.Step.of(one)
            except ValueError:
                return {"stage": at, "given": show(one)}
    return False


def _steps_missing(run: Run, rank: int) -> Any:
    """Whether some rank does not have each step once, chunk 0 with or without its number."""
    trial = run.trial
    wanted = [
        pipeline.Step(way, number, chunk)
        for way in trial.ways
        for number in range(trial.microbatches)
        for chunk in range(trial.chunks)
    ]
    for at, order in enumerate(_orders(run)):
        steps = [pipeline.Step.of(one) for one in order]
        other = [text for text, step in zip(order, steps, strict=True) if step not in wanted]
        twice = [text for text, step in zip(order, steps, strict=True) if steps.count(step) > 1]
        missing = [one for one in wanted if one not in steps]
        if not other and not twice and not missing:
            continue
        why = (
            f"there is no {other[0]}"
            if other
            else f"{twice[0]} is there more than once"
            if twice
            else f"{_name(missing[0], trial.chunks)} is not there"
        )
        return {"stage": at, "why": why, "enough": len(wanted)}
    return False


def _name(step: pipeline.Step, chunks: int) -> str:
    return f"{step.way}{step.number}" + (f".{step.chunk}" if chunks > 1 else "")


def _plan(run: Run) -> pipeline.Plan | pipeline.Standstill:
    try:
        return pipeline.simulate(_orders(run), chunks=run.trial.chunks)
    except pipeline.Standstill as stands:
        return stands


def _missed(run: Run) -> str:
    """Say how the goal is missed; "" where it is not."""
    trial, plan = run.trial, _plan(run)
    if isinstance(plan, pipeline.Standstill):
        return "it never ends"
    for at, (order, most) in enumerate(zip(_orders(run), trial.most, strict=True)):
        if pipeline.kept(order) > most:
            kept, place = pipeline.kept(order), "stage" if "W" in trial.ways else "rank"
            return f"{place} {at} keeps {kept} microbatches at once, and not {most}"
    late = plan.length > trial.length + 0.5
    return f"it takes {plan.length:g} units of time, and not {trial.length}" if late else ""


def _otherwise(run: Run, way: str, wanted: Callable[[int], Sequence[Any]]) -> Any:
    """Where the goal is missed: the first rank whose steps of this way have another order than the
    lab's text says, and where they differ first."""
    missed = _missed(run)
    for at, order in enumerate(_orders(run) if missed else []):
        steps = [pipeline.Step.of(one) for one in order]
        mine = [(one.way, one.number, one.chunk) for one in steps if one.way in way]
        for place, (got, right) in enumerate(zip(mine, wanted(at), strict=True)):
            if got != right:
                names = (_name(pipeline.Step(*one), run.trial.chunks) for one in (got, right))
                said = dict(zip(("got_step", "right_step"), names, strict=True))
                return {"missed": missed, "stage": at, "place": place, **said}
    return False


def _forwards_order(run: Run, rank: int) -> Any:
    return _otherwise(run, "F", lambda at: [("F", *one) for one in _in_groups(run.trial)])


def _backwards_order(run: Run, rank: int) -> Any:
    last = run.trial.chunks - 1
    wanted = [("B", number, last - chunk) for number, chunk in _in_groups(run.trial)]
    return _otherwise(run, "B", lambda at: wanted)


def _in_groups(trial: Trial) -> list[tuple[int, int]]:
    """Microbatch and chunk, in the order of the forwards."""
    groups = range(0, trial.microbatches, trial.ranks)
    return [
        (first + at, chunk)
        for first in groups
        for chunk in range(trial.chunks)
        for at in range(trial.ranks)
    ]


def _first_forwards(run: Run, rank: int) -> Any:
    """Another number of forwards before the first backward than the text counts."""
    missed, trial = _missed(run), run.trial
    made = [_before_a_backward(order) for order in _orders(run)]
    right = [min(most, trial.chunks * trial.microbatches) for most in trial.most]
    return (
        bool(missed)
        and made != right
        and {
            "missed": missed,
            "made": ", ".join(map(str, made)),
            "right_ones": ", ".join(map(str, right)),
        }
    )


def _not_1f1b(run: Run, rank: int) -> Any:
    def wanted(at: int) -> list[tuple[str, int, int]]:
        order = _one_f_one_b(at, run.trial.ranks, run.trial.microbatches)
        return [(one[0], int(one[1:]), 0) for one in order]

    return _otherwise(run, "FB", wanted)


def _places(order: list[str]) -> tuple[list[int], list[int]]:
    """Where each microbatch's B stands, and where its W."""
    steps = [pipeline.Step.of(one) for one in order]
    at = {(one.way, one.number): place for place, one in enumerate(steps)}
    numbers = range(len(order) // 3)
    return [at["B", number] for number in numbers], [at["W", number] for number in numbers]


def _weights_first(run: Run, rank: int) -> Any:
    """A W before its own B."""
    for stage, order in enumerate(_orders(run)):
        for number, (back, weights) in enumerate(zip(*_places(order), strict=True)):
            if weights < back:
                return {"stage": stage, "number": number}
    return False


def _delay(run: Run, rank: int) -> Any:
    """How many backwards after its own each W comes, where that is not as the text says."""
    missed = _missed(run)
    for stage, order in enumerate(_orders(run) if missed else []):
        backs, weights = _places(order)
        lags = [
            sum(own < one < at for one in backs) for own, at in zip(backs, weights, strict=True)
        ]
        right = [min(stage, len(backs) - 1 - number) for number in range(len(backs))]
        if lags != right:
            said = {"lags": ", ".join(map(str, lags)), "right_ones": ", ".join(map(str, right))}
            return {"missed": missed, "stage": stage, **said}
    return False


def _other_order(run: Run, rank: int) -> Any:
    missed = _missed(run)
    return bool(missed) and {"missed": missed}


for _one in (interleaved, zero_bubble):
    _one.demands("no-steps", _no_steps)
    _one.demands("incomplete", _steps_missing)
interleaved.demands("forwards-order", _forwards_order)
interleaved.demands("backwards-order", _backwards_order)
interleaved.demands("first-forwards", _first_forwards)
zero_bubble.demands("weights-first", _weights_first)
zero_bubble.demands("order-of-1f1b", _not_1f1b)
zero_bubble.demands("delay", _delay)
for _one in (interleaved, zero_bubble):
    _one.demands("other-order", _other_order)
