"""Does a program end under `lockstep.torchrun` as it ends under torchrun? Run it many times both
ways and compare: ended or not, exit code, each rank's lines, files, processes left behind.

    python tests/endings.py                                   every program of ending_programs.py
    python tests/endings.py --only "FSDP2" --form cell --warm 1000 --lanes 2
    python tests/endings.py --minutes 10                      as many rounds as fit
    python tests/endings.py train.py -n 2 --torchrun 3 -- --lr 0.1      any script, beside torchrun
    python tests/endings.py --family groups meshes            programs of programs/; all: of all
    python tests/endings.py --family groups --record          run them under torchrun and keep that
    python tests/endings.py --family ordinary --live          beside torchrun, on the GPUs if any

Ways: warm and elastic (our two engines), torchrun (PyTorch's command). Programs run in an empty
folder. What our programs have to leave behind is written down; for those of programs/ it is
recorded in programs/torchrun.json; for another script it is what torchrun's runs have in common.
PYTHONPATH says whose `lockstep` is tried. The exit status is 1 where anything hung, differed or
stayed.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import itertools
import json
import math
import os
import platform
import re
import select
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
from ending_programs import FAMILIES, FOLDER, FORMS, PROGRAMS, Program

WAYS = ("warm", "elastic", "torchrun")
STARTING = 60.0  # seconds that starting Python and PyTorch may take on a busy machine
SETTLE = 2.0  # seconds in which a process that has been told to end is gone
MORE = {"descriptors": 20, "threads": 4}  # that a rank may have beyond those under torchrun
RECORDED = FOLDER / "torchrun.json"
_MARK = "LOCKSTEP_ENDINGS"  # in the environment of every process that is started here
_COUNT = re.compile(r"^~(\w+) (\d+)$", re.M)  # a line that may differ as MORE allows
# Below those that the kernel gives out, so that no other program gets one that was found free.
_PORTS = itertools.count(20_000 + os.getpid() % 10_000)
_DIGITS = re.compile(r"(?<![\w.])-?\d+\.\d{3,}(?![\w.])")
_LONGEST = 4000  # characters of a rank's stdout that are recorded as they are


@dataclass(frozen=True)
class Outcome:
    """How one run ended. code: of the rank that failed first, 0: all is well, None: a hang."""

    code: int | None
    seconds: float
    stdout: tuple[str, ...]  # of each rank
    files: dict[str, str]  # a digest of the content, by name
    left: tuple[str, ...]  # processes and temporary files that outlived it
    said: str  # what the launcher said of it


@dataclass(frozen=True)
class Expected:
    """What a run has to be like. stdout: None where torchrun's own runs differ in it. perhaps:
    files that some of these leave.
    """

    codes: frozenset[int | None]
    stdout: tuple[str, ...] | None
    files: dict[str, str | None]  # None: any content
    perhaps: frozenset[str] = frozenset()

    @staticmethod
    def of(program: Program) -> Expected:
        printing = range(program.ranks) if program.code == 0 else [1]
        text = "".join(f"{line}\n" for line in program.lines)
        stdout = tuple(text if rank in printing else "" for rank in range(program.ranks))
        files = {
            name: None if content is None else _digest(content.encode())
            for name, content in program.files.items()
        }
        return Expected(frozenset([program.code]), stdout, files)

    @staticmethod
    def common(runs: Sequence[Outcome]) -> Expected:
        first, *others = runs
        alike = len({tuple(map(plain, run.stdout)) for run in runs}) == 1
        files = {}
        for name in sorted(set(first.files).intersection(*(run.files for run in others))):
            digests = {run.files[name] for run in runs}
            files[name] = digests.pop() if len(digests) == 1 else None
        perhaps = frozenset(name for run in runs for name in run.files) - files.keys()
        codes = frozenset(run.code for run in runs)
        return Expected(codes, first.stdout if alike else None, files, perhaps)

    def differences(self, run: Outcome) -> list[str]:
        """What is not as expected, one sentence each; [] where all is."""
        found = []
        if run.code is None:
            return ["it hangs"] if None not in self.codes else []
        if run.code not in self.codes:
            wanted = " or ".join(map(str, self.codes))
            found.append(f"exit code {run.code} instead of {wanted}")
        stdout = zip(run.stdout, self.stdout or run.stdout, strict=True)
        for rank, (seen, expected) in enumerate(stdout):
            found += [f"rank {rank} {what}" for what in _unlike(seen, expected)]
        missing = [name for name in self.files if name not in run.files]
        if missing:
            found.append(f"files that are missing: {', '.join(missing)}")
        added = run.files.keys() - self.files.keys() - self.perhaps
        if added:
            found.append(f"files that torchrun does not leave: {', '.join(sorted(added))}")
        kept = {name: digest for name, digest in self.files.items() if digest and name in run.files}
        wrong = [name for name, digest in kept.items() if run.files[name] != digest]
        if wrong:
            found.append(f"files with another content: {', '.join(wrong)}")
        return found


def plain(stdout: str) -> str:
    """What has to be the same: without its counts, and of a flood only the beginning."""
    text = _COUNT.sub(r"~\1", stdout)
    if len(text) <= _LONGEST:
        return text
    return f"{text[:200]}… {len(text)} characters, SHA-256 {_digest(text.encode())}"


def _unlike(seen: str, wanted: str) -> list[str]:
    ours, theirs = plain(seen), plain(wanted)
    if not _alike(ours, theirs):
        pairs = enumerate(zip(f"{ours}\0", f"{theirs}\0", strict=False))
        alike = next(place for place, (our, their) in pairs if our != their)
        shown = slice(max(alike - 60, 0), alike + 240)
        return [f"printed {ours[shown]!r} instead of {theirs[shown]!r}"]
    counts = zip(_COUNT.findall(seen), _COUNT.findall(wanted), strict=True)
    return [
        f"has {ours} {what}, and {theirs} under torchrun"
        for (what, ours), (_, theirs) in counts
        if not 0 <= int(ours) - int(theirs) <= MORE[what]
    ]


def _alike(ours: str, theirs: str) -> bool:
    """The same text; decimals may differ as they do from one kind of CPU to another."""
    if _DIGITS.sub("#", ours) != _DIGITS.sub("#", theirs):
        return False
    numbers = zip(_DIGITS.findall(ours), _DIGITS.findall(theirs), strict=True)
    return all(math.isclose(float(a), float(b), rel_tol=1e-3, abs_tol=1e-3) for a, b in numbers)


# ── What torchrun did ────────────────────────────────────────────────────────────────────────


@functools.cache
def recorded() -> dict[tuple[str, str], Expected]:
    """By family and program. What has been changed since is not in it."""
    kept = json.loads(RECORDED.read_text())["programs"] if RECORDED.exists() else {}
    found = {}
    for family, programs in FAMILIES.items():
        for name, program in programs.items():
            said = kept.get(family, {}).get(name, {"source": None})
            if said["source"] == _digest(program.source.encode()):
                stdout = said["stdout"]
                by_rank = (stdout,) * program.ranks if isinstance(stdout, str) else tuple(stdout)
                found[family, name] = Expected(frozenset([said["code"]]), by_rank, said["files"])
    return found


def record(outcomes: dict[Case, list[Outcome]]) -> list[str]:
    """Keep what torchrun did; returns what cannot be kept, for it differs from run to run."""
    kept = json.loads(RECORDED.read_text())["programs"] if RECORDED.exists() else {}
    runs_of: dict[tuple[str, str], list[Outcome]] = {}
    for case, runs in outcomes.items():
        runs_of.setdefault(case.key, []).extend(runs)
    refused = []
    for (family, name), runs in runs_of.items():
        expected = Expected.common(runs)
        first = replace(Expected.common(runs[:1]), files=expected.files)
        differences = dict.fromkeys(what for run in runs for what in first.differences(run))
        if differences or None in first.codes:
            refused.append(f"{family}: {name}: {'; '.join(differences) or 'it hangs'}")
            continue
        stdout = [text if len(text) <= _LONGEST else plain(text) for text in runs[0].stdout]
        kept.setdefault(family, {})[name] = {
            "source": _digest(FAMILIES[family][name].source.encode()),
            "code": runs[0].code,
            "stdout": stdout[0] if len(set(stdout)) == 1 else stdout,
            "files": expected.files,
        }
    programs = {
        family: {name: kept[family][name] for name in programs if name in kept.get(family, ())}
        for family, programs in FAMILIES.items()
    }
    versions = {"torch": version("torch"), "python": platform.python_version()}
    content = {**versions, "programs": programs}
    RECORDED.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    return refused


# ── Running ──────────────────────────────────────────────────────────────────────────────────


class Lane:
    """Runs programs one after another, and ends whatever comes of them. A context manager."""

    def __init__(self, gpus: bool = False) -> None:
        """gpus: whether programs see them. What torchrun did is recorded without."""
        # Not pytest's tmp_path: a Unix socket's path has room for about 100 characters.
        self._folder = Path(tempfile.mkdtemp(prefix="ends-"))
        self._temporary = self._folder / "tmp"
        self._temporary.mkdir()
        self._mark = uuid.uuid4().hex
        self._environment = {
            **os.environ,
            _MARK: self._mark,
            "TMPDIR": str(self._temporary),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            **({} if gpus else {"CUDA_VISIBLE_DEVICES": ""}),
            "LOCKSTEP_PROGRESS": "off",
        }
        self._driver: subprocess.Popen[bytes] | None = None
        self._runs = 0

    def run(
        self,
        program: Program,
        form: str,
        way: str,
        limit: float,
        path: Path | None = None,
        arguments: Sequence[str] = (),
    ) -> Outcome:
        """One run. limit: seconds after which it counts as a hang, with STARTING where a Python
        has to start first. path: the script, where it is not `program` that has the text.
        """
        self._runs += 1
        folder, logs = self._folder / f"work-{self._runs}", self._folder / "logs"
        folder.mkdir()
        text = program.text(form)
        if path is None:
            path = self._folder / "program.py"
            # What is a function here is one for torchrun, too; its groups it makes itself.
            there = program.text("function" if "function" in form else "script")
            whole = there if way == "torchrun" else text
            path.write_text(whole + ("main()\n" if "function" in form else ""))
        stdout = [""] * program.ranks
        code, seconds, said = 0, 0.0, ""
        for _ in range(program.jobs):
            if way == "torchrun":
                command = [f"--nproc-per-node={program.ranks}", f"--log-dir={logs}", str(path)]
                answer = self._under_torchrun([*command, *arguments], folder, limit + STARTING)
            else:
                order = {
                    "form": form,
                    "text": text,
                    "path": str(path),
                    "arguments": list(arguments),
                    "backend": "auto" if '"nccl"' in program.source else "gloo",  # a World's
                    "directory": str(folder),
                    "logs": str(logs),
                    "options": {
                        "nproc_per_node": program.ranks,
                        "engine": "torchrun" if way == "elastic" else "warm",
                        "timeout": limit + (STARTING if way == "elastic" else 0),
                    },
                }
                answer = self._under_lockstep(order)
            code, said = answer["code"], answer["said"]
            seconds += answer["seconds"]
            for rank in range(program.ranks):
                found = logs.glob(f"*/attempt_0/{rank}/stdout.log")
                logged = "".join(file.read_bytes().decode(errors="replace") for file in found)
                stdout[rank] += answer["output"][rank] if answer["output"] else logged
            shutil.rmtree(logs, ignore_errors=True)
            if code != 0:
                break
        left = self._left()
        files = {
            str(file.relative_to(folder)): _digest(file.read_bytes())
            for file in sorted(folder.rglob("*"))
            if file.is_file() and file.parent.name != "__pycache__"
        }
        shutil.rmtree(folder, ignore_errors=True)
        return Outcome(code, seconds, tuple(stdout), files, left, said)

    def _under_torchrun(self, command: Sequence[str], folder: Path, limit: float) -> dict[str, Any]:
        port = next(port for port in _PORTS if _is_free(port))
        python = [sys.executable, "-m", "torch.distributed.run"]
        began = time.perf_counter()
        said = self._folder / "said"
        with said.open("wb") as words:
            process = subprocess.Popen(
                [*python, f"--master-port={port}", "--redirects=3", *command],
                cwd=folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=words,
                start_new_session=True,
            )
            try:
                code: int | None = process.wait(limit)
            except subprocess.TimeoutExpired:
                code = None
                self._kill(self._processes())
                process.wait()
        seconds = time.perf_counter() - began
        words_of = said.read_text(errors="replace")
        if code and (match := re.search(r"Root Cause.*?exitcode\s*: (-?\d+)", words_of, re.DOTALL)):
            code = int(match[1])
        return {"code": code, "output": None, "said": words_of, "seconds": seconds}

    def _under_lockstep(self, order: dict[str, Any]) -> dict[str, Any]:
        if self._driver is None:
            self._driver = self._start_driver()
        began = time.perf_counter()
        answer = self._ask(order, order["options"]["timeout"] + STARTING)
        if answer is None:  # not even the launcher's own time limit has ended it
            self._kill(self._processes())
            self._driver = None
            said = "the launcher itself did not come back"
            answer = {"code": None, "output": None, "said": said}
        return {"seconds": time.perf_counter() - began, **answer}

    def _start_driver(self) -> subprocess.Popen[bytes]:
        driver = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("ending_driver.py"))],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._driver = driver
        folder, options = str(self._folder), {"nproc_per_node": 1}
        warm_up = {"form": "cell", "text": "1", "directory": folder, "options": options}
        self._ask({**warm_up, "logs": f"{folder}/logs"}, 3 * STARTING)
        shutil.rmtree(self._folder / "logs")
        return driver

    def _ask(self, order: dict[str, Any], patience: float) -> dict[str, Any] | None:
        assert self._driver is not None
        assert self._driver.stdin is not None and self._driver.stdout is not None
        try:
            self._driver.stdin.write(json.dumps(order).encode() + b"\n")
            self._driver.stdin.flush()
        except BrokenPipeError:
            return None
        readable, _, _ = select.select([self._driver.stdout], [], [], patience)
        line = self._driver.stdout.readline() if readable else b""
        return json.loads(line) if line else None

    # ── What is left ─────────────────────────────────────────────────────────────────────────

    def _processes(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(_MARK) == self._mark:
                    found.append(process)
        return found

    def _left(self) -> tuple[str, ...]:
        """End what a run has left behind, and name it."""
        known = set()
        if self._driver is not None:
            with contextlib.suppress(psutil.Error):
                driver = psutil.Process(self._driver.pid)
                known = {driver, *driver.children()}  # the latter is the forkserver
        alive = [process for process in self._processes() if process not in known]
        if alive:
            _, alive = psutil.wait_procs(alive, timeout=SETTLE)
        names = []
        for process in alive:
            with contextlib.suppress(psutil.Error):
                names.append(f"process {process.name()} {' '.join(process.cmdline()[1:4])}")
        self._kill(alive)
        for path in self._temporary.iterdir():
            if path.name.startswith("lockstep-"):
                names.append(f"temporary {path.name}")
                shutil.rmtree(path, ignore_errors=True)
        return tuple(names)

    def _kill(self, processes: Sequence[psutil.Process]) -> None:
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(processes, timeout=SETTLE)

    def close(self) -> None:
        if self._driver is not None and self._driver.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._driver.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._driver.wait(SETTLE)
        for _ in range(3):  # what is killed may have started another one a moment ago
            self._kill(self._processes())
        if self._driver is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._driver.wait(SETTLE)
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Lane:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


# ── Many runs ────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Case:
    name: str
    program: Program = field(compare=False)
    form: str
    way: str
    runs: int
    family: str = ""

    @property
    def key(self) -> tuple[str, str]:
        return self.family, self.name

    def __str__(self) -> str:
        family = f"{self.family}: " if self.family else ""
        return f"{family}{self.name} · {self.form} · {self.way}"


def cases(options: argparse.Namespace) -> list[Case]:
    runs = {way: getattr(options, way) for way in WAYS}
    if options.program is not None:
        script = Program("", forms=("script",), ranks=options.n)
        return [Case(options.program.name, script, "script", way, runs[way]) for way in WAYS]
    found = []
    families = {family: FAMILIES[family] for family in options.family} or {"": PROGRAMS}
    for family, programs in families.items():
        for name, program in programs.items():
            if options.only and not any(words in name for words in options.only):
                continue
            for form, way in itertools.product(program.forms, WAYS):
                same = way == "torchrun" and form not in ("script", "function")  # as one of these
                twice = options.record and "function" not in program.forms
                if not same and form in (options.form or FORMS):
                    found.append(Case(name, program, form, way, runs[way] << twice, family))
    return found


def rounds(cases: Sequence[Case], deadline: float) -> Iterator[Case]:
    """Each case once, then each again: what else the machine does falls on all of them."""
    for number in range(max(case.runs for case in cases)):
        for case in cases:
            if time.monotonic() > deadline:
                return
            if number < case.runs:
                yield case


def run_all(options: argparse.Namespace) -> dict[Case, list[Outcome]]:
    waiting = rounds(cases(options), time.monotonic() + 60 * options.minutes)
    outcomes: dict[Case, list[Outcome]] = {}
    lock, stop = threading.Lock(), threading.Event()
    path = options.program and options.program.resolve()

    def work(lane: Lane) -> None:
        while True:
            with lock:
                case = next(waiting, None)
            if case is None or stop.is_set():
                return
            outcome = lane.run(
                case.program, case.form, case.way, options.limit, path, options.arguments
            )
            with lock:
                outcomes.setdefault(case, []).append(outcome)
            if outcome.code is None:
                print(f"hangs: {case}", file=sys.stderr, flush=True)

    gpus = options.live or not options.family
    with contextlib.ExitStack() as stack:
        lanes = [stack.enter_context(Lane(gpus)) for _ in range(options.lanes)]
        pool = stack.enter_context(ThreadPoolExecutor(options.lanes))
        working = [pool.submit(work, lane) for lane in lanes]
        try:
            for future in working:
                future.result()
        except KeyboardInterrupt:
            print("interrupted: each lane ends the run that it is in", file=sys.stderr)
        finally:
            stop.set()
    return outcomes


def table(outcomes: dict[Case, list[Outcome]], options: argparse.Namespace) -> tuple[str, bool]:
    """The counts of each case, or of each family, and what was seen; and whether all is well."""
    head = ("program", "form", "way", "runs", "hangs", "failed", "differ", "left", "median s")
    rows: list[tuple[str, ...]] = [head]
    remarks = []
    agree: dict[tuple[str, str], list[bool]] = {}  # by family and form
    for case in filter(outcomes.get, cases(options)):
        runs = outcomes[case]
        expected = reference(case, outcomes, options)
        remarks_here: Counter[str] = Counter()
        differ = 0
        for run in runs:
            differences = expected.differences(run)
            differ += bool(differences)
            remarks_here.update(differences)
            remarks_here.update(run.left)
            for family in ("all", case.family):
                form = case.form + ("" if case.way == "warm" else f" · {case.way}")
                agree.setdefault((family, form), []).append(not differences)
        hangs = [run for run in runs if run.code is None]
        failed = [run for run in runs if run.code not in (0, None)]
        seconds = [run.seconds for run in runs if run.code is not None]
        counts = (len(runs), len(hangs), len(failed), differ, sum(bool(run.left) for run in runs))
        median = f"{statistics.median(seconds):.2f}" if seconds else "–"
        rows.append((case.name, case.form, case.way, *map(str, counts), median))
        remarks += [f"{case}: {count}× {what}" for what, count in remarks_here.items()]
        if options.verbose and (odd := [run for run in runs if expected.differences(run)]):
            remarks.append(textwrap.indent(odd[0].said[-3000:], "    │ "))
    if options.family:
        rows = by_family(agree)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join([*lines, "", *remarks]), not remarks


def by_family(agree: dict[tuple[str, str], list[bool]]) -> list[tuple[str, ...]]:
    forms = tuple(dict.fromkeys(form for _, form in agree))
    rows = [("as under torchrun", *forms)]
    for family in dict.fromkeys(family for family, _ in agree):
        runs = [agree.get((family, form), []) for form in forms]
        rows.append((family, *(f"{sum(form)} of {len(form)}" if form else "" for form in runs)))
    return rows


def reference(
    case: Case, outcomes: dict[Case, list[Outcome]], options: argparse.Namespace
) -> Expected:
    if case.family and not options.live:
        return recorded()[case.key]
    if options.program is None and not case.family:
        return Expected.of(case.program)
    theirs = [
        run
        for other, runs in outcomes.items()
        if other.key == case.key and other.way == "torchrun"
        for run in runs
    ]
    return Expected.common(theirs) if theirs else Expected(frozenset([0]), None, {})


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("program", nargs="?", type=Path, help="a script; without: our own programs")
    parser.add_argument("arguments", nargs="*", help="of the script, after --")
    parser.add_argument("-n", type=int, default=2, help="ranks (our own programs want 2)")
    parser.add_argument("--family", nargs="+", default=[], choices=(*FAMILIES, "all"))
    parser.add_argument("--record", action="store_true", help="what families do under torchrun")
    parser.add_argument("--live", action="store_true", help="compare families with torchrun's runs")
    for way in WAYS:
        parser.add_argument(f"--{way}", type=int, metavar="RUNS")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORDS", help="of their names")
    parser.add_argument("--form", nargs="+", choices=FORMS, help="of our own programs")
    parser.add_argument("--limit", type=float, default=20, help="seconds; what takes longer hangs")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no run later")
    parser.add_argument("--lanes", type=int, default=1, help="programs at a time")
    parser.add_argument("--verbose", action="store_true", help="show a report of what differs")
    options = parser.parse_args(arguments)
    if "all" in options.family:
        options.family = list(FAMILIES)
    usual = (1, 0, int(options.live)) if options.family else (20, 1, 1)
    if options.record:
        usual = (0, 0, 1)
    for way, runs in zip(WAYS, usual, strict=True):
        if getattr(options, way) is None:
            setattr(options, way, runs)
    return options


def main() -> int:
    options = parsed()
    for number in signal.SIGTERM, signal.SIGINT:  # a shell's background job ignores the latter
        signal.signal(number, signal.default_int_handler)
    if options.record:
        refused = record(run_all(options))
        print(*refused, sep="\n")
        return 1 if refused else 0
    missing = [case for case in cases(options) if case.family and case.key not in recorded()]
    if missing and not options.live:
        sys.exit(f"nobody has recorded what torchrun does with {missing[0]}: use --record")
    outcomes = run_all(options)
    shown, well = table(outcomes, options)
    print(shown)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
