"""The launcher's errors. In a notebook each shows its message alone: our frames say nothing."""

from __future__ import annotations

import errno


class ShownPlainly(BaseException):
    """IPython shows what `_render_traceback_` returns instead of the frames."""

    def _render_traceback_(self) -> list[str]:
        return [type(self).__name__, *str(self).splitlines()]


class LaunchError(ShownPlainly, ValueError):
    """Raised for what cannot be started here; the message says why and what to do."""


_REMEDIES = {
    errno.EMFILE: "too many files are open. Close Worlds and drop Jobs that you no longer "
    "need, or raise the limit before Jupyter starts (ulimit -n)",
    errno.ENFILE: "too many files are open on this machine",
    errno.ENOMEM: "no memory is left. Use fewer ranks, or end other programs",
    errno.EAGAIN: "no more processes can be started. Use fewer ranks, end other programs, or "
    "raise the limit (ulimit -u, or that of the container)",
    errno.ENOSPC: "no space is left on the disk or in shared memory",
    errno.EDQUOT: "your disk quota is used up",
    errno.EFBIG: "the limit on the size of files is too low. Raise it before Jupyter starts "
    "(ulimit -f)",
    errno.EADDRINUSE: "no TCP port of 127.0.0.1 is free (net.ipv4.ip_local_port_range). End other "
    "programs that use many connections",
    errno.EADDRNOTAVAIL: "127.0.0.1 cannot be used: is the loopback interface up?",
}


def reason(error: OSError) -> str:
    """Return what this machine lacks, and what to do about it."""
    why = _REMEDIES.get(error.errno or 0)
    said = str(error) or type(error).__name__
    return f"{why}. ({said})" if why else said


def refusal(error: OSError) -> LaunchError:
    return LaunchError(f"the ranks cannot be started: {reason(error)}")


class ScriptNotFound(ShownPlainly, FileNotFoundError):
    """Raised for a script that is not there."""


class UnreadableCell(ShownPlainly, ValueError):
    """Raised for a cell with a syntax error; the message is what Python says of it."""

    def _render_traceback_(self) -> list[str]:
        return str(self).splitlines()


class CannotSend(ShownPlainly, TypeError):
    """Raised for a value that cannot leave its process; the message names it and says why."""


class ResultNotSent(ShownPlainly, RuntimeError):
    """Raised when a rank's result could not leave its process; the message says which and why."""


class RankError(ShownPlainly, RuntimeError):
    """An exception of a rank, as text: the exception itself stays in the rank's process.

    rank; type_name: the name of the exception's class, such as "ZeroDivisionError".
    """

    def __init__(self, rank: int, type_name: str, text: str):
        super().__init__(text)
        self.rank, self.type_name = rank, type_name
