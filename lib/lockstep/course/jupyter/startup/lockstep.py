"""Until lockstep is loaded, `%%torchrun` says what to run first.

IPython runs this file when it starts, in every environment in which lockstep is installed: after a
restart of the kernel, learners often run the cell first at which they are.
"""

from IPython.core.getipython import get_ipython


def torchrun(line: str, cell: str = "") -> None:
    """Raise UsageError; `%load_ext lockstep` registers the magic itself instead."""
    from IPython.core.error import UsageError

    raise UsageError(
        "%%torchrun: this kernel has just started: run the lab's first two code cells again (one "
        "of them is %load_ext lockstep), then this one"
    )


if shell := get_ipython():
    shell.register_magic_function(torchrun, "line_cell")  # type: ignore[arg-type] # a decorator
del shell, torchrun  # this is the learner's namespace
