"""Credentials by which an agent dials in, in a file that only its owner reads.

Users know that file as the agent's ticket.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import tempfile
from dataclasses import dataclass
from pathlib import Path

import msgspec
import platformdirs

from ..errors import LaunchError
from ..locks import is_held


@dataclass(frozen=True)
class Credentials:
    """Tells an agent where to dial in, and both ends how to know each other.

    address: host and port at which the notebook listens. key: that both ends must know.
    certificate: by which the notebook is known; "" on loopback, where nothing is encrypted.
    """

    address: tuple[str, int]
    key: bytes
    certificate: str = ""

    @classmethod
    def new(cls, address: tuple[str, int], certificate: str) -> Credentials:
        return cls(address, secrets.token_bytes(32), certificate)

    def write(self) -> tuple[Path, int]:
        """Write them to a new file below the user's own folder for such things.

        Returns a descriptor, too, which claims the file while it is open: files that nobody
        claims, of notebooks that were killed, are removed.
        """
        folder = platformdirs.user_state_path("lockstep") / "nodes"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for old in folder.glob("ticket-*.json"):
            if not is_held(old):
                remove(old)
        claim, path = tempfile.mkstemp(".json", "ticket-", folder)  # for its owner alone
        fcntl.flock(claim, fcntl.LOCK_SH)
        with open(claim, "wb", closefd=False) as file:
            file.write(msgspec.json.encode(self))
        return Path(path), claim

    @classmethod
    def read(cls, path: Path) -> Credentials:
        """Read a file of `write`. Raises LaunchError for another, or one that others can read."""
        try:
            with path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                credentials = msgspec.json.decode(file.read(), type=cls)
        except OSError as error:
            raise LaunchError(
                f"the ticket {str(path)!r} cannot be read: {error.strerror}"
            ) from None
        except msgspec.MsgspecError:
            raise LaunchError(f"{str(path)!r} is not a ticket for an agent") from None
        if mode & 0o077:
            raise LaunchError(
                f"others can read the ticket {str(path)!r}, and can run programs as you with "
                "it: chmod 600, or better, create a new one"
            )
        return credentials


def remove(path: Path) -> None:
    """Remove a file of credentials, and what agents that a queue started with it have printed."""
    path.unlink(missing_ok=True)
    path.with_suffix(".log").unlink(missing_ok=True)
