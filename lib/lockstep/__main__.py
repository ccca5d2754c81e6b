"""The console command `lockstep`."""

import argparse
import difflib
import json
import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, fields
from itertools import chain
from pathlib import Path
from typing import Any

from . import __version__, progress
from .base.commands import add_to, command, flags, listed, option, while_read
from .base.formatting import printable
from .base.machine import probe
from .base.refused import Refused, writing
from .course import copies
from .course.doctor import diagnose, held_in_reserve, runs_live
from .course.syllabus import LABS
from .launch import LaunchError, Slurm
from .launch.cluster import profile
from .teach import commands as teaching
from .teach.commands import refuse, show_results
from .trace import Trace, TraceError
from .trace.gate import GateError, gate


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code. `argv` is without the program's name."""
    return while_read(lambda: _main(sys.argv[1:] if argv is None else list(argv)))


def _main(argv: list[str]) -> int:
    if not argv or argv[0] == "help":  # `help sheet` is `sheet --help`
        argv = [*argv[1:], "--help"]
    parser = argparse.ArgumentParser(
        prog="lockstep",
        usage="lockstep [--version] [help] COMMAND ...",
        description="Hands-on labs for PyTorch on several GPUs.",
        epilog=_overview(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"lockstep {__version__}")
    commands = parser.add_subparsers(
        prog="lockstep", required=True, dest="name", help=argparse.SUPPRESS
    )
    for function in chain(*_COMMANDS.values()):
        add_to(commands, function)
    arguments = _parsed(parser, commands, argv)
    try:
        with _sigterm_as_interrupt() if arguments.interruptible else nullcontext():
            exit_code: int = arguments.command(arguments)
        return exit_code
    except (Refused, LaunchError, TraceError, GateError) as error:
        return refuse(arguments.name, error)
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith("lockstep"):
            raise
        return refuse(arguments.name, f"needs {missing.name}: pip install 'lockstep[labs]'")


def _overview() -> str:
    """Return all commands, by whom they are for, as argparse lists arguments."""
    formatter = argparse.HelpFormatter("lockstep")
    for title, functions in _COMMANDS.items():
        formatter.start_section(title)
        formatter.add_arguments([listed(function) for function in functions])
        formatter.end_section()
    return f"{formatter.format_help()}\nlockstep help COMMAND says more of one."


def _parsed(parser: argparse.ArgumentParser, commands: Any, argv: list[str]) -> argparse.Namespace:
    """Parse all words; those behind -- are JupyterLab's `options`. Exits for bad input."""
    behind = argv.index("--") if "--" in argv and argv[0] in _OPEN_JUPYTERLAB else len(argv)
    argv, options = argv[:behind], argv[behind + 1 :]
    named = next((word for word in argv if not word.startswith("-")), None)
    if named is not None and named not in commands.choices:
        among = f"there are {', '.join(commands.choices)}"
        parser.error(f"there is no command {named}: {_meant(named, commands.choices) or among}")
    arguments, more = parser.parse_known_args(argv)
    arguments.options = options
    if "numbers" in arguments and not any(word.startswith("-") for word in more):
        # Words behind an option, which Python 3.11 does not take.
        arguments.numbers = [*arguments.numbers, *more]
    elif more:
        hint = _hint(arguments, argv, more[0])
        commands.choices[arguments.name].error(f"unrecognized arguments: {' '.join(more)}{hint}")
    return arguments


def _meant(typed: str, known: Iterable[str]) -> str:
    """Return a question that names what is spelled most like it; "" where nothing is."""
    close = difflib.get_close_matches(typed, known, 1, 0.7)  # --port is no --force
    return f"did you mean {close[0]}?" if close else ""


def _hint(arguments: argparse.Namespace, argv: list[str], unknown: str) -> str:
    """Return what may have been meant by an option that a command does not have."""
    if meant := _meant(unknown.partition("=")[0], flags(arguments.command)):
        return f": {meant}"
    if arguments.name not in _OPEN_JUPYTERLAB:
        return ""
    at = argv.index(unknown)
    after = at + (1 if "=" in unknown else 2)  # its value, too
    typed = shlex.join(["lockstep", *argv[:at], *argv[after:], "--", *argv[at:after]])
    return f": options of JupyterLab go behind --: {typed}"


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Have SIGTERM raise KeyboardInterrupt, so that a command that runs others' programs ends
    them, and says what it did."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@command(
    "labs",
    usage="lockstep labs [DIR] [--newer] [--copy-only] [--force] [-- OPTION ...]",
    help="copy the labs to a folder of your own, once, and open them in JupyterLab",
    description="Copy the labs and their solutions to a folder of your own, once, and "
    f"open lab {LABS[0].number} in JupyterLab. A notebook that you have "
    "changed is never overwritten; the command names those of which the "
    "course has a newer version. OPTIONs after -- go to JupyterLab, such as "
    "--port 8899. Exit code: 2 if nothing can be copied or JupyterLab is not "
    "installed.",
)
@option(
    "folder",
    nargs="?",
    type=Path,
    default=copies.FOLDER,
    metavar="DIR",
    help="your folder (default: %(default)s)",
)
@option(
    "--newer",
    action="store_true",
    help="put newer versions beside your notebooks, under another name",
)
@option("--copy-only", action="store_true", help="do not open JupyterLab")
@option("--force", action="store_true", help="copy to a folder that has other files in it, too")
def _labs(arguments: argparse.Namespace) -> int:
    force = arguments.force or _agrees_to_other_things(arguments.folder)
    print(printable(copies.copy(arguments.folder, arguments.newer, force)))
    if arguments.copy_only:
        return 0
    opened = copies.jupyterlab(arguments.folder, arguments.options, os.environ)
    if opened is None:
        return refuse("labs", "needs jupyterlab: pip install 'lockstep[labs]'")
    if copies.is_remote(os.environ):
        print(printable(copies.how_to_reach(os.environ)))
    sys.stdout.flush()
    command, environment = opened
    os.execve(command[0], command, environment)


def _agrees_to_other_things(folder: Path) -> bool:
    """Ask on a terminal whether the labs are to be copied beside other things."""
    if not copies.holds_other_things(folder) or not sys.stdin.isatty():
        return False
    question = f"{folder} has other files in it. Copy the labs there? [y/N] "
    return input(printable(question)).strip().lower() in ("y", "yes")


@command(
    "doctor",
    help="check what works on this machine and say how to fix the rest",
    description="Check what works on this machine and say how to fix the rest. Exit "
    "code: 1 if there is a problem, else 0.",
)
@option("--json", action="store_true", help="print JSON instead of a table")
def _doctor(arguments: argparse.Namespace) -> int:
    machine = probe()
    diagnosis = diagnose(machine, reserved=held_in_reserve(machine))
    if arguments.json:
        report = asdict(diagnosis)
        for lab, row in zip(diagnosis.labs, report["labs"], strict=True):
            row["live"] = runs_live(lab, diagnosis.machine)
        print(json.dumps(report, indent=2))
    else:
        print(printable(diagnosis))
    return diagnosis.exit_code


@command(
    "progress",
    help="show which exercises you have done",
    description="Show which exercises you have done.",
)
@option(
    "number", nargs="?", metavar="NN", help="optional: only this lab, such as 01 (default: all)"
)
@option("--json", action="store_true", help="print JSON instead of text")
def _progress(arguments: argparse.Namespace) -> int:
    try:
        shown = progress(arguments.number)
    except ValueError as error:
        raise Refused(str(error)) from None
    print(json.dumps(shown.as_dict(), indent=2) if arguments.json else printable(shown))
    return 0


@command(
    "run",
    interruptible=True,
    usage="lockstep run {labs,solutions} [NN ...] [-p NAME=VALUE ...] [--keep FOLDER] "
    "[--force] [--json]",
    help="execute notebooks in a terminal or in CI and say how each went",
    description="Execute notebooks in a terminal or in CI and say how each went. Exit "
    "code: 1 if one failed, 2 for bad input, else 0.",
)
@option("folder", choices=("labs", "solutions"), help="which notebooks")
@option(
    "numbers", nargs="*", default=(), metavar="NN", help="optional: labs, such as 01 (default: all)"
)
@option(
    "-p",
    action="append",
    default=[],
    dest="parameters",
    metavar="NAME=VALUE",
    help="set a parameter of the notebooks, such as NPROC=8; may be repeated",
)
@option("--keep", type=Path, metavar="FOLDER", help="save the executed notebooks here")
@option("--force", action="store_true", help="overwrite notebooks that --keep finds there")
@option("--json", action="store_true", help="print JSON instead of a table")
def _run(arguments: argparse.Namespace) -> int:
    from .author import execute

    done: list[execute.Execution] = []
    interrupted = False
    parameters = execute.parse(arguments.parameters)
    notebooks = execute.find(arguments.folder, arguments.numbers, Path.cwd())
    execute.refuse_misfits(parameters, notebooks)
    keep, force, bar = arguments.keep, arguments.force, sys.stderr.isatty()
    try:
        for one in execute.run(notebooks, parameters, keep, force, progress=bar):
            done.append(one)
    except KeyboardInterrupt:
        print("lockstep run: interrupted", file=sys.stderr)
        interrupted = True
    show_results(done, execute.table, arguments.json)
    return 130 if interrupted else int(any(one.problems for one in done))


@command(
    "agent",
    help="run ranks on this host for a notebook on another host",
    description="Run ranks on this host for the notebook that wrote the ticket (see "
    "lockstep.Nodes), until the notebook lets go of them. Exit code: 2 if "
    "the notebook does not answer, else 0.",
)
@option("ticket", type=Path, help="the ticket, a file that lockstep.Nodes names")
def _agent(arguments: argparse.Namespace) -> int:
    from .launch import agent

    try:
        agent.serve(arguments.ticket)
    except KeyboardInterrupt:
        print("lockstep agent: interrupted; its ranks have ended", file=sys.stderr)
        return 130
    return 0


@command(
    "cluster",
    usage="lockstep cluster {init,check} [options]",
    help="describe your Slurm cluster in a profile, and test it",
    description="Both run a job that says hello from each node. init, whose options are "
    "those of lockstep.Slurm, writes them to a profile once Slurm has given the nodes: "
    'on="slurm" and %%torchrun --on slurm use it. check uses the profile that exists. '
    "Exit code: 1 if something is wrong, 2 for bad options, else 0.",
)
@option("step", choices=("init", "check"))
@option("--nodes", type=int, metavar="N", help="number of nodes (default: 2)")
@option("--partition", help="as for sbatch")
@option("--time", help="limit of a job, in minutes or as 2:00:00")
@option("--account", help="as for sbatch")
@option("--qos", help="as for sbatch")
@option("--memory", help="of each node, as for sbatch")
@option("--setup", help="shell commands that run first on each node, such as: module load cuda")
@option("--address", help="of this host, as the nodes reach it")
@option("--gpus-per-node", type=int, metavar="N", help="as for sbatch")
@option("--cpus-per-node", type=int, metavar="N", help="as for sbatch")
@option("--option", action="append", metavar="=--X=Y", help="one more option of sbatch")
def _cluster(arguments: argparse.Namespace) -> int:
    from .launch.cluster_check import check_cluster

    asked = {field.name: getattr(arguments, field.name, None) for field in fields(Slurm)}
    asked["options"] = arguments.option  # `options` are those of JupyterLab, behind --
    said = {name: value for name, value in asked.items() if value is not None}
    keep = arguments.step == "init"
    if said and not keep:
        raise Refused(f"check uses the profile; it takes no --{next(iter(said))}")
    cluster = Slurm(**said) if keep else profile.read()
    with writing():
        return 0 if check_cluster(cluster, lambda line: print(printable(line)), keep=keep) else 1


@command(
    "trace",
    help="say where the time of N ranks went, from their traces",
    description="Align the Kineto traces of N ranks on one clock and say where their "
    "time went. Exit code: 2 if the traces cannot be read, else 0.",
)
@option("paths", nargs="+", type=Path, metavar="FOLDER", help="a folder of traces, or the files")
@option("--skip", type=int, default=0, metavar="N", help="leave out the first N steps")
@option("--run", metavar="NAME", help="which run, if the folder holds several")
@option(
    "--more",
    action="store_true",
    help="add sections: servers' passes, streams, outliers, replays of graphs, shapes, rates, "
    "memory, traffic (reads the files again)",
)
@option("--before", type=Path, metavar="FOLDER", help="say what has changed since this trace")
@option("--json", action="store_true", help="print JSON: every answer as plain rows")
@option("--csv", type=Path, metavar="FOLDER", help="write a table for each answer")
@option(
    "--html",
    type=Path,
    metavar="FILE",
    help="write one page, for any browser, that needs no network",
)
@option(
    "--perfetto",
    type=Path,
    metavar="FILE",
    help="write one trace of all ranks for Perfetto, with shapes and counters",
)
@option("--open", action="store_true", help="open it in Perfetto, until Ctrl-C")
def _trace(arguments: argparse.Namespace) -> int:
    from .trace import summary

    paths, run = arguments.paths, arguments.run
    if run is not None:
        run = run.removeprefix("./").rstrip("/")
        run = "" if run == "." else run
    source = paths[0] if len(paths) == 1 else paths
    trace, sections, found = summary.summarise(
        source, arguments.skip, run=run, more=arguments.more, before=arguments.before
    )
    with writing():
        _say_trace(arguments, found, sections)
        _export_trace(arguments, trace, found, sections)
    return 0


def _say_trace(
    arguments: argparse.Namespace, found: dict[str, Any], sections: list[tuple[str, str]]
) -> None:
    """Print the answers, as text or as JSON, and write them as tables."""
    from .trace.write import rows

    if arguments.json or arguments.csv is not None:
        answers, refused = rows.rows_of(found, arguments.more)
    if arguments.json:
        said = {title: text for title, text in sections if title in ("What was read", "Clock")}
        report = {"stamp": sections[0][0], "headline": sections[0][1].splitlines(), **said}
        print(json.dumps(report | {"answers": answers, "refused": refused}, indent=2))
    else:
        print(printable("\n\n".join(f"{title}\n{text}" for title, text in sections)))
    if arguments.csv is not None:
        rows.write_csv(answers, arguments.csv)


def _export_trace(
    arguments: argparse.Namespace,
    trace: Trace,
    found: dict[str, Any],
    sections: list[tuple[str, str]],
) -> None:
    """Write the trace's page and its file for Perfetto, and open that."""
    from .trace.write import perfetto, perfetto_page

    if arguments.html is not None:
        from .timeline import page

        path = None if isinstance(found["Critical path"], TraceError) else found["Critical path"]
        arguments.html.write_text(page(trace, sections, path=path), encoding="utf-8")
    if arguments.perfetto is not None:
        perfetto.export(trace, arguments.perfetto)
    if arguments.open:
        with tempfile.TemporaryDirectory() as folder:
            perfetto_page.open_in_perfetto(perfetto.export(trace, Path(folder) / "trace.json.gz"))


@command(
    "gate",
    help="fail if steps became slower than noise explains",
    description="Compare the steps of two runs, or of several repeats of each: step "
    "time, exposed communication, launches, peak memory. Exit code: 1 if one "
    "of them grew beyond noise, 2 if the runs cannot be compared or are too few, else 0.",
)
@option(
    "baseline",
    type=Path,
    metavar="BASELINE",
    help="a folder with the traces of N ranks, or a folder of such folders, one for each repeat",
)
@option("new", type=Path, metavar="NEW", help="the same, after the change")
@option("--skip", type=int, default=0, metavar="N", help="leave out the first N steps")
@option(
    "--level",
    type=float,
    default=0.01,
    metavar="P",
    help="how often the gate may fail for equal programs (default: 0.01)",
)
@option("--junit", type=Path, metavar="FILE", help="write a report as JUnit XML")
@option("--markdown", type=Path, metavar="FILE", help="append a table as Markdown")
def _gate(arguments: argparse.Namespace) -> int:
    found = gate(arguments.baseline, arguments.new, skip=arguments.skip, level=arguments.level)
    print(found)
    with writing():
        if arguments.junit is not None:
            arguments.junit.write_text(found.junit(), encoding="utf-8")
        if arguments.markdown is not None:  # what GitHub's $GITHUB_STEP_SUMMARY is for
            with arguments.markdown.open("a", encoding="utf-8") as file:
                file.write(found.markdown())
    return 1 if found.failed else 0 if found.passed else 2


_OPEN_JUPYTERLAB = ("labs", "demo")
_COMMANDS = {
    "for learners": (_labs, _doctor, _progress, teaching.clean),
    "for instructors": teaching.COMMANDS,
    "for developers": (_run, _trace, _gate, _cluster, _agent),
}

if __name__ == "__main__":
    sys.exit(main())
