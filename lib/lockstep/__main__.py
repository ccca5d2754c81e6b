"""The console command `lockstep`."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from lockstep import __version__
from lockstep.checkup import diagnose, runs_live
from lockstep.machine import probe


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code. `argv` is without the program's name."""
    parser = argparse.ArgumentParser(
        prog="lockstep", description="Hands-on labs for PyTorch on several GPUs."
    )
    parser.add_argument("--version", action="version", version=f"lockstep {__version__}")
    commands = parser.add_subparsers(metavar="command", required=True)

    doctor = commands.add_parser(
        "doctor",
        help="say what works on this machine and what to do about the rest",
        description="Say what works on this machine and what to do about the rest. "
        "Exit code: 1 if there is a problem, else 0.",
    )
    doctor.add_argument("--json", action="store_true", help="print JSON instead of a table")
    doctor.set_defaults(command=_doctor)

    arguments = parser.parse_args(argv)
    exit_code: int = arguments.command(arguments)
    return exit_code


def _doctor(arguments: argparse.Namespace) -> int:
    diagnosis = diagnose(probe())
    if arguments.json:
        report = asdict(diagnosis)
        for lab, row in zip(diagnosis.labs, report["labs"], strict=True):
            row["live"] = runs_live(lab, diagnosis.machine)
        print(json.dumps(report, indent=2))
    else:
        print(diagnosis)
    return diagnosis.exit_code


if __name__ == "__main__":
    sys.exit(main())
