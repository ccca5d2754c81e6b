"""The subcommands of `lockstep`: functions of the parsed arguments that return an exit code.

@command("doctor", help="check what works on this machine", description="…")
@option("--json", action="store_true", help="print JSON instead of a table")
def doctor(arguments): ...
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections import defaultdict
from collections.abc import Callable
from typing import Any

Command = Callable[[argparse.Namespace], int]
_about: dict[Command, tuple[str, bool, dict[str, Any]]] = {}
_options: defaultdict[Command, list[tuple[tuple[str, ...], dict[str, Any]]]] = defaultdict(list)


def command(
    name: str, *, interruptible: bool = False, **about: Any
) -> Callable[[Command], Command]:
    """Make a subcommand of a function.

    interruptible: SIGTERM raises KeyboardInterrupt in it. about: as for argparse's `add_parser`.
    """

    def describe(function: Command) -> Command:
        _about[function] = name, interruptible, about
        return function

    return describe


def option(*flags: str, **settings: Any) -> Callable[[Command], Command]:
    """Give a subcommand an argument, as argparse's `add_argument` does."""

    def add(function: Command) -> Command:
        _options[function].insert(0, (flags, settings))  # what stands last is called first
        return function

    return add


def listed(function: Command) -> argparse.Action:
    """Return a subcommand as a line of argparse's help."""
    name, _, about = _about[function]
    return argparse.Action([], name, metavar=name, help=about["help"])


def flags(function: Command) -> list[str]:
    """Return the options of a subcommand, such as "--json"."""
    return [flag for flags, _ in _options[function] for flag in flags if flag.startswith("-")]


def add_to(commands: Any, function: Command) -> None:
    """Add a function that is a subcommand to argparse's subparsers."""
    name, interruptible, about = _about[function]
    parser = commands.add_parser(name, **about)
    for flags, settings in _options[function]:
        parser.add_argument(*flags, **settings)
    parser.set_defaults(command=function, interruptible=interruptible)


def while_read(run: Callable[[], int]) -> int:
    """Run a program and return its exit code, also if nobody reads on: `lockstep … | head`."""
    try:
        try:
            return run()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        with open(os.devnull, "w") as nowhere:  # Python would complain when it flushes again
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
