"""Ranks on the two nodes of a real Slurm, and what ends them there. `make test-slurm`."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lockstep
import psutil
import pytest
import slurm
import torch
import torch.distributed as dist
from lockstep import Slurm
from lockstep.launch.cluster import queue

ROOT = Path(__file__).parents[1]
pytestmark = [
    pytest.mark.slurm,
    pytest.mark.timeout(300),  # agents that import PyTorch, two at a time, beside other tests
    pytest.mark.skipif(bool(slurm.why_not()), reason=slurm.why_not()),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[slurm.Cluster]:
    with slurm.Cluster() as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def nothing_stays_in_the_queue(cluster: slurm.Cluster) -> Iterator[None]:
    yield
    try:
        slurm.wait(lambda: not cluster.jobs())
    except TimeoutError:
        cluster.cancel_all()
        pytest.fail("a job stayed in the queue")


@contextlib.contextmanager
def full(cluster: slurm.Cluster) -> Iterator[None]:
    """Somebody else's job has both nodes."""
    job = slurm.said(
        *("sbatch", "--parsable", "--nodes=2", "--exclusive", "--output=/dev/null"),
        *("--wrap", "srun sleep 1000"),
    )
    slurm.wait(lambda: queue.job_status(job).state == "RUNNING")
    yield
    subprocess.run(["scancel", job], check=True)


def wait_for_each_other() -> None:
    dist.barrier()
    dist.recv(torch.ones(1))  # for ever: nobody sends


def by_slurm(*command: str) -> None:
    """On rank 0, to the job that it is in; then all wait."""
    dist.barrier()
    if dist.get_rank() == 0:
        job = os.environ["SLURM_JOB_ID"]
        subprocess.run([word.format(job=job) for word in command], check=True)
    time.sleep(100)  # asleep: no deadlock


# ── As a local job ───────────────────────────────────────────────────────────────────────────


def test_results_output_and_record_come_back(cluster, capfd):
    def where(x):
        rank = dist.get_rank()
        total = torch.full((3,), float(rank))
        dist.all_reduce(total)
        print(f"on {os.environ['SLURMD_NODENAME']}")
        return total * x

    job = lockstep.torchrun(where, torch.tensor(2.0), nproc_per_node=2, on=Slurm())
    assert [torch.equal(got, torch.full((3,), 12.0)) for got in job.results] == [True] * 4
    assert [job.output(rank).strip() for rank in range(4)] == ["on n1", "on n1", "on n2", "on n2"]
    assert [[str(call) for call in calls] for calls in job.calls] == [
        ["all_reduce #0 of float32[3] on the default group"]
    ] * 4
    assert "4 ranks on 2 nodes · gloo" in str(job.stamp)
    assert "ranks 0, 1 on n1, ranks 2, 3 on n2" in job.note
    said = capfd.readouterr().out
    assert "waits: the scheduler has not considered it yet (None) · 0 s" in said
    assert "runs on n1, n2" in said and "rank 3 │ on n2" in said


def test_kept_nodes_explain_failures_and_outlive_the_controller(cluster):
    def twice(x):
        return 2 * x

    def fail():
        if dist.get_rank() == 2:
            raise ValueError("mine")
        dist.barrier()

    with Slurm().allocate(2, show=False) as nodes:
        job = lockstep.torchrun(fail, nproc_per_node=2, on=nodes, may_fail=True)
        assert "rank 2: ValueError: mine" in job.report and 'raise ValueError("mine")' in job.report
        job = lockstep.torchrun(wait_for_each_other, nproc_per_node=2, on=nodes, may_fail=True)
        assert "is in recv" in job.verdict or "wait" in job.verdict
        assert "dist.recv(torch.ones(1))" in job.report
        cluster.stop_controller()
        try:
            job = lockstep.torchrun(twice, 4, nproc_per_node=2, on=nodes)
            assert job.results == [8] * 4
        finally:
            cluster.start_controller()


def test_a_world_keeps_its_job_and_has_another_when_that_is_cancelled(cluster):
    def where():
        return os.environ["SLURM_JOB_ID"], os.getpid()

    with lockstep.World(1, on=Slurm(nodes=1)) as world:
        first, second = world.run(where).results, world.run(where).results
        assert first == second
        subprocess.run(["scancel", first[0][0]], check=True)
        slurm.wait(lambda: not cluster.jobs())
        with pytest.raises(lockstep.JobFailed, match=r"it was cancelled"):
            world.run(where)
        assert world.run(where).results[0][0] != first[0][0]


def test_the_magic_takes_a_word_or_a_variable(cluster, run):
    cell = "import os\nos.environ['SLURMD_NODENAME']"
    run(f"%env SLURM_CONF {os.environ['SLURM_CONF']}")  # the kernel may be older
    reply = run(f"%%torchrun --nnodes 2 --nproc-per-node 1 --on slurm\n{cell}")
    assert "rank 0 → │ 'n1'" in reply.shown and "rank 1 → │ 'n2'" in reply.shown, reply.error
    run("import lockstep\nmine = lockstep.Slurm(nodes=1, partition='urgent')")
    reply = run("%%torchrun -n 1 --on mine\nimport os\nos.environ['SLURM_JOB_PARTITION']")
    assert "'urgent'" in reply.shown, reply.error
    reply = run("%%torchrun -n 1 --nnodes 2\n1")
    assert "--on slurm gets them from Slurm" in reply.error
    reply = run("%%torchrun -n 1 --on slurn\n1")
    assert "there is no cluster 'slurn'" in reply.error
    slurm.wait(lambda: not guards())


def guards() -> list[psutil.Process]:
    """Those who see to it that jobs end; they stay as long as one may have to be ended."""
    found = psutil.process_iter(["cmdline"])
    return [
        one for one in found if "scancel --state=PENDING" in " ".join(one.info["cmdline"] or ())
    ]


def test_inside_of_a_job_its_nodes_are_used(cluster, tmp_path):
    script = tmp_path / "inside.py"
    script.write_text(
        textwrap.dedent("""
            import os, lockstep
            from IPython.core.interactiveshell import InteractiveShell
            from lockstep.launch.cluster.allocation import find
            def where():
                return os.environ["SLURM_JOB_ID"], os.environ["SLURMD_NODENAME"], os.getppid()
            first = lockstep.torchrun(where, nproc_per_node=1, on="slurm", show=False)
            again = lockstep.torchrun(where, nproc_per_node=1, on="slurm", show=False)
            assert first.results == again.results  # agents stay
            print(*first.results, os.environ["SLURM_JOB_ID"])
            shell = InteractiveShell.instance()
            shell.run_line_magic("load_ext", "lockstep")
            shell.run_cell_magic("torchrun", "--nnodes 2 -n 1 --into job", "import os; os.getpid()")
            print(shell.user_ns["job"].stamp)
            with lockstep.World(1, on="slurm") as world:
                print(world.run(where)[1][1])
            try:
                lockstep.torchrun(where, on=find(None, 3))
            except lockstep.LaunchError as error:
                print(error)
        """)
    )
    command = ["salloc", "--nodes=2", "--cpus-per-task=2", sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    said = [line for line in done.stdout.splitlines() if not line.startswith("Slurm's job")]
    assert said[0].count("'n1'") == said[0].count("'n2'") == 1, done.stdout + done.stderr
    job = said[0].split()[-1]
    assert said[0].count(f"('{job}'") == 2  # no other job was submitted
    assert "live · 2 ranks on 2 nodes · gloo · CPU" in said
    assert said[-2] == "n2" and "this Slurm job has 2" in said[-1], done.stdout + done.stderr


def test_a_profile_is_written_and_tried(cluster, tmp_path):
    environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path)}

    def command(*words):
        return subprocess.run(
            [sys.executable, "-m", "lockstep", "cluster", *words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    done = command("init", "--partition", "urgent", "--time", "5", "--option=--comment=mine")
    assert done.returncode == 0, done.stdout + done.stderr
    profile = tmp_path / "lockstep" / "cluster.toml"
    assert profile.read_text().splitlines()[1:] == [
        *("[slurm]", "nodes = 2", 'partition = "urgent"', 'time = "5"'),
        'options = ["--comment=mine"]',
    ]
    assert "hello from n1" in done.stdout and "hello from n2" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("all is well: live · 2 ranks on 2 nodes")

    done = command("init", "--partition", "nope")
    assert done.returncode == 1 and "There are: down, main, tiny, urgent" in done.stdout
    assert 'partition = "urgent"' in profile.read_text()
    profile.write_text('[slurm]\npartitoin = "main"\n')
    done = command("check")
    assert done.returncode == 2 and "did you mean partition?" in done.stderr
    profile.write_text('[slurm]\nnodes = "two"\n')
    done = command("check")
    assert done.returncode == 2 and "Expected `int`, got `str`" in done.stderr


def test_a_home_that_is_not_shared_is_suspected(cluster):
    elsewhere = Slurm(setup="exit 3", options=("--output=/dev/null",))
    with pytest.raises(lockstep.LaunchError, match="on a file system that the nodes share"):
        lockstep.torchrun(abs, -1, nproc_per_node=1, on=elsewhere)


# ── GPUs, of which Slurm knows and PyTorch does not ──────────────────────────────────────────


def test_ranks_see_the_gpus_that_slurm_gives_their_node(cluster):
    def seen():
        names = ("SLURMD_NODENAME", "CUDA_VISIBLE_DEVICES", "LOCAL_RANK")
        return " ".join(os.environ[name] for name in names)

    job = lockstep.torchrun(seen, nproc_per_node=2, backend="gloo", on=Slurm(gpus_per_node=2))
    assert job.results == ["n1 0,1 0", "n1 0,1 1", "n2 0,1 0", "n2 0,1 1"]


def test_gpus_that_are_too_few_are_refused_before_and_after_the_queue(cluster):
    few = "by gpus_per_node= each node has 1 GPU, and NCCL needs one for each of the 2 ranks"
    with pytest.raises(lockstep.LaunchError, match=few):
        lockstep.torchrun(abs, -1, nproc_per_node=2, backend="nccl", on=Slurm(gpus_per_node=1))
    with pytest.raises(
        lockstep.LaunchError, match=r"rejected the job.*There are: gpu:2 on 2 nodes"
    ):
        lockstep.torchrun(abs, -1, nproc_per_node="gpu", on=Slurm(gpus_per_node=3))
    given = r"no GPUs on n1 .*, although it was given CUDA_VISIBLE_DEVICES=0,1, and NCCL needs 2"
    with pytest.raises(lockstep.LaunchError, match=given):
        lockstep.torchrun(abs, -1, nproc_per_node="gpu", on=Slurm(nodes=1, gpus_per_node=2))


# ── What ends them ───────────────────────────────────────────────────────────────────────────


def failed(*command: str, **wishes: Any) -> lockstep.Job:
    return lockstep.torchrun(
        by_slurm, *command, nproc_per_node=1, on=Slurm(**wishes), may_fail=True, timeout=100
    )


def test_a_job_that_is_cancelled_from_outside_is_named(cluster):
    job = failed("scancel", "{job}")
    assert "is lost" in job.verdict
    assert "it was cancelled (scancel) (CANCELLED)" in job.verdict, job.verdict


def test_the_time_limit_is_named(cluster):
    job = failed("scontrol", "update", "jobid={job}", "EndTime=now", nodes=1)
    assert "it reached its time limit (TIMEOUT)" in job.verdict, job.verdict


def test_a_job_that_had_to_make_room_is_named(cluster):
    other = ["--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null"]
    job = failed("sbatch", *other, "--wrap", "true", nodes=1)
    assert "it was preempted by a job of higher priority (PREEMPTED)" in job.verdict, job.verdict


@pytest.mark.skipif(bool(slurm.why_no_limits()), reason=slurm.why_no_limits())
def test_a_job_that_uses_too_much_memory_is_named(cluster):
    def grow():
        dist.barrier()
        if dist.get_rank() == 1:
            kept = []
            while True:
                kept.append(torch.ones(1 << 24))  # 64 MiB
        dist.barrier()

    job = lockstep.torchrun(
        grow, nproc_per_node=1, on=Slurm(memory="900M"), may_fail=True, timeout=100
    )
    named = (
        "Killed for memory: rank 1 on n2 (127.0.0.1): this job, or container, may use 900.00 MiB"
    )
    assert job.verdict.startswith(named), job.verdict
    assert "rank 1: killed by the kernel (SIGKILL), because memory ran out" in job.report


TRAIN = """\
import os, signal, sys
import torch
import torch.distributed as dist

warned = []
signal.signal(signal.SIGTERM, lambda *_: warned.append(True))
rank, ranks = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
attempt = os.environ.get("SLURM_RESTART_COUNT", "0")
dist.init_process_group("gloo", f"file://{os.getcwd()}/meet-{attempt}", rank=rank, world_size=ranks)
step = int(open("saved").read()) if os.path.exists("saved") else 0
began, last = step, 10**9 if attempt == "0" else step + 5
while step < last:
    leave = torch.tensor([len(warned)])
    dist.all_reduce(leave)
    step += 1
    if rank == 0 and step == began + 5:
        open(f"at-work-{attempt}", "w").write(str(began))
    if leave.item():
        break
if rank == 0:
    open("new", "w").write(str(step))
    os.replace("new", "saved")
    if step == last:
        open("finished", "w").close()
dist.barrier()
"""


def goes_on(folder: Path, train: str, *options: str) -> None:
    """Lab 13's batch script, of which only the name of the program is another one, is warned."""
    source = next((ROOT / "solutions" / "source").glob("13_*.py")).read_text(encoding="utf-8")
    script = source.partition("# ```bash\n")[2].partition("# ```")[0].replace("\n# ", "\n")
    script = script.removeprefix("# ").replace("srun python", f"srun {sys.executable}")
    (folder / "train.py").write_text(train)
    (folder / "job.sh").write_text(script)
    job = slurm.said(
        *("sbatch", "--parsable", "--time=60", f"--chdir={folder}", "--output=said", *options),
        str(folder / "job.sh"),
    )
    slurm.wait((folder / "at-work-0").exists)
    subprocess.run(["scancel", "--signal=TERM", job], check=True)
    slurm.wait((folder / "finished").exists, 90)
    warned_at = int((folder / "at-work-1").read_text())
    assert warned_at >= 5  # the second attempt began where the first had left
    assert int((folder / "saved").read_text()) == warned_at + 5


def test_the_batch_script_of_lab_13_goes_on_where_a_warning_has_ended_it(cluster, tmp_path):
    goes_on(tmp_path, TRAIN)


def test_a_node_that_goes_down_is_named(cluster):
    marker = cluster.folder / "up"

    def up(path):
        dist.barrier()
        Path(path).touch()
        time.sleep(100)

    def kill():
        slurm.wait(marker.exists, 90)
        cluster.kill_node("n2")

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        job = lockstep.torchrun(
            up, str(marker), nproc_per_node=1, on=Slurm(), may_fail=True, timeout=100
        )
    finally:
        killer.join()
        cluster.revive_node("n2")
    assert "The agent on n2" in job.verdict and "is lost" in job.verdict
    print(job.verdict)


# ── The queue ────────────────────────────────────────────────────────────────────────────────


def test_a_partition_that_is_not_there_is_named_with_those_that_are(cluster):
    with pytest.raises(lockstep.LaunchError, match=r"nope.*There are: down, main, tiny, urgent"):
        lockstep.torchrun(abs, -1, nproc_per_node=1, on=Slurm(partition="nope"))


def test_where_no_node_is_free_that_is_said(cluster, capfd):
    with full(cluster), pytest.raises(lockstep.LaunchError, match="did not start within 3 s"):
        lockstep.torchrun(abs, -1, nproc_per_node=1, on=Slurm(patience=3))
    assert (
        "waits: the resources that it asks for are not free (Resources)" in capfd.readouterr().out
    )


def test_a_queue_that_takes_no_more_jobs_says_so(cluster, monkeypatch):
    monkeypatch.setattr(queue, "_PATIENCE", 5.0)  # sbatch tries again and again
    refused = pytest.raises(lockstep.LaunchError, match=r"no answer within 5 s; .*unable to accept")
    with full(cluster), cluster.limited("MaxJobCount=1"), refused:
        lockstep.torchrun(abs, -1, nproc_per_node=1, on=Slurm())


def test_a_job_that_can_never_start_says_why(cluster):
    with pytest.raises(lockstep.LaunchError, match="more time than the partition allows"):
        lockstep.torchrun(
            abs, -1, nproc_per_node=1, on=Slurm(nodes=1, partition="tiny", time=9, patience=3)
        )


def test_without_a_controller_no_job_starts(cluster):
    cluster.stop_controller()
    try:
        with pytest.raises(lockstep.LaunchError, match=r"rejected the job.*contact slurm"):
            lockstep.torchrun(abs, -1, nproc_per_node=1, on=Slurm())
    finally:
        cluster.start_controller()


def test_a_controller_that_goes_while_a_job_waits_is_named(cluster, monkeypatch):
    def look(job, look=queue.job_status):
        cluster.stop_controller()
        return look(job)

    gone = r"did not start within 1 s: Slurm's controller does not answer: .*contact slurm"
    with full(cluster):
        monkeypatch.setattr(queue, "job_status", look)
        try:
            with pytest.raises(lockstep.LaunchError, match=gone):
                lockstep.torchrun(abs, -1, nproc_per_node=1, on=Slurm(patience=1))
        finally:
            cluster.start_controller()


def test_a_job_that_cannot_begin_says_what_it_printed(cluster):
    with pytest.raises(
        lockstep.LaunchError, match=r"before its agents were here(.|\n)*no module x"
    ):
        lockstep.torchrun(
            abs, -1, nproc_per_node=1, on=Slurm(setup="echo there is no module x; exit 3")
        )


# ── A notebook that goes ─────────────────────────────────────────────────────────────────────

_NOTEBOOK = """
    import lockstep, time
    def say():
        print("up", flush=True)
        time.sleep(100)
    lockstep.torchrun(say, nproc_per_node=1, on=lockstep.Slurm())
"""


@contextlib.contextmanager
def notebook(tmp_path: Path, line: str) -> Iterator[subprocess.Popen[str]]:
    """A program that has submitted a job, as far as until it prints `line`."""
    script = tmp_path / "notebook.py"
    script.write_text(textwrap.dedent(_NOTEBOOK))
    with subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        said = []
        for one in process.stdout:
            said.append(one)
            if line in one:
                break
        else:
            pytest.fail("".join(said))
        yield process


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_nothing_stays_where_it_ran(cluster, tmp_path, how):
    with notebook(tmp_path, "│ up") as process:
        assert cluster.jobs()
        process.send_signal(how)
        rest = process.stdout.read()
        assert process.wait(60) != 0
    assert ("JobInterrupted" in rest) == (how == signal.SIGINT), rest


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_nothing_stays_where_it_waited(cluster, tmp_path, how):
    with full(cluster):
        with notebook(tmp_path, "(Resources)") as process:
            assert len(cluster.jobs()) == 2
            process.send_signal(how)
            rest = process.stdout.read()
            assert process.wait(60) != 0
        assert ("nothing of it is left in the queue" in rest) == (how == signal.SIGINT), rest
        slurm.wait(lambda: len(cluster.jobs()) == 1)
