"""The console command `lockstep`."""

import argparse
import difflib
import errno
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path

from . import __version__
from .base.formatting import printable
from .base.machine import probe
from .course import copies
from .course.doctor import diagnose, held_in_reserve, runs_live
from .course.syllabus import LABS
from .teach import commands as teaching


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code. `argv` is without the program's name."""
    try:
        try:
            return _main(sys.argv[1:] if argv is None else list(argv))
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # of `lockstep … | head`; Python would complain when it flushes again
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def _main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="lockstep", description="Hands-on labs for PyTorch on several GPUs."
    )
    parser.add_argument("--version", action="version", version=f"lockstep {__version__}")
    commands = parser.add_subparsers(metavar="command", required=True)

    labs = commands.add_parser(
        "labs",
        usage="lockstep labs [DIR] [--newer] [--copy-only] [-- OPTION ...]",
        help="copy the labs into a folder of yours, once, and open them in JupyterLab",
        description="Copy the labs and their solutions into a folder of yours, once, and open lab "
        f"{LABS[0].number} in JupyterLab. A notebook that you have changed is never written again; "
        "what is newer in the course is named. OPTIONs behind -- are JupyterLab's, such as "
        "--port 8899. Exit code: 2 where nothing can be copied or there is no JupyterLab.",
    )
    labs.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=copies.FOLDER,
        metavar="DIR",
        help="your folder (default: %(default)s)",
    )
    labs.add_argument(
        "--newer", action="store_true", help="put what is newer beside yours, under another name"
    )
    labs.add_argument("--copy-only", action="store_true", help="do not open JupyterLab")
    labs.set_defaults(command=_labs)

    doctor = commands.add_parser(
        "doctor",
        help="say what works on this machine and what to do about the rest",
        description="Say what works on this machine and what to do about the rest. "
        "Exit code: 1 if there is a problem, else 0.",
    )
    doctor.add_argument("--json", action="store_true", help="print JSON instead of a table")
    doctor.set_defaults(command=_doctor)

    progress = commands.add_parser(
        "progress",
        help="show which exercises you have done",
        description="Show which exercises you have done.",
    )
    progress.add_argument(
        "lab",
        nargs="?",
        choices=[lab.number for lab in LABS],
        help="only this one: %(choices)s",
        metavar="lab",
    )
    progress.add_argument("--json", action="store_true", help="print JSON instead of a picture")
    progress.set_defaults(command=_progress)

    run = commands.add_parser(
        "run",
        usage="lockstep run {labs,solutions} [NN ...] [-p NAME=VALUE ...] [--keep FOLDER] "
        "[--force] [--json]",
        help="execute the notebooks without a screen and say how each went",
        description="Execute the notebooks without a screen and say how each went. "
        "Exit code: 1 if one failed, 2 for bad input, else 0.",
    )
    run.add_argument("folder", choices=("labs", "solutions"), help="which notebooks")
    run.add_argument("numbers", nargs="*", metavar="NN", help="labs, such as 01 (default: all)")
    run.add_argument(
        "-p",
        action="append",
        default=[],
        dest="parameters",
        metavar="NAME=VALUE",
        help="set a parameter of the notebooks, such as NPROC=8; may be repeated",
    )
    run.add_argument("--keep", type=Path, metavar="FOLDER", help="put the executed notebooks here")
    run.add_argument("--force", action="store_true", help="overwrite what --keep finds there")
    run.add_argument("--json", action="store_true", help="print JSON instead of a table")
    run.set_defaults(command=_run, interruptible=True)

    agent = commands.add_parser(
        "agent",
        help="run ranks on this host for a notebook on another",
        description="Run ranks on this host for the notebook on another that wrote the ticket (see "
        "lockstep.Nodes), until that lets go. Exit code: 2 where it does not answer, else 0.",
    )
    agent.add_argument("ticket", type=Path, help="the file that lockstep.Nodes names")
    agent.set_defaults(command=_agent)

    cluster = commands.add_parser(
        "cluster",
        usage="lockstep cluster {init,check} [options]",
        help="write down which nodes of a Slurm cluster are yours, and try them",
        description='init writes a profile, for on="slurm" and %%torchrun --on slurm, of the '
        "options, which lockstep.Slurm has, too; check takes the profile that is there. Both then "
        "run a job that says hello from each node. Exit code: 1 if something is wrong, 2 for what "
        "makes no sense, else 0.",
    )
    cluster.add_argument("step", choices=("init", "check"))
    cluster.add_argument("--nodes", type=int, metavar="N", help="how many (default: 2)")
    for name in ("partition", "time", "account", "qos", "memory", "setup", "address"):
        cluster.add_argument(f"--{name}", metavar=name.upper())
    for name in ("gpus", "cpus"):
        cluster.add_argument(f"--{name}-per-node", type=int, metavar="N")
    cluster.add_argument("--option", action="append", metavar="=--X=Y", help="one more of sbatch's")
    cluster.set_defaults(command=_cluster)

    trace = commands.add_parser(
        "trace",
        help="say what the traces of N ranks show",
        description="Put the Kineto traces of N ranks on one clock and say where their time went. "
        "Exit code: 2 for traces that cannot be read, else 0.",
    )
    trace.add_argument("paths", nargs="+", type=Path, metavar="FOLDER", help="or the files")
    trace.add_argument("--skip", type=int, default=0, metavar="N", help="leave out N first steps")
    trace.add_argument("--run", metavar="NAME", help="which of the runs that the folder holds")
    trace.add_argument(
        "--more",
        action="store_true",
        help="answer more: servers' passes, streams, outliers, shapes, rates, memory, traffic "
        "(reads the files again)",
    )
    trace.add_argument("--json", action="store_true", help="print JSON: every answer in plain rows")
    trace.add_argument("--csv", type=Path, metavar="FOLDER", help="write a table of each answer")
    trace.add_argument("--html", type=Path, metavar="FILE", help="write one page, for any browser")
    trace.add_argument(
        "--perfetto",
        type=Path,
        metavar="FILE",
        help="write one trace of all ranks for Perfetto, with shapes and counters",
    )
    trace.add_argument("--open", action="store_true", help="show it in Perfetto, until Ctrl-C")
    trace.set_defaults(command=_trace)

    gate = commands.add_parser(
        "gate",
        help="fail where steps became slower than noise explains",
        description="Compare the steps of two runs, or of repeats of them: step time, exposed "
        "communication, launches, peak memory. Exit code: 1 if one grew beyond noise, 2 for runs "
        "that cannot be compared, else 0.",
    )
    folders = "a folder of the traces of N ranks, or a folder of such folders, one a repeat"
    gate.add_argument("baseline", type=Path, metavar="BASELINE", help=folders)
    gate.add_argument("new", type=Path, metavar="NEW", help="the same, after the change")
    gate.add_argument("--skip", type=int, default=0, metavar="N", help="leave out N first steps")
    gate.add_argument(
        "--level",
        type=float,
        default=0.01,
        metavar="P",
        help="the share of false alarms among equal programs (default: 0.01)",
    )
    gate.add_argument("--junit", type=Path, metavar="FILE", help="write JUnit's XML")
    gate.add_argument("--markdown", type=Path, metavar="FILE", help="append a table in Markdown")
    gate.set_defaults(command=_gate)

    teaching.add(commands)

    behind = argv.index("--") if "--" in argv and argv[0] in ("labs", "demo") else len(argv)
    argv, options = argv[:behind], argv[behind + 1 :]
    named = next((word for word in argv if not word.startswith("-")), None)
    if named is not None and named not in commands.choices:
        close = difflib.get_close_matches(named, commands.choices, 1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(commands.choices)}"
        parser.error(f"there is no command {named}: {hint}")
    arguments, more = parser.parse_known_args(argv)
    arguments.options = options
    several = getattr(arguments, "numbers", getattr(arguments, "names", None))
    if more and several is not None and not any(word.startswith("-") for word in more):
        several += more  # words behind an option, which Python 3.11 does not take
    elif more:
        parser.error(f"unrecognized arguments: {' '.join(more)}")
    with _sigterm_as_interrupt() if "interruptible" in arguments else nullcontext():
        exit_code: int = arguments.command(arguments)
    return exit_code


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """So that a command that runs others' programs ends them, and says what it did."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _labs(arguments: argparse.Namespace) -> int:
    try:
        done = copies.copy(arguments.folder, arguments.newer)
    except copies.CannotCopy as error:
        print(printable(f"lockstep labs: {error}"), file=sys.stderr)
        return 2
    if str(done):
        print(printable(done))
    if arguments.copy_only:
        return 0
    opened = copies.jupyterlab(arguments.folder, arguments.options, os.environ)
    if opened is None:
        print("lockstep labs needs jupyterlab: pip install 'lockstep[labs]'", file=sys.stderr)
        return 2
    if copies.is_remote(os.environ):
        print(printable(copies.how_to_reach(os.environ)))
    sys.stdout.flush()
    command, environment = opened
    os.execve(command[0], command, environment)


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


def _progress(arguments: argparse.Namespace) -> int:
    from . import progress

    shown = progress(arguments.lab)
    print(json.dumps(shown.as_dict(), indent=2) if arguments.json else printable(shown))
    return 0


def _run(arguments: argparse.Namespace) -> int:
    try:
        from .author import execute
    except ModuleNotFoundError as missing:
        print(f"lockstep run needs {missing.name}: pip install 'lockstep[labs]'", file=sys.stderr)
        return 2
    done = []
    interrupted = False
    try:
        parameters = execute.parse(arguments.parameters)
        notebooks = execute.find(arguments.folder, arguments.numbers, Path.cwd())
        execute.refuse_misfits(parameters, notebooks)
        keep, force, bar = arguments.keep, arguments.force, sys.stderr.isatty()
        for one in execute.run(notebooks, parameters, keep, force, progress=bar):
            done.append(one)
    except execute.BadInput as error:
        print(printable(f"lockstep run: {error}"), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("lockstep run: interrupted", file=sys.stderr)
        interrupted = True
    if arguments.json:
        print(json.dumps([one.as_dict() for one in done], indent=2))
    elif done:
        print(printable(execute.table(done)))
    return 130 if interrupted else int(any(one.problems for one in done))


def _agent(arguments: argparse.Namespace) -> int:
    from .launch import LaunchError, agent

    try:
        agent.serve(arguments.ticket)
    except LaunchError as error:
        print(printable(f"lockstep agent: {error}"), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("lockstep agent: interrupted; its ranks are gone", file=sys.stderr)
        return 130
    return 0


def _cluster(arguments: argparse.Namespace) -> int:
    from .launch import LaunchError, Slurm
    from .launch.cluster import profile
    from .launch.cluster_check import check_cluster

    names = ("nodes", "partition", "time", "account", "qos", "memory", "setup", "address")
    said = {name: getattr(arguments, name) for name in (*names, "gpus_per_node", "cpus_per_node")}
    said["options"] = arguments.option and tuple(arguments.option)
    said = {name: value for name, value in said.items() if value is not None}
    try:
        if arguments.step == "init":
            print(printable(f"written: {profile.write(Slurm(**said))}"), flush=True)
        elif said:
            raise LaunchError(f"check takes what the profile has, not --{next(iter(said))}")
        return 0 if check_cluster(profile.read(), lambda line: print(printable(line))) else 1
    except BrokenPipeError:
        raise
    except (LaunchError, OSError) as error:
        print(printable(f"lockstep cluster: {error}"), file=sys.stderr)
        return 2


def _trace(arguments: argparse.Namespace) -> int:
    from .trace import TraceError, summary
    from .trace.write import perfetto, perfetto_page, rows

    paths = arguments.paths
    try:
        source = paths[0] if len(paths) == 1 else paths
        run = None if arguments.run is None else arguments.run.removeprefix("./").rstrip("/")
        trace, sections = summary.of(
            source, arguments.skip, run="" if run == "." else run, more=arguments.more
        )
        if arguments.json or arguments.csv is not None:
            answers, refused = rows.rows_of(trace, arguments.skip, arguments.more)
        if arguments.json:
            said = {title: text for title, text in sections if title in ("What was read", "Clock")}
            report = {"stamp": sections[0][0], "headline": sections[0][1].splitlines(), **said}
            print(json.dumps(report | {"answers": answers, "refused": refused}, indent=2))
        else:
            print(printable("\n\n".join(f"{title}\n{text}" for title, text in sections)))
        if arguments.csv is not None:
            rows.write_csv(answers, arguments.csv)
        if arguments.html is not None:
            from .timeline import page

            path = None
            with suppress(TraceError):  # the section below the timeline says why there is none
                path = trace.critical_path()
            arguments.html.write_text(page(trace, sections, path=path), encoding="utf-8")
        if arguments.perfetto is not None:
            perfetto.export(trace, arguments.perfetto)
        if arguments.open:
            with tempfile.TemporaryDirectory() as folder:
                perfetto_page.open_in_perfetto(
                    perfetto.export(trace, Path(folder) / "trace.json.gz")
                )
    except BrokenPipeError:
        raise
    except TraceError as error:
        print(printable(f"lockstep trace: {error}"), file=sys.stderr)
        return 2
    except OSError as error:
        print(printable(f"lockstep trace: {_unwritten(error)}"), file=sys.stderr)
        return 2
    return 0


def _gate(arguments: argparse.Namespace) -> int:
    from .trace import TraceError
    from .trace.gate import GateError, gate

    try:
        found = gate(arguments.baseline, arguments.new, skip=arguments.skip, level=arguments.level)
        print(found)
        if arguments.junit is not None:
            arguments.junit.write_text(found.junit(), encoding="utf-8")
        if arguments.markdown is not None:  # what GitHub's $GITHUB_STEP_SUMMARY is for
            with arguments.markdown.open("a", encoding="utf-8") as file:
                file.write(found.markdown())
    except BrokenPipeError:
        raise
    except (GateError, TraceError) as error:
        print(printable(f"lockstep gate: {error}"), file=sys.stderr)
        return 2
    except OSError as error:
        print(printable(f"lockstep gate: {_unwritten(error)}"), file=sys.stderr)
        return 2
    return 0 if found.passed else 1


# Of what was to be written; what cannot be read is a TraceError.
_INSTEAD = {
    errno.EISDIR: "it is a folder; name a file",
    errno.EEXIST: "it is a file; name a folder",
    errno.ENOTDIR: "a part of it is a file, and no folder; name another place",
    errno.ENOENT: "its folder is not there; make it first",
    errno.EACCES: "you may not write there; name another place",
    errno.ENOSPC: "the disk is full; make room, or name another place",
}


def _unwritten(error: OSError) -> str:
    if error.filename is None:
        return str(error)
    why = _INSTEAD.get(error.errno or 0, error.strerror)
    return f"{error.filename2 or error.filename} cannot be written: {why}"


if __name__ == "__main__":
    sys.exit(main())
