"""The cell magic `%%torchrun`."""

from __future__ import annotations

import argparse
import difflib
import itertools
import shlex
from typing import Any, NoReturn

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class
from IPython.display import display

from .launch.cell import Cell, remember_source
from .launch.engines import parent
from .launch.run import BACKENDS, ENGINES, World, torchrun_cell

_EXAMPLE = """
Runs the cell on N ranks, each a process of its own, with the default process group made.
Prints and the value of the last expression come back from every rank.

    %%torchrun --nproc-per-node 4
    import torch, torch.distributed as dist
    x = torch.ones(3) * dist.get_rank()
    dist.all_reduce(x)
    x
"""
_number = itertools.count(1)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"%%torchrun: {message}")


def _parser() -> _Parser:
    parser = _Parser(
        prog="%%torchrun",
        description=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("-h", "--help", action="store_true", help="show this")
    add("-n", "--nproc-per-node", metavar="N|gpu|cpu|auto", help="how many ranks (default 4)")
    add("--backend", choices=BACKENDS, default="auto", help="of the default process group")
    add("--timeout", type=float, metavar="SECONDS", help="end the ranks after this long")
    add("--env", action="append", default=[], metavar="K=V", help="a variable for the ranks")
    add("--into", metavar="NAME", help="keep the Job in this variable")
    add("--world", metavar="NAME", help="use the ranks of this World, which stay alive")
    add("--no-init", action="store_true", help="do not make the default process group")
    add("--may-fail", action="store_true", help="show a failure without raising it")
    add(
        "--trace",
        nargs="?",
        const=True,
        default=False,
        metavar="FOLDER",
        help="record every rank with torch.profiler and draw the timeline; keep the traces here",
    )
    add("--engine", choices=ENGINES, default="warm", help="what starts the ranks (default warm)")
    add("--max-restarts", type=int, default=0, metavar="N", help="with --engine torchrun")
    return parser


def parse(line: str) -> argparse.Namespace:
    """Read the magic's line; flags may have underscores, as torchrun's may.

    Raises UsageError that names the flag that was meant.
    """
    parser = _parser()
    words = []
    for word in shlex.split(line):
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            word = flag.replace("_", "-") + equals + value
        words.append(word)
    options, unknown = parser.parse_known_args(words)
    if unknown:
        flags = [flag for action in parser._actions for flag in action.option_strings]
        close = difflib.get_close_matches(unknown[0].split("=")[0], flags, 1, 0.5)
        hint = f"did you mean {close[0]}?" if close else "see %%torchrun --help"
        raise UsageError(f"%%torchrun: there is no {unknown[0]}: {hint}")
    for pair in options.env:
        if "=" not in pair:
            raise UsageError(f"%%torchrun: --env wants NAME=VALUE, not {pair!r}")
    if options.into is not None and not options.into.isidentifier():
        raise UsageError(f"%%torchrun: --into wants the name of a variable, not {options.into!r}")
    return options


@magics_class
class TorchrunMagics(Magics):
    """Registers `%%torchrun` with IPython."""

    @line_cell_magic
    def torchrun(self, line: str, cell: str | None = None) -> None:
        """Run this cell on N ranks; see `%%torchrun --help`."""
        options = parse(line)
        if options.help or not (cell or "").strip():
            print(_parser().format_help())
            return
        assert self.shell is not None
        namespace = self.shell.user_ns
        # The magic's own line is line 1 of the cell that the learner sees.
        program = Cell("\n" + (cell or ""), f"cell-{next(_number)}")
        remember_source(program.filename, f"%%torchrun {line}\n{cell}")
        env = dict(pair.split("=", 1) for pair in options.env)
        common: dict[str, Any] = {
            "timeout": options.timeout,
            "may_fail": options.may_fail,
            "trace": options.trace,
        }
        try:
            if options.world is not None:
                world = namespace.get(options.world)
                if not isinstance(world, World):
                    raise UsageError(
                        f"%%torchrun: {options.world} is not a World; make it first: "
                        f"{options.world} = World(nproc_per_node=4)"
                    )
                if options.nproc_per_node or env or options.max_restarts or options.no_init:
                    raise UsageError(
                        f"%%torchrun: the ranks of {options.world} are there already: number, "
                        "backend and variables are said where it is made, World(...)"
                    )
                job = world.run_cell(program, namespace, **common)
            else:
                job = torchrun_cell(
                    program,
                    namespace,
                    nproc_per_node=options.nproc_per_node or 4,
                    backend=options.backend,
                    env=env,
                    init=not options.no_init,
                    engine=options.engine,
                    max_restarts=options.max_restarts,
                    **common,
                )
        except Exception as error:
            failed = getattr(error, "job", None)
            if options.into and failed is not None:
                namespace[options.into] = failed
            raise
        if options.into:
            namespace[options.into] = job
        if options.trace:
            from .timeline import Timeline  # with matplotlib and widgets: not for every cell
            from .trace import Trace

            display(Timeline(Trace.of(job)))


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext lockstep`: the magic, and the warm parent, which warms up behind the cells."""
    shell.register_magics(TorchrunMagics)
    parent.wake()
