"""Three learners on a real JupyterHub, at the same time. `make test-hub`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import hub
import psutil
import pytest
from lockstep.base.paths import SOLUTIONS

pytestmark = [
    pytest.mark.hub,
    pytest.mark.timeout(240),  # the first starts three servers
    pytest.mark.skipif(bool(hub.why_not()), reason=hub.why_not()),
]

NAMES = ("ada", "bob", "eve")
GONE = 60.0  # seconds for processes that have been told to end
MOST = 1 << 30  # bytes of a learner, about twice what there are

MEET = """\
import json, lockstep
def meet(name):
    import os, torch.distributed as dist
    everybody = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, name)
    return {"met": everybody, "process": os.getpid(), "port": os.environ["MASTER_PORT"]}
world = lockstep.World(4)
print("told" + json.dumps(world.run(meet, "NAME").results))"""
THREADS = """\
%%torchrun --nproc-per-node 1 --into alone
import torch
torch.get_num_threads()"""
SPIN = """\
%%torchrun --nproc-per-node 4 --into job
import os
import torch, torch.distributed as dist
if dist.get_rank() == 0:
    print("they are", "up", flush=True)
    while not os.path.exists("go"):
        pass
x = torch.ones(1)
dist.all_reduce(x)
x.item()"""
CRASH = """\
%%torchrun --nproc-per-node 4
import os, torch.distributed as dist
dist.barrier()
if dist.get_rank() == 2:
    os.kill({kernel}, 9)
while True:
    pass"""
SNOOP = """\
import json, os, socket, stat
from pathlib import Path

def knock(path):
    with socket.socket(socket.AF_UNIX) as door:
        door.connect(str(path))

def reached(action, path):
    try:
        action(path)
    except OSError:
        return False
    return True

found = []
for process in {processes}:
    place = Path("/proc", str(process))
    if reached(lambda _: os.kill(process, 0), place):
        found.append(f"process {{process}}")
    for name in ("environ", "mem", "maps"):
        if reached(lambda path: path.open("rb").close(), place / name):
            found.append(str(place / name))
    if reached(os.listdir, place / "fd"):
        found.append(str(place / "fd"))
for top in {folders}:
    for folder, _, files in os.walk(top):
        for path in (Path(folder, name) for name in files):
            kind = path.lstat()
            if kind.st_uid in {numbers}:
                look = knock if stat.S_ISSOCK(kind.st_mode) else lambda p: p.open("rb").close()
                if reached(look, path):
                    found.append(str(path))
print("found" + json.dumps(found))"""


@pytest.fixture(scope="module")
def learners() -> Iterator[dict[str, hub.Learner]]:
    one = min(os.sched_getaffinity(0))
    with hub.serving(NAMES, cores={"eve": [one]}) as served:
        found = {learner.name: learner for learner in served.come(NAMES)}
        all_of(found, "%load_ext lockstep")
        yield found


def all_of(learners: dict[str, hub.Learner], *cells: str) -> list[list[hub.Reply]]:
    """What each sees under cells that all run at the same time."""

    def work(learner: hub.Learner) -> list[hub.Reply]:
        return [learner.run(code.replace("NAME", learner.name)) for code in cells]

    with ThreadPoolExecutor(len(learners)) as pool:
        return list(pool.map(work, learners.values()))


def printed(reply: hub.Reply, word: str):
    """The JSON that was printed behind a word."""
    assert reply.error == "", reply.error
    (line,) = (line for line in reply.text.splitlines() if line.startswith(word))
    return json.loads(line.removeprefix(word))


@pytest.mark.long
def test_all_do_lab_00_at_once_and_each_makes_progress(learners):
    (solution,) = SOLUTIONS.glob("00_*.ipynb")
    notebook = json.loads(solution.read_text())
    lab = ["".join(one["source"]) for one in notebook["cells"] if one["cell_type"] == "code"]
    said = all_of(learners, *lab)
    assert [[reply.error for reply in replies if reply.error] for replies in said] == [[]] * 3
    for learner, replies in zip(learners.values(), said, strict=True):
        assert sum("PASS" in reply.text for reply in replies) == 1
        (done,) = learner.home.rglob("progress.jsonl")
        assert done.stat().st_uid == learner.hub.numbers.get(learner.name, os.getuid())
        assert done.read_text().count('"passed"') == 1


def test_ranks_meet_their_own_and_nobody_elses(learners):
    said = all_of(learners, MEET)
    told = [printed(replies[0], "told") for replies in said]
    assert [[one["met"] for one in ranks] for ranks in told] == [[[name] * 4] * 4 for name in NAMES]
    assert len({one["port"] for ranks in told for one in ranks}) == 3
    for learner, ranks in zip(learners.values(), told, strict=True):
        family = {process.pid: process for process in learner.processes()}
        assert {one["process"] for one in ranks} <= family.keys()
        listening = [
            each.laddr.ip
            for process in family.values()
            for each in process.net_connections("inet")
            if each.status == "LISTEN"
        ]
        assert listening and {*listening} <= {"127.0.0.1", "::1"}
        used = sum(process.memory_full_info().pss for process in family.values())
        print(f"{learner.name}: {used / 1e6:.0f} MB, {len(family)} processes")  # for pytest -rP
        assert used < MOST


def test_a_rank_takes_the_cores_that_the_hub_gives(learners):
    said = all_of(learners, THREADS, "print('told', alone.results[0])")
    threads = [int(replies[-1].text.split()[1]) for replies in said]
    assert threads[2] == 1
    assert threads[:2] == [threads[0]] * 2
    assert threads[0] > 1 or len(os.sched_getaffinity(0)) == 1


@pytest.mark.skipif(bool(hub.why_no_walls()), reason=hub.why_no_walls())
def test_nobody_reaches_anothers_ranks_files_traces_or_reports(learners):
    eve, served = learners["eve"], learners["eve"].hub

    def reaches(*names: str) -> list[str]:
        processes = [process.pid for name in names for process in learners[name].processes()]
        folders = [str(served.temporary), "/dev/shm", *(str(learners[n].home) for n in names)]
        numbers = [served.numbers[name] for name in names]
        cell = SNOOP.format(processes=processes, folders=folders, numbers=numbers)
        return printed(eve.run(cell), "found")

    traced = SPIN.replace('"go"', '"/"').replace("--into job", "--into job --trace")
    assert ["they are up" in replies[0].text for replies in all_of(learners, traced)] == [True] * 3
    assert reaches("ada", "bob") == []
    own = reaches("eve")  # where there is nothing between, this is what is found
    assert {f"process {one.pid}" for one in eve.processes()} <= {*own}
    assert [one for one in own if str(eve.home) in one]


def test_anothers_crash_or_interrupt_is_nobodys_trouble(learners):
    ada, bob, eve = learners.values()
    before = {process.pid for process in eve.processes()}
    eve.open()
    told = eve.run("%load_ext lockstep\nimport os, lockstep\nprint('kernel', os.getpid())")
    eve.run("%%torchrun -n 1\n1")  # from here on the forkserver is up
    killed = [process for process in eve.processes() if process.pid not in before]
    kernel = int(told.text.split()[1])
    assert len(killed) == 2 and kernel in {process.pid for process in killed}
    for learner in (ada, bob):
        learner.begin(SPIN)
        assert "they are up" in learner.wait_for("they are up").text
    eve.begin(CRASH.format(kernel=kernel))
    assert psutil.wait_procs(killed, GONE)[1] == []
    bob.interrupt()
    assert bob.finish().error.startswith("JobInterrupted")
    (ada.home / "go").touch()
    assert ada.finish().error == ""
    assert ada.run("print(job.results)").text == "[4.0, 4.0, 4.0, 4.0]\n"
    assert bob.run(SPIN.replace('"go"', '"/"')).error == ""


def test_a_server_that_stops_in_a_cell_takes_all_with_it(learners):
    bob = learners["bob"]
    bob.begin(SPIN)
    bob.wait_for("they are up")
    family = bob.processes()
    assert len(family) > 6
    bob.hub.stop("bob")
    assert psutil.wait_procs(family, GONE)[1] == []
    assert bob.processes() == []


def test_culling_leaves_nothing(learners):
    ada = learners["ada"]
    printed(ada.run(MEET.replace("NAME", "ada")), "told")
    family = ada.hub.processes()
    assert len(ada.processes()) > 6
    with ada.hub.culling(idle=1):
        assert psutil.wait_procs(family, GONE)[1] == []
    assert ada.hub.processes() == []
    numbers = {*ada.hub.numbers.values()}
    # PyTorch's compile cache is to stay. A kernel that is slow to go is killed by its server, and
    # leaves a trace for `lockstep clean`.
    kept = re.compile(r"torchinductor_.*|lockstep-[a-z0-9_]{8}")
    left = [one for one in ada.hub.temporary.iterdir() if not kept.fullmatch(one.name)]
    left += [one for one in Path("/dev/shm").iterdir() if one.lstat().st_uid in numbers]
    assert [(str(one), one.lstat().st_uid) for one in left] == []
