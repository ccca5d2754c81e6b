"""Hosts of a small network on one machine: network namespaces, joined by a bridge (Linux, root)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO

MARK = f"ls{os.getpid()}"  # in the names, so that two runs do not meet
SUBNET = f"10.213.{os.getpid() % 250 + 1}"
HERE = f"{SUBNET}.1"  # the notebook's address


def why_not() -> str:
    """Why this machine cannot have them; "" where it can."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "network namespaces need Linux and root"
    if shutil.which("ip") is None or shutil.which("unshare") is None:
        return "network namespaces need the commands ip (Debian: iproute2) and unshare"
    return ""


def ip(*words: str, check: bool = True) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr}")


class Host:
    """A host of the network: a namespace with an address of its own.

    ahead: seconds by which its clock is ahead of this machine's.
    """

    def __init__(self, number: int, ahead: int = 0):
        self.name = f"{MARK}-{number}"
        self.address = f"{SUBNET}.{number + 1}"
        self._ahead = ahead
        ip("netns", "add", self.name)
        ip("link", "add", self.name, "type", "veth", "peer", "eth0", "netns", self.name)
        ip("link", "set", self.name, "master", MARK, "up")
        ip("-n", self.name, "addr", "add", f"{self.address}/24", "dev", "eth0")
        ip("-n", self.name, "link", "set", "eth0", "up")
        ip("-n", self.name, "link", "set", "lo", "up")

    def start(
        self,
        command: Sequence[str],
        variables: Mapping[str, str] | None = None,
        output: int | IO[str] = subprocess.PIPE,
    ) -> subprocess.Popen[str]:
        """Start a program there, as whoever starts programs on hosts would, with these variables
        besides its environment's."""
        shifted = ["unshare", "--time", f"--monotonic={self._ahead}"] if self._ahead else []
        return subprocess.Popen(
            ["ip", "netns", "exec", self.name, *shifted, *command],
            env={**os.environ, **(variables or {})},
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def kill(self) -> None:
        """Kill all that runs there."""
        said = subprocess.run(
            ["ip", "netns", "pids", self.name], capture_output=True, text=True, check=True
        )
        for pid in map(int, said.stdout.split()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def remove(self) -> None:
        ip("link", "del", self.name, check=False)  # a namespace stays as long as its processes
        ip("netns", "del", self.name, check=False)


class Network:
    """Hosts that reach each other and this machine. Use as a context manager."""

    def __init__(self, count: int, ahead: int = 0):
        """ahead: seconds, of the last host's clock."""
        ip("link", "add", MARK, "type", "bridge")
        ip("addr", "add", f"{HERE}/24", "dev", MARK)
        ip("link", "set", MARK, "up")
        last = count - 1
        self.hosts = [Host(n + 1, ahead if n == last else 0) for n in range(count)]

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: object) -> None:
        for host in self.hosts:
            host.remove()
        ip("link", "del", MARK, check=False)
