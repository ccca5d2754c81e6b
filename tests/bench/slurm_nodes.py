"""A cell on two nodes of Slurm against torchrun under srun: `python tests/bench/slurm_nodes.py`.

Both start 2 × 2 gloo ranks, make the group and do one all-reduce. Needs what `make test-slurm`
installs.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import lockstep
import slurm
import torch
import torch.distributed as dist

REPEATS = 5
PROGRAM = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
"""


def reduce() -> None:
    dist.all_reduce(torch.ones(1))


def seconds(run: Callable[[], object], repeats: int = REPEATS) -> str:
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return f"{statistics.median(times):.3g} s (of {repeats}: {min(times):.3g} to {max(times):.3g})"


def under_srun(script: Path) -> None:
    torchrun = (
        f"{sys.executable} -m torch.distributed.run --nnodes 2 --nproc-per-node 2 "
        f"--node-rank $SLURM_NODEID --master-addr 127.0.0.1 --master-port 29611 {script}"
    )
    command = [
        "srun",
        "--nodes=2",
        "--ntasks-per-node=1",
        "--cpus-per-task=2",
        "sh",
        "-c",
        torchrun,
    ]
    subprocess.run(command, check=True, capture_output=True)


def main() -> None:
    options = {"nproc_per_node": 2, "show": False}
    with tempfile.TemporaryDirectory() as folder, slurm.Cluster():
        script = Path(folder) / "program.py"
        script.write_text(PROGRAM)
        print("torchrun under srun:", seconds(lambda: under_srun(script), 3))
        began = time.perf_counter()
        with lockstep.Slurm().allocate(2, show=False) as nodes:
            print(
                f"a job of Slurm's, until its agents are here: {time.perf_counter() - began:.3g} s"
            )
            lockstep.torchrun(reduce, on=nodes, **options)
            warm = seconds(lambda: lockstep.torchrun(reduce, on=nodes, **options))
            print("a cell on warm nodes, fresh ranks:", warm)
        with lockstep.World(2, on=lockstep.Slurm()) as world:
            world.run(reduce)
            print("a cell in a World there:", seconds(lambda: world.run(reduce)))


if __name__ == "__main__":
    main()
