"""Programs as their authors wrote them: scripts, modules, flags, processes of their own."""

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from IPython.core.error import UsageError
from lockstep import LaunchError, Logs, World, torchrun
from lockstep.launch.ranks import Ranks
from lockstep.launch.worker.short_repr import short_repr
from lockstep.magic import parse

SAY = "import os, sys\nos.write(1, f'{sys.argv[1:]} of {__name__}\\n'.encode())\n"


def launch(what, *args, **options):
    return torchrun(what, *args, nproc_per_node=2, show=False, **options)


@pytest.fixture
def package(tmp_path, monkeypatch) -> Path:
    """A folder to work in, with `pkg.train`, which imports its neighbour."""
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("")
    (tmp_path / "pkg" / "rates.py").write_text("FACTOR = 2\n")
    (tmp_path / "pkg" / "train.py").write_text(
        "import sys\nfrom .rates import FACTOR\n"
        "print(__name__, __spec__.name, FACTOR * float(sys.argv[2]), sys.argv[1:])\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


# ── %torchrun ────────────────────────────────────────────────────────────────────────────────


def test_line_magic_runs_a_script_with_arguments_of_its_own(kernel, run):
    (kernel.work / "say words.py").write_text(SAY)
    run("rate, heads = 0.1, [2, 4]")
    reply = run(
        "%torchrun --nproc_per_node 2 --into job 'say words.py' --lr {rate} --n_heads {heads[1]} "
        "\"two words\" --into $rate -n 3 '' --no-python"
    )
    told = "['--lr', '0.1', '--n_heads', '4', 'two words', '--into', '0.1', '-n', '3', '', "
    assert f"ranks 0, 1 │ {told}'--no-python'] of __main__" in reply.shown, reply.error
    assert run("print(job.ok, job.nproc)").stdout == "True 2\n"
    assert "no script 'gone.py'" in run("%torchrun gone.py").error
    (kernel.work / "say words.py").unlink()


def test_line_magic_runs_a_module(kernel, run):
    folder = kernel.work / "pkg"
    folder.mkdir()
    (folder / "train.py").write_text(SAY)
    reply = run("%torchrun -n 2 -m pkg.train -m --lr 0.1")
    assert "ranks 0, 1 │ ['-m', '--lr', '0.1'] of __main__" in reply.shown, reply.error
    assert "No module named pkg.gone" in run("%torchrun -n 1 -m pkg.gone").error
    assert "usage:" in run("%torchrun --help").stdout


def test_module_from_python(package):
    job = launch("-m", "pkg.train", "--lr", 0.25)
    assert job.output(1) == "__main__ pkg.train 0.5 ['--lr', '0.25']\n"
    with pytest.raises(LaunchError, match="-m needs the name of a module"):
        launch("-m")


def test_script_imports_what_lies_beside_it(package):
    (package / "scripts").mkdir()
    (package / "scripts" / "beside.py").write_text("word = 'found'")
    (package / "scripts" / "main.py").write_text("import beside\nprint(beside.word)")
    assert launch("scripts/main.py").output(0) == "found\n"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("-n 2 --no-python ls", "--no-python is not for notebooks: ranks run Python"),
        ("--virtual_local_rank x.py", "--virtual-local-rank is not for notebooks: set CUDA_VIS"),
        ("--nnodes 1:2 x.py", "--nnodes needs one number"),
        ("--node-rank 1 x.py", "is for torchrun in a terminal of each host"),
        ("--masterport 3 x.py", "there is no --masterport: did you mean --master-port?"),
        ("--Standalone x.py", "did you mean --standalone?"),
        ("-n 2 'x.py", "No closing quotation in: -n 2 'x.py"),
        ("-m", "-m needs the name of a module"),
        ("--master-port", "--master-port.* expected one argument"),
    ],
)
def test_flags_that_cannot_be_meant(line, why):
    with pytest.raises(UsageError, match=why):
        parse(line)


@pytest.mark.parametrize(
    ("line", "trace", "program"),
    [
        ("--trace train.py -n 3 --trace x.py", True, ["train.py", "-n", "3", "--trace", "x.py"]),
        ("--trace traces train.py x.py", "traces", ["train.py", "x.py"]),
        ("--trace=traces train.py", "traces", ["train.py"]),
        ("train.py --trace x.py", False, ["train.py", "--trace", "x.py"]),
    ],
)
def test_a_program_behind_trace_is_no_folder(line, trace, program):
    said = parse(f"-n 2 {line}")
    assert (said.trace, said.program, said.nproc_per_node) == (trace, program, "2")


def test_flags_that_do_not_go_together(kernel, run):
    (kernel.work / "say.py").write_text(SAY)
    run("from lockstep import World\nw = World(2)")
    for line, why in [
        ("%torchrun --world w say.py", "leave out --world w"),
        ("%%torchrun -n 2 say.py\n1 + 1", "a cell or a program, not both: 'say.py' is not a flag"),
        ("%torchrun --trace traces", "--trace took 'traces' as its folder"),
        ("%%torchrun --world w --tee 3\n1 + 1", "--tee and --redirects need fresh ranks"),
        ("%%torchrun --tee 4\n1 + 1", "tee is 0 (nothing), 1 (stdout), 2 (stderr) or 3 (both)"),
        ("%torchrun -n 2 --local-ranks-filter 0,2 say.py", "names rank 2, but the ranks are 0 to"),
        ("%torchrun -n 2 --local-ranks-filter x say.py", "list of ranks, as in 0,2; not 'x'"),
    ]:
        reply = run(line)
        assert why in reply.stdout + reply.error, line


def test_flags_of_torchrun_that_say_what_is_so_anyway(kernel, run):
    (kernel.work / "say.py").write_text(SAY)
    reply = run(
        "%torchrun --standalone --nnodes=1:1 --nproc-per-node=2 --run-path --rdzv-backend=c10d "
        "--rdzv_endpoint localhost:0 --max-restarts=0 say.py ok"
    )
    assert "ranks 0, 1 │ ['ok'] of __main__" in reply.shown
    told = "these have no effect, because all ranks are on this machine: --rdzv-backend, --rdzv-e"
    assert told in reply.shown


# ── Output in files ──────────────────────────────────────────────────────────────────────────

TALK = """\
import os, subprocess, sys, time
rank = os.environ["RANK"]
print("out of", rank)
print("err of", rank, file=sys.stderr, flush=True)
subprocess.run(["echo", "program of " + rank])
"""


def files(folder: Path) -> dict[str, str]:
    """What the one run below this folder has written, by its path in the run's own folder."""
    (run,) = folder.iterdir()
    return {str(p.relative_to(run)): p.read_text() for p in sorted(run.rglob("*.log"))}


def test_log_files_are_those_of_torchrun(tmp_path):
    script = tmp_path / "talk.py"
    script.write_text(TALK)
    told = ["--redirects=0:1,1:3", "--tee=0:2,1:2"]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", *told]
    subprocess.run([*command, f"--log-dir={tmp_path / 'theirs'}", str(script)], check=True)
    logs = Logs(tmp_path / "ours", "0:1,1:3", "0:2,1:2")
    job = launch(script, logs=logs)
    assert files(tmp_path / "ours") == files(tmp_path / "theirs")
    assert files(tmp_path / "ours")["attempt_0/1/stderr.log"] == "err of 1\n"
    assert [job.output(rank) for rank in range(2)] == ["err of 0\n", "err of 1\n"]
    assert f"stdout and stderr are in {job.logs}" in str(job)


def test_tee_shows_while_ranks_run_and_redirected_streams_do_not(kernel, run):
    (kernel.work / "talk.py").write_text(
        TALK + "while not os.path.exists('go'): time.sleep(0.01)\nprint('last', flush=True)"
    )
    kernel.start("%torchrun -n 2 --tee 1 --redirects 2 --into job talk.py")
    kernel.wait_for(lambda reply: "program of 1" in reply.shown)
    (kernel.work / "go").touch()
    reply = kernel.finish()
    (kernel.work / "go").unlink()
    assert "out of 0" in reply.shown and "last" in reply.shown and "err of" not in reply.shown
    stderr = run("print((job.logs / 'attempt_0' / '1' / 'stderr.log').read_text())").stdout
    assert "err of 1" in stderr
    run("del job")  # without --log-dir the files go with the job


def test_restarted_ranks_write_to_files_of_their_own(tmp_path):
    script = tmp_path / "twice.py"
    script.write_text(
        "import os, sys\nprint('try', os.environ['TORCHELASTIC_RESTART_COUNT'], flush=True)\n"
        "sys.exit(os.environ['TORCHELASTIC_RESTART_COUNT'] == '0')"
    )
    logs = Logs(tmp_path / "logs", tee="3")
    job = torchrun(
        script, nproc_per_node=1, engine="torchrun", max_restarts=1, logs=logs, show=False
    )
    assert {path: text for path, text in files(tmp_path / "logs").items() if text} == {
        "attempt_0/0/stdout.log": "try 0\n",
        "attempt_1/0/stdout.log": "try 1\n",
    }
    assert job.output(0) == "try 0\n[restart 1]\ntry 1\n"


def test_only_some_ranks_are_shown(run):
    reply = run(
        "%%torchrun -n 3 --local-ranks-filter 0,2 --into job\n"
        "import torch.distributed as dist\nprint('of', dist.get_rank())\ndist.get_rank()"
    )
    assert "of 0" in reply.shown and "of 2" in reply.shown and "of 1" not in reply.shown
    assert "rank 2 → │ 2" in reply.shown and "rank 1" not in reply.shown
    assert "of 1" not in reply.html
    assert run("print(job.output(1), job.results)").stdout == "of 1\n [0, 1, 2]\n"


def test_log_dir_alone_says_that_it_keeps_nothing(tmp_path):
    job = launch(abs, -1, logs=Logs(tmp_path / "logs"))
    assert "log_dir alone writes nothing" in job.note
    (tmp_path / "file").write_text("")
    with pytest.raises(LaunchError, match="no folder can be created there"):
        launch(abs, -1, logs=Logs(tmp_path / "file", tee="3"))


# ── Processes of their own ───────────────────────────────────────────────────────────────────

SPAWN = """\
import multiprocessing as mp, subprocess, sys
SCALE = 3

def child(number, queue):
    queue.put((number, SCALE * number))

def work():
    import torch
    spawn = mp.get_context("spawn")
    queue = spawn.Queue()
    process = spawn.Process(target=child, args=(1, queue))
    process.start()
    got = [queue.get(timeout=60)]
    process.join()
    process = mp.Process(target=child, args=(2, queue))
    process.start()
    got.append(queue.get(timeout=60))
    process.join()
    with spawn.Pool(1) as pool:
        got += pool.map(abs, [-5])
    echo = subprocess.run([sys.executable, "-c", "print(7)"], capture_output=True, text=True)
    loader = torch.utils.data.DataLoader(torch.arange(4), batch_size=2, num_workers=2)
    return [*got, int(echo.stdout), *(batch.tolist() for batch in loader)]
"""
SPAWNED = "[(1, 3), (2, 6), 5, 7, [0, 1], [2, 3]]"


def test_script_starts_processes(tmp_path):
    script = tmp_path / "spawn.py"
    script.write_text(SPAWN + "if __name__ == '__main__':\n    print(work())")
    assert torchrun(script, nproc_per_node=1, show=False).output(0) == SPAWNED + "\n"


def test_module_starts_processes(package):
    (package / "pkg" / "spawn.py").write_text(
        SPAWN + "if __name__ == '__main__':\n    print(work())"
    )
    job = torchrun("-m", "pkg.spawn", nproc_per_node=1, show=False)
    assert job.output(0) == SPAWNED + "\n"


def test_cell_starts_processes(run):
    assert f"→ │ {SPAWNED}" in run("%%torchrun -n 1\n" + SPAWN + "work()").shown
    run(SPAWN)
    reply = run("import lockstep\nprint(lockstep.torchrun(work, nproc_per_node=1, show=False)[0])")
    assert reply.stdout == SPAWNED + "\n", reply.error


# ── Modules that change under a World ────────────────────────────────────────────────────────


def use() -> list:
    import outer

    return outer.told()


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes modules that ranks can import; never twice of one size, as Python's cache of
    bytecode cannot tell these apart within a second."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(name: str, text: str) -> None:
        before = (tmp_path / f"{name}.py").stat().st_size if text else 0
        (tmp_path / f"{name}.py").write_text(text)
        assert (tmp_path / f"{name}.py").stat().st_size != before

    for name, text in (
        ("inner", "RATE = 1\ndef f(): return 'old'\n"),
        ("outer", "from inner import RATE, f\ndef told(): return [f(), RATE]\n"),
    ):
        (tmp_path / f"{name}.py").write_text(text)
        os.utime(tmp_path / f"{name}.py", (1e9, 1e9))  # long before the ranks import them
    return write


def test_world_reloads_modules_that_have_changed(write):
    with World(2) as world:
        job = world.run(use)
        assert job.results == [["old", 1]] * 2 and job.note == ""
        write("inner", "RATE, NEW = 2, 3\ndef f(): return 'newer'\n")
        write("outer", "from inner import NEW, RATE, f\ndef told(): return [f(), RATE, NEW]\n")
        job = world.run(use)
        assert job.results == [["newer", 2, 3]] * 2
        assert job.note == "reloaded: inner, outer" and f"note: {job.note}" in str(job)
        assert world.run(use).note == ""
        write("inner", "RATE, NEW = 2, 3\ndef f(): return 'the newest'\n")
        job = world.run(use)  # `outer` still has the `f` that it imported
        assert (job.results[0], job.note) == (["the newest", 2, 3], "reloaded: inner")


def test_world_keeps_a_module_that_cannot_be_loaded_any_more(write):
    with World(1) as world:
        world.run(use)
        write("inner", "RATE = = 2\n")
        job = world.run(use)
        assert job.results == [["old", 1]]
        assert "inner keeps its old state, because reloading it raised SyntaxError" in job.note


def generate(path):
    import types

    module = types.ModuleType("torch.generated")
    module.__file__ = path
    sys.modules["torch.generated"] = module  # as Inductor keeps what it has written


def test_world_leaves_modules_alone_that_a_library_generates(write, tmp_path):
    with World(1) as world:
        world.run(generate, str(tmp_path / "inner.py"))
        write("inner", "RATE = = 2\n")
        assert world.run(os.getpid).note == ""


def test_names_that_cells_have_imported_change_too(kernel, run):
    path = kernel.work / "steps.py"
    path.write_text("def step(): return 'old'\n")
    os.utime(path, (1e9, 1e9))
    run("import sys\nsys.path.insert(0, '')\nfrom lockstep import World\nw = World(2)")
    first = run("%%torchrun --world w\nfrom steps import step\nmine = step\nmine()")
    assert "→ │ 'old'" in first.shown and "note:" not in first.shown, first.error
    for text in ("newer", "the newest"):
        path.write_text(f"def step(): return '{text}'\n")
        reply = run("%%torchrun --world w\nmine()")
        assert f"→ │ '{text}'" in reply.shown and "note: reloaded: steps" in reply.shown
    run("w.close()")
    path.unlink()


# ── One World, two threads ───────────────────────────────────────────────────────────────────


def begin_and_wait(folder: str) -> None:
    Path(folder, "begun").touch()
    while not Path(folder, "go").exists():
        time.sleep(0.01)


def test_world_does_one_job_at_a_time(tmp_path):
    world, failures = World(1), []

    def work():
        try:
            with world:
                world.run(begin_and_wait, str(tmp_path))
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    while not (tmp_path / "begun").exists() and thread.is_alive():
        time.sleep(0.01)
    for again in (lambda: world.run(abs, -1), world.close):
        with pytest.raises(LaunchError, match="this World is busy: another thread uses it"):
            again()
    (tmp_path / "go").touch()
    thread.join()
    assert failures == []
    with world:
        assert world.run(abs, -1).results == [1]


# ── Memory ───────────────────────────────────────────────────────────────────────────────────


def fail(_) -> None:
    raise ValueError("as it must")


def test_world_that_failed_keeps_nothing_of_its_job():
    gc.collect()  # what other tests left must not count
    before = {id(one) for one in gc.get_objects() if type(one) is Ranks}
    world = World(1)
    for give in (fail, len):
        array = numpy.ones(100_000)
        kept = weakref.ref(array)
        try:
            world.run(give, array)
        except RuntimeError as error:
            error.__traceback__ = None
        del array
        gc.collect()
        assert kept() is None, give
    world.close()
    gc.collect()
    assert {id(one) for one in gc.get_objects() if type(one) is Ranks} <= before


def test_world_keeps_nothing_of_the_result_that_somebody_has_dropped():
    with World(1) as world:
        job = world.run(numpy.ones, 1_000_000)
        kept = weakref.ref(job)
        del job
        assert kept() is None


def test_cell_keeps_none_of_its_jobs(run):
    reply = run(
        "import gc, lockstep, weakref\n"
        "jobs = [weakref.ref(lockstep.torchrun(abs, -1, nproc_per_node=1)) for _ in range(3)]\n"
        "gc.collect()\nprint([job() for job in jobs])"
    )
    assert "[None, None, None]" in reply.stdout
    assert "<Job" in run("lockstep.torchrun(abs, -1, nproc_per_node=1)").shown, "drawn once only"


def test_job_carries_the_text_of_the_cells_that_it_needs(run):
    run("def helper():\n    return 40 + 2\nclass Counter:\n    def count(self): return 'counted'")
    # more than may travel, if it were to
    run("import linecache\nlinecache.cache['cell-x'] = (1, None, ['x' * 150_000_000], 'cell-x')")
    body = "import inspect\ninspect.getsource(helper) + inspect.getsource(Counter().count)"
    shown_ = run(f"%%torchrun -n 1\n{body}").shown
    run("del linecache.cache['cell-x']")
    assert "return 40 + 2" in shown_ and "return 'counted'" in shown_


BIG = """\
import resource
from lockstep import World

SIZE = 40_000_000

def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
def give(value): return value * SIZE

if __name__ == "__main__":
    with World(1) as world:
        for value in ("x", b"x"):
            before = world.run(peak)[0], peak()
            job = world.run(give, value)
            assert job[0] == value * SIZE and len(job.shown[0]) < 5000
            del job
            after = world.run(peak)[0], peak()
            print(*((now - then) / SIZE for now, then in zip(after, before)))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts memory in Linux's unit")
def test_long_string_costs_no_more_than_it_must(tmp_path):
    (tmp_path / "big.py").write_text(BIG)
    done = subprocess.run(
        [sys.executable, "big.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(torchrun.__globals__["__file__"]).parents[2])},
        capture_output=True,
        text=True,
        check=True,
    )
    rank, kernel = map(float, done.stdout.splitlines()[0].split())
    assert rank < 2.5, "more than the string, and a copy in UTF-8 while it is written"
    assert kernel < 3.5, "more than the file, mapped, the string, and the one it is compared with"


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers(), inner)
        | st.sets(st.integers() | st.text())
        | st.frozensets(st.integers())
        | st.builds(bytearray, st.binary())
    ),
)


@settings(max_examples=50)
@given(plain)
def test_what_is_shown_is_the_repr(value):
    text = repr(value)
    assert (
        short_repr(value) == text
        if len(text) <= 4000
        else short_repr(value).startswith(text[:4000])
    )


def test_what_is_shown_of_a_value_that_holds_itself():
    ring: list = [1]
    ring += [ring, {"ring": ring}, (ring,)]
    assert short_repr(ring) == repr(ring)


def test_repr_of_a_long_value_is_made_as_far_as_it_is_shown():
    class Counted:
        count = 0

        def __repr__(self) -> str:
            Counted.count += 1
            return "counted"

    text = short_repr({"deep": [Counted()] * 1_000_000})
    assert text.endswith("… (1 elements)") and Counted.count < 4000
    assert short_repr("é" * 1_000_000) == "'" + "é" * 3999 + "… (1000000 characters)"
