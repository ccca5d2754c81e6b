"""The command `python -m experiments`, which makes the recordings of the course."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from lockstep import JobFailed, LaunchError
from lockstep.base.commands import while_read

from . import command
from .experiment import CannotRecord, ExperimentFailed

PROGRAM = "python -m experiments"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code. `argv` is without the program's name."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        usage=f"{PROGRAM} [NAME ... | --from FOLDER] [-n N] [--to FOLDER]",
        description="Run experiments and write what they found, and where and how, below data/. "
        "Without a name: list them. Exit code: 1 if one failed, 2 where one cannot be recorded "
        "here, else 0.",
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="experiments; course/02 is lab 02 of that one"
    )
    parser.add_argument(
        "--from",
        type=Path,
        dest="other",
        metavar="FOLDER",
        help="take in what --to FOLDER wrote elsewhere",
    )
    parser.add_argument("-n", type=int, metavar="N", help="ranks (default: the experiment's own)")
    parser.add_argument("--to", type=Path, metavar="FOLDER", help="write here and not into data/")
    arguments = parser.parse_intermixed_args(argv)
    if arguments.names and arguments.other is not None:
        print(f"{PROGRAM}: names or --from, not both", file=sys.stderr)
        return 2
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return _run(arguments, _typed(arguments))
    except CannotRecord as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 2
    except (ExperimentFailed, JobFailed, LaunchError) as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        print("Only what it had found before that is written, if anything.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{PROGRAM}: interrupted; nothing half was written", file=sys.stderr)
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)


def _typed(arguments: argparse.Namespace) -> str:
    """Return the command as it was typed, for the manifest."""
    words = list(arguments.names)
    words += ["-n", str(arguments.n)] if arguments.n is not None else []
    words += ["--to", str(arguments.to)] if arguments.to else []
    return shlex.join([*PROGRAM.split(), *words])


def _run(arguments: argparse.Namespace, typed: str) -> int:
    if arguments.other is not None:
        print("\n".join(command.adopt(arguments.other, arguments.to)))
        return 0
    if not arguments.names:
        print(command.listing(arguments.to))
        return 0
    for done in command.record(command.find(arguments.names), arguments.n, arguments.to, typed):
        print(done)
    return 0


if __name__ == "__main__":
    sys.exit(while_read(main))
