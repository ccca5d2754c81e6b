"""Ranks that stay alive between cells."""

import psutil
import pytest

START = "from lockstep import World\nw = World({n})"
HEAD = "%%torchrun --world w\nimport os, torch, torch.distributed as dist\nrank = dist.get_rank()\n"


@pytest.fixture
def world(kernel, run):
    """Runs cells on a world, which is closed at the end; then nothing may be left."""
    assert not run(START.format(n=2)).error
    yield lambda body: run(HEAD + body)
    assert not run("w.close()").error


def pids(reply) -> list[int]:
    rows = [line.partition("→ │ ")[2] for line in reply.shown.splitlines() if "→" in line]
    return [int(row) for row in rows]


def test_processes_variables_and_groups_stay(world):
    before = pids(
        world(
            "pair = dist.new_group([0, 1])\nweights = torch.ones(2) * rank\n"
            "dist.barrier()\nos.getpid()"
        )
    )
    assert len(set(before)) == 2
    assert pids(world("os.getpid()")) == before
    reply = world("dist.all_reduce(weights, group=pair)\nweights += 1\nweights.tolist()")
    assert "ranks 0, 1 → │ [2.0, 2.0]" in reply.shown
    assert "calls: 1 all_reduce on each rank" in reply.shown, "of this cell, not of all"
    assert "ranks 0, 1 → │ [2.0, 2.0]" in world("weights.tolist()").shown


def test_what_the_notebook_changes_is_seen(run, world):
    run("rate = 1\ndef step():\n    return 'old', rate")
    assert "→ │ ('old', 1)" in world("step()").shown
    run("rate = 2")
    assert "→ │ ('old', 2)" in world("step()").shown
    run("def step():\n    return 'new', rate")
    assert "→ │ ('new', 2)" in world("step()").shown


def test_what_the_world_binds_belongs_to_it(run, world):
    run("count = 10\ndef show():\n    return count")
    assert "→ │ 11" in world("count = count + 1\ncount").shown
    assert "→ │ 11" in world("count").shown
    assert "→ │ 11" in world("show()").shown
    assert run("print(count)").stdout == "10\n"
    run("def show():\n    return 'now', count")
    assert "→ │ ('now', 11)" in world("show()").shown
    world("mine = 'of the world'")
    run("mine = 'of the notebook'")
    assert "'of the world'" in world("mine").shown


def test_functions_run_on_the_same_ranks(run, world):
    before = pids(world("os.getpid()"))
    reply = run("import os\nprint(w.run(lambda extra: os.getpid() + extra, 1).results)")
    assert f"{[pid + 1 for pid in before]}" in reply.stdout


def test_failure_tears_it_down_says_so_and_the_next_use_is_fresh(run, world):
    before = pids(world("kept = 1\nos.getpid()"))
    reply = world("if rank == 1:\n    raise ValueError('broken')\ndist.barrier()")
    assert "rank 1: ValueError: broken" in reply.error
    assert "→    5 │     raise ValueError('broken')" in reply.error
    assert not any(psutil.pid_exists(pid) for pid in before)
    reply = world("os.getpid()")
    assert "this World had failed, so its ranks are new and have no variables" in reply.shown
    assert not set(pids(reply)) & set(before)
    assert "NameError: name 'kept' is not defined" in world("kept").error


def test_note_of_a_failure_comes_once(run, world):
    world("1 / 0")
    assert "had failed" in world("rank").shown
    assert "had failed" not in world("rank").shown
    run("w.close()")
    assert "had failed" not in world("rank").shown


def test_a_stall_in_a_later_cell(world):
    world("x = torch.ones(3)\nfor _ in range(3):\n    dist.all_reduce(x)")
    reply = world("if rank == 0:\n    dist.all_reduce(x)")
    assert "Rank 0 waits in all_reduce #3" in reply.error
    assert "for rank 1, which already left" in reply.error
    assert "calls: 1 all_reduce on rank 0" in reply.shown


def test_interrupt_of_a_world(kernel, world):
    kernel.start(HEAD + "import time\nprint('ready', flush=True)\ntime.sleep(600)")
    kernel.wait_for(lambda reply: "ready" in reply.shown)
    kernel.interrupt()
    assert kernel.finish().error_name == "JobInterrupted"
    assert "ranks are new" in world("rank").shown


def test_death_between_cells(world):
    victim, _ = pids(world("os.getpid()"))
    process = psutil.Process(victim)
    process.kill()
    psutil.wait_procs([process], timeout=5)
    assert "rank 0: ended by SIGKILL" in world("dist.barrier()").error
    assert len(pids(world("os.getpid()"))) == 2


def test_close_and_context_manager_leave_nothing(kernel, run):
    run("from lockstep import World")
    reply = run(
        "with World(2) as inside:\n    print(inside, inside.run(abs, -3).results)\nprint(inside)"
    )
    assert "up>" in reply.stdout and "[3, 3]" in reply.stdout and "not started" in reply.stdout
    assert kernel.leftovers() == []
    reply = run(
        "try:\n    with World(2) as inside:\n        inside.run(abs, -3)\n        1 / 0\n"
        "except ZeroDivisionError:\n    print('out')"
    )
    assert reply.stdout.endswith("out\n")
    assert kernel.leftovers() == []
    run("forgotten = World(2)\nforgotten.run(abs, -1)\ndel forgotten")
    run("import gc; gc.collect()")
    assert kernel.leftovers() == []


def test_world_cannot_be_sent_or_used_after_close(run, world):
    world("kept = 1")
    run("w.close()")
    assert "NameError" in world("kept").error
    assert "'w' (a World) cannot be sent" in run("%%torchrun -n 2\nw").error
