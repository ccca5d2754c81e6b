"""What an agent must know to dial in: where, and the key. A file that only its owner reads."""

from __future__ import annotations

import json
import os
import secrets
import tempfile
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from ..errors import LaunchError


@dataclass(frozen=True)
class Ticket:
    """address: host and port at which the notebook listens. key: that both ends must know."""

    address: tuple[str, int]
    key: bytes

    @classmethod
    def new(cls, address: tuple[str, int]) -> Ticket:
        return cls(address, secrets.token_bytes(32))

    def write(self) -> Path:
        """Write it to a new file below the user's own folder for such things."""
        folder = platformdirs.user_state_path("lockstep") / "nodes"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor, path = tempfile.mkstemp(".json", "ticket-", folder)  # for its owner alone
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump({"address": self.address, "key": self.key.hex()}, file)
        return Path(path)

    @classmethod
    def read(cls, path: Path) -> Ticket:
        """Raises LaunchError for what is no ticket, or others can read."""
        try:
            with path.open(encoding="utf-8") as file:
                mode = os.fstat(file.fileno()).st_mode
                said = json.load(file)
            host, port = said["address"]
            ticket = cls((str(host), int(port)), bytes.fromhex(said["key"]))
        except OSError as error:
            raise LaunchError(f"the ticket cannot be read: {error}") from None
        except (ValueError, TypeError, LookupError):
            raise LaunchError(f"{str(path)!r} is no ticket for an agent") from None
        if mode & 0o077:
            raise LaunchError(
                f"others can read the ticket {str(path)!r}, and with it run programs as you: "
                "chmod 600, and better a new one"
            )
        return ticket
