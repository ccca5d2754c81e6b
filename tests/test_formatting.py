"""Text of others can be seen, but neither obeyed by a terminal nor taken for HTML."""

import gc
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import lockstep
import numpy as np
import pytest
import test_compiled
import test_doctor
import test_trace_allocations
import test_trace_flight
import test_trace_memory_snapshot
from kineto_files import event, head, kernel, write
from lockstep import torchrun
from lockstep.__main__ import main
from lockstep.base.formatting import (
    binary,
    in_one_line,
    megabytes,
    microseconds,
    milliseconds,
    number,
    printable,
    quantity,
)
from lockstep.base.provenance import Provenance
from lockstep.course.compiled import view
from lockstep.course.doctor import diagnose
from lockstep.course.exercises import CheckOutcome, Hint
from lockstep.course.progress import LabExercises, Progress
from lockstep.timeline import Timeline, page
from lockstep.trace import Trace, TraceError
from lockstep.trace.analyses.diff import diff
from lockstep.trace.read.flight import flight
from lockstep.trace.read.memory_snapshot import memory
from synthetic import program

TITLE, CLEAR, OVERRIDE = "\x1b]0;mine\x07", "\x9b2J", "\u202etxt.exe\u2066"
ATTACK = f"</td><script>x('\"&')</script><img src=x onerror=x()>{TITLE}{CLEAR}{OVERRIDE}\r\x7f"
OWN = {"script", "img", "style"}  # of these tags only ours may be there


def unfit(text: str) -> set[str]:
    """What a terminal would obey."""
    return {letter for letter in text if not (letter.isprintable() or letter in "\n\t\xa0")}


class Html(HTMLParser):
    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attributes}


def hostile(trace: Trace) -> Trace:
    """The same, whose every name is an attack."""
    return trace.derive(
        names=[f"{name}{ATTACK}" for name in trace.names],
        lanes=[replace(lane, label=f"{lane.label}{ATTACK}") for lane in trace.lanes],
        known=[replace(one, group=ATTACK) for one in trace.known],
        stamp=Provenance(f"recorded{ATTACK}", ATTACK),
        notes=[ATTACK],
    )


def of_traces() -> list[Any]:
    trace, other = (hostile(program(np.random.default_rng(seed))[0]) for seed in (1, 2))
    asked: list[Any] = [
        trace.breakdown(),
        trace.collectives(),
        trace.critical_path(),
        trace.launches(),
    ]
    asked += [trace.kernels(), trace.align().certificate, diff(trace, other)]
    asked.append(lockstep.gate([other] * 2, [trace] * 2))
    return [*asked, Timeline(trace, before=other, title=ATTACK)]


def of_a_server(folder: Path) -> list[Any]:
    """One pass of an inference server, with shapes and memory; what can be named is an attack."""
    folder.mkdir()
    start, half = 1_000_000_000, {"Input type": [ATTACK, ATTACK]}
    events = [
        event("user_annotation", "execute_context_1(8)_generation_0(0)", start, 90_000),
        event("cpu_op", "aten::mm", start, 40_000, **{"Input Dims": [[8, 4], [4, 8]], **half}),
        event("cpu_op", f"mine{ATTACK}", start + 50_000, 20_000),
        event("cuda_runtime", "cudaLaunchKernel", start + 1_000, 1_000, correlation=1),
        kernel(f"gemm{ATTACK}", start + 5_000, 7_000, correlation=1),
        test_trace_allocations.memory(60_000, 700, 700, address=1),
    ]
    write(folder / "rank0.json", events, head())
    trace = Trace.load(folder, cache=False)
    return [trace.traffic(), trace.rates(), trace.streams(), trace.serving(), trace.allocations()]


def of_labs() -> list[Any]:
    stamp = Provenance(f"live{ATTACK}", ATTACK)
    lines = {ATTACK: [(1, 2), (2, 3)], "b": [(1, 1), (2, 2)]}
    machine = replace(test_doctor.ONE_GPU, platform=ATTACK, gpu_error=ATTACK)
    return [
        lockstep.table(ATTACK, ("a", ATTACK), [(ATTACK, ATTACK)], stamp=stamp),
        lockstep.figure(lambda canvas: None, alt=ATTACK, stamp=stamp),
        lockstep.chart(lines, x="bytes", y="seconds", alt=ATTACK, stamp=stamp),
        lockstep.claim(ATTACK, guess="holds", verdict="holds", because=ATTACK, stamp=stamp),
        lockstep.compare(1.0, 2.0, ATTACK),
        lockstep.interactive.pipeline({ATTACK: lambda rank, ranks, count: []}),
        CheckOutcome(ATTACK, "TRY AGAIN", f"{ATTACK}\n{ATTACK}", ATTACK, (ATTACK,), 1, ATTACK),
        Hint(ATTACK),
        Progress([LabExercises("00", ATTACK, (ATTACK,))]),
        diagnose(machine),
        view(replace(test_compiled.SEEN, source=("def f(x):", ATTACK)), stamp=stamp),
    ]


def of_files(folder: Path) -> list[Any]:
    folder.mkdir()
    frames = [{"name": ATTACK, "filename": f"/home/{ATTACK}.py", "line": 40}]
    for rank in range(2):
        entries = [{**test_trace_flight.entry(1 + rank, f"reduce{ATTACK}"), "frames": frames}]
        test_trace_flight.dump(folder, rank, entries, ranks=(0, 1))
    alloc = {**test_trace_memory_snapshot.event("alloc", 0, 1 << 20, 1), "frames": frames}
    return [
        flight(folder),
        memory(test_trace_memory_snapshot.snapshot([alloc]), stamp=Provenance("x", ATTACK)),
    ]


def of_ranks() -> list[Any]:
    def say():
        print(ATTACK)
        return ATTACK

    job = torchrun(say, nproc_per_node=1, show=False)
    return [job, torchrun(int, ATTACK, nproc_per_node=1, may_fail=True, show=False)]


def test_whatever_draws_itself_shows_hostile_text_as_text(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / ATTACK.replace("/", "")))
    ours, foreign = [*of_ranks(), *of_labs()], [*of_traces(), *of_files(tmp_path / "dumps")]
    foreign += of_a_server(tmp_path / "server")
    drawn = set[type]()
    for shown in [*ours, *foreign]:
        name = type(shown).__name__
        drawn.update(type(shown).__mro__)
        bundle = shown._repr_mimebundle_()
        html = Html(bundle["text/html"])
        assert "script" not in html.tags, name
        assert "onerror" not in html.attributes, name
        # A View's picture is for others alone; a Comparison's number line is in its HTML only.
        pictured = name == "Comparison" or ("image/png" in bundle and name != "View")
        assert ("img" in html.tags) == pictured, name
        # What a learner's own program says, colours and all, is shown as it is.
        if shown in foreign:
            assert unfit(bundle["text/plain"]) == unfit(str(shown)) == set(), name
    assert drawn >= {
        one
        for one in gc.get_objects()
        if isinstance(one, type)
        and str(one.__module__).startswith("lockstep.")
        and ("_repr_mimebundle_" in vars(one) or "_repr_html_" in vars(one))
    }, "draw every class that draws itself here, too"


def test_a_page_shows_hostile_text_as_text():
    trace, _ = program(np.random.default_rng(1), collectives=10)
    html = Html(page(hostile(trace), [(ATTACK, ATTACK)], title=ATTACK))
    assert "img" not in html.tags and "onerror" not in html.attributes
    empty = Html(page(trace, title="x"))
    assert html.tags.count("script") == empty.tags.count("script")


def test_what_a_terminal_would_obey_is_written_out():
    assert (
        printable(f"a{TITLE}{CLEAR}\r\n\tü 日本 👩‍💻")
        == "a\\x1b]0;mine\\x07\\x9b2J\\r\n\tü 日本 👩‍💻"
    )
    assert printable(OVERRIDE) == "\\u202etxt.exe\\u2066"
    assert printable("\udc80") == "\\udc80"
    assert in_one_line("a\nb\tc\x1b") == "a\\nb\\tc\\x1b"
    everything = "".join(map(chr, range(0x3000)))
    assert not any(letter in "\x1b\r\x07\x9b\u202e\u2067\u2028" for letter in printable(everything))


def traces(folder: Path) -> str:
    """Two ranks whose file names, threads, annotations and kernels are attacks."""
    folder.mkdir()
    name = ATTACK.replace("/", "")
    for rank in (0, 1):
        events = [
            event("user_annotation", ATTACK, 1_000_000_000, 90_000),
            event("cuda_runtime", "cudaLaunchKernel", 1_000_000_000, 1_000, correlation=1),
            kernel(f"sgemm{ATTACK}", 1_000_005_000, 7_000, correlation=1),
        ]
        write(folder / f"{name}rank{rank}.json", events, head(rank, 2))
    return str(folder)


def test_times_and_sizes():
    assert milliseconds(1_234_567_890) == "1,234.568"
    assert (microseconds(1_234_567, 2), microseconds(-1_400, 0)) == ("1,234.57", "-1")
    assert megabytes(12_345_678) == "12"
    assert [quantity(value, "s") for value in (0, 5e-10, 1.68e-5, 999.9e-6, 1234)] == [
        "0 s",
        "0.5 ns",
        "16.8 µs",
        "1 ms",
        "1,230 s",
    ]
    assert [number(value) for value in (65_536.0, 0.272727, 12.345, 1234.5, -99.96, 1.2345e-5)] == [
        "65,536",
        "0.273",
        "12.3",
        "1,230",
        "-100",
        "1.23e-05",
    ]
    assert (quantity(1e3, "B"), quantity(-3.4e11, "B/s")) == ("1 kB", "-340 GB/s")
    assert [binary(count) for count in (1023, 1024, 3 << 29)] == [
        "1023 bytes",
        "1.00 KiB",
        "1.50 GiB",
    ]


@pytest.mark.parametrize("spoilt", [False, True])
def test_the_command_shows_traces_of_hostile_names(tmp_path, capsys, spoilt):
    folder = traces(tmp_path / f"run{TITLE}")
    if spoilt:
        for path in Path(folder).iterdir():
            path.write_text("no trace")
    assert main(["trace", folder]) == (2 if spoilt else 0)
    shown = capsys.readouterr()
    written = (
        "\\x1b]0;mine\\x07" if spoilt else "\\u2066\\r\\x7f"
    )  # long names are cut in the middle
    assert written in shown.out + shown.err
    assert unfit(shown.out) == unfit(shown.err) == set()
    if spoilt:
        with pytest.raises(TraceError) as raised:
            Trace.load(folder)
        assert unfit(str(raised.value)) == set()


def test_commands_show_hostile_paths(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / TITLE))
    assert main(["progress"]) == 0
    (tmp_path / TITLE / "labs").mkdir(parents=True)
    (tmp_path / TITLE / "labs" / f"00_{TITLE}.ipynb").write_text("{")
    monkeypatch.chdir(tmp_path / TITLE)
    assert main(["run", "labs", "-p", "NPROC=2"]) == 2
    assert main(["run", "labs", "7"]) == 2
    shown = capsys.readouterr()
    assert shown.out.count("\\x1b]0;mine") == 1 and shown.err.count("\\x1b]0;mine") == 3
    assert unfit(shown.out) == unfit(shown.err) == set()
