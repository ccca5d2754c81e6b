"""Does a program end under `lockstep.torchrun` as it ends under torchrun? Run it many times both
ways and compare: ended or not, exit code, each rank's lines, files, processes left behind.

    python tests/endings.py                                   every program of ending_programs.py
    python tests/endings.py --only "FSDP2" --form cell --warm 1000 --lanes 2
    python tests/endings.py --minutes 10                      as many rounds as fit
    python tests/endings.py train.py -n 2 --torchrun 3 -- --lr 0.1      any script, beside torchrun

Ways: warm and elastic (our two engines), torchrun (PyTorch's command). Programs run in an empty
folder. What our programs have to leave behind is written down; for another script it is what
torchrun's runs have in common. PYTHONPATH says whose `lockstep` is tried. The exit status is 1
where anything hung, differed or stayed.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import os
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from ending_programs import FORMS, PROGRAMS, Program

WAYS = ("warm", "elastic", "torchrun")
STARTING = 60.0  # seconds that starting Python and PyTorch may take on a busy machine
SETTLE = 2.0  # seconds in which a process that has been told to end is gone
_MARK = "LOCKSTEP_ENDINGS"  # in the environment of every process that is started here


@dataclass(frozen=True)
class Outcome:
    """How one run ended. code: of the rank that failed first, 0: all is well, None: a hang."""

    code: int | None
    seconds: float
    lines: tuple[tuple[str, ...], ...]  # of each rank
    files: dict[str, str]  # a digest of the content, by name
    left: tuple[str, ...]  # processes and temporary files that outlived it
    said: str  # what the launcher said of it


@dataclass(frozen=True)
class Expected:
    """What a run has to be like. lines: None where torchrun's own runs differ in them."""

    codes: frozenset[int | None]
    lines: tuple[tuple[str, ...], ...] | None
    files: dict[str, str | None]  # None: any content

    @staticmethod
    def of(program: Program, nproc: int) -> Expected:
        printing = range(nproc) if program.code == 0 else [1]
        lines = tuple(program.lines if rank in printing else () for rank in range(nproc))
        files = {
            name: None if content is None else _digest(content.encode())
            for name, content in program.files.items()
        }
        return Expected(frozenset([program.code]), lines, files)

    @staticmethod
    def common(runs: Sequence[Outcome]) -> Expected:
        first, *others = runs
        lines = first.lines if all(run.lines == first.lines for run in others) else None
        files = {}
        for name in set(first.files).intersection(*(run.files for run in others)):
            digests = {run.files[name] for run in runs}
            files[name] = digests.pop() if len(digests) == 1 else None
        return Expected(frozenset(run.code for run in runs), lines, files)

    def differences(self, run: Outcome) -> list[str]:
        """What is not as expected, one sentence each; [] where all is."""
        found = []
        if run.code is None:
            return ["it hangs"] if None not in self.codes else []
        if run.code not in self.codes:
            wanted = " or ".join(map(str, self.codes))
            found.append(f"exit code {run.code} instead of {wanted}")
        for rank, lines in enumerate(run.lines if self.lines is not None else ()):
            wanted_lines = self.lines[rank]
            # stderr comes along with stdout here, and C++ writes there what it likes.
            seen = tuple(line for line in lines if line in wanted_lines)
            if seen != wanted_lines:
                found.append(f"rank {rank} printed {seen} instead of {wanted_lines}")
        missing = [name for name in self.files if name not in run.files]
        if missing:
            found.append(f"files that are missing: {', '.join(missing)}")
        kept = {name: digest for name, digest in self.files.items() if digest and name in run.files}
        wrong = [name for name, digest in kept.items() if run.files[name] != digest]
        if wrong:
            found.append(f"files with another content: {', '.join(wrong)}")
        return found


# ── Running ──────────────────────────────────────────────────────────────────────────────────


class Lane:
    """Runs programs one after another, and ends whatever comes of them. A context manager."""

    def __init__(self, nproc: int):
        self._nproc = nproc
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
        folder = self._folder / f"work-{self._runs}"
        folder.mkdir()
        text = program.text(form)
        if path is None:
            path = self._folder / "program.py"
            # What is a function here is one for torchrun, too; its groups it makes itself.
            whole = program.text(form.removeprefix("bare ")) if way == "torchrun" else text
            path.write_text(whole + ("main()\n" if "function" in form else ""))
        lines: list[tuple[str, ...]] = [()] * self._nproc
        code, seconds, said = 0, 0.0, ""
        for _ in range(program.jobs):
            if way == "torchrun":
                answer = self._under_torchrun(path, arguments, folder, limit + STARTING)
            else:
                order = {
                    "form": form,
                    "text": text,
                    "path": str(path),
                    "arguments": list(arguments),
                    "directory": str(folder),
                    "options": {
                        "nproc_per_node": self._nproc,
                        "engine": "torchrun" if way == "elastic" else "warm",
                        "timeout": limit + (STARTING if way == "elastic" else 0),
                    },
                }
                answer = self._under_lockstep(order)
            code, said = answer["code"], answer["said"]
            seconds += answer["seconds"]
            for rank, output in enumerate(answer["output"]):
                lines[rank] += tuple(output.splitlines())
            if code != 0:
                break
        left = self._left()
        files = {
            str(file.relative_to(folder)): _digest(file.read_bytes())
            for file in sorted(folder.rglob("*"))
            if file.is_file()
        }
        shutil.rmtree(folder)
        return Outcome(code, seconds, tuple(lines), files, left, said)

    def _under_torchrun(
        self, path: Path, arguments: Sequence[str], folder: Path, limit: float
    ) -> dict[str, Any]:
        logs = self._folder / "logs"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={self._nproc}"]
        command += [f"--master-port={port}", f"--log-dir={logs}", "--redirects=3", str(path)]
        began = time.perf_counter()
        said = self._folder / "said"
        with said.open("wb") as words:
            process = subprocess.Popen(
                [*command, *arguments],
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
        output = []
        for rank in range(self._nproc):
            found = list(logs.glob(f"*/attempt_0/{rank}/stdout.log"))
            output.append(found[0].read_text(errors="replace") if found else "")
        shutil.rmtree(logs, ignore_errors=True)
        return {"code": code, "output": output, "said": words_of, "seconds": seconds}

    def _under_lockstep(self, order: dict[str, Any]) -> dict[str, Any]:
        if self._driver is None:
            self._driver = self._start_driver()
        began = time.perf_counter()
        answer = self._ask(order, order["options"]["timeout"] + STARTING)
        if answer is None:  # not even the launcher's own time limit has ended it
            self._kill(self._processes())
            self._driver = None
            said = "the launcher itself did not come back"
            answer = {"code": None, "output": [], "said": said}
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
        warm_up = {"path": os.devnull, "form": "cell", "text": "1", "arguments": []}
        options = {"nproc_per_node": 1}
        self._ask({**warm_up, "directory": str(self._folder), "options": options}, 3 * STARTING)
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
                known = {driver, *driver.children()}  # the latter is the warm parent
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


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# ── Many runs ────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Case:
    name: str
    program: Program = field(compare=False)
    form: str
    way: str
    runs: int

    def __str__(self) -> str:
        return f"{self.name} · {self.form} · {self.way}"


def cases(options: argparse.Namespace) -> list[Case]:
    runs = {way: getattr(options, way) for way in WAYS}
    if options.program is not None:
        script = Program("", forms=("script",))
        return [Case(options.program.name, script, "script", way, runs[way]) for way in WAYS]
    found = []
    for name, program in PROGRAMS.items():
        if options.only and name not in options.only:
            continue
        for form, way in itertools.product(program.forms, WAYS):
            same = way == "torchrun" and form not in ("script", "function")  # as one of these
            if not same and form in (options.form or FORMS):
                found.append(Case(name, program, form, way, runs[way]))
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

    with contextlib.ExitStack() as stack:
        lanes = [stack.enter_context(Lane(options.n)) for _ in range(options.lanes)]
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
    """The counts of each case and what was seen; and whether all is well."""
    head = ("program", "form", "way", "runs", "hangs", "failed", "differ", "left", "median s")
    rows, remarks = [head], []
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
        hangs = [run for run in runs if run.code is None]
        failed = [run for run in runs if run.code not in (0, None)]
        seconds = [run.seconds for run in runs if run.code is not None]
        counts = (len(runs), len(hangs), len(failed), differ, sum(bool(run.left) for run in runs))
        median = f"{statistics.median(seconds):.2f}" if seconds else "–"
        rows.append((case.name, case.form, case.way, *map(str, counts), median))
        remarks += [f"{case}: {count}× {what}" for what, count in remarks_here.items()]
        if options.verbose and (odd := [run for run in runs if expected.differences(run)]):
            remarks.append(textwrap.indent(odd[0].said[-3000:], "    │ "))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join([*lines, "", *remarks]), not remarks


def reference(
    case: Case, outcomes: dict[Case, list[Outcome]], options: argparse.Namespace
) -> Expected:
    if options.program is None:
        return Expected.of(case.program, options.n)
    theirs = [runs for other, runs in outcomes.items() if other.way == "torchrun"]
    return Expected.common(theirs[0]) if theirs else Expected(frozenset([0]), None, {})


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("program", nargs="?", type=Path, help="a script; without: our own programs")
    parser.add_argument("arguments", nargs="*", help="of the script, after --")
    parser.add_argument("-n", type=int, default=2, help="ranks (our own programs want 2)")
    for way, runs in zip(WAYS, (20, 1, 1), strict=True):
        parser.add_argument(f"--{way}", type=int, default=runs, metavar="RUNS")
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, metavar="NAME", help="of ours")
    parser.add_argument("--form", nargs="+", choices=FORMS, help="of our own programs")
    parser.add_argument("--limit", type=float, default=20, help="seconds; what takes longer hangs")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no run later")
    parser.add_argument("--lanes", type=int, default=1, help="programs at a time")
    parser.add_argument("--verbose", action="store_true", help="show a report of what differs")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    shown, well = table(run_all(options), options)
    print(shown)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
