"""The magic `%%torchrun`: a cell on N ranks; and `%torchrun`: a script or a module."""

from __future__ import annotations

import argparse
import difflib
import itertools
import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any, NoReturn

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class
from IPython.display import display

from .launch import sources
from .launch.cell import Cell
from .launch.cluster.allocation import find
from .launch.cluster.slurm import Slurm
from .launch.engines.supervised import forkserver
from .launch.job import Job
from .launch.logs import Logs
from .launch.nodes.remote import Nodes
from .launch.options import BACKENDS, ENGINES, Options
from .launch.run import World, run_cell, run_program

_EXAMPLE = """
Runs the cell on N ranks, each in a process of its own, with the default process group created.
Prints and the value of the last expression come back from every rank.

    %%torchrun --nproc-per-node 4
    import torch, torch.distributed as dist
    x = torch.ones(3) * dist.get_rank()
    dist.all_reduce(x)
    x

With one % it runs a script or, after -m, a module, as torchrun does. Arguments after its name
are passed to it; $name and {name} are variables of the notebook.

    %torchrun -n 4 train.py --lr {rate}
    %torchrun -n 4 -m package.train --lr 0.1
"""
# torchrun's flags that say what is so here anyway, where all ranks are on this machine
_ALWAYS_SO = ("--standalone", "--run-path")
_WITHOUT_EFFECT = (
    *("--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--rdzv-conf"),
    *("--master-addr", "--master-port", "--local-addr"),
    *("--monitor-interval", "--start-method", "--signals-to-handle", "--shutdown-timeout"),
)
_REFUSED = {
    "--no-python": "ranks run Python; start other programs with subprocess, from a script of yours",
    "--numa-binding": "only torchrun itself can bind ranks to cores; use it in a terminal",
    "--virtual-local-rank": "set CUDA_VISIBLE_DEVICES in the script instead",
    "--role": "it matters only where several torchruns make one job; use them in a terminal",
    "--logs-specs": "use --log-dir, --redirects and --tee",
    "--event-log-handler": "the Job has the outcome of each rank: use --into NAME",
    "--duplicate-stdout-filters": "search the text of job.output(rank): use --into NAME",
    "--duplicate-stderr-filters": "search the text of job.output(rank): use --into NAME",
}
_number = itertools.count(1)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"%%torchrun: {message}")


@cache
def _parser() -> _Parser:
    parser = _Parser(
        prog="%%torchrun",
        usage="%(prog)s [options]\n       %%torchrun [options] [-m] program [arguments]",
        description=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
        allow_abbrev=False,
    )

    def add(*flags: str, **settings: Any) -> None:
        parser.add_argument(*flags, **settings)
        if any("-" in flag[2:] for flag in flags):  # --nproc_per_node is the same, as for torchrun
            other = [flag[:2] + flag[2:].replace("-", "_") for flag in flags if "-" in flag[2:]]
            parser.add_argument(
                *other, **settings | {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
            )

    add("-h", "--help", action="store_true", help="show this help")
    add(
        "-n",
        "--nproc-per-node",
        metavar="N|gpu|cpu|auto",
        help="number of ranks (default 4); 2,1: two on one node and one on another",
    )
    add("-m", "--module", action="store_true", help="the program is a module, as with python -m")
    add("--backend", choices=BACKENDS, default="auto", help="backend of the default process group")
    add("--timeout", type=float, metavar="SECONDS", help="end the ranks after this long")
    add(
        "--env",
        action="append",
        default=[],
        metavar="K=V",
        help="set an environment variable for the ranks",
    )
    add("--into", metavar="NAME", help="keep the Job in this variable")
    add("--world", metavar="NAME", help="use the ranks of this World, which stay alive")
    add("--no-init", action="store_true", help="do not create the default process group")
    add("--may-fail", action="store_true", help="show a failure without raising an exception")
    add(
        "--trace",
        nargs="?",
        const=True,
        default=False,
        metavar="FOLDER",
        help="record every rank with torch.profiler and draw the timeline; keep the traces "
        "in FOLDER, if given",
    )
    add("--engine", choices=ENGINES, default="warm", help="what starts the ranks (default warm)")
    add("--max-restarts", type=int, default=0, metavar="N", help="only with --engine torchrun")
    add("--log-dir", metavar="DIR", help="where --tee and --redirects make a folder for each run")
    streams = "1 stdout, 2 stderr, 3 both, or by rank as in 0:3,1:2"
    add("-t", "--tee", default="0", metavar="STREAMS", help=f"show and copy to files: {streams}")
    add("-r", "--redirects", default="0", metavar="STREAMS", help="the same, but to files only")
    add(
        "--local-ranks-filter",
        default="",
        metavar="RANKS",
        help="show the output of these ranks only, as in 0,2",
    )
    add(
        "--on",
        metavar="slurm|NAME",
        help="other hosts: slurm, or a variable that holds Nodes or a Slurm",
    )
    add("--nnodes", metavar="N", help="number of hosts")
    add("--node-rank", default="0", help=argparse.SUPPRESS)
    for flag in _ALWAYS_SO:
        add(flag, action="store_true", help=argparse.SUPPRESS)
    for flag in _WITHOUT_EFFECT:
        add(flag, help=argparse.SUPPRESS)
    for flag in _REFUSED:
        add(flag, nargs="?", const=True, help=argparse.SUPPRESS)
    # PARSER: one word, and everything behind it whatever it looks like
    program = parser.add_argument("program", nargs=argparse.PARSER, help=argparse.SUPPRESS)
    program.required = False
    return parser


def parse(line: str) -> argparse.Namespace:
    """Read the magic's line; flags may have underscores, as torchrun's may.

    Raises UsageError that names the flag that was meant.
    """
    parser = _parser()
    try:
        words = shlex.split(line)
        options, unknown = parser.parse_known_args(words)
        if str(options.trace).endswith(".py") and "--trace" in words:  # the program, not a folder
            words.insert(words.index("--trace") + 1, "--")
            options, unknown = parser.parse_known_args(words)
    except ValueError as error:  # a quotation mark without its second half
        raise UsageError(f"%%torchrun: {error} in: {line}") from None
    if unknown and unknown[0].startswith("-"):
        shown: list[str] = []
        hidden: list[str] = []
        for action in parser._actions:
            known = hidden if action.help == argparse.SUPPRESS else shown
            known += [flag for flag in action.option_strings if "_" not in flag]
        meant = unknown[0].split("=")[0].replace("_", "-")
        # Of those that the help does not show, only a slip of the pen can be meant.
        close = difflib.get_close_matches(meant, hidden, 1, 0.85)
        close = close or [flag for flag in shown if flag.startswith(meant.rstrip("s"))]
        close = close or difflib.get_close_matches(meant, shown, 1, 0.5)
        hint = f"did you mean {close[0]}?" if close else "see %%torchrun --help"
        raise UsageError(f"%%torchrun: there is no {unknown[0]}: {hint}")
    for flag, why in _REFUSED.items():
        if _value(options, flag) is not None:
            raise UsageError(f"%%torchrun: {flag} is not for notebooks: {why}")
    if options.node_rank != "0":
        raise UsageError(
            "%%torchrun: --node-rank is for torchrun in a terminal of each host; here one "
            "cell starts the ranks of all hosts: --nnodes 2 --on slurm"
        )
    if options.nnodes is not None:
        fewest, _, most = options.nnodes.partition(":")  # torchrun takes a range
        if not fewest.isdigit() or int(fewest) < 1 or most not in ("", fewest):
            raise UsageError(f"%%torchrun: --nnodes needs one number, not {options.nnodes!r}")
        options.nnodes = int(fewest)
    for pair in options.env:
        if "=" not in pair:
            raise UsageError(f"%%torchrun: --env needs NAME=VALUE, not {pair!r}")
    if options.into is not None and not options.into.isidentifier():
        raise UsageError(f"%%torchrun: --into needs the name of a variable, not {options.into!r}")
    if options.program and options.program[0] == "--":
        del options.program[0]
    if options.module and not options.program:
        raise UsageError("%%torchrun: -m needs the name of a module after it")
    return options


def _value(options: argparse.Namespace, flag: str) -> Any:
    return getattr(options, flag[2:].replace("-", "_"))


def _hosts(said: argparse.Namespace, namespace: Mapping[str, Any]) -> Nodes | Slurm | None:
    """The other hosts that are meant. Raises LaunchError for what makes no sense."""
    on = namespace.get(said.on, said.on)
    if isinstance(on, Slurm):
        return on if said.nnodes is None else replace(on, nodes=said.nnodes)
    if isinstance(on, Nodes):
        if said.nnodes not in (None, on.count):
            raise UsageError(f"%%torchrun: --nnodes {said.nnodes}, but {said.on} has {on.count}")
        return on
    if said.on is not None and not isinstance(on, str):
        raise UsageError(f"%%torchrun: {said.on} is neither a Slurm nor Nodes")
    return find(on, said.nnodes)


def _options(said: argparse.Namespace, namespace: Mapping[str, Any]) -> Options:
    """The launcher's options. Raises LaunchError for what makes no sense."""
    idle = ", ".join(flag for flag in _WITHOUT_EFFECT if _value(said, flag) is not None)
    return Options(
        nproc_per_node=said.nproc_per_node or 4,
        backend=said.backend,
        init=not said.no_init,
        env=dict(pair.split("=", 1) for pair in said.env),
        engine=said.engine,
        max_restarts=said.max_restarts,
        timeout=said.timeout,
        may_fail=said.may_fail,
        trace=said.trace,
        logs=Logs(said.log_dir, said.redirects, said.tee, said.local_ranks_filter),
        on=_hosts(said, namespace),
        note=f"these have no effect, because all ranks are on this machine: {idle}" if idle else "",
    )


@magics_class
class TorchrunMagics(Magics):
    """Registers `%%torchrun` and `%torchrun` with IPython."""

    @line_cell_magic
    def torchrun(self, line: str, cell: str | None = None) -> None:
        """Run this cell, or a script, on N ranks; see `%%torchrun --help`."""
        if cell and (missing := re.search(r"\{(\w+)\}", line)):  # IPython knows no such variable
            raise UsageError(
                f"%%torchrun: {missing[1]} has no value in this kernel: run the cell first that "
                "sets it; in a lab it is one of the first two"
            )
        said = parse(line)
        cell = cell if (cell or "").strip() else None
        if said.help or not (cell or said.program):
            if isinstance(said.trace, str):
                raise UsageError(
                    f"%%torchrun: there is no program, because --trace took {said.trace!r} as "
                    "its folder; write --trace=FOLDER, or --trace before another flag"
                )
            print(_parser().format_help())
            return
        if cell and said.program:
            raise UsageError(
                f"%%torchrun: give a cell or a program, not both: {' '.join(said.program)!r} "
                "is not a flag. To run a script or a module, write %torchrun in a cell of "
                "its own"
            )
        assert self.shell is not None
        namespace = self.shell.user_ns
        try:
            job = (
                self._run_program(said) if said.program else self._run_cell(said, line, cell or "")
            )
        except Exception as error:
            failed = getattr(error, "job", None)
            if said.into and failed is not None:
                namespace[said.into] = failed
            raise
        if said.into:
            namespace[said.into] = job
        if said.trace:
            from .timeline import Timeline  # with matplotlib and widgets: not for every cell
            from .trace import Trace

            display(Timeline(Trace.of(job)))

    def _run_program(self, said: argparse.Namespace) -> Job:
        if said.world is not None:
            raise UsageError(
                "%%torchrun: a program runs on ranks of its own, because it ends them; leave "
                f"out --world {said.world}"
            )
        assert self.shell is not None
        options = _options(said, self.shell.user_ns)
        return run_program(["-m"] * said.module + said.program, options)

    def _run_cell(self, said: argparse.Namespace, line: str, cell: str) -> Job:
        assert self.shell is not None
        namespace = self.shell.user_ns
        # The magic's own line is line 1 of the cell that the learner sees.
        program = Cell("\n" + cell, f"cell-{next(_number)}")
        sources.remember(program.filename, f"%%torchrun {line}\n{cell}")
        if said.world is None:
            return run_cell(program, namespace, _options(said, namespace))
        world = namespace.get(said.world)
        if not isinstance(world, World):
            raise UsageError(
                f"%%torchrun: {said.world} is not a World; create it first: {said.world} = "
                "World(nproc_per_node=4)"
            )
        options = _options(said, namespace)
        if (
            said.nproc_per_node
            or said.nnodes
            or said.on
            or said.env
            or said.max_restarts
            or said.no_init
        ):
            raise UsageError(
                f"%%torchrun: the ranks of {said.world} exist already: their number, hosts, "
                "backend and variables are set where it is created, in World(...)"
            )
        if options.logs.keeps():
            raise UsageError(
                f"%%torchrun: the ranks of {said.world} already write to the notebook; --tee "
                "and --redirects need fresh ranks"
            )
        return world.run_cell(program, namespace, options)


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext lockstep`: the magics, and the forkserver, which warms up behind the cells."""
    shell.register_magics(TorchrunMagics)
    forkserver.wake()
