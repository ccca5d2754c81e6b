"""The commands of those who give the course. What they need is imported when they run."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..base import machine
from ..base.commands import command, option
from ..base.formatting import in_one_line, printable
from ..base.refused import Refused, writing


def refuse(command: str, why: object) -> int:
    """Say on stderr why a command cannot do what it was asked for; returns its exit code, 2."""
    print(printable(f"lockstep {command}: {why}"), file=sys.stderr)
    return 2


def show_results(done: Sequence[Any], table: Callable[[Any], str], as_json: bool) -> None:
    """Print results that have an `as_dict()`, as JSON or, if there are any, as a table."""
    if as_json:
        print(json.dumps([one.as_dict() for one in done], indent=2))
    elif done:
        print(printable(table(done)))


@command(
    "report",
    interruptible=True,
    usage="lockstep report FOLDER [NN ...] [--to FOLDER] [--seconds S] [--memory GB] "
    "[--disk GB] [--at-once N] [--without-walls]",
    help="execute and judge what learners have handed in, in a sandbox",
    description="Execute the notebooks in FOLDER, which has a folder or a file for each "
    "learner, in a sandbox without network, and judge their answers with the "
    "course's own checks in another sandbox. Writes a page, JSON, and tables "
    "for spreadsheets and gradebooks. Exit code: 1 if a notebook could not "
    "be judged, 2 for bad input, else 0.",
)
@option("folder", type=Path, metavar="FOLDER", help="what learners have handed in")
@option(
    "numbers", nargs="*", default=(), metavar="NN", help="optional: labs, such as 01 (default: all)"
)
@option(
    "--to",
    type=Path,
    default=Path("lockstep-report"),
    metavar="FOLDER",
    help="write the report here (default: %(default)s)",
)
@option(
    "--seconds",
    type=float,
    default=600,
    metavar="S",
    help="time limit of a notebook (default: 600)",
)
@option(
    "--memory",
    type=float,
    default=6,
    metavar="GB",
    help="memory limit of a notebook (default: 6)",
)
@option(
    "--disk",
    type=float,
    default=1,
    metavar="GB",
    help="limit on the files of a notebook (default: 1)",
)
@option(
    "--at-once",
    type=int,
    metavar="N",
    help="number of notebooks at the same time (default: as many as cores and memory allow)",
)
@option(
    "--without-walls",
    action="store_true",
    help="go on where this machine has no namespaces: notebooks then run as you, without a sandbox",
)
def _report(arguments: argparse.Namespace) -> int:
    from tqdm import tqdm

    from . import report, sandbox, tables

    weaker, gigabyte = arguments.without_walls, 10**9
    limits = sandbox.Limits(
        seconds=arguments.seconds,
        memory=int(arguments.memory * gigabyte),
        disk=int(arguments.disk * gigabyte),
    )
    done = []
    try:
        why = sandbox.why_not() or sandbox.lacks()
        if why and not weaker:
            return refuse(
                "report",
                f"there can be no sandbox here ({why}). {sandbox.WEAKER} --without-walls runs "
                "the notebooks nevertheless; a virtual machine or a container that allows "
                "namespaces is better.",
            )
        at_once = arguments.at_once or _most_at_once()
        folder, numbers = arguments.folder, arguments.numbers
        bar = sys.stderr.isatty()
        for one in report.grade_folder(folder, numbers, limits, not weaker, at_once, bar):
            done.append(one)
            line = f"{one.learner}, lab {one.lab or '?'}: {one.score} of {one.most}"
            tqdm.write(in_one_line(line))  # above the bar
        if not done:
            return refuse("report", f"{folder} has no notebooks of these labs")
        stamp = sandbox.stamp(limits, not weaker)
        files = tables.write(done, arguments.to, stamp)
        print(printable(tables.text(done, stamp)))
        print(printable(f"\nwrote {', '.join(map(str, files))}"))
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Refused(str(error)) from error
    except KeyboardInterrupt:
        print("lockstep report: interrupted; nothing was written", file=sys.stderr)
        return 130
    return int(not all(one.is_judged for one in done))


def _most_at_once() -> int:
    """Return how many notebooks this machine can run at the same time.

    One has four ranks that mostly wait: it keeps a core busy for nine tenths of its time, and needs
    less than a gigabyte.
    """
    import psutil

    memory = psutil.virtual_memory().available >> 30
    return max(1, min(machine.usable_cores(), memory))


@command(
    "clean",
    help="remove what crashes left behind: processes, temporary folders, shared memory",
    description="Show what crashes left behind on this machine, and remove it if you "
    "agree. Lists only what is yours and what nothing running uses. Exit "
    "code: 1 if something could not be removed, else 0.",
)
@option("--yes", action="store_true", help="remove it without asking")
def clean(arguments: argparse.Namespace) -> int:
    from . import cleanup

    found = cleanup.find(cleanup.Places.usual())
    if not found:
        print("no crash has left anything behind")
        return 0
    for one in found:
        print(one)
    if not arguments.yes:
        if not sys.stdin.isatty():
            print("nothing was removed: add --yes")
            return 0
        if input("remove all of it? [y/N] ").strip().lower() not in ("y", "yes"):
            print("nothing was removed")
            return 0
    shown = set(found)
    now = [one for one in cleanup.find(cleanup.Places.usual()) if one in shown]
    failed = 0
    for one in now:  # time has passed: what is used by now stays
        if problem := one.remove():
            print(printable(f"still there: {one}: {problem}"), file=sys.stderr)
            failed += 1
    print(f"removed {len(now) - failed} of {len(found)}")
    return int(failed > 0)


@command(
    "sheet",
    help="print a run sheet for a lab: minutes, what to say, common mistakes",
    description="Print a run sheet for a lab as Markdown: its sections with minutes, "
    "what to say at each prediction, and common mistakes in the words of the "
    "checks. Exit code: 2 for bad input, else 0.",
)
@option("number", metavar="NN", help="the lab, such as 01")
@option("--to", type=Path, metavar="FILE", help="write it to this file instead of printing it")
def _sheet(arguments: argparse.Namespace) -> int:
    from . import sheet

    text = sheet.sheet(arguments.number)
    if arguments.to is None:
        print(printable(text))
    else:
        with writing():
            arguments.to.write_text(text + "\n", encoding="utf-8")
    return 0


@command(
    "preflight",
    interruptible=True,
    usage="lockstep preflight [NN ...] [--repeats N] [--on slurm] [--json]",
    help="before class: run every lab where it will be given, and compare it with the "
    "published outputs",
    description="Execute the solutions of the labs on this machine, or on nodes of "
    "Slurm, and say how long each took and how its output differs from what "
    "is published: texts, verdicts of claims, and quantities beyond noise. "
    "On Slurm the labs run on the first node, and parts for two nodes find "
    "the others. Exit code: 1 if a lab failed, 2 for bad input, else 0.",
)
@option(
    "numbers", nargs="*", default=(), metavar="NN", help="optional: labs, such as 01 (default: all)"
)
@option("--repeats", type=int, default=1, metavar="N", help="number of runs of each lab")
@option(
    "--on",
    choices=["slurm"],
    help="run as one job on nodes of the cluster in your profile (lockstep cluster init)",
)
@option("--json", action="store_true", help="print JSON instead of a table")
def _preflight(arguments: argparse.Namespace) -> int:
    from ..launch import LaunchError
    from ..launch.cluster import profile
    from . import preflight

    done: list[preflight.LabResult] = []
    interrupted = False
    try:
        repeats = max(1, arguments.repeats)
        if arguments.on:
            results = preflight.run_labs_on(profile.read(), arguments.numbers, repeats)
        else:
            results = preflight.run_labs(arguments.numbers, repeats, progress=sys.stderr.isatty())
        for one in results:
            done.append(one)
            if arguments.on:  # which may take long, and shows no bar
                print(f"{one.runs[0].notebook}: {one.runs[0].state}", file=sys.stderr)
    except (Refused, LaunchError):
        if done and not arguments.json:
            print(printable(preflight.table(done)))
        raise
    except KeyboardInterrupt:
        print("lockstep preflight: interrupted", file=sys.stderr)
        interrupted = True
    show_results(done, preflight.table, arguments.json)
    return 130 if interrupted else int(any(one.problems for one in done))


@command(
    "demo",
    usage="lockstep demo NN [--recorded] [-- OPTION ...]",
    help="show a lab's solution to a class, in large type",
    description="Open a lab's solution in JupyterLab, in large type and without outputs, "
    "to be run cell by cell; each cell says how long it took here just "
    "before. Predictions and guesses are folded until you open them. OPTIONs "
    "after -- go to JupyterLab. Exit code: 1 if the solution does not run "
    "here, 2 for bad input or where there is no JupyterLab.",
)
@option("number", metavar="NN", help="the lab, such as 01")
@option(
    "--recorded",
    action="store_true",
    help="run nothing: each cell shows its recorded output, and says so",
)
def _demo(arguments: argparse.Namespace) -> int:
    from . import demo

    try:
        demo.show(arguments.number, arguments.recorded, arguments.options)
    except demo.CannotShow as error:
        refuse("demo", error)
        return 1
    return refuse("demo", "needs jupyterlab: pip install 'lockstep[labs]'")


COMMANDS = (_sheet, _preflight, _demo, _report)
