"""Jobs that go well: functions, scripts and cells on ranks, and what is known of them after."""

import os
import struct
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import lockstep
import pytest
import torch
import torch.distributed as dist
from kernel import Kernel
from lockstep import Job, LaunchError, torchrun

HEAD = """\
%%torchrun -n {n} {flags}
import os, sys, time, torch, torch.distributed as dist
rank = dist.get_rank() if dist.is_initialized() else int(os.environ["RANK"])
"""


def cell(body: str, flags: str = "", n: int = 2) -> str:
    return HEAD.format(flags=flags, n=n) + textwrap.dedent(body)


def launch(what, *args, nproc_per_node=2, **options) -> Job:
    return torchrun(what, *args, nproc_per_node=nproc_per_node, show=False, **options)


# ── Functions ────────────────────────────────────────────────────────────────────────────────


def summed(start: int, step: int = 1) -> torch.Tensor:
    x = torch.tensor([start + step * dist.get_rank()])
    print("rank", dist.get_rank(), "has", x.item())
    dist.all_reduce(x)
    return x


def test_function_gives_results_and_output_of_each_rank():
    job = launch(summed, 10, step=5, nproc_per_node=3)
    assert job.ok and job.state == "ok" and len(job) == job.nproc == 3
    assert [result.item() for result in job.results] == [45, 45, 45]
    assert job[2].item() == 45
    assert [job.output(rank) for rank in range(3)] == [
        f"rank {rank} has {10 + 5 * rank}\n" for rank in range(3)
    ]
    assert job.backend == "gloo" and job.device == "CPU" and job.report == ""


def asked(function):
    return function(16), function.__globals__ is vars(sys.modules["__main__"])


def test_what_main_defines_is_of_the_ranks_main_also_as_an_argument():
    """Dynamo looks there for what a function that it inlines has for globals."""
    main = {"__name__": "__main__"}
    exec("import math\ndef root(x): return math.sqrt(x)", main)
    assert launch(asked, main["root"], nproc_per_node=1, init=False).results == [(4.0, True)]
    assert launch(main["root"], 9, nproc_per_node=1, init=False).results == [3.0]


def test_a_compiled_format_travels_both_ways():
    """Python cannot pickle a struct.Struct."""
    layout = struct.Struct("<bb8q")
    job = launch(lambda own: (own, own.size), layout)
    assert [(own.format, size) for own, size in job.results] == [("<bb8q", layout.size)] * 2


def test_function_that_makes_its_own_group(tmp_path):
    def by_itself():
        dist.init_process_group("gloo")
        return dist.get_world_size()

    assert launch(by_itself).results == [2, 2]
    assert launch(dist.is_initialized, init=False).results == [False, False]


def test_that_gpus_are_too_few_is_said_of_ranks_with_a_group_alone(monkeypatch):
    """Others use what they say themselves."""

    def by_itself():
        dist.init_process_group("gloo")

    monkeypatch.setattr("lockstep.launch.run.gpu_count", lambda: 1)
    assert "1 GPU, fewer than the 2 ranks" in launch(dist.get_rank).note
    assert launch(dist.is_initialized, init=False).note == launch(by_itself).note == ""


def test_ranks_that_are_on_the_cpu_as_gpus_are_too_few_see_none(monkeypatch):
    """Unless their program says where it is: PyTorch's own defaults go to any GPU that it sees."""

    def visible():
        return os.environ.get("CUDA_VISIBLE_DEVICES")

    def by_itself():
        dist.init_process_group("gloo")
        return os.environ.get("CUDA_VISIBLE_DEVICES")

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr("lockstep.launch.run.gpu_count", lambda: 1)
    assert launch(visible).results == ["", ""]
    assert launch(visible, env={"CUDA_VISIBLE_DEVICES": "3"}).results == ["3", "3"]
    with lockstep.World(2) as world:
        assert world.run(visible).results == ["", ""]
    for job in launch(visible, backend="gloo"), launch(visible, init=False), launch(by_itself):
        assert job.results == ["0", "0"]


def test_failed_job_has_no_results():
    job = launch(int, "no number", may_fail=True)
    assert not job.ok and "ValueError: invalid literal" in job.report and job.device == "CPU"
    with pytest.raises(lockstep.JobFailed, match="invalid literal") as caught:
        _ = job.results
    assert caught.value.job is job


def text_twice(function) -> str:
    first, second = (str(launch(function, nproc_per_node=4)) for _ in range(2))
    assert first == second
    return first


def test_text_is_the_same_in_every_run_and_folds_equal_lines():
    def talk():
        rank = dist.get_rank()
        print("the same on all")
        print("odd" if rank % 2 else "even")
        print(f"mine is {rank}")
        dist.barrier()
        print("the end")
        return rank // 2

    assert text_twice(talk).splitlines() == [
        "ranks 0–3    │ the same on all",
        "rank 0       │ even",
        "             │ mine is 0",
        "rank 1       │ odd",
        "             │ mine is 1",
        "rank 2       │ even",
        "             │ mine is 2",
        "rank 3       │ odd",
        "             │ mine is 3",
        "ranks 0–3    │ the end",
        "ranks 0, 1 → │ 0",
        "ranks 2, 3 → │ 1",
        "calls: 1 barrier on each rank",
        "live · 4 ranks · gloo · CPU · ok",
    ]


def test_random_numbers_differ_between_ranks_and_jobs():
    def draw():
        import random

        import numpy

        return random.random(), float(numpy.random.rand()), float(torch.rand(()))

    drawn = [*launch(draw).results, *launch(draw).results]  # none is seeded, as under torchrun
    assert [len(set(numbers)) for numbers in zip(*drawn, strict=True)] == [4, 4, 4]


@pytest.mark.parametrize("given", [None, "3"])
def test_threads_are_shared_out_unless_told(given, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    env = {} if given is None else {"OMP_NUM_THREADS": given}
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    expected = max(1, cores // 2) if given is None else int(given)
    assert launch(torch.get_num_threads, env=env).results == [expected] * 2


# ── Scripts, and the environment ─────────────────────────────────────────────────────────────

TRAIN = """\
import argparse, os, sys
import torch, torch.distributed as dist

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--scale", type=int)
    scale = parser.parse_args().scale
    dist.init_process_group()
    x = torch.ones(1) * scale
    dist.all_reduce(x)
    print(f"{__name__} {os.path.basename(__file__)} {x.item():g} {int(os.environ['LOCAL_RANK'])}")
    dist.destroy_process_group()

if __name__ == "__main__":
    main()
    sys.exit(0)
"""


def test_unmodified_script(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    job = launch(script, "--scale", 21)
    assert [job.output(rank) for rank in range(2)] == [
        f"__main__ train.py 42 {rank}\n" for rank in range(2)
    ]
    assert [call.operation for call in job.calls[0]] == ["all_reduce"]
    script.write_text("import nowhere")
    job = launch(script, may_fail=True)
    assert "No module named 'nowhere'" in job.report and "train.py, line 1" in job.report
    with pytest.raises(FileNotFoundError, match=r"no script 'gone.py'"):
        launch("gone.py")


def test_every_variable_of_torchrun_is_set(tmp_path):
    script = tmp_path / "show.py"
    script.write_text(
        "import os, pathlib, sys\n"
        "pathlib.Path(sys.argv[1] + os.environ['RANK']).write_text(' '.join(os.environ))"
    )  # into files: two ranks that print at the same time tear each other's lines
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", str(script)]
    subprocess.run([*command, str(tmp_path / "theirs")], env=environment, check=True)
    launch(script, tmp_path / "ours")
    theirs, ours = (set((tmp_path / f"{w}0").read_text().split()) for w in ("theirs", "ours"))
    assert "TORCHELASTIC_RUN_ID" in theirs  # so it did look
    assert theirs - ours == set()
    assert ours - theirs <= {
        "GLOO_SOCKET_IFNAME",
        "LOCKSTEP_JOB",
        "NCCL_SOCKET_IFNAME",
        "RES_OPTIONS",
        *os.environ,
    }


@pytest.mark.parametrize("how", ["script", "-c"])
def test_from_a_plain_python(tmp_path, how):
    source = """\
import lockstep
import torch

offset = 100

def work(x):
    import torch.distributed as dist
    print("at work")
    return int(x.sum()) + offset + dist.get_rank()

if __name__ == "__main__":
    print(lockstep.torchrun(work, torch.ones(3), nproc_per_node=2).results)
"""
    (tmp_path / "plain.py").write_text(source)
    command = ["plain.py"] if how == "script" else ["-c", source]
    path = str(Path(lockstep.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""
    assert sorted(done.stdout.splitlines()) == [
        "[103, 104]",
        "rank 0 │ at work",
        "rank 1 │ at work",
    ]


# ── Cells ────────────────────────────────────────────────────────────────────────────────────


def test_kernel_neither_imports_torch_nor_forks():
    kernel = Kernel()
    try:
        kernel.execute(
            "import os, sys, lockstep\n"
            "os.register_at_fork(before=lambda: print('forked'))\n"
            "def double(x): return 2 * x"
        )
        assert "forked" in kernel.execute("os.fork() or os._exit(0)").stdout  # so it would tell
        reply = kernel.execute(cell("dist.all_reduce(torch.ones(2))\nrank", "--into job"))
        assert "rank 1 → │ 1" in reply.shown and "forked" not in reply.stdout
        reply = kernel.execute("print(lockstep.torchrun(double, 21, nproc_per_node=2).results)")
        assert "[42, 42]" in reply.stdout and "forked" not in reply.stdout
        modules = kernel.value("(job.results, len(job.calls[1]), 'torch' in sys.modules)")
        assert modules == "([0, 1], 1, False)"
    finally:
        kernel.close()


def test_last_expression_and_semicolon(run):
    assert "ranks 0, 1 → │ 7" in run(cell("3 + 4")).shown
    assert "→" not in run(cell("3 + 4;")).shown
    assert "→" not in run(cell("y = 3 + 4")).shown
    assert "→" not in run(cell("None")).shown
    assert "tensor([0, 2])" in run(cell("torch.arange(2) * 2 * 1")).shown


def test_cell_sees_the_notebook(run):
    run(
        "import math as m, collections\nfrom functools import partial\nscale, table = 2, {'a': [1]}"
    )
    run(
        "def scaled(x):\n    return x * scale\n"
        "class Model:\n    def __init__(self, width): self.width = width\n"
        "    def area(self): return scaled(self.width)\n"
        "model, thrice = Model(5), lambda x: 3 * x"
    )
    body = (
        "[m.floor(2.5), table, scaled(1), model.area(), Model(1).area(), thrice(1), partial(int)()]"
    )
    assert "→ │ [2, {'a': [1]}, 2, 10, 2, 3, 0]" in run(cell(body)).shown
    rebound = run(cell("scale = 7 + rank\n[scaled(1), model.area(), Model(1).area()]")).shown
    assert "rank 0 → │ [7, 35, 7]" in rebound and "rank 1 → │ [8, 40, 8]" in rebound
    assert run("print(scale)").stdout == "2\n"  # what ranks bind is theirs
    run("scale = 3")
    assert "→ │ 3" in run(cell("scaled(1)")).shown


def test_cell_defines_functions_and_classes_of_its_own(run):
    body = """\
    def fact(n): return 1 if n < 2 else n * fact(n - 1)
    class Point:
        size = rank
        def __init__(self): self.inner = [fact(i) for i in range(3 + self.size)]
    def outer():
        point = Point()
        return [x for x in point.inner if x in point.inner]
    outer()
    """
    reply = run(cell(body, "--into job"))
    assert "rank 1 → │ [1, 1, 2, 6]" in reply.shown
    result = run(cell("class P:\n    def hi(self): return 'hi'\nP()", "--into job"))
    assert not result.error
    assert run("print(job[0].hi())").stdout == "hi\n"


def test_functions_of_the_cell_see_the_notebook(run):
    run("base, power = 3, 2\ndef raised(n): return n**power")
    body = """\
    def once(): return base
    class Holder:
        start = base
        def get(self): return self.start + raised(base)
    [once(), Holder().get(), *(raised(i) for i in range(base)), (lambda: power)()]
    """
    assert "→ │ [3, 12, 0, 1, 4, 2]" in run(cell(body)).shown


def test_missing_name_is_told_by_the_rank(run):
    assert "NameError: name 'nobody' is not defined" in run(cell("nobody")).error


def test_cell_that_makes_the_group_itself(run):
    body = 'dist.init_process_group("gloo")\nx = torch.ones(1)\ndist.all_reduce(x)\nx.item()'
    assert "ranks 0, 1 → │ 2.0" in run(cell(body)).shown
    run("def start():\n    import torch.distributed as dist\n    dist.init_process_group('gloo')")
    assert "ranks 0, 1 → │ 2" in run(cell("start()\ndist.get_world_size()")).shown
    assert "ranks 0, 1 → │ False" in run(cell("dist.is_initialized()", "--no-init")).shown


def test_variables_for_the_ranks_and_a_job_to_keep(run):
    shown = run(cell("os.environ['COLOUR']", "--env COLOUR='dark green' --into job")).shown
    assert "→ │ 'dark green'" in shown
    assert run("print(job[1], job.ok)").stdout == "dark green True\n"
    run(cell("1 / 0", "--into job"))
    assert run("print(job.ok, len(job.failures))").stdout == "False 2\n"


def test_only_loopback_listens(kernel, run):
    kernel.start(
        cell(
            "dist.barrier()\nprint('ready', flush=True)\n"
            "while not os.path.exists('go'): time.sleep(0.01)\n"
            "os.environ['GLOO_SOCKET_IFNAME']"
        )
    )
    kernel.wait_for(lambda reply: "ready" in reply.shown)
    listeners = [(pid, address) for pid, address in kernel.listeners() if pid != kernel.process.pid]
    (kernel.work / "go").touch()
    # on a machine whose own name means loopback the ports alone would not tell
    assert "→ │ 'lo" in kernel.finish().shown
    (kernel.work / "go").unlink()
    assert len(listeners) >= 2  # the store and gloo's pairs: so it did look
    assert {address.removeprefix("::ffff:") for _, address in listeners} <= {"127.0.0.1", "::1"}


# ── Output ───────────────────────────────────────────────────────────────────────────────────


def test_output_from_below_python():
    def shout():
        import ctypes

        os.write(1, b"by write\n")
        os.write(2, b"to stderr\n")
        ctypes.CDLL(None).printf(b"by printf %d\n", 5)
        ctypes.CDLL(None).fflush(None)
        subprocess.run(["echo", "by a program"], check=True)
        sys.stderr.write("half a line")

    assert launch(shout).output(1).splitlines() == [
        "by write",
        "to stderr",
        "by printf 5",
        "by a program",
        "half a line",
    ]


def test_what_c_has_buffered_is_not_lost():
    def printf():
        import ctypes

        ctypes.CDLL(None).printf(b"still in the buffer\n")

    assert launch(printf).output(0) == "still in the buffer\n"


def test_lines_of_several_ranks_are_never_torn():
    def chatter():
        rank = dist.get_rank()
        for _ in range(300):
            for piece in (str(rank),) * 50:
                os.write(1, piece.encode())
            os.write(1, b"\n")

    job = launch(chatter, nproc_per_node=3)
    for rank in range(3):
        assert job.output(rank) == (str(rank) * 50 + "\n") * 300


def test_progress_bar_shows_its_last_state():
    def progress():
        for percent in range(0, 101, 10):
            print(f"\r{percent:3} % done", end="", flush=True)
        print("\nfinished")

    lines = str(launch(progress)).splitlines()
    assert lines[:2] == ["ranks 0, 1 │ 100 % done", "           │ finished"]


def test_printed_markup_is_escaped():
    def attack():
        print("<script>alert(1)</script>")
        return "<img src=x onerror=alert(2)>"

    data = launch(attack)._repr_mimebundle_()
    assert "<script>alert(1)</script>" in data["text/plain"]
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in data["text/html"]
    assert "<script" not in data["text/html"] and "<img" not in data["text/html"]
    failed = torchrun(int, "<script>", nproc_per_node=1, may_fail=True, show=False)
    assert "&lt;script&gt;" in failed._repr_mimebundle_()["text/html"]
    assert "<script" not in failed._repr_mimebundle_()["text/html"]


def test_output_that_is_no_text():
    def binary():
        os.write(1, b"\xff\x00 caf\xc3\xa9\n")

    assert launch(binary).output(0) == "\ufffd\x00 café\n"


# ── What travels ─────────────────────────────────────────────────────────────────────────────


def test_tensors_come_back_as_they_were():
    def give():
        base = torch.arange(12.0).reshape(3, 4)
        return {
            "transposed": base.t(),
            "bf16": base.bfloat16(),
            "bool": base > 3,
            "empty": torch.empty(0, 3),
            "scalar": torch.tensor(3.5),
            "complex": torch.tensor([1 + 2j]).conj(),
            "parameter": torch.nn.Parameter(base[0]),
            "large": torch.ones(1 << 19),
            "state": torch.nn.Linear(3, 2).state_dict(),
        }

    ours, (got, _) = give(), launch(give).results
    for name in set(ours) - {"state"}:
        assert got[name].dtype == ours[name].dtype and torch.equal(got[name], ours[name]), name
    assert isinstance(got["parameter"], torch.nn.Parameter) and got["parameter"].requires_grad
    got["large"].add_(1)  # the receiver's own
    assert got["large"].sum() == 1 << 20


def test_same_tensor_twice_stays_one():
    def tied():
        x = torch.zeros(3)
        return x, x

    first, second = launch(tied)[0]
    first[0] = 1
    assert second[0] == 1


OWN_GROUP = """\
import torch.distributed as dist

class Done(dist.Work):
    def wait(self, timeout=None): return True
    def is_completed(self): return True

class ByStore(dist.ProcessGroup):
    def __init__(self, store, rank, size):
        super().__init__(rank, size)
        self.store, self.calls = store, 0
    def getBackendName(self): return "by-store"
    def allreduce(self, tensors, opts):
        self.calls += 1
        self.store.set(f"{self.calls}/{self.rank()}", str(tensors[0].item()))
        parts = [float(self.store.get(f"{self.calls}/{r}")) for r in range(self.size())]
        tensors[0].fill_(sum(parts))
        return Done()

def added(group_class):
    import os, torch
    make = lambda store, rank, size, timeout: group_class(store, rank, size)
    dist.Backend.register_backend("by-store", make, devices=["cpu"])
    dist.init_process_group("by-store")
    x = torch.ones(()) + int(os.environ["RANK"])
    for _ in range(2):
        dist.all_reduce(x)
    return x.item()
"""


def test_classes_that_derive_from_those_of_pytorch(run):
    run(OWN_GROUP)
    reply = run("%%torchrun -n 2 --no-init\nadded(ByStore)")
    assert "ranks 0, 1 → │ 6.0" in reply.shown
    reply = run(
        "import lockstep\n"
        "print(lockstep.torchrun(added, ByStore, nproc_per_node=2, init=False).results)"
    )
    assert "[6.0, 6.0]" in reply.stdout


# ── The record of calls ──────────────────────────────────────────────────────────────────────


def test_calls_know_operation_size_peer_and_group():
    def work():
        rank, x = dist.get_rank(), torch.ones(4)
        pair = dist.new_group([0, 2])
        dist.all_reduce(x)
        dist.broadcast(x, 1)
        dist.all_gather([torch.empty(4) for _ in range(3)], x)
        dist.all_gather_into_tensor(torch.empty(12), x)
        dist.reduce_scatter_tensor(torch.empty(4), torch.ones(12))
        dist.all_to_all_single(torch.empty(3), torch.ones(3))
        dist.reduce(x, 2)
        dist.gather(x, [torch.empty(4) for _ in range(3)] if rank == 0 else None, 0)
        dist.scatter(x, [torch.ones(4)] * 3 if rank == 0 else None, 0)
        dist.barrier()
        if rank in (0, 2):
            dist.all_reduce(x.double(), group=pair)
        if rank == 0:
            dist.send(x, 1, tag=5)
        if rank == 1:
            dist.recv(x, 0, tag=5)
        dist.barrier()

    job = launch(work, nproc_per_node=3)
    zero, one, two = job.calls
    common = [
        *("all_reduce", "broadcast", "all_gather", "all_gather_into_tensor"),
        *("reduce_scatter_tensor", "all_to_all_single", "reduce", "gather", "scatter", "barrier"),
    ]
    assert [c.operation for c in zero] == [*common, "all_reduce", "send", "barrier"]
    assert [c.operation for c in one] == [*common, "recv", "barrier"]
    assert [c.operation for c in two] == [*common, "all_reduce", "barrier"]
    assert [c.number for c in one if c.operation != "recv"] == list(range(11))
    assert (zero[0].shapes, zero[0].dtype, zero[0].bytes) == (((4,),), "float32", 16)
    assert {c.operation: c.peer for c in two if c.peer is not None} == {
        "broadcast": 1,
        "reduce": 2,
        "gather": 0,
        "scatter": 0,
    }
    assert zero[10].group.ranks == (0, 2) and (zero[10].number, zero[10].dtype) == (0, "float64")
    assert (zero[11].peer, zero[11].tag, one[10].peer, one[10].tag) == (1, 5, 0, 5)
    assert zero[0].group.is_default and not zero[10].group.is_default
    for calls in job.calls:
        assert all(call.end is not None and call.end >= call.start for call in calls)
        assert [call.start for call in calls] == sorted(call.start for call in calls)
    # one clock: nobody leaves the barrier before the last one has come
    ends = [c[-1].end or 0 for c in job.calls]
    assert min(ends) >= max(c[-1].start for c in job.calls)


def test_peers_in_a_subgroup_are_ranks_of_the_world():
    def work():
        pair, x = dist.new_group([1, 2]), torch.ones(1)
        if dist.get_rank() in (1, 2):
            dist.broadcast(x, 2, group=pair)
        if dist.get_rank() == 1:
            dist.send(x, 2, group=pair)
        if dist.get_rank() == 2:
            dist.recv(x, 1, group=pair)

    zero, one, two = launch(work, nproc_per_node=3).calls
    assert zero == []
    assert [(c.operation, c.peer) for c in one] == [("broadcast", 2), ("send", 2)]
    assert [(c.operation, c.peer) for c in two] == [("broadcast", 2), ("recv", 1)]


def test_setup_knows_what_made_and_ended_groups():
    def work():
        dist.init_process_group("gloo")
        dist.new_group([0, 1])
        dist.all_reduce(torch.ones(1))
        dist.new_group([1])
        dist.destroy_process_group()

    job = launch(work, init=False)
    for setup, calls in zip(job.setup, job.calls, strict=True):
        assert [call.operation for call in setup] == [
            "init_process_group",
            "new_group([0, 1])",
            "new_group([1])",
            "destroy_process_group",
        ]
        assert [call.operation for call in calls] == ["all_reduce"]
        assert setup[1].end is not None and setup[1].end <= calls[0].start < setup[2].start


def test_async_calls_end_when_the_work_ends():
    def work():
        import time

        time.sleep(0.2 * dist.get_rank())
        waited = dist.all_reduce(torch.ones(3), async_op=True)
        entered = time.perf_counter()
        waited.wait()
        dist.all_reduce(torch.ones(3), async_op=True)  # never waited for, yet over at the barrier
        dist.barrier()
        x = torch.ones(2)
        peer = 1 - dist.get_rank()
        operations = [dist.P2POp(dist.isend, x, peer), dist.P2POp(dist.irecv, x.clone(), peer)]
        for request in dist.batch_isend_irecv(operations):
            request.wait()
        return entered

    job = launch(work)
    for calls in job.calls:
        assert sorted(c.operation for c in calls) == [
            *("all_reduce", "all_reduce", "barrier", "recv", "send")
        ]
        assert all(c.end is not None for c in calls)
        assert [c.asynchronous for c in calls[:3]] == [True, True, False]
    first = job.calls[0][0]
    assert first.start < job[0] < first.end, "it ended only when rank 1 came, long after the call"
    assert first.seconds > 0.1


def test_calls_of_ddp_and_functional_collectives():
    def work():
        import torch.distributed._functional_collectives as functional
        from torch.nn.parallel import DistributedDataParallel

        everybody: Any = dist.group.WORLD
        model = DistributedDataParallel(torch.nn.Linear(8, 8, bias=False))
        before = torch.ones(1)
        dist.all_reduce(before)
        model(torch.ones(2, 8)).sum().backward()
        functional.all_reduce(torch.ones(5), "sum", everybody).sum().item()
        functional.all_gather_tensor(torch.ones(5), 0, everybody).sum().item()

    for calls in launch(work).calls:
        after = [(c.operation, c.bytes) for c in calls]
        after = after[after.index(("all_reduce", 4)) + 1 :]
        assert after == [
            ("all_reduce", 256),
            ("all_reduce", 20),
            ("all_gather_into_tensor_coalesced", 20),
        ]
        assert all(c.end is not None for c in calls)


def test_where_nothing_can_be_forked_programs_are_started(tmp_path):
    """A second thread in the forkserver, as some site packages start one."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, threading\n"
        "if any('worker.forkserver' in word for word in sys.orig_argv):\n"
        "    threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    (tmp_path / "job.py").write_text(
        "from lockstep import torchrun\n"
        "def rank():\n"
        "    import torch.distributed as dist\n"
        "    dist.barrier()\n"
        "    return dist.get_rank()\n"
        "if __name__ == '__main__':\n"
        "    print(torchrun(rank, nproc_per_node=2))\n"
    )
    paths = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[1] / "lib")])
    done = subprocess.run(
        [sys.executable, "job.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "rank 0 → │ 0\nrank 1 → │ 1\n" in done.stdout
    assert "note: the forkserver has 2 threads" in done.stdout


def test_variables_that_only_a_new_python_heeds_start_new_ones():
    def heard():
        return torch._dynamo.config.verbose, os.environ["TORCH_NCCL_TRACE"], sys.path == path

    path = sys.path[:]
    job = launch(heard, env={"TORCHDYNAMO_VERBOSE": "1", "TORCH_NCCL_TRACE": "1"}, init=False)
    assert job.results == [(True, "1", True)] * 2
    assert "PyTorch read TORCHDYNAMO_VERBOSE when they start" in job.notes[0]
    job = launch(heard, env={"TORCH_NCCL_TRACE": "2", "OMP_NUM_THREADS": "1"}, init=False)
    assert job.results == [(False, "2", True)] * 2 and job.notes == ()


def test_variables_that_are_too_long_are_refused_by_name():
    with pytest.raises(LaunchError, match="LONG alone takes 20 MB"):
        launch(len, [], env={"LONG": "x" * 20_000_000})
