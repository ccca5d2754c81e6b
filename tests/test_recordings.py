"""What the recordings are said to show is what the analyses find in them; and what makes them."""

import gzip
import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
import torch
from experiments import (
    backends,
    course,
    launching,
    manifest,
    recording,
    reserve,
    sweeps,
)
from experiments.__main__ import main
from experiments.command import EXPERIMENTS, find, record
from experiments.experiment import (
    CannotRecord,
    Experiment,
    ExperimentFailed,
    Result,
    by_torchrun,
    join,
)
from lockstep import Trace, recorded, torchrun
from lockstep.base.machine import Gpu, Machine, Torch
from lockstep.course.labs import lab07
from lockstep.trace.analyses.diff import diff
from lockstep.trace.read.flight import flight
from lockstep.trace.read.memory_snapshot import memory
from lockstep.trace.read.pickles import read_plain


@pytest.fixture(scope="module")
def traces():
    names = ["data-parallel-before", "data-parallel-after", "slow-rank", "starved", "experts"]
    names += [f"tensor-parallel-{how}" for how in ("eager", "compiled", "graph")]
    return {name: Trace.load(recorded(f"traces/{name}")).align() for name in names}


def shares(trace, what):
    """Return that share of the length of its steps, by rank."""
    return [getattr(part, what) / part.length for part in trace.breakdown().totals]


def test_every_trace_is_on_one_clock_and_its_breakdown_adds_up(traces):
    for name, trace in traces.items():
        assert trace.ranks == (0, 1, 2, 3), name
        assert trace.certificate.resolution < 25_000, name
        for part in trace.breakdown().steps:
            busy = part.compute + part.exposed + part.copies
            idle = part.host_bound + part.dependency + part.other
            assert busy + idle == part.length == part.end - part.start


def test_buckets_hide_communication(traces):
    before, after = (traces[f"data-parallel-{when}"] for when in ("before", "after"))
    assert max(part.overlap for part in before.breakdown().totals) < 0.05
    assert min(part.overlap for part in after.breakdown().totals) > 0.7
    assert min(shares(before, "exposed")) > 4 * max(shares(after, "exposed"))


def test_the_slow_rank_is_the_one_that_all_wait_for(traces):
    found = traces["slow-rank"].collectives()
    last = found.stragglers[0]
    assert last.rank == 1
    assert last.caused > 0.95 * found.waited.sum()
    assert max(shares(traces["slow-rank"], "exposed")) > 0.14


@pytest.mark.parametrize("letter", "ABCDEF")
def test_the_library_alone_finds_the_cause_of_each_case(letter):
    found, right = lab07.case(letter).cause(), lab07.truth(letter)
    assert found.word == right.cause
    assert found.ranks == (() if right.rank is None else (right.rank,))
    if letter == "E":  # its share is of the calls alone, and not of all the waiting for the host
        assert 0.3 < found.share < right.least
    else:
        assert right.least <= found.share <= right.most


def test_a_rank_without_input_is_bound_by_its_host(traces):
    assert min(shares(traces["starved"], "host_bound")) > 0.4
    assert max(shares(traces["data-parallel-after"], "host_bound")) < 0.05


def test_a_graph_is_one_launch_of_many_kernels(traces):
    eager, graph = (traces[f"tensor-parallel-{how}"].launches() for how in ("eager", "graph"))
    assert graph.of(0, "graph").calls == 3
    assert graph.of(0, "graph").launched == eager.of(0, "kernel").launched == 3 * 16 * 6


def test_compiling_fuses_kernels(traces):
    found = diff(traces["tensor-parallel-eager"], traces["tensor-parallel-compiled"])
    new = {one.work.name for one in found.only_after}
    assert any(name.startswith("triton_per_fused_add_native_layer_norm") for name in new)
    assert "triton_poi_fused_gelu_0" in new
    assert {one.work.range for one in found.only_after} == {"## Call CompiledFxGraph ##"}


def test_experts_exchange_tokens(traces):
    known = {one.operation for one in traces["experts"].known}
    assert known == {"all_to_all"}


def test_counters_have_each_kernel_in_its_range_and_the_operations_counted_by_hand():
    found = recorded("traces/experts-counters.json").content
    for kernels in (found["caches_emptied"], found["caches_kept"]):
        assert [len(one["ranges"]) for one in kernels] == [1] * 22
        done = [one["sm__ops_path_tensor_src_bf16_dst_fp32.sum"] for one in kernels]
        assert sorted(done)[-2:] == [2 * 8192 * 1024 * 4096] * 2
    phases = ["combine", "dispatch", "expert", "route"]  # and not the one by NVTX around it
    assert found["profiler"]["ranges"] == phases
    assert len(found["profiler"]["kernels"]) == 22


def test_the_hang_names_the_rank_that_left_one_out():
    found = flight(recorded("traces/hang").path)
    assert "Ranks 0, 1, 3 wait in all_reduce #6" in str(found)
    assert "for rank 2, which never called it" in str(found)


def test_the_allocator_frees_what_it_took():
    found = memory(recorded("traces/memory").path / "rank0.pickle.gz")
    assert found.allocated[found.peak] > 500e6
    assert set(found.mismatch.values()) == {0}


# python -m experiments

DATA = Path(__file__).parents[1] / "data"
JUPYTER = ("IPython", "ipykernel", "ipywidgets", "jupyter_client", "nbclient", "nbformat")
OTHERS = ("anywidget", "matplotlib", "papermill", "psutil", "traitlets")


@pytest.fixture
def without_jupyter(tmp_path):
    """The environment of a machine on which only PyTorch and Lockstep are installed."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    for name in JUPYTER + OTHERS:
        (hidden / f"{name}.py").write_text(f"raise ModuleNotFoundError('no {name} here')")
    library = str(DATA.parent / "lib")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(hidden), library])}


def command(*arguments, environment):
    program = [sys.executable, "-m", "experiments", *map(str, arguments)]
    return subprocess.Popen(
        program, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def content_of(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def entries(folder):
    return json.loads((folder / "manifest.json").read_text(encoding="utf-8"))


def experiment(*results, gpus=False, **options):
    def run(machine, nproc):
        for result in results:
            if isinstance(result, Exception):
                raise result
        return results

    return Experiment("test", "a test", 1, run, gpus=gpus, **options)


def write(folder, *results):
    return list(record([experiment(*results)], None, folder, "python -m experiments test"))


def test_what_was_found_before_a_stop_is_kept(tmp_path):
    def run(machine, nproc):
        yield Result("parts.json", "parts", {"rows": [1]})
        yield Result("parts.json", "parts", {"rows": [1, 2]})
        raise RuntimeError("stopped")

    stopping = Experiment("test", "a test", 1, run, gpus=False)
    with pytest.raises(RuntimeError, match="stopped"):
        list(record([stopping], None, tmp_path, "python -m experiments test"))
    assert json.loads((tmp_path / "parts.json").read_text()) == {"rows": [1, 2]}
    (entry,) = entries(tmp_path)
    assert entry["file"] == "parts.json"


@pytest.mark.more
def test_the_command_records_and_notes_down_where_and_how(tmp_path, without_jupyter):
    folder = tmp_path / "somebody" / "data"
    (folder / "launch").mkdir(parents=True)
    (folder / "launch" / "two-nodes.json").write_text("[]")
    other, older = {"file": "other.json"}, {"file": "launch/two-nodes.json", "what": "old"}
    (folder / "manifest.json").write_text(json.dumps([older, other]))
    environment = {**without_jupyter, "NCCL_TOPO_FILE": "/home/somebody/topo.xml"}
    environment |= {"NCCL_NVLS_ENABLE": "0", "CUDA_MODULE_LOADING": "LAZY", "EDITOR": "vi"}
    environment |= {"NCCL_VERSION": "2.28.3-1", "CUDA_HOME": "/usr/local/cuda"}
    running = command("-n", 1, "two-nodes", "--to", folder, environment=environment)
    said, complaint = running.communicate()
    assert running.returncode == 0, complaint
    assert said.startswith("two-nodes: launch/two-nodes.json in ")
    ranks = json.loads((folder / "launch" / "two-nodes.json").read_text())
    assert [rank["RANK"] for rank in ranks] == ["0", "1"]
    assert [rank["GROUP_RANK"] for rank in ranks] == ["0", "1"]
    assert [rank["LOCAL_RANK"] for rank in ranks] == ["0", "0"]
    assert ranks[0].keys() == recorded("launch/two-nodes.json").content[0].keys()
    entry, kept = entries(folder)  # in the order in which they were
    assert kept == other
    assert entry["experiment"] == "two-nodes"
    assert entry["command"] == "python -m experiments two-nodes -n 1 --to data"
    assert (
        entry["conditions"].items()
        >= {
            "NCCL_TOPO_FILE": "topo.xml",
            "NCCL_NVLS_ENABLE": "0",
            "CUDA_MODULE_LOADING": "LAZY",
        }.items()
    )
    installed = {"NCCL_VERSION", "CUDA_HOME"}
    assert not {"EDITOR", "PATH", *installed} & entry["conditions"].keys()
    assert entry["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert entry["versions"]["lockstep"].startswith("0.1.0")
    assert entry["hardware"]["cores"] >= 1
    assert "somebody" not in (folder / "manifest.json").read_text()


@pytest.mark.long
def test_what_starts_ranks_of_its_own_needs_no_jupyter(without_jupyter):
    code = "from experiments import launching; print(*launching.world(2, 'gloo', times=1))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=without_jupyter, capture_output=True, text=True
    )
    assert done.stdout.startswith("first cell second cell"), done.stderr


def is_agent(process: psutil.Process) -> bool:
    try:
        return "--nnodes=2" in process.cmdline()
    except psutil.Error:  # a child that has ended meanwhile
        return False


@pytest.mark.long
def test_an_interrupted_command_leaves_nothing_behind(tmp_path, without_jupyter):
    folder = tmp_path / "data"
    write(folder, Result("launch/two-nodes.json", "older", []))
    before = content_of(folder)
    with command("two-nodes", "--to", folder, environment=without_jupyter) as running:
        process = psutil.Process(running.pid)
        agents: list[psutil.Process] = []
        while len(agents) < 2:
            assert running.poll() is None
            time.sleep(0.05)  # nothing tells of it
            agents = [one for one in process.children() if is_agent(one)]
        running.send_signal(signal.SIGTERM)
        assert running.wait() == 130
        assert not any(agent.is_running() for agent in agents)
        assert "nothing half was written" in running.stderr.read()
    assert content_of(folder) == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("sweep", "there is no experiment 'sweep'; there are: two-nodes, backends"),
        ("two-nodes sweep", "there is no experiment 'sweep'"),
        ("backends -n 3", "backends takes 2 ranks, not 3: say another -n"),
        ("sweeps -n 1", "sweeps takes 2 or more ranks, not 1"),
        ("two-nodes -n 0", "two-nodes takes 1 or more ranks, not 0"),
        ("two-nodes sweeps -n 150", "sweeps needs a GPU for each of its 150 ranks"),
        ("two-nodes --to FILE", "FILE is a file: name a folder"),
        ("two-nodes --to FOLDER", "FOLDER/manifest.json is no JSON (Expecting value"),
    ],
)
def test_what_is_refused_before_anything_runs(tmp_path, monkeypatch, capsys, arguments, said):
    monkeypatch.chdir(tmp_path)
    Path("FILE").touch()
    Path("FOLDER").mkdir()
    Path("FOLDER", "manifest.json").touch()
    target = [] if "--to" in arguments else ["--to", "data"]
    assert main([*arguments.split(), *target]) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.out == ""
    assert sorted(content_of(tmp_path)) == ["FILE", "FOLDER", "FOLDER/manifest.json"]


H200 = Gpu("NVIDIA H200", 150 * 10**9, 132, (9, 0))
MACHINE = Machine(
    system="Linux",
    platform="Linux",
    python="3.12.3",
    cores=64,
    memory_total=None,
    memory_available=None,
    shm=None,
    driver="580",
    visible_devices=None,
    gpus=(H200,) * 2,
    gpu_error=None,
    links=(("X", "NV18"), ("NV18", "X")),
    compiler=None,
    python_headers=True,
    torch=Torch("2.11.0+cu130", "cu130", ("gloo", "nccl"), "2.28.9", "3.6.0"),
    packages=(),
)


def test_how_many_ranks_an_experiment_takes():
    sweeping, claims = find(["sweeps", "claims"])
    assert MACHINE.torch
    assert sweeping.ranks_on(MACHINE, None) == 2  # one on each GPU
    assert sweeping.ranks_on(replace(MACHINE, gpus=(H200,) * 8), None) == 8
    assert sweeping.ranks_on(MACHINE, 2) == 2
    assert claims.ranks_on(MACHINE, None) == 1
    refusals = [
        (sweeping, MACHINE, 4, "can use 2 GPUs here: .* or say -n 2"),
        (claims, replace(MACHINE, gpus=(), gpu_error="old driver"), None, r"no GPU here \(old dri"),
        (claims, replace(MACHINE, torch=None), None, "needs PyTorch"),
        (sweeping, replace(MACHINE, torch=replace(MACHINE.torch, backends=())), 2, "needs NCCL"),
    ]
    for one, machine, asked, said in refusals:
        with pytest.raises(CannotRecord, match=said):
            one.ranks_on(machine, asked)


def test_the_entry_of_a_machine_with_gpus(tmp_path, monkeypatch):
    monkeypatch.setattr("lockstep.base.machine.probe", lambda: MACHINE)
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6")
    write(
        tmp_path,
        Result("plain.json", "a", 1),
        Result("ring.json", "b", 1, {"NCCL_ALGO": "Ring"}),
        Result("free.json", "c", 1, {"NCCL_ALGO": None}),
    )
    plain, ring, free = entries(tmp_path)
    assert plain["machine"] == "2 NVIDIA H200 of one host, 64 cores"
    assert plain["ranks"] == 2
    assert plain["hardware"]["gpus"] == {"NVIDIA H200": 2}
    assert plain["hardware"]["link"] == "NV18"
    assert plain["versions"]["cuda"] == "13.0"
    assert plain["versions"]["driver"] == "580"
    assert plain["conditions"]["CUDA_VISIBLE_DEVICES"] == "GPU"
    algorithms = [one["conditions"].get("NCCL_ALGO") for one in (plain, ring, free)]
    assert algorithms == ["Tree", "Ring", None]


def test_files_are_written_as_their_names_say_and_without_names_of_the_machine(tmp_path):
    host = socket.gethostname()
    said = [
        f"{host}: rank 0 of {host}.local",
        "/opt/venv/lib/python3.12/site-packages/torch/nn/functional.py",
        "in /home/somebody/lab.py, line 3; at 3/4 of http://pytorch.org/docs/stable",
    ]
    clean = [
        "host: rank 0 of host.local",
        "torch/nn/functional.py",
        "in lab.py, line 3; at 3/4 of http://pytorch.org/docs/stable",
    ]
    files = ("rank0.json.gz", "rank0.pickle.gz", "rank0")
    write(
        tmp_path,
        Result("one.json", said[0], {"é": said}),
        Result("many", "a folder", dict.fromkeys(files, (tuple(said), 1.5))),
    )
    assert json.loads((tmp_path / "one.json").read_text(encoding="utf-8")) == {"é": clean}
    zipped, packed, plain = ((tmp_path / "many" / file).read_bytes() for file in files)
    assert json.loads(gzip.decompress(zipped)) == [clean, 1.5]
    expected = (tuple(clean), 1.5)
    assert pickle.loads(gzip.decompress(packed)) == pickle.loads(plain) == expected
    assert entries(tmp_path)[0]["what"] == clean[0]


def test_a_recording_is_replaced_as_a_whole_or_not_at_all(tmp_path):
    write(tmp_path, Result("a.json", "old", 1), Result("b", "old", {"x.json": 1, "y.json": 2}))
    before = content_of(tmp_path)
    new = Result("a.json", "new", 3), Result("b", "new", {"x.json": 4})
    for failure in (ExperimentFailed("on purpose"), Result("c.json", "not JSON", {1, 2})):
        with pytest.raises((ExperimentFailed, TypeError)):
            write(tmp_path, *new, failure)
        assert content_of(tmp_path) == before
    write(tmp_path, *new)
    assert sorted(content_of(tmp_path)) == [
        "SHA256SUMS",
        "a.json",
        "b",
        "b/x.json",
        "manifest.json",
    ]
    assert [entry["what"] for entry in entries(tmp_path)] == ["new", "new"]


@pytest.mark.more
def test_ranks_of_pytorch_that_fail_fail_the_experiment():
    with pytest.raises(
        ExperimentFailed, match=r"torchrun ended lockstep\.nothing with exit code 1"
    ):
        by_torchrun("lockstep.nothing", nproc=1)


def test_a_rank_joins_under_nccl_with_its_own_gpu(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    asked: list[Any] = []
    monkeypatch.setattr(torch.cuda, "set_device", asked.append)
    monkeypatch.setattr(
        torch.distributed,
        "init_process_group",
        lambda backend, device_id: asked.append((backend, device_id)),
    )
    own = torch.device("cuda", 3)
    assert join() == own
    assert asked == [own, ("nccl", own)]


def test_the_manifest_has_one_schema_and_every_entry_an_experiment(tmp_path):
    write(tmp_path, Result("a.json", "new", 1))
    (fresh,) = entries(tmp_path)
    for entry in entries(DATA):
        assert entry.keys() - {"retired"} == fresh.keys(), entry["file"]
        for part in ("hardware", "versions"):
            assert entry[part].keys() == fresh[part].keys(), entry["file"]
    recorded_by = {entry["experiment"] for entry in entries(DATA) if not retired(entry)}
    assert recorded_by == {one.name for one in EXPERIMENTS}
    gone = {entry["experiment"] for entry in entries(DATA) if retired(entry)}
    assert not gone & {one.name for one in EXPERIMENTS}


def retired(entry: dict[str, Any]) -> bool:
    """Say whether the experiment that made this recording is no more."""
    return entry.get("retired") is True


# Of before there were experiments: it has keys of its own for what the manifest says.
BEFORE = {"launch/h200-x4.json"}


def keys_of(folder: Path, file: str) -> list[str]:
    """Return the keys that `Experiment.writes` must say of a recording."""
    if (folder / file).is_dir():
        return sorted(one.name for one in (folder / file).iterdir())
    content = (
        read_plain(folder / file)
        if file.endswith(".pickle.gz")
        else json.loads((folder / file).read_text(encoding="utf-8"))
    )
    rows = content if isinstance(content, list) else [content]
    return sorted({key for row in rows for key in row})


def unlike(experiment: Experiment, file: str, found: list[str]) -> str:
    """Say why an experiment would not write a recording with these keys, or files; else ""."""
    patterns = [keys for name, keys in experiment.writes.items() if fnmatchcase(file, name)]
    if not patterns:
        return f"{experiment.name} writes no {file}"
    (wanted,) = patterns
    unknown = [key for key in found if not any(fnmatchcase(key, one) for one in wanted)]
    lacking = [one for one in wanted if not any(fnmatchcase(key, one) for key in found)]
    if not unknown and not lacking:
        return ""
    return f"{file} has {', '.join(unknown) or 'nothing else'}, and lacks {', '.join(lacking)}"


def stale(folder: Path) -> list[str]:
    known = {one.name: one for one in EXPERIMENTS}
    said = [
        unlike(known[entry["experiment"]], entry["file"], keys_of(folder, entry["file"]))
        for entry in entries(folder)
        if entry["file"] not in BEFORE and not retired(entry)
    ]
    return [one for one in said if one]


def test_no_recording_is_edited_orphaned_or_of_an_older_program():
    assert manifest.doubts(DATA) == []
    assert stale(DATA) == []


@pytest.fixture
def copied(tmp_path):
    return shutil.copytree(DATA, tmp_path / "data")


def edit(folder: Path) -> None:
    file = folder / "overlap" / "h200-x2.json"
    text = file.read_text()
    at = text.index("0.00")
    file.write_text(text[:at] + "0.01" + text[at + 4 :])


def edit_a_trace(folder: Path) -> None:
    file = folder / "traces" / "experts" / "rank2.json.gz"
    file.write_bytes(file.read_bytes() + b"\0")


def lose_an_entry(folder: Path) -> None:
    rest = [one for one in entries(folder) if one["file"] != "overlap/h200-x2.json"]
    (folder / "manifest.json").write_text(json.dumps(rest))


def double_an_entry(folder: Path) -> None:
    (folder / "manifest.json").write_text(json.dumps([*entries(folder), entries(folder)[0]]))


def lose_a_file(folder: Path) -> None:
    (folder / "traces" / "hang" / "rank1").unlink()


def add_a_file(folder: Path) -> None:
    (folder / "sweeps" / "mine.json").write_text("{}")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (edit, "overlap/h200-x2.json is not what was recorded"),
        (edit_a_trace, "traces/experts/rank2.json.gz is not what was recorded"),
        (lose_an_entry, "overlap/h200-x2.json has no entry in the manifest"),
        (double_an_entry, "launch/h200-x4.json is in the manifest more than once"),
        (lose_a_file, "traces/hang/rank1 is in SHA256SUMS, and not there"),
        (add_a_file, "sweeps/mine.json has no entry in the manifest"),
    ],
)
def test_what_is_wrong_with_a_recording_is_found(copied, change, said):
    change(copied)
    (found,) = manifest.doubts(copied)
    assert found.startswith(said)


def test_what_no_program_of_today_writes_is_stale():
    (sweeping,) = find(["sweeps"])
    keys = keys_of(DATA, "sweeps/h200-x2.json")
    assert unlike(sweeping, "sweeps/h200-x2.json", keys) == ""
    assert unlike(sweeping, "sweep/h200-x2.json", keys) == "sweeps writes no sweep/h200-x2.json"
    said = unlike(sweeping, "sweeps/h200-x2.json", [*keys[1:], "speeds"])
    assert said == f"sweeps/h200-x2.json has speeds, and lacks {keys[0]}"
    (launch,) = find(["launch"])  # whose keys name the number of ranks
    own = ["unit", "fresh, 1", "fresh, 8", "world, 1", "failures"]
    assert unlike(launch, "launch/h200-x8.json", own) == ""
    assert "lacks world, *" in unlike(launch, "launch/h200-x8.json", own[:3] + own[4:])


def test_what_was_recorded_elsewhere_is_taken_in_with_its_entries(copied, tmp_path, capsys):
    elsewhere = tmp_path / "elsewhere"
    write(
        elsewhere,
        Result("sweeps/mine.json", "new", 1),
        Result("traces/experts", "shorter", {"rank0.json.gz": 2}),
    )
    before = entries(copied)
    assert main(["--from", str(elsewhere), "--to", str(copied)]) == 0
    assert capsys.readouterr().out.split() == ["sweeps/mine.json", "traces/experts"]
    assert manifest.doubts(copied) == []
    assert [path.name for path in (copied / "traces" / "experts").iterdir()] == ["rank0.json.gz"]
    now = entries(copied)
    assert len(now) == len(before) + 1 and now[-1]["file"] == "sweeps/mine.json"
    assert {one["file"]: one["what"] for one in now}["traces/experts"] == "shorter"
    (elsewhere / "sweeps" / "mine.json").write_text("2")
    assert main(["--from", str(elsewhere), "--to", str(copied)]) == 2
    assert "sweeps/mine.json is not what was recorded" in capsys.readouterr().err
    assert main(["--from", str(tmp_path / "nowhere"), "--to", str(copied)]) == 2
    assert "nowhere: there is no such folder" in capsys.readouterr().err


def test_the_list_says_what_is_needed_and_when_it_was_recorded(capsys, tmp_path):
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == [one.name for one in EXPERIMENTS]
    (listed,) = (line for line in lines if line.startswith("sweeps"))
    newest = max(one["date"] for one in entries(DATA) if one["experiment"] == "sweeps")
    assert f"  {newest} on " in listed
    assert "  2 or more GPUs  " in listed
    assert main(["--to", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("  never  ") == len(EXPERIMENTS)


def test_the_course_is_executed_and_its_table_written_notebook_by_notebook(tmp_path):
    notebook = nbformat.v4.new_notebook()
    for source, tags in (("NPROC = 4", ["parameters"]), ("print(NPROC)", [])):
        notebook.cells.append(nbformat.v4.new_code_cell(source, metadata={"tags": tags}))
    for name in ("00_one", "01_two"):
        (tmp_path / "solutions").mkdir(exist_ok=True)
        nbformat.write(notebook, tmp_path / "solutions" / f"{name}.ipynb")
    bad = nbformat.v4.new_code_cell("1 / 0")
    notebook.cells.append(bad)
    nbformat.write(notebook, tmp_path / "solutions" / "02_bad.ipynb")
    two = Experiment(
        "course",
        "",
        1,
        lambda m, n: course.run(m, n, ["solutions"], ["00", "02"], tmp_path),
        gpus=False,
    )
    (done,) = record([two], 2, tmp_path / "data", "typed")
    one, bad = (result.content for result in done.results)
    assert [row["notebook"] for row in (*one, *bad)] == [
        "solutions/00_one.ipynb",
        "solutions/02_bad.ipynb",
    ]
    assert bad[0]["state"] == "failed" and "ZeroDivision" in bad[0]["problems"][0]
    entry, other = entries(tmp_path / "data")
    assert [Path(each["file"]).name for each in (entry, other)] == ["00_one.json", "02_bad.json"]
    assert entry["ranks"] == 2 and entry["versions"]["torch"]
    text = course.table(tmp_path / "data")
    assert "NPROC=2: " in text and entry["date"] in text and "0 of 0 checks; **failed**" in text


@pytest.mark.long
def test_a_notebook_that_hangs_leaves_its_time_to_the_others(tmp_path):
    (tmp_path / "labs").mkdir()
    for name, code in (("00_slow", "import time; time.sleep(600)"), ("01_quick", "1")):
        notebook = nbformat.v4.new_notebook()
        notebook.cells.append(nbformat.v4.new_code_cell(code, metadata={"tags": ["parameters"]}))
        nbformat.write(notebook, tmp_path / "labs" / f"{name}.ipynb")
    machine = replace(MACHINE, gpus=())
    both = course.run(machine, 1, ["labs"], where=tmp_path, limit=20)
    (slow,), (quick,) = (result.content for result in both)
    assert slow["state"] == "failed" and "it took longer than 20 s" in slow["problems"][0]
    assert 20 < slow["seconds"] < 100
    assert "longer" not in str(quick["problems"])


def test_the_most_memory_of_any_gpu_is_noted_for_each_notebook(tmp_path, monkeypatch):
    (tmp_path / "labs").mkdir()
    for name in ("00_one", "01_two"):
        notebook = nbformat.v4.new_notebook()
        notebook.cells.append(nbformat.v4.new_code_cell("1", metadata={"tags": ["parameters"]}))
        nbformat.write(notebook, tmp_path / "labs" / f"{name}.ipynb")
    asked = tmp_path / "asked"
    driver = tmp_path / "nvidia-smi"
    driver.write_text(
        f'#!/bin/sh\necho "$@" > {asked}\n'
        "while true; do echo 10; echo 300; echo '[N/A]'; sleep 0.1; done\n"
    )
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    both = list(course.run(MACHINE, 1, ["labs"], where=tmp_path))
    assert [one.file for one in both] == [
        f"course/h200-x1/{it}.json" for it in ("00_one", "01_two")
    ]
    rows = [row for result in both for row in result.content]
    assert [row["peak_gpu_memory_bytes"] for row in rows] == [300 << 20] * 2
    assert asked.read_text().endswith("-i 2,3\n")


def row(notebook, seconds, passed, state="ok", gpu=None):
    return dict(zip(course.ROW, (notebook, seconds, 2e9, gpu, 5, passed, state, []), strict=True))


def test_the_table_of_the_course_has_a_column_for_each_machine(tmp_path, monkeypatch):
    for gpus, rows in [
        (1, [row("solutions/00_a.ipynb", 12.2, 5, gpu=3 << 30)]),
        (
            2,
            [
                row("solutions/00_a.ipynb", 10.0, 5, gpu=1 << 30),
                row("solutions/01_b.ipynb", 20.4, 4, "failed", 1 << 30),
                row("labs/00_a.ipynb", 7.0, 0),
                row("labs/01_b.ipynb", 8.0, 0, "failed"),
            ],
        ),
    ]:
        machine = replace(MACHINE, gpus=(H200,) * gpus)
        monkeypatch.setattr("lockstep.base.machine.probe", lambda machine=machine: machine)
        by_lab: dict[str, list] = {}
        for each in rows:
            by_lab.setdefault(Path(each["notebook"]).stem, []).append(each)
        found = [Result(f"course/h200-x{gpus}/{lab}.json", "a", it) for lab, it in by_lab.items()]
        list(record([replace(experiment(*found), name="course")], gpus, tmp_path, "typed"))
    head, _, a, b, every, _, first, second = course.table(tmp_path).splitlines()
    assert head == "| solution | 1 NVIDIA H200, each lab's NPROC | 2 NVIDIA H200, NPROC=2 |"
    assert a.startswith("| 00_a | 12 s; 2.0 GB, GPU 3.2 GB; 5 of 5 checks | 10 s; 2.0 GB, GPU 1.1")
    assert b == "| 01_b | – | 20 s; 2.0 GB, GPU 1.1 GB; 4 of 5 checks; **failed** |"
    assert every == "| together | 12 s; 5 of 5 checks | 30 s; 9 of 10 checks |"
    assert "64 cores, PyTorch 2.11.0+cu130, NCCL 2.28.9, driver 580" in first
    assert ". Not run: 01, 02, " in first and first.endswith(". The blank labs were not run.")
    assert ". Not run: 02, " in second and second.endswith(
        "The 2 blank labs take 15 s; of them failed: 01_b."
    )


@pytest.mark.more
def test_a_lab_is_recorded_anew_beside_the_others(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data, name = tmp_path / "data", "course/cpu-x2/{}.json"
    monkeypatch.setattr("lockstep.base.machine.probe", lambda: replace(MACHINE, gpus=()))
    notebook = nbformat.v4.new_notebook()
    notebook.cells.append(nbformat.v4.new_code_cell("NPROC = 4", metadata={"tags": ["parameters"]}))
    for kind in ("solutions", "labs"):
        (tmp_path / kind).mkdir()
        for lab in ("00_one", "01_two"):
            nbformat.write(notebook, tmp_path / kind / f"{lab}.ipynb")
    list(record(find(["course"]), 2, data, "typed"))
    before = {lab: (data / name.format(lab)).read_text() for lab in ("00_one", "01_two")}
    notebook.cells.append(nbformat.v4.new_code_cell("1 / 0"))
    for lab in ("00_one", "01_two"):
        nbformat.write(notebook, tmp_path / "labs" / f"{lab}.ipynb")
    assert main(["course/1", "-n", "2", "--to", str(data)]) == 0
    assert (data / name.format("00_one")).read_text() == before["00_one"]
    solution, lab = json.loads((data / name.format("01_two")).read_text())
    assert "ZeroDivision" in str(lab["problems"])
    assert "ZeroDivision" not in str(solution["problems"])
    said = {Path(one["file"]).stem: one["command"] for one in entries(data)}
    assert said["00_one"] == "typed" and "course/1" in said["01_two"]
    assert manifest.doubts(data) == []
    for wrong, why in {
        "course/9": "has no lab 9",
        "sweeps/2": "no parts",
        "1/course": "no exp",
    }.items():
        with pytest.raises(CannotRecord, match=why):
            list(record(find([wrong]), None, data, "typed"))


def test_labs_that_were_recorded_under_other_conditions_say_so(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)  # it is a condition, too
    for lab, driver in (("00_a", "580"), ("01_b", "590")):
        machine = replace(MACHINE, driver=driver)
        monkeypatch.setattr("lockstep.base.machine.probe", lambda machine=machine: machine)
        found = Result(f"course/h200-x4/{lab}.json", "a", [row(f"solutions/{lab}.ipynb", 9.0, 5)])
        list(record([replace(experiment(found), name="course")], 4, tmp_path, "typed"))
    *_, said = course.table(tmp_path).splitlines()
    assert ": 00: 20" in said and "driver 580; 01: 20" in said and "driver 590. Not run: 02" in said


def test_the_table_in_the_readme_is_that_of_the_recordings():
    readme = course.PAGE.read_text(encoding="utf-8")
    assert course.quoted(readme) == course.table(DATA), "python -m experiments.course mends it"
    assert course.quoted(course.quote(readme, "another\n")) == "another\n"


# What the experiments measure, under gloo


def test_a_stamp_says_how_many_ranks_were_at_work_where_the_machine_has_more_gpus():
    two, four = (recorded(f"sweeps/h200-x{ranks}.json").stamp.source for ranks in (2, 4))
    assert two.startswith("2 ranks on 4 NVIDIA H200 of one host, ")
    assert four.startswith("4 NVIDIA H200 of one host, ")


def test_what_gloo_can_do():
    said = backends.answers("gloo", "cpu")
    for answers in recorded("backends/nccl-h200.json").content.values():
        assert answers.keys() == said.keys()
    unable = [name for name, answer in said.items() if answer != "yes"]
    assert unable == ["broadcast, float8", "all_gather, uneven"]


def test_a_reserve_is_timed_under_gloo():
    found = reserve.measure(2, "gloo", times=2, seconds=0.05)
    assert found.keys() == recorded("launch/reserve-h200-x2.json").content.keys()
    assert all(found[way]["cell"] > 0 for way in reserve.WAYS)


@pytest.mark.more
def test_the_cost_of_the_record_is_measured_by_turns(tmp_path):
    jobs = recording.by_turns(str(tmp_path), 2, turns=1, programs=2)
    found = {job: [seconds] for job, seconds in zip(recording.JOBS, jobs, strict=True)}
    for seconds in recording.compared(found).values():
        assert all(0 < one < 10 for one in seconds)
    assert jobs[0].keys() == recorded("recording/cpu-x4.json").content["Lockstep"][0].keys()


def _sweep_everything():
    return {name: sweeps.measure(make, (256, 1 << 14), 3) for name, make in sweeps.SWEEPS.items()}


@pytest.mark.long
def test_what_is_swept_under_gloo():
    job = torchrun(_sweep_everything, nproc_per_node=2, backend="gloo", show=False)
    for name, rows in recorded("sweeps/h200-x2.json").content["sweeps"].items():
        assert [row["bytes"] for row in job[0][name]] == [256, 1 << 14]
        for row in job[0][name]:
            assert row.keys() == rows[0].keys()
            assert 0 < row["lower_quartile"] <= row["seconds"] <= row["upper_quartile"] < 1
    assert job[0].keys() == sweeps.SWEEPS.keys()
    gathered = {call.bytes for call in job.calls[0] if "all_gather" in call.operation}
    assert gathered == {128, 1 << 13}, {call.operation for call in job.calls[0]}


def test_failures_are_told_by_the_place_in_the_cell():
    told = launching.failures(launching.FAILURES, 2, "gloo")
    starts = {
        "raises": "rank 1: ValueError: on purpose\n  this cell, line 4\n",
        "different": "The ranks are in different collectives",
        "early": "Rank 0 waits in all_reduce #1",
        "all_send": "Every waiting rank is in send",
    }
    assert told.keys() == starts.keys()
    for name, start in starts.items():
        assert told[name]["report"].startswith(start)
    assert '→    4 │     raise ValueError("on purpose")' in told["raises"]["report"]
