"""Replies of a rank about a job: typed at both ends, and checked where it comes in."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec

Frame = tuple[str, int, str, str]  # file, line number, function, source line (may be "")
Block = tuple[str, list[Frame]]  # an exception's text, and where it was raised


class Done(msgspec.Struct, tag_field="did", tag="done"):
    """A rank has done its job.

    at: when, in seconds on the clock of its calls. shown: the value's repr, None for no value.
    digest: a checksum of the calls on each group: its name, its ranks, the sum. device: what the
    rank computed on. peak: bytes of memory. bound: names that cells have bound. sizes: of the parts
    of the value that comes along; unsent: why it does not. note: on the job, for the learner.
    """

    ok: ClassVar[bool] = True

    at: float
    shown: str | None
    digest: list[tuple[str, tuple[int, ...], int]]
    device: str
    peak: int
    bound: list[str]
    sizes: list[int] = msgspec.field(default_factory=list)
    unsent: str | None = None
    note: str = ""


class Failed(msgspec.Struct, tag_field="did", tag="failed"):
    """A rank's job has raised.

    at: as of `Done`. kind: the name of the exception's type. blocks: of the exception, and of what
    has caused it, each. exit_code: the repr of SystemExit's code. device, note: as of `Done`; ""
    where it is not known.
    """

    ok: ClassVar[bool] = False

    at: float
    kind: str
    blocks: Annotated[list[Block], msgspec.Meta(min_length=1)]
    exit_code: str
    device: str = ""
    note: str = ""


Reply = Done | Failed


def read_reply(message: dict[str, Any]) -> Reply:
    """Return the reply that a message is. Raises msgspec.ValidationError where it is none."""
    reply: Reply = msgspec.convert(message, Reply)
    return reply
