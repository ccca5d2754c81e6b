"""What a learner sees when something goes wrong on the ranks, and that nothing is left of it."""

import os
import textwrap
import time
import weakref

import lockstep
import psutil
import pytest
import torch
import torch.distributed as dist
from kernel import Kernel
from lockstep.launch import stall_detector

HEAD = """\
%%torchrun -n 4 {flags}
import os, sys, time, torch, torch.distributed as dist
rank = dist.get_rank()
x = torch.ones(4)
"""  # the magic is line 1, so what follows begins at line 5


def cell(body: str, flags: str = "") -> str:
    return HEAD.format(flags=flags) + textwrap.dedent(body)


# ── A rank raises ────────────────────────────────────────────────────────────────────────────


def test_cause_comes_first_with_the_line_marked(run):
    reply = run(cell("if rank == 2:\n    raise ValueError('no such shard')\ndist.all_reduce(x)"))
    assert reply.error_name == "JobFailed"
    assert reply.error.splitlines()[1] == "rank 2: ValueError: no such shard"
    assert "this cell, line 6" in reply.error
    assert "→    6 │     raise ValueError('no such shard')" in reply.error
    assert "  5 │ if rank == 2:" in reply.error, "the lines around it are missing"
    assert "rank 0" not in reply.error


def test_traceback_is_cut_to_the_learners_code(run):
    run("def halve(t):\n    return t.view(2, 3)")
    reply = run(cell("torch.utils.checkpoint.checkpoint(halve, x, use_reentrant=False)"))
    assert "ranks 0–3: RuntimeError: shape '[2, 3]' is invalid" in reply.error
    assert "this cell, line 5" in reply.error
    assert "an earlier cell, line 2, in halve" in reply.error
    assert "→    2 │     return t.view(2, 3)" in reply.error
    assert "frames of torch" in reply.error
    assert "lockstep/launch" not in reply.error and "site-packages" not in reply.error


def test_both_exceptions_of_a_chain_are_shown(run):
    reply = run(cell("try:\n    {}['lr']\nexcept KeyError:\n    raise RuntimeError('no config')"))
    assert "ranks 0–3: RuntimeError: no config" in reply.error
    assert "while handling: KeyError: 'lr'" in reply.error


def test_failures_of_several_ranks_are_told_apart(run):
    reply = run(cell("raise (ValueError if rank % 2 else TypeError)(f'on {rank % 2}')"))
    assert "ranks 0, 2: TypeError: on 0" in reply.error
    assert "ranks 1, 3: ValueError: on 1" in reply.error


def test_endless_recursion_is_folded(run):
    reply = run(cell("def deeper(n):\n    return deeper(n + 1)\ndeeper(0)"))
    assert reply.error.splitlines()[1].startswith("ranks 0–3: RecursionError: maximum recursion")
    assert "→    6 │     return deeper(n + 1)" in reply.error
    assert len(reply.error.splitlines()) < 40


def test_error_of_the_compiler_comes_first_too(run):
    reply = run(cell("async def fetch(): pass\nawait fetch()"))
    headline = "SyntaxError: 'await' outside function"
    assert any(headline in line for line in reply.error.splitlines()[:2])
    assert "→    6 │ await fetch()" in reply.error


def test_exception_that_cannot_be_printed_is_named(run):
    body = "class Odd(Exception):\n    def __str__(self): return 1 / 0\nraise Odd"
    reply = run(cell(body))
    assert reply.error.splitlines()[1].startswith("ranks 0–3: Odd")
    assert "→    7 │ raise Odd" in reply.error


def test_closed_connections_are_consequences(run):
    # Behind the barrier all are connected, so that who waits for rank 1 hears of its end at once.
    body = "dist.barrier()\nif rank == 1:\n    os._exit(7)\ndist.all_reduce(x)"
    reply = run(cell(body))
    assert reply.error.splitlines()[1].startswith("rank 1: exited by os._exit(7)")
    assert ": lost the connection to the failed rank, as a consequence" in reply.error
    assert "losed by peer" not in reply.error


def test_exception_of_the_rank_is_the_cause(run):
    run("import lockstep\ndef bad():\n    raise ZeroDivisionError('mine')")
    reply = run(
        "try:\n    lockstep.torchrun(bad, nproc_per_node=2)\n"
        "except lockstep.JobFailed as error:\n    print(repr(error.__cause__), error.job.state)"
    )
    assert "RankError('ZeroDivisionError: mine') failed" in reply.stdout


def test_a_cell_that_may_fail_shows_why(run):
    reply = run(cell("raise ValueError('on purpose')", "--may-fail --into job"))
    assert not reply.error
    assert "failed" in reply.shown
    assert "ValueError: on purpose" in reply.shown
    assert "→    5 │ raise ValueError('on purpose')" in reply.shown


# ── Ranks that can never go on ───────────────────────────────────────────────────────────────

STALLS = {
    "different collectives": (
        "if rank == 0:\n    dist.barrier()\nelse:\n    dist.all_reduce(x)",
        ["rank 0 called barrier, ranks 1–3 called all_reduce", "all_reduce #0 of float32[4]"],
        {6: "    dist.barrier()", 8: "    dist.all_reduce(x)"},
    ),
    "different order": (
        "if rank == 3:\n    dist.broadcast(x, 0)\n    dist.all_reduce(x)\n"
        "else:\n    dist.all_reduce(x)\n    dist.broadcast(x, 0)",
        ["ranks 0–2 called all_reduce, rank 3 called broadcast"],
        {},
    ),
    "shapes": (
        "dist.all_reduce(torch.ones(4 + rank // 3))",
        ["ranks 0–2 passed float32[4], rank 3 passed float32[5]", "same shape"],
        {5: "dist.all_reduce(torch.ones(4 + rank // 3))"},
    ),
    "shapes, later": (
        "for step in range(3):\n    dist.all_reduce(torch.ones(5 if rank == step == 2 else 4))",
        ["all_reduce #2 on the default group", "rank 2 passed float32[5]"],
        {},
    ),
    "one leaves early": (
        "if rank != 1:\n    dist.all_reduce(x)",
        ["Ranks 0, 2, 3 wait in all_reduce #0", "for rank 1, which already left without"],
        {6: "    dist.all_reduce(x)"},
    ),
    "one is a step short": (
        "for step in range(4 if rank else 3):\n    dist.all_reduce(x)",
        ["Ranks 1–3 wait in all_reduce #3 of float32[4]", "for rank 0, which already left"],
        {6: "    dist.all_reduce(x)"},
    ),
    "all send": (
        "dist.send(x, (rank + 1) % 4)",
        ["Every waiting rank is in send (rank 0 to rank 1", "nobody receives", "isend"],
        {5: "dist.send(x, (rank + 1) % 4)"},
    ),
    "all receive": (
        "dist.recv(x, (rank + 1) % 4)",
        ["Every waiting rank is in recv (rank 0 from rank 1", "nobody sends"],
        {5: "dist.recv(x, (rank + 1) % 4)"},
    ),
    "receives from a rank that does not send": (
        "if rank == 0:\n    dist.recv(x, 2)",
        [
            "recv #0 from rank 2",
            "rank 2, which already left",
            "Every send needs a recv on the rank",
        ],
        {6: "    dist.recv(x, 2)"},
    ),
    "two tags": (
        "if rank == 0:\n    dist.send(x, 1, tag=5)\nelif rank == 1:\n    dist.recv(x, 0, tag=7)",
        [
            "Rank 0 sends to rank 1 with tag 5, and rank 1 has begun a recv from it with tag 7",
            "in send #0 to rank 1 (tag 5)",
            "in recv #0 from rank 0 (tag 7)",
        ],
        {6: "    dist.send(x, 1, tag=5)", 8: "    dist.recv(x, 0, tag=7)"},
    ),
    "two tags, begun on both sides": (
        "if rank < 2:\n"
        "    a = dist.isend(x, 1 - rank, tag=rank)\n"
        "    b = dist.irecv(torch.empty(4), 1 - rank, tag=rank)\n"
        "    b.wait()\n"
        "    a.wait()",
        ["has begun a send to it with tag 1: the tags differ"],
        {},
    ),
    "sizes of a message": (
        "if rank == 0:\n    dist.send(torch.ones(8), 1)\nelif rank == 1:\n    dist.recv(x, 0)",
        ["Rank 0 sends float32[8] to rank 1, which receives into float32[4]"],
        {},
    ),
    "roots": (
        "dist.broadcast(x, rank // 2)",
        ["disagree about the root of broadcast #0", "ranks 0, 1 named rank 0"],
        {},
    ),
    "an async call that is waited for": (
        "work = dist.all_reduce(x, async_op=True) if rank else None\nif work:\n    work.wait()",
        ["Ranks 1–3 wait in all_reduce #0", "for rank 0, which already left"],
        {7: "    work.wait()"},
    ),
    "a subgroup": (
        "half = dist.new_group([0, 1])\nif rank == 0:\n    dist.all_reduce(x, group=half)",
        ["Rank 0 waits in all_reduce #0", "on group half (ranks 0, 1)", "for rank 1, which"],
        {7: "    dist.all_reduce(x, group=half)"},
    ),
    "new_group in another order": (
        "for pair in sorted([[0, 1], [1, 2]], reverse=rank == 1):\n    dist.new_group(pair)",
        [
            "as call #0 of new_group, ranks 0, 2, 3 called new_group([0, 1]), rank 1 called",
            "rank 1: in new_group([1, 2]) #0",
            "Every rank must call new_group, in the same order",
        ],
        {6: "    dist.new_group(pair)"},
    ),
    "crosswise": (
        "if rank == 0:\n    dist.recv(x, 1)\ndist.barrier()",
        [
            "Rank 0 waits in recv #0 from rank 1",
            "anks 1–3 wait in barrier #0",
            "for rank 0",
            "Every send needs a recv",
            "the same collectives",
        ],
        {6: "    dist.recv(x, 1)", 7: "dist.barrier()"},
    ),
    "a send that is waited for twice": (
        "if rank == 0:\n    handle = dist.isend(x, 1)\n    handle.wait()\n    handle.wait()\n"
        "elif rank == 1:\n    dist.recv(x, 0)\n    dist.recv(x, 2)\n"
        "elif rank == 2:\n    dist.recv(x, 0)",
        ["Rank 0 waits a second time for its send #0 to rank 1", "drop a handle after its wait()"],
        {8: "    handle.wait()"},
    ),
    "DDP with a layer that one rank skips": (
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))\n"
        "if rank != 2:\n    model(x).sum().backward()",
        ["Ranks 0, 1, 3 wait in all_reduce", "for rank 2, which already left"],
        {7: "    model(x).sum().backward()"},
    ),
}


@pytest.mark.parametrize("case", STALLS)
def test_a_stall_is_found_and_explained(run, case):
    body, sentences, lines = STALLS[case]
    reply = run(cell(body))
    verdict, *stacks = reply.error.removeprefix("JobFailed\n").split("\n\n")
    for sentence in sentences:
        assert sentence in verdict + "".join(stacks)
    assert sentences[0] in verdict
    if not any(name in body for name in ("reduce", "barrier", "broadcast", "DataParallel")):
        assert "collective" not in verdict
    for number, line in lines.items():
        assert f"this cell, line {number}" in reply.error
        assert f"→ {number:>4} │ {line}" in reply.error


def story(work, nproc=4):
    job = lockstep.torchrun(work, nproc_per_node=nproc, backend="gloo", may_fail=True, show=False)
    return job.report


def test_a_report_tells_one_story_of_a_new_group_that_one_rank_left_out():
    def work():
        if dist.get_rank() != 3:
            dist.new_group([0, 1])
        dist.new_group([0, 1, 2, 3])

    verdict, waiting = story(work).split("\n\n")
    assert (
        "as call #0 of new_group, ranks 0–2 called new_group([0, 1]), "
        "rank 3 called new_group([0, 1, 2, 3])." in verdict
    )
    assert waiting.splitlines()[:2] == [
        "ranks 0–2: in new_group([0, 1, 2, 3]) #1",
        "rank 3: in new_group([0, 1, 2, 3]) #0",
    ]


def test_new_group_waits_for_its_members_only_under_gloo():
    def work():
        rank, x = dist.get_rank(), torch.ones(1)
        if rank == 0:
            dist.new_group([0, 1])
        if rank == 1:
            dist.all_reduce(x)

    verdict = story(work).split("\n\n")[0]
    assert "Rank 0 waits in new_group([0, 1]) #0 for rank 1;" in verdict
    assert "rank 1 waits in all_reduce #0 of float32[1] on the default group for ranks " in verdict


# ── Groups are named as the program named them ───────────────────────────────────────────────


def test_crossed_groups_have_their_names():
    def work():
        grid = {"row": [[0, 1], [2, 3]], "column": [[0, 2], [1, 3]]}
        rank, made = dist.get_rank(), {}
        for axis, lists in grid.items():
            for ranks in lists:
                one = dist.new_group(ranks)
                if rank in ranks:
                    made[axis] = one
        del one
        row, column = made["row"], made["column"]
        for group in (row, column) if rank in (0, 3) else (column, row):
            dist.all_reduce(torch.ones(3), group=group)

    verdict, *waiting = story(work).split("\n\n")
    for rank, group in enumerate(
        (
            "row (ranks 0, 1)",
            "column (ranks 1, 3)",
            "column (ranks 0, 2)",
            "row (ranks 2, 3)",
        )
    ):
        call = f"in all_reduce #0 of float32[3] on group {group}"
        assert f"ank {rank} waits {call} for rank " in verdict
        assert f"rank {rank}: {call}" in waiting[0]


def test_two_groups_of_the_same_ranks_are_told_apart_by_name():
    def work():
        everybody = range(dist.get_world_size())
        gradients, metrics = dist.new_group(everybody), dist.new_group(everybody)
        for group in (gradients, metrics) if dist.get_rank() == 0 else (metrics, gradients):
            dist.all_reduce(torch.ones(1), group=group)

    verdict = story(work, 3).split("\n\n")[0]
    assert verdict == (
        "Rank 0 waits in all_reduce #0 of float32[1] on group gradients (ranks 0–2) for ranks 1, 2;"
        " ranks 1, 2 wait in all_reduce #0 of float32[1] on group metrics (ranks 0–2) for rank 0. "
        "Ranks that share several groups must call their collectives in the same order, over all "
        "these groups together."
    )


@pytest.mark.parametrize("nproc", [2, 3, 8])
def test_a_hang_in_a_subgroup_names_it(nproc):
    def sync(x, group):
        dist.all_reduce(x, group=group)

    def work():
        gradients = dist.new_group([0, dist.get_world_size() - 1])
        if dist.get_rank() == 0:
            sync(torch.ones(1), group=gradients)

    where = f"all_reduce #0 of float32[1] on group gradients (ranks 0, {nproc - 1})"
    assert f"Rank 0 waits in {where} for rank {nproc - 1}, which already left" in story(work, nproc)


class Holder:
    def __init__(self, group):
        self.replica = group


NAMED = {
    "a list": ("groups = [dist.new_group([0, 1])]; group = groups[0]", "groups[0] (ranks 0, 1)"),
    "a dict": ("made = {'dp': dist.new_group([0, 1])}; group = made['dp']", "made['dp'] (ranks"),
    "an attribute": ("own = Holder(dist.new_group([0, 1])); group = own.replica", "own.replica ("),
    "no name": ("group = dist.new_group([0, 1])", "1 [0, 1]"),
    "another name on each rank": (
        "globals()[f'mine{rank}'] = group = dist.new_group([0, 1])",
        "1 [",
    ),
    "one name for two": (
        "for one in (dist.new_group([0, 1]), dist.new_group([0, 1])):\n    dist.barrier(one)\n"
        "group = one",
        "2 [0, 1]",
    ),
}


@pytest.mark.parametrize("case", NAMED)
def test_names_are_those_that_are_seen(case):
    made, said = NAMED[case]
    program = (
        f"rank = dist.get_rank()\n{made}\nif rank == 0:\n    dist.broadcast(x, 1, group=group)"
    )
    if case == "another name on each rank":
        program += "\nelse:\n    dist.broadcast(x[:2], 1, group=group)"

    def work():
        exec(
            compile(program, "cell-1.py", "exec"),
            {"dist": dist, "x": torch.ones(4), "Holder": Holder},
        )

    assert f"group {said}" in story(work, 2)


def test_looking_for_names_keeps_nothing_alive_and_takes_nothing_away():
    def work():
        pair, x = dist.new_group([0, 1]), torch.ones(1)
        seen = weakref.ref(x)
        dist.barrier(pair)
        del x
        return seen() is None

    def with_locals():
        pair = dist.new_group([0, 1])
        kept = locals()
        dist.barrier(pair)
        return sorted(kept)

    assert lockstep.torchrun(work, nproc_per_node=2, show=False).results == [True, True]
    kept = lockstep.torchrun(with_locals, nproc_per_node=2, show=False)[0]
    assert "pair" in kept


def test_wrong_dtypes_are_found_though_nothing_hangs(run):
    reply = run(cell("dist.all_reduce(x if rank else x.int())"))
    assert "rank 0 passed int32[4], ranks 1–3 passed float32[4]" in reply.error
    assert "cannot be trusted" in reply.error


@pytest.mark.parametrize(
    "body",
    [
        "if rank == 0:\n    time.sleep(1.2)\ndist.all_reduce(x)",
        "if rank == 0:\n    end = time.time() + 1.2\n    while time.time() < end:\n        pass\n"
        "dist.barrier()",
        "if rank == 0:\n    import subprocess\n    subprocess.run(['sleep', '1.2'])\n"
        "dist.barrier()",
        "import threading\nif rank == 0:\n"
        "    threading.Timer(1.2, dist.send, (x, 1)).start()\n    dist.recv(x.clone(), 1)\n"
        "if rank == 1:\n    dist.recv(x, 0)\n    dist.send(x, 0)",
    ],
    ids=["asleep", "busy", "in another process", "with another thread"],
)
def test_waiting_for_a_slow_rank_is_no_stall(run, body):
    reply = run(cell(body))
    assert "4 ranks · gloo · CPU · ok" in reply.shown


OWN_START = """\
%%torchrun -n 2 --no-init
import os, torch.distributed as dist
rank = int(os.environ["RANK"])
"""  # the magic is line 1, so what follows begins at line 4


def test_world_that_is_larger_than_the_job_is_found(run):
    body = "dist.init_process_group('gloo', rank=rank, world_size=3)"
    reply = run(OWN_START + body)
    verdict, *stacks = reply.error.removeprefix("JobFailed\n").split("\n\n")
    assert "called with a world size of 3, but this job has 2 ranks" in verdict
    assert f"→    4 │ {body}" in "".join(stacks)


def test_a_rank_that_destroyed_its_group_and_left_is_missed_in_new_group(run):
    body = """\
    dist.init_process_group("gloo")
    dist.barrier()  # who destroys a group breaks it for those that still connect
    if rank == 1:
        dist.destroy_process_group()
    else:
        dist.new_group([0, 1])
    """
    reply = run(OWN_START + textwrap.dedent(body))
    assert "Rank 0 waits in new_group([0, 1]) #0 for rank 1, which already left" in reply.error


def test_ranks_that_look_for_each_other_in_different_places_are_found(run):
    body = """\
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.PrefixStore(f"mine/{rank}", dist.TCPStore(*place, is_master=False))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    """
    reply = run(OWN_START + textwrap.dedent(body))
    verdict = "Ranks 0, 1 are all in init_process_group(world_size=2) and do not find each other."
    assert verdict in reply.error
    assert "the same store, under the same prefix" in reply.error
    assert "→    6 │ dist.init_process_group(" in reply.error


def test_they_are_found_though_they_look_again_and_again(tmp_path):
    """Whoever waits for a file looks into it a hundred times a second."""

    def apart(folder):
        import torch.distributed as dist

        rank = int(os.environ["RANK"])
        own = f"file://{folder}/{rank}"
        dist.init_process_group("gloo", init_method=own, rank=rank, world_size=2)

    job = lockstep.torchrun(
        apart, str(tmp_path), nproc_per_node=2, init=False, show=False, may_fail=True, timeout=45
    )
    assert "init_process_group(world_size=2) and do not find each other" in job.report
    assert "time limit" not in job.report


def test_waiting_in_init_for_a_slow_rank_is_not_looking_in_vain(monkeypatch):
    monkeypatch.setattr(stall_detector, "_STILL_UNMET", stall_detector._STILL)

    def late():
        import torch.distributed as dist

        if os.environ["RANK"] == "1":
            time.sleep(1.5)
        dist.init_process_group("gloo")
        return dist.get_world_size()

    job = lockstep.torchrun(late, nproc_per_node=3, init=False, show=False)
    assert job.results == [3, 3, 3]


# ── Time limit, interrupt ────────────────────────────────────────────────────────────────────


def test_time_limit_shows_stacks_and_last_calls(run):
    body = """\
    dist.all_reduce(x)
    def spin():
        while True:
            pass
    if rank == 0:
        spin()
    dist.barrier()
    """
    reply = run(cell(body, "--timeout 1"))
    assert "The time limit of 1 s has passed." in reply.error
    assert "rank 0: still running, last call: all_reduce #0 of float32[4]" in reply.error
    assert "ranks 1–3: still running, in barrier #1" in reply.error
    assert "this cell, line 10" in reply.error and "→   10 │     spin()" in reply.error
    assert "in spin" in reply.error
    assert "→   11 │ dist.barrier()" in reply.error


def test_interrupt_reports_and_leaves_the_kernel_ready(kernel, run):
    body = "dist.all_reduce(x)\nprint('ready', flush=True)\ntime.sleep(600 if rank == 0 else 0)"
    kernel.start(cell(body + "\ndist.barrier()"))
    kernel.wait_for(lambda reply: "ranks 0–3 │ ready" in reply.shown)
    kernel.interrupt()
    reply = kernel.finish()
    print(f"{reply.seconds:.2f} s after the interrupt", reply.error, sep="\n")
    assert reply.error_name == "JobInterrupted"
    assert "rank 0: interrupted" in reply.error
    assert "→    7 │ time.sleep(600 if rank == 0 else 0)" in reply.error
    assert "ranks 1–3: interrupted, in barrier #1" in reply.error
    assert "ready" in reply.shown and "interrupted" in reply.shown


def test_interrupt_again_while_the_report_is_made(kernel, run):
    run("import os\nkernel_itself = os.getpid()")
    body = """\
    import signal
    def again(*_):  # when the report asks for this rank's stack
        os.kill(kernel_itself, signal.SIGINT)
    signal.signal(signal.SIGRTMAX, again)
    print("ready", flush=True)
    time.sleep(600)
    """
    kernel.start(cell(body))
    kernel.wait_for(lambda reply: "ready" in reply.shown)
    kernel.interrupt()
    reply = kernel.finish()
    assert reply.error_name == "JobInterrupted" and ": interrupted" in reply.error


def test_interrupt_while_ranks_come_up(kernel, run):
    for _ in range(5):
        kernel.start(
            "print('begun', flush=True)\n"
            "body = 'import time; time.sleep(600)'\n"
            "get_ipython().run_cell_magic('torchrun', '-n 32 --no-init', body)"
        )
        kernel.wait_for(lambda reply: "begun" in reply.stdout)
        kernel.interrupt()
        assert "Interrupt" in kernel.finish().error_name
        assert kernel.leftovers() == []


BETWEEN_LINES = """\
class Argument:
    def __reduce__(self):  # when the job's content is packed
        raise KeyboardInterrupt
code = Argument.__reduce__.__code__
Argument.__reduce__.__code__ = code.replace(co_linetable=b"")
import lockstep
lockstep.torchrun(print, Argument(), nproc_per_node=1)
"""


def test_interrupt_between_two_lines_is_shown(kernel, run):
    assert run(BETWEEN_LINES).error_name == "KeyboardInterrupt"
    assert kernel.leftovers() == []


LOST = """\
import gc, signal, weakref
class Part:
    pass
class Argument:
    def __reduce__(self):  # when the job's content is packed
        part = Part()
        {when}(part, lambda *_: signal.raise_signal(signal.SIGINT))
        return (list, ())
def wait(argument):
    import time
    time.sleep(600)
class WithDestructor:
    def __init__(self, part, then):
        part.kept = self
        self.then = then
    def __del__(self):
        self.then()
class WithReference:
    kept = []
    def __init__(self, part, then):
        self.kept.append(weakref.ref(part, then))
"""


@pytest.mark.parametrize("when", ["WithDestructor", "WithReference"])
def test_interrupt_in_what_python_lets_raise_nothing_is_heard(kernel, run, when):
    run(LOST.format(when=when))
    kernel.start("import lockstep\nlockstep.torchrun(wait, Argument(), init=False)")
    reply = kernel.finish()
    assert "Interrupt" in reply.error_name
    assert "Exception ignored" not in reply.shown
    quick = "before = sys.unraisablehook\nlockstep.torchrun(len, Argument(), init=False)"
    assert "Interrupt" in run("import sys\n" + quick).error_name, "the job may be over already"
    assert run("before is sys.unraisablehook").shown == "True"


def test_ranks_that_ignore_signals_are_ended_too(kernel, run):
    body = """\
    import signal
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGRTMAX):
        signal.signal(number, signal.SIG_IGN)
    print("ready", flush=True)
    time.sleep(600)
    """
    kernel.start(cell(body))
    kernel.wait_for(lambda reply: "ready" in reply.shown)
    kernel.interrupt()
    assert kernel.finish().error_name == "JobInterrupted"


# ── A rank dies ──────────────────────────────────────────────────────────────────────────────

THROWS = "_ZSt20__throw_out_of_rangePKc"  # std::__throw_out_of_range(char const*)
DEATHS = {
    "killed": ("os.kill(os.getpid(), 9)", ["ended by SIGKILL", "out of memory"]),
    "segfault": ("import ctypes; ctypes.string_at(0)", ["ended by SIGSEGV", "this cell, line 6"]),
    "C++ exception": (
        f"import ctypes; ctypes.CDLL('libstdc++.so.6').{THROWS}(b'no such\\nGPU')",
        ["ended by SIGABRT, because nothing caught this C++ exception: no such GPU", "line 6"],
    ),
    "abort": ("os.abort()", ["ended by SIGABRT", "this cell, line 6"]),
    "terminated": ("os.kill(os.getpid(), 15); time.sleep(60)", ["ended by SIGTERM"]),
    "os._exit": ("os._exit(7)", ["exited by os._exit(7)"]),
    "os._exit(0)": ("os._exit(0)", ["exited by os._exit(0)"]),
    "sys.exit": ("sys.exit(3)", ["sys.exit(3) was called", "this cell, line 6"]),
    "sys.exit with words": ("sys.exit('no data')", ["sys.exit('no data') was called"]),
    "memory": ("torch.empty(1 << 50)", ["RuntimeError", "can't allocate memory"]),
    "numpy memory": ("import numpy; numpy.ones(1 << 50)", ["Unable to allocate"]),
}


@pytest.mark.parametrize("case", DEATHS)
def test_death_of_a_rank_is_explained(run, case):
    body, sentences = DEATHS[case]
    reply = run(cell(f"if rank == 1:\n    {body}\ndist.barrier()"))
    headline = reply.error.splitlines()[1]
    assert headline.startswith("rank 1: ")
    assert all(sentence in reply.error for sentence in sentences)
    assert sentences[0] in headline


def test_sys_exit_0_is_no_failure(run):
    reply = run(cell("print('bye')\nsys.exit()"))
    assert "ranks 0–3 │ bye" in reply.shown and "ok" in reply.shown


# ── Nothing is left ──────────────────────────────────────────────────────────────────────────

BROOD = """\
import subprocess, tempfile
class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, i):
        return torch.full((1000,), float(i))
batches = iter(torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=1))
next(batches)
subprocess.Popen(["sleep", "600"])
subprocess.Popen(["sleep", "600"], start_new_session=True)
shared = torch.ones(1000).share_memory_()
"""


@pytest.mark.parametrize(
    "end", ["'ok'", "raise ValueError('late')", "os.kill(os.getpid(), 9)", "dist.recv(x)"]
)
def test_nothing_is_left_of_what_ranks_started(run, end):
    reply = run(cell(BROOD + end))  # the fixture looks at what is left
    assert ("ok" in reply.shown) == (end == "'ok'")


def test_descriptors_do_not_run_out(kernel, run):
    before = kernel.process.num_fds(), kernel.warm_parent.num_fds()
    for _ in range(5):
        kernel.execute(cell("print(rank)\nx", "--into job"))
        kernel.execute(cell("raise ValueError"))
        kernel.execute(cell("dist.recv(x)", "--timeout 0.2"))
    after = kernel.process.num_fds(), kernel.warm_parent.num_fds()
    assert all(now < then + 5 for now, then in zip(after, before, strict=True))


def runs(process: psutil.Process) -> bool:
    """Not gone, and not a zombie that only waits for init to take notice."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("how", ["kill -9", "restart"])
def test_nothing_is_left_when_the_kernel_goes(how):
    kernel = Kernel()
    kernel_itself = kernel.process
    try:
        body = BROOD + "print('ready', flush=True)\ndist.recv(x) if rank else time.sleep(600)"
        kernel.start(cell(body, "--timeout 600"))
        kernel.wait_for(lambda reply: "ready" in reply.shown)
        children: list[psutil.Process] = []
        until = time.monotonic() + 20
        while len(children) < 4 + 4 + 8 and time.monotonic() < until:  # other ranks come later
            children = [p for p in kernel.processes() if p != kernel_itself]
        assert len(children) >= 4 + 4 + 8  # ranks, data loader workers, sleepers
        if how == "restart":
            kernel.restart()
        else:
            kernel_itself.kill()
        began = time.perf_counter()
        _, alive = psutil.wait_procs(children, timeout=20)
        alive = [p for p in alive if runs(p)]
        print(f"nothing left {time.perf_counter() - began:.2f} s after {how}")
        assert alive == []
        if how == "restart":
            assert "run the lab's first two code cells again" in kernel.execute(cell("1")).shown
            kernel.load()
            assert kernel.leftovers() == []
            assert "ranks 0–3 → │ 1" in kernel.execute(cell("1")).shown
        else:
            assert [p for p in kernel.processes() if p != kernel_itself] == []
            assert kernel.files() == []
    finally:
        kernel.close()


# ── What cannot travel, what makes no sense ──────────────────────────────────────────────────


def test_result_that_cannot_be_pickled_is_named(run):
    reply = run(cell("import threading\nthreading.Lock() if rank == 1 else rank", "--into job"))
    assert "rank 1 → │ a lock that cannot leave its rank" in reply.shown
    assert "rank 0 → │ 0" in reply.shown
    reply = run("job.results")
    assert reply.error_name == "ResultNotSent" and "the result of rank 1 is a lock" in reply.error


def test_argument_that_cannot_be_pickled_is_named(run):
    run("import threading, lockstep\nguard = threading.Lock()\ndef use(lock): pass")
    message = "(a lock) cannot be sent to the ranks: cannot pickle '_thread.lock' object"
    assert f"'guard' {message}" in run(cell("guard.acquire()")).error
    assert f"'lock' {message}" in run("lockstep.torchrun(use, lock=guard)").error
    assert f"'argument 0' {message}" in run("lockstep.torchrun(use, guard)").error


def test_argument_that_is_too_large_is_named(run):
    run("import numpy\ntable, small = numpy.zeros(20_000_000), 1")
    error = run(cell("table, small")).error
    assert "'table' is 160 MB" in error and "save it to a file" in error
    run("del table")


def test_large_result_costs_its_size_once(kernel, run):
    peak = "int(open('/proc/self/status').read().split('VmHWM:')[1].split()[0]) / 1e6"
    before = float(kernel.value(peak))
    reply = run(
        "%%torchrun -n 2 --into job\nimport os, numpy\n"
        "numpy.ones(1 << 27) if os.environ['RANK'] == '1' else None"
    )
    assert "ok" in reply.shown
    assert kernel.value("(int(job[1].sum()), job[1].nbytes)") == f"({1 << 27}, {1 << 30})"
    grown = float(kernel.value(peak)) - before
    print(f"1.07 GB grew the kernel by {grown:.2f} GB")
    assert grown < 1.3
    run("%reset -f out\ndel job")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("-n 9 --backend nccl", ["no GPU that PyTorch can use", "--backend gloo"]),
        ("-n gpu", ["no GPU that PyTorch can use", "Give a number of ranks"]),
        ("-n 0", ["from 1 to"]),
        ("-n {NPROC}", ["NPROC has no value in this kernel: run the cell first that sets it"]),
        ("-n many", ["a number, gpu, cpu or auto, not 'many'"]),
        ("--backend mpi", ["'mpi'", "gloo", "nccl"]),
        ("--nprocs 9", ["there is no --nprocs: did you mean --nproc-per-node?"]),
        ("--xyzzy", ["there is no --xyzzy: see %%torchrun --help"]),
        ("--into 3x", ["the name of a variable, not '3x'"]),
        ("--env FOO", ["NAME=VALUE, not 'FOO'"]),
        ("--world nowhere", ["nowhere is not a World; create it first"]),
        ("--world w -n 8", ["exist already", "World(...)"]),
        ("--max-restarts 2", ["max_restarts needs engine='torchrun'"]),
        ("-n 'a", ["quot"]),
    ],
)
def test_wrong_flag_says_what_to_do(run, flags, says):
    run("import lockstep\nw = lockstep.World(2)")
    reply = run(f"%%torchrun {flags}\n1")
    told = reply.shown + reply.error
    assert all(words in told for words in says)
    assert "run_cell" not in told, "the launcher's own frames are of no interest"


@pytest.mark.parametrize(
    ("code", "named"),
    [
        ("dist.all_reduce(x) / 2", "all_reduce"),
        ("y = dist.broadcast(x, 0)\nx += 1\ny.item()", "broadcast"),
        ("dist.all_reduce(x)\nNone / 2", ""),
        ("y = dist.all_reduce(x)\nz = None\nz + 1", ""),
    ],
)
def test_the_none_of_a_collective_is_named(run, code, named):
    (said,) = [one for one in run(cell(code)).error.splitlines() if "'NoneType'" in one]
    hint = f"({named} returns None: what it computes is in the tensors it was given)"
    assert said.endswith(hint) if named else "returns None" not in said


def test_a_script_that_is_not_there_is_named_alone(run):
    reply = run("%torchrun -n 2 gone.py")
    assert reply.error_name == "ScriptNotFound"
    name, said = reply.error.splitlines()
    assert name == "ScriptNotFound" and said.startswith("there is no script 'gone.py' in /")


def test_cell_with_a_syntax_error_or_a_magic(run):
    said = run("%%torchrun -n 2\nimport torch\nx = (1,\ny = 2").error.splitlines()
    assert said[0] == 'File "this cell", line 3' and len(said) == 4, "no frames but the learner's"
    assert said[-1] == "SyntaxError: '(' was never closed"
    assert "belongs to the notebook" in run("%%torchrun -n 2\n%timeit 1").error


@pytest.mark.parametrize(
    ("call", "peer"),
    [("send(x, 4)", "rank 4"), ("recv(x, 4)", "rank 4"), ("send(x, -1)", "a rank")],
)
def test_a_message_for_a_rank_that_is_not_there(run, call, peer):
    way = "to" if call.startswith("send") else "from"
    reply = run(cell(f"dist.{call} if rank == 1 else None"))
    assert f"Rank 1 is in {call[:4]} #0 {way} {peer}" in reply.error
    assert "on the default group, which has ranks 0–3 only." in reply.error
