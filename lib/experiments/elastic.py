"""What do agents of torchrun do when nodes come, leave and die, `--nnodes 1:3`?

Each node is a network namespace with an address of its own. A plain script adds ones up on all
ranks, again and again, and tells what it sees through a named pipe: when a call had come to its
end, how many ranks took part, and how many restarts the agent of each had counted.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lockstep.base.machine import Machine

from . import namespaces
from .experiment import CannotRecord, Experiment, Result, device_name
from .faults import text_of
from .restart import OWN_STORE

NODES, RESTARTS, PORT = 3, 3, 29400
LAST_CALL = 5  # seconds that a rendezvous waits for more nodes when it has enough
LIMIT = 75.0  # seconds without a call, after which nothing more is waited for
STEPS = 20  # calls with as many nodes as there should be, before the next thing happens


# ── On a rank ────────────────────────────────────────────────────────────────────────────────


def reducing(folder: str) -> None:
    """Add ones up until there is a file that says "enough"; go on counting where others were."""
    dist.init_process_group("gloo")
    rank, restarts = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    counted, enough = Path(folder, "counted"), Path(folder, "enough")
    step = int(counted.read_text()) if counted.exists() else 0
    mine = torch.zeros(2 + NODES)  # how many take part, how many have enough, restarts by rank
    mine[0], mine[2 + rank] = 1, restarts
    with open(Path(folder, "pipe"), "w", buffering=1) as pipe:
        while not mine[1]:
            mine[1] = enough.exists()
            dist.all_reduce(summed := mine.clone())
            mine[1], step = summed[1], step + 1
            if rank == 0:
                counted.with_suffix(".new").write_text(str(step))
                counted.with_suffix(".new").replace(counted)
                ranks, _, *counts = map(int, summed.tolist())
                seen = {"at": time.monotonic(), "step": step, "ranks": ranks}
                pipe.write(json.dumps(seen | {"restarts": counts[:ranks]}) + "\n")
    dist.destroy_process_group()


# ── Beside the nodes ─────────────────────────────────────────────────────────────────────────


class Nodes:
    """Nodes of a job; the first one has the store where they meet, and stays. Use as a context
    manager: nothing is left running."""

    def __init__(self, network: namespaces.Network, folder: Path, environment: dict[str, str]):
        self._network, self._folder, self._environment = network, folder, environment
        self._agents: dict[int, subprocess.Popen[str]] = {}
        os.mkfifo(folder / "pipe")
        self._pipe = os.open(folder / "pipe", os.O_RDWR)  # so that it does not end with a writer
        self._rest = b""

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, *_: object) -> None:
        for node in tuple(self._agents):
            self.lose(node)
        os.close(self._pipe)

    def start(self, node: int) -> None:
        first, host = self._network.hosts[0], self._network.hosts[node]
        command = [sys.executable, "-m", "torch.distributed.run", f"--nnodes=1:{NODES}"]
        command += ["--nproc-per-node=1", f"--max-restarts={RESTARTS}", "--rdzv-backend=c10d"]
        command += [f"--rdzv-endpoint={first.address}:{PORT}", f"--local-addr={host.address}"]
        command += [f"--rdzv-conf=last_call_timeout={LAST_CALL},is_host={node == 0}"]
        command += ["-m", __name__, str(self._folder)]
        variables = {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1", **self._environment}
        with open(self._folder / f"said-{node}", "a") as said:
            self._agents[node] = host.start(command, variables, said)

    def lose(self, node: int) -> None:
        """Kill all that runs on a node, as its end would."""
        self._network.hosts[node].kill()
        self._agents.pop(node).wait()

    def leave(self, node: int) -> None:
        """Ask a node's agent to go."""
        agent = self._agents.pop(node)
        agent.terminate()
        agent.wait(LIMIT)

    def until(self, ranks: int, after: float) -> dict[str, Any] | None:
        """Return the first of STEPS calls after that time in which so many ranks took part; None if
        for long no call comes to its end."""
        found: list[dict[str, Any]] = []
        while len(found) < STEPS:
            one = self._call()
            if one is None:
                return None
            if one["at"] > after and one["ranks"] == ranks:
                found.append(one)
        return found[0]

    def _call(self) -> dict[str, Any] | None:
        while b"\n" not in self._rest:
            if not select.select([self._pipe], [], [], LIMIT)[0]:
                return None
            self._rest += os.read(self._pipe, 1 << 16)
        line, _, self._rest = self._rest.partition(b"\n")
        return dict(json.loads(line))

    def said(self) -> str:
        """Return what the agents have printed last."""
        files = sorted(self._folder.glob("said-*"))
        return "\n".join(f"{one.name}: {text_of(one, frames=False)[-800:]}" for one in files)

    def ends(self) -> list[int]:
        """Let the ranks come to their end, and return the agents' exit codes."""
        (self._folder / "enough").touch()
        return [agent.wait(LIMIT) for agent in self._agents.values()]


# What happens, how many ranks call then, and which node it happens to.
HAPPENINGS = (
    ("a node starts", 1, Nodes.start, 0),
    ("a second one comes", 2, Nodes.start, 1),
    ("a third one comes", 3, Nodes.start, 2),
    ("it leaves", 2, Nodes.leave, 2),
    ("it comes again", 3, Nodes.start, 2),
    ("it dies", 2, Nodes.lose, 2),
    ("it comes again", 3, Nodes.start, 2),
)


def job(
    network: namespaces.Network, environment: dict[str, str], happenings: int = len(HAPPENINGS)
) -> dict[str, Any]:
    """Let nodes come, leave and die, until so much has happened or the job does not go on."""
    rows: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory(prefix="lockstep-elastic-") as folder,
        Nodes(network, Path(folder), environment) as nodes,
    ):
        for what, ranks, do, node in HAPPENINGS[:happenings]:
            began = time.monotonic()
            do(nodes, node)
            first = nodes.until(ranks, began)
            if first is None:
                rows.append({"what": what, "seconds": None, "said": nodes.said()})
                return {"environment": environment, "rows": rows, "exit codes": []}
            seen = {key: first[key] for key in ("step", "ranks", "restarts")}
            rows.append({"what": what, "seconds": round(first["at"] - began, 2), **seen})
        return {"environment": environment, "rows": rows, "exit codes": nodes.ends()}


def run(machine: Machine, nproc: int) -> Iterator[Result]:
    if why := namespaces.why_not():
        raise CannotRecord(why)
    content: dict[str, Any] = {
        "nodes": f"1:{NODES}",
        "max_restarts": RESTARTS,
        "last_call_timeout": LAST_CALL,
        "limit": LIMIT,
        "unit": "seconds until the first call of so many ranks; null: none within the limit",
        "jobs": [],
    }
    what = f"nodes of torchrun come, leave and die, {NODES} at most, under gloo"
    with namespaces.Network(nproc) as network:
        for environment in ({}, OWN_STORE):
            content["jobs"].append(job(network, environment))
            yield Result(f"faults/elastic-{device_name(machine)}-x{nproc}.json", what, content)


EXPERIMENT = Experiment(
    "elastic",
    "what agents of PyTorch's torchrun do when nodes come, leave and die",
    minutes=3,
    run=run,
    least=NODES,
    most=NODES,
    gpus=False,
    writes={
        "faults/elastic-*.json": (
            *("nodes", "max_restarts", "last_call_timeout", "limit", "unit", "jobs"),
        )
    },
)


if __name__ == "__main__":  # a rank
    reducing(*sys.argv[1:])
