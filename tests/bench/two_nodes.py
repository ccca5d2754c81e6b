"""What torchrun tells the ranks of two nodes: writes `data/launch/two-nodes.json`.

Two agents of torchrun, as two nodes would have, on this host: the variables are the same.
Run as `python tests/bench/two_nodes.py data/launch/two-nodes.json`.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

NODES, NPROC = 2, 4
NAMES = ["RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK"]
SIZES = ["WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"]


def on_rank(folder: str) -> None:
    said = {name: os.environ[name] for name in NAMES + SIZES}
    Path(folder, f"{said['RANK']}.json").write_text(json.dumps(said))


def record(target: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torchrun = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={NODES}"]
    torchrun += [f"--nproc-per-node={NPROC}", "--master-addr=127.0.0.1", f"--master-port={port}"]
    with tempfile.TemporaryDirectory() as folder:
        agents = [
            subprocess.Popen([*torchrun, f"--node-rank={node}", __file__, "--rank", folder])
            for node in range(NODES)
        ]
        if any(agent.wait() for agent in agents):
            sys.exit("an agent of torchrun failed")
        ranks = [json.loads(file.read_text()) for file in Path(folder).iterdir()]
    ranks.sort(key=lambda said: int(said["RANK"]))
    target.write_text(json.dumps(ranks, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1] == "--rank":
        on_rank(sys.argv[2])
    else:
        record(Path(sys.argv[1]))
