"""How answers are judged: what is told, what is not, and in which order."""

import datetime
import functools
import json
import os
import random
import shutil
import time
import tomllib
from collections import OrderedDict, namedtuple
from fractions import Fraction
from pathlib import Path

import lockstep
import numpy as np
import pytest
import torch
import torch.distributed as dist
import verdicts
from lockstep.base import paths
from lockstep.course import exercises, judging
from lockstep.course.judging import (
    Noted,
    Number,
    Numbers,
    Tensor,
    Trial,
    judge,
    judged,
    running,
    stores,
    words,
)
from lockstep.course.judging.catalogue import answers
from lockstep.course.labs.sums import sums

LABS = Path(exercises.__file__).parent / "labs"
GENERAL = tomllib.loads(Path(words.__file__).with_suffix(".toml").read_text())
TABLE = {
    "hints": ["one", "two", "three"],
    "mistakes": {
        "doubled": "{where} it is twice the sum",
        "rank-0": "rank {rank} is wrong, at length {length}",
        "loud": "rank {rank} called {calls}",
        "open": "as was guessed",
    },
}


@pytest.fixture
def tiny(monkeypatch):
    """An exercise of a test: the sum of all ranks' x, in place, by one call."""
    monkeypatch.setattr(exercises, "_exercises", dict(exercises._exercises))
    known = words._read
    monkeypatch.setattr(
        words,
        "_read",
        lambda path: {"tiny": TABLE, "three": TABLE} if path.name == "lab99.toml" else known(path),
    )

    @judged("tiny", lab="99", in_place=0)
    def tiny(draw):
        for nproc in (2, 3):
            numbers = Numbers.draw(draw, nproc, nproc, "float64")
            yield Trial(
                nproc,
                given=[(numbers.tensor(numbers.of(rank)), rank) for rank in range(nproc)],
                right=[numbers.tensor(numbers.total)] * nproc,
                facts={"numbers": numbers, "length": nproc},
            )

    tiny.gives("doubled", lambda trial: [[2 * one for one in trial.numbers.total]] * trial.nproc)
    tiny.shows("rank-0", lambda run, rank: rank == 0)
    tiny.demands("loud", lambda run, rank: len(run.calls(rank)) > 1 and {"calls": 2})
    return tiny


def told(answer) -> tuple[str, str]:
    outcome = lockstep.check("tiny", answer, seed=3)
    return outcome.mistake or outcome.verdict, outcome.hint


def right(x, rank):
    dist.all_reduce(x)


def doubled(x, rank):
    dist.all_reduce(x)
    x *= 2


def doubled_of_two(x, rank):
    dist.all_reduce(x)
    if dist.get_world_size() == 2:
        x *= 2


def wrong_on_rank_0(x, rank):
    dist.all_reduce(x)
    if rank == 0:
        x += 1


def wrong_on_rank_1(x, rank):
    dist.all_reduce(x)
    if rank == 1:
        x += 1


def loud(x, rank):
    dist.barrier()
    dist.all_reduce(x)


def loud_and_wrong(x, rank):
    dist.barrier()
    dist.all_reduce(x)
    x += 1


def rebinding(x, rank):
    y = x.clone()
    dist.all_reduce(y)
    x = y


def returning(x, rank):
    y = x.clone()
    dist.all_reduce(y)
    return y


def silent(x, rank):
    x += 1


def unwaited(x, rank):
    work = dist.all_reduce(x, async_op=True)
    while not x.equal(x):
        del work


def exits(x, rank):
    dist.all_reduce(x)
    raise SystemExit(0)


def dies_of_three(x, rank):
    dist.all_reduce(x)
    if dist.get_world_size() == 3 and rank == 1:
        raise LookupError("my own mistake")


def wrong_of_two_dies_of_three(x, rank):
    wrong_on_rank_0(x, rank)
    if dist.get_world_size() == 3:
        raise LookupError("my own mistake")


def ends_of_three(x, rank):
    dist.all_reduce(x)
    if dist.get_world_size() == 3 and rank == 1:
        print("a last word", flush=True)
        os._exit(3)


def idle_on_rank_1(x, rank):
    dist.all_reduce(x.clone() if rank == 1 else x)


def rounded(x, rank):
    dist.all_reduce(x)
    x.copy_(x.bfloat16())


def to_itself(x, rank):
    dist.all_reduce(x)
    if rank == 1:
        dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 1)])


def waits_for_the_last(x, rank):
    dist.all_reduce(x)
    if rank == 0:
        dist.recv(torch.empty(1), -1)


def hangs(x, rank):
    dist.all_reduce(x)
    if rank == 0:
        dist.all_reduce(x)


def torch_has_no_such(x, rank):
    raise NotImplementedError("Could not run 'aten::this' with arguments from 'that'")


@pytest.mark.parametrize(
    ("answer", "mistake", "says"),
    [
        (right, "PASS", ""),
        (doubled, "doubled", "on rank 0 of 2 it is twice the sum"),
        # "doubled" does not explain all trials
        (doubled_of_two, "factor", "2 times what is right. With 3 ranks it was right."),
        (wrong_on_rank_0, "rank-0", "rank 0 is wrong, at length 2"),
        (wrong_on_rank_1, "value", "on rank 1 of 2"),
        (loud, "loud", "rank 0 called 2"),
        (loud_and_wrong, "value", ""),  # values come before the calls
        (rebinding, "untouched", "x.copy_("),
        (returning, "not-in-place", "returned the right numbers"),
        (silent, "nothing-sent", ""),
        (unwaited, "no-wait", "never waited for its all_reduce #0"),
        (exits, "raised", "sys.exit(0)"),
        (
            dies_of_three,
            "raised",
            "of 3 it raised LookupError: my own mistake. With 2 ranks it was",
        ),
        (wrong_of_two_dies_of_three, "rank-0", "rank 0 is wrong"),  # what ended well is told first
        (ends_of_three, "died", "With 2 ranks it was right. Last it printed: a last word"),
        (idle_on_rank_1, "untouched-here", "rank 0 has the right result. on rank 1 of 2 x is what"),
        (rounded, "digits", "near"),
        (to_itself, "to-itself", "rank 1 called send #0 to rank 1"),
        (waits_for_the_last, "no-such-rank", "rank 0 called recv #0 from a rank below 0"),
        (hangs, "deadlock", "with 2 ranks it never ends"),
        (torch_has_no_such, "raised", "Could not run"),
        (5, "no-function", "tiny is an int"),
    ],
)
def test_what_is_told(tiny, answer, mistake, says):
    name, hint = told(answer)
    assert name == mistake and says in hint, hint


def test_an_exception_shows_the_answers_own_line(tiny):
    assert 'raise LookupError("my own mistake")' in told(dies_of_three)[1]


def sets_a_number(x, rank):
    dist.all_reduce(x)
    if rank == 0:
        dist.HashStore().set(rank, "x")  # PyTorch says in several lines which types it takes


def test_an_exception_of_many_lines_is_told_once(tiny):
    name, hint = told(sets_a_number)
    assert name == "raised"
    assert hint.count("incompatible function arguments") == 2, hint  # what, and the report
    assert hint.count("arg0: str") == 1, hint


def test_an_endless_loop_is_told_and_a_busy_machine_gives_no_verdict(monkeypatch, tiny):
    def endless(x, rank):
        while True:
            time.perf_counter()

    @judged("three", lab="99", in_place=0)
    def three(draw):
        yield Trial(2, [(Tensor.of([1]), rank) for rank in (0, 1)], [...] * 2, patience=1.0)

    monkeypatch.setattr(running, "_SLOW", 0.1)
    assert lockstep.check("three", endless).mistake == "endless"
    monkeypatch.setattr(running, "_SLOW", 1e9)
    outcome = lockstep.check("three", endless)
    assert outcome.verdict == "NOT JUDGED"
    assert outcome.hint == "the machine was too busy; run the check again"


def test_arguments_that_an_answer_may_change(tiny):
    def changing(a, b):
        a += 1
        b += 1
        return 2.0

    @judged("three", lab="99", may_change=(0,))
    def three(draw):
        yield Trial(0, given=[(Tensor.of([1]), Tensor.of([5]))], right=[2.0])

    outcome = lockstep.check("three", changing)
    assert outcome.mistake == "changed" and "argument 2" in outcome.hint
    assert lockstep.check("three", lambda a, b: float(a.add_(1))).verdict == "PASS"


def test_a_decorator_may_take_an_argument_for_itself(tiny):
    def in_units(function):
        @functools.wraps(function)
        def scaled(a, unit):
            return function(a) * unit

        return scaled

    @judged("three", lab="99")
    def three(draw):
        yield Trial(0, given=[(2, 3.0)], right=[6.0])

    assert lockstep.check("three", in_units(lambda a: a)).verdict == "PASS"
    assert lockstep.check("three", lambda a: a).mistake == "arguments"


@pytest.mark.parametrize(
    ("change", "now"),
    [
        (list.clear, "[]"),
        (list.pop, "[3, 1]"),
        (list.sort, "[1, 2, 3]"),
        (lambda numbers: numbers.__setitem__(0, 5), "[5, 1, 2]"),
    ],
)
def test_a_list_that_an_answer_leaves_otherwise_is_a_changed_argument(tiny, change, now):
    @judged("three", lab="99")
    def three(draw):
        yield Trial(0, given=[([3, 1, 2],)], right=[6])

    def summed(numbers):
        total = sum(numbers)
        change(numbers)
        return total

    outcome = lockstep.check("three", summed)
    assert outcome.mistake == "changed"
    assert f"argument 1, which the caller still needs: it was [3, 1, 2], and now it is {now}." in (
        outcome.hint
    )
    assert lockstep.check("three", lambda numbers: summed([*numbers])).verdict == "PASS"


def test_only_demands_judge_where_anything_may_come_out(tiny):
    @judged("three", lab="99", silent=True)
    def three(draw):
        yield Trial(2, given=[(one,) for one in (1, 2)], right=[...] * 2)

    three.demands("rank-0", lambda run, rank: run.got(rank) > 3 and {"length": run.got(rank)})
    assert lockstep.check("three", lambda n: n).verdict == "PASS"
    assert lockstep.check("three", lambda n: 2 * n).hint == "rank 1 is wrong, at length 4"


def test_what_general_words_tell_is_the_smallest_input_that_is_wrong(tiny):
    def of(numbers):
        return Trial(
            0,
            given=[(numbers,)],
            right=[max(numbers, default=0)],
            like=f"{numbers}",
            smaller=lambda: (of(numbers[:at] + numbers[at + 1 :]) for at in range(len(numbers))),
        )

    @judged("three", lab="99")
    def three(draw):
        yield of([])
        yield of([3, 1, 4, 15, 9, 2, 6])

    outcome = lockstep.check("three", lambda numbers: max([one % 10 for one in numbers] or [0]))
    assert outcome.mistake == "value"
    assert "for [15], the result is 5, and should be 15." in outcome.hint
    # Where all that are still smaller end in an error, the search ends there.
    outcome = lockstep.check("three", lambda numbers: numbers[5] if numbers else 0)
    assert outcome.mistake == "value"
    assert "for [1, 4, 15, 9, 2, 6], the result is 6, and should be 15." in outcome.hint


def test_objects_of_an_answer_are_not_asked_whether_they_are_right(tiny):
    class Agrees(float):
        def __eq__(self, other):
            return True

        __hash__ = float.__hash__

    @judged("three", lab="99")
    def three(draw):
        yield Trial(0, given=[(2,)], right=[3.0])

    assert lockstep.check("three", lambda n: n + 1.0).verdict == "PASS"
    outcome = lockstep.check("three", lambda n: Agrees(n))
    assert (outcome.verdict, outcome.mistake) == ("TRY AGAIN", "type")


def test_a_guess_may_leave_a_rank_open(tiny):
    tiny.gives("open", lambda t: [..., *[[1 + one for one in t.numbers.total]] * (t.nproc - 1)])

    def wrong(x, rank):
        dist.all_reduce(x)
        x += 1 if rank else 5

    assert told(wrong) == ("open", "as was guessed")


@pytest.mark.parametrize("where", ["trials", "sign", "guess", "play"])
def test_a_check_that_fails_itself_gives_no_verdict(tiny, where):
    def fails(*_):
        raise LookupError("not the learner's")

    # What fails in a play is the course's code, or a library's, as json here.
    @judged("three", lab="99", play=json.loads if where == "play" else None)
    def three(draw):
        if where == "trials":
            fails()
        yield Trial(2, given=[()] * 2, right=[0 if where == "guess" else None] * 2)

    if where == "sign":
        three.demands("loud", fails)
    if where == "guess":
        three.gives("doubled", fails)
    outcome = lockstep.check("three", dist.barrier)
    assert outcome.verdict == "NOT JUDGED"
    assert "the check itself failed (" in outcome.hint
    assert ("JSON object" if where == "play" else "not the learner's") in outcome.hint


@pytest.mark.parametrize(
    ("answer", "written"),
    [
        (lambda x: dist.all_reduce(x), "tiny(x)"),
        (lambda x, *, rank: dist.all_reduce(x), "tiny(x, *, rank)"),
        (lambda x, rank, more: dist.all_reduce(x), "tiny(x, rank, more)"),
    ],
    ids=["too few", "by name only", "too many"],
)
def test_an_answer_that_takes_other_arguments_is_told_so(tiny, answer, written):
    mistake, hint = told(answer)
    assert mistake == "arguments"
    assert f"written as {written}, and is called" in hint and "with 2 arguments" in hint


def test_an_answer_may_take_any_arguments(tiny):
    assert told(lambda *args: right(*args)) == ("PASS", "")
    assert told(lambda x, rank, more=None: right(x, rank)) == ("PASS", "")


def test_a_second_wait_for_a_message_is_told(tiny):
    def waits_again(x, rank):
        right(x, rank)
        if rank == 0:
            handle = dist.isend(x, 1)
            handle.wait()
            handle.wait()
        elif rank == 1:
            dist.recv(x, 0)

    mistake, hint = told(waits_again)
    assert mistake == "waits-again" and "its send #0 to rank 1" in hint


def test_a_number_of_numpy_has_its_article_and_counts_as_a_number():
    assert judging.values.see(np.array(2.5)) == 2.5
    assert judging.values.kind(judging.values.see(np.ones(3))) == "an ndarray"
    assert str(Tensor.of([1], "int64")).startswith("an int64 tensor")


def test_what_a_play_noted_is_no_result_and_demands_read_it(tiny):
    @judged("three", lab="99", play=lambda answer, x: Noted(answer(x), ["seen"] * dist.get_rank()))
    def three(draw):
        yield Trial(2, given=[(1,)] * 2, right=[3.0] * 2)

    three.demands("rank-0", lambda run, rank: run.noted[rank] and {"length": len(run.noted[rank])})
    assert lockstep.check("three", lambda x: 3.0).hint == "rank 1 is wrong, at length 1"
    assert lockstep.check("three", lambda x: 2.0).mistake not in ("rank-0", None)


def test_what_is_told_is_where_two_values_differ(tiny):
    long, other = ["x" * 400 + end for end in "ab"]

    @judged("three", lab="99", play=lambda answer: {"first": [1] * 90, "then": answer()})
    def three(draw):
        yield Trial(1, given=[()], right=[{"first": [1] * 90, "then": [2, 3, long]}])

    wrong = lockstep.check("three", lambda: [2, 4, long]).hint
    assert "the result['then'][1] is 4, and should be 3" in wrong and "first" not in wrong
    got, right = lockstep.check("three", lambda: [2, 3, other]).hint.split(", and should be ")
    assert got.endswith("xb'") and "xa'" in right


def test_a_fraction_is_a_number(tiny):
    @judged("three", lab="99", silent=True)
    def three(draw):
        yield Trial(0, given=[()], right=[[Number(0.25), 0.5]])

    quarter = Fraction(1, 4)
    assert lockstep.check("three", lambda: [quarter, 2 * quarter]).verdict == "PASS"
    assert lockstep.check("three", lambda: [quarter, 3 * quarter]).mistake == "value"
    assert lockstep.check("three", lambda: [quarter, "1/2"]).mistake == "type"


def test_a_sign_may_say_that_there_is_no_verdict(tiny):
    def unclear(run, rank):
        raise exercises.NotJudged("two times were too near")

    tiny.demands("open", unclear)
    assert told(right) == ("NOT JUDGED", "two times were too near")


def test_what_the_answer_raises_in_a_play_is_its_own(tiny):
    @judged("three", lab="99", play=lambda answer: answer().later())
    def three(draw):
        yield Trial(1, given=[()], right=[None])

    class Later:
        def later(self):
            raise LookupError("my own mistake")

    assert lockstep.check("three", Later).mistake == "raised"


@pytest.mark.parametrize("how", ["called on the ranks", "taken along", "not at all"])
def test_the_courses_answer_in_another_is_not_the_learners(monkeypatch, how):
    monkeypatch.setenv("LOCKSTEP_PROGRESS", "off")
    theirs = lockstep.solution("ring_seconds")

    def asks(*args):
        return lockstep.solution("ring_seconds")(*args)

    def takes(*args):
        return theirs(*args)

    def own(n, nbytes, alpha, beta):
        return 2 * (n - 1) * (alpha + beta * nbytes / n)

    answer = {"called on the ranks": asks, "taken along": takes, "not at all": own}[how]
    outcome = lockstep.check("ring_seconds", answer)
    assert outcome.verdict == "PASS"
    assert ("not counted as yours" in outcome.note) == (how != "not at all")


def of_a_store(play, nproc=3, **options):
    """What `play(store, watch)` returned on each rank of a job of its own."""

    def on_rank():
        return play(*stores.watched(**options))

    return lockstep.torchrun(on_rank, nproc_per_node=nproc, init=False, show=False).results


def test_who_comes_last_comes_when_the_others_wait_or_have_gone():
    def play(store, watch):
        inside = dist.PrefixStore("inside", store)
        watch.start()
        watch.meet(3)
        if watch.rank == 2:
            watch.come_last()
            there = [store.check([f"inside/{rank}"]) for rank in (0, 1)]
            inside.set("open", "")
            return there
        inside.set(str(watch.rank), "here")
        if watch.rank == 0:
            inside.wait(["open"])
        else:
            time.sleep(0.5)  # an answer that sleeps instead
        told = watch.asked, watch.written, store.num_keys(), watch.there
        watch.leave()  # from now on the last one may come, and write
        return told

    assert of_a_store(play) == [(2, 4, 3, []), (1, 4, 2, []), [True, True]]


def test_a_store_knows_what_was_waited_for_although_it_was_there():
    def play(store, watch):
        store.add("count", 1)
        store.wait(["count"], datetime.timedelta(seconds=1))
        store.delete_key("count")
        return watch.there, watch.asked, store.list_keys()

    assert of_a_store(play, nproc=1) == [(["count"], 3, [])]


@pytest.mark.parametrize("prefix", ["", "again"])
def test_worlds_that_meet_where_others_have_met(prefix):
    def play(store, watch):
        def join(store):
            dist.init_process_group("gloo", store=store, rank=watch.rank, world_size=2)

        join(store)
        dist.barrier()
        watch.start()
        watch.meet(2)
        dist.destroy_process_group()
        try:
            join(dist.PrefixStore(prefix, store) if prefix else store)
        except stores.UsedBefore as error:
            return "refused", str(error).rpartition("/")[2]

    refused = [("refused", str(rank)) for rank in range(2)]
    assert of_a_store(play, nproc=2, of_worlds=True) == ([None] * 2 if prefix else refused)


def test_worlds_that_do_not_meet_are_told_at_once():
    def play(store, watch):
        apart = dist.PrefixStore(str(watch.rank), store)
        try:
            dist.init_process_group("gloo", store=apart, rank=watch.rank, world_size=2)
        except stores.NeverMet as error:
            return str(error)

    found = of_a_store(play, nproc=2, of_worlds=True)
    assert found[0].startswith("0/") and found[1].startswith("1/")


def judge_of(one: exercises.Exercise) -> judging.Judged:
    """What an exercise's check is a method of."""
    return getattr(one.check, "__self__")  # noqa: B009


@pytest.mark.parametrize("path", sorted(LABS.glob("lab*.toml")), ids=lambda path: path.stem)
def test_every_sentence_can_be_told(path):
    """By a sign, or by a wrong answer that the check runs. That every sign has a sentence is
    required where it is declared."""
    wrong = answers(paths.SOLUTIONS / "source", "wrong", path.stem.removeprefix("lab"))
    tables = tomllib.loads(path.read_text())
    tables.pop(words.PREDICTIONS, None)  # the rules of sources see to it
    for name, table in tables.items():
        (one,) = [one for one in exercises.exercises() if one.name == name]
        exercise = judge_of(one)
        signs = exercise._guesses | exercise._shows | exercise._fails | exercise._demands
        told = {*signs, *GENERAL, *(answer.name for answer in wrong[name])}
        assert set(table["mistakes"]) <= told, name


def test_a_sentence_counts_the_values_of_its_own_trial():
    (one,) = [one for one in exercises.exercises() if one.name == "global_mean"]
    trials = list(judge_of(one)._trials(random.Random(1)))
    for trial in trials:  # after it, those of the trials before are still their own
        assert trial.counts == [len(values.numbers) for (values,) in trial.given]
    assert len({tuple(trial.counts) for trial in trials}) == len(trials)


def test_two_signs_of_one_name_and_a_sign_without_a_sentence(tiny):
    with pytest.raises(ValueError, match="has a sign 'doubled' already"):
        tiny.gives("doubled", lambda trial: None)
    with pytest.raises(ValueError, match="no sentence for 'unheard-of'"):
        tiny.demands("unheard-of", lambda run, rank: False)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_numbers_say_of_what_a_wrong_sum_is_made(dtype):
    numbers = Numbers.draw(random.Random(1), 3, 4, dtype)
    exact = torch.tensor(numbers.mix(lambda r, p: 3), dtype=getattr(torch, dtype)).tolist()
    assert exact == numbers.mix(lambda r, p: 3)
    for at in range(4):
        made = numbers.mix(lambda r, p: (1, 0, 2)[r])
        assert numbers.made_of(made[at], at) == (at, {0: 1, 1: 0, 2: 2})
        assert "rank 2's twice; not in it: rank 1's" in numbers.origin(made[at], at)
    assert numbers.made_of(numbers.of(1)[2], 0) == (2, {0: 0, 1: 1, 2: 0})
    assert numbers.made_of(0.3, 0) is None


@pytest.mark.parametrize("dtype", ["float64", "int64"])
def test_digits_that_float32_loses_are_told_and_are_no_factor(monkeypatch, tiny, dtype):
    def in_float32(x):
        y = x.float()
        dist.all_reduce(y)
        x.copy_(y)

    trial = sums(random.Random(0), 4, dtype, 8)
    monkeypatch.setattr(tiny, "_trials", lambda draw: [trial])
    outcome = lockstep.check("tiny", in_float32)
    assert outcome.mistake == "digits", outcome


def test_differences():
    x = Tensor.of([1, 2, 3, 4], "float32", (2, 2))
    assert judging.same(x, Tensor.of([1, 2, 3, 4.000001], "float32", (2, 2)))
    found = judging.values.difference(Tensor.of([1, 2, 5, 4], "float32", (2, 2)), x)
    assert (found.kind, found.place, found.got, found.right) == ("value", "[1, 0]", 5, 3)
    for other, kind in [
        (Tensor.of([1, 2, 3, 4], "float64", (2, 2)), "dtype"),
        (Tensor.of([1, 2, 3, 4]), "shape"),
        ([1, 2, 3, 4], "type"),
    ]:
        assert judging.values.difference(other, x).kind == kind
    assert judging.same(3, judging.Number(3.0)) and not judging.same(True, judging.Number(1.0))
    assert not judging.same(True, 1) and not judging.same(1, 1.0)


def test_kin_of_tuples_lists_and_dicts_are_seen_as_those():
    class Loud(list):
        def __iter__(self):
            raise AssertionError("an answer's object was asked")

    pair = namedtuple("pair", "x y")
    assert judging.values.see(pair(1, OrderedDict(a=2))) == (1, {"a": 2})
    assert judging.values.see(Loud([1, 2])) == [1, 2]


def test_a_plain_tensor_is_no_view_whose_base_dynamo_would_guard():
    assert not judging.values.make(Tensor.of([1.0] * 4, shape=(2, 2)))._is_view()


def test_to_look_at_a_tensor_of_the_virtual_gpu_orders_nothing() -> None:
    """Else a check would repair the race that it looks for."""
    with lockstep.virtual.device() as cuda:
        side = cuda.Stream()
        x = torch.ones(10, device="cuda")
        cuda.synchronize()
        with cuda.stream(side):
            x.mul_(2)
        before = lockstep.virtual.perf_counter()
        seen = judging.values.see([x])
        assert lockstep.virtual.perf_counter() == before
        x.add_(1)
        assert seen == [judging.Other("tensor of the virtual GPU", "[10]")]
        assert len(lockstep.virtual.races()) == 1


# ── The course's wrong answers ───────────────────────────────────────────────────────────────

KEPT = """\
import torch.distributed as dist


# %% tiny: nobody-says-it
def tiny(x, rank):
    dist.all_reduce(x)
    x += rank + 1


# %% tiny: too-few
def tiny(x, rank):
    raise ValueError("it is no good for any trial")


# %% tiny: too-few
def tiny(x, rank):
    if rank == 0:
        dist.all_reduce(x)  # the others never come


# %% tiny: open
def tiny(x, rank):
    dist.all_reduce(x)
    x += 1


# %% tiny: open
def tiny(x, rank):
    dist.all_reduce(x)
    x += rank + 1
"""


def kept(monkeypatch, folder: Path) -> None:
    (folder / "source" / "wrong").mkdir(parents=True)
    (folder / "source" / "wrong" / "99.py").write_text(KEPT)
    monkeypatch.setattr(judge, "SOLUTIONS", folder)
    monkeypatch.setitem(TABLE["mistakes"], "too-few", "it raises, or hangs")


def in_place(more):
    def wrong(x, rank):
        dist.all_reduce(x)
        x += more(rank, dist.get_world_size())

    return wrong


def test_a_wrong_answer_of_the_course_that_gives_the_same_names_the_mistake(
    tiny, monkeypatch, tmp_path
):
    kept(monkeypatch, tmp_path)
    for more in (lambda rank, n: 1, lambda rank, n: rank + 1):
        assert told(in_place(more)) == ("open", "as was guessed")


def test_what_only_some_trials_share_with_a_wrong_answer_is_not_named(tiny, monkeypatch, tmp_path):
    kept(monkeypatch, tmp_path)
    assert told(in_place(lambda rank, n: 1 if n < 3 else 2))[0] == "value"


def test_a_declared_sign_stands_for_the_wrong_answers_of_its_name(tiny, monkeypatch, tmp_path):
    kept(monkeypatch, tmp_path)
    tiny.demands("open", lambda run, rank: False)
    assert told(in_place(lambda rank, n: 1))[0] == "value"


def test_without_the_courses_answers_general_words_tell(tiny, monkeypatch, tmp_path):
    monkeypatch.setattr(judge, "SOLUTIONS", tmp_path)
    assert told(in_place(lambda rank, n: 1))[0] == "value"


def test_all_answers_are_tried_unless_all_were_judged_with_these_checks(monkeypatch, tmp_path):
    every = answers(paths.SOLUTIONS / "source", "wrong", "03")["ring_all_reduce"]
    shutil.copytree(LABS.parent, tmp_path / "course")
    monkeypatch.setattr(verdicts, "_COURSE", tmp_path / "course")
    monkeypatch.setattr(verdicts, "FILE", tmp_path / "judged.json")
    verdicts.FILE.write_text("{}")
    of_lab = [one for one in exercises.exercises() if one.lab == "03"]
    assert not any(map(verdicts.rests, of_lab))
    assert verdicts.tried("03", "ring_all_reduce", every) == every
    verdicts.record("03")
    assert len(verdicts.tried("03", "ring_all_reduce", every)) == 1
    assert 0 < sum(map(verdicts.rests, of_lab)) < len(of_lab)
    for name in ("labs/lab03.py", "labs/lab03.toml", "judging/values.py"):
        file = tmp_path / "course" / name
        before = file.read_bytes()
        file.write_bytes(before + b"\n")
        assert verdicts.tried("03", "ring_all_reduce", every) == every, name
        file.write_bytes(before)
