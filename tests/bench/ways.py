"""The ways to run a job of four ranks that `launch.py` compares.

Each way runs the same program text in fresh ranks, takes the time until the values are back, and
raises where a value is wrong. All of them get the same OMP_NUM_THREADS and network interface.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from inside import PATIENCE, RANKS
from jupyter_client.manager import KernelManager

# As torchrun and we set them by default; here for everybody.
COMMON = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


@dataclass(frozen=True)
class Program:
    """Source that every rank runs; it leaves `value`, which must come out as `expected`."""

    body: str
    expected: str

    @property
    def cell(self) -> str:
        return f"%%torchrun -n {RANKS}\n{self.body}value\n"

    @property
    def world_cell(self) -> str:
        """The same on the kept ranks of `world`, in the group that they have already."""
        init = 'dist.init_process_group("gloo")\n'
        return f"%%torchrun --world world\n{self.body.replace(init, '')}value\n"

    @property
    def function(self) -> str:
        """What a rank prints goes out in one write, or the lines of two ranks may mix."""
        shown = 'print(f"{value}\\n", end="", flush=True)\n'
        end = "dist.destroy_process_group()\n"
        return "def run():\n" + textwrap.indent(self.body + shown + end, "    ")

    @property
    def script(self) -> str:
        """It leaves by os._exit: at an ordinary exit PyTorch 2.13 aborts every third time or so
        ("terminate called without an active exception"), and torchrun calls that a failure.
        """
        return f"import os\n{self.function}\nrun()\nos._exit(0)\n"

    def check(self, values: list[str]) -> None:
        if values != [self.expected] * RANKS:
            raise RuntimeError(f"{RANKS} ranks should say {self.expected}, but said {values}")

    def check_cell(self, shown: str) -> None:
        if f"ranks 0–{RANKS - 1} → │ {self.expected}" not in shown:
            raise RuntimeError(f"{RANKS} ranks should say {self.expected}, but said:\n{shown}")


REDUCE = Program(
    """\
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
x = torch.arange(4.0) + dist.get_rank()
dist.all_reduce(x)
value = x.tolist()
""",
    "[6.0, 10.0, 14.0, 18.0]",
)

# Rank r has the gradient 2r for each weight; DDP averages to 3, and the step takes 0.3 off 1.
DDP_STEP = Program(
    """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
layer = torch.nn.Linear(4, 1, bias=False)
torch.nn.init.ones_(layer.weight)
model = DistributedDataParallel(layer)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(2, 4) * dist.get_rank()).sum().backward()
optimizer.step()
value = [round(w, 4) for w in layer.weight.flatten().tolist()]
""",
    "[0.7, 0.7, 0.7, 0.7]",
)


class Notebook:
    """A real ipykernel and a client that waits for its messages. Use as a context manager."""

    def __init__(self) -> None:
        """Start the kernel; `ready()` waits until it answers."""
        self._manager = KernelManager(kernel_name="python3")
        self._manager.start_kernel(extra_arguments=["--log-level=ERROR"])
        self._client = self._manager.blocking_client()
        self._client.start_channels()

    def ready(self) -> None:
        self._client.wait_for_ready(timeout=PATIENCE)

    @property
    def pid(self) -> int:
        return self._manager.provisioner.pid

    def send(self, code: str) -> str:
        return self._client.execute(code)

    def finish(self, request: str) -> str:
        """Wait until the kernel is idle again; returns all text that the cell has shown.

        Raises RuntimeError where the cell raised.
        """
        shown, error = [], ""
        while True:
            message = self._client.get_iopub_msg(timeout=PATIENCE)
            if message["parent_header"].get("msg_id") != request:
                continue
            content = message["content"]
            if message["msg_type"] == "stream":
                shown.append(content["text"])
            elif "data" in content:
                shown.append(content["data"].get("text/plain", ""))
            elif message["msg_type"] == "error":
                error = "\n".join(content["traceback"])
            elif content.get("execution_state") == "idle":
                break
        if error:
            raise RuntimeError(f"the cell raised:\n{error}")
        return "\n".join(shown)

    def run(self, code: str) -> str:
        return self.finish(self.send(code))

    def time(self, program: Program, *, world: bool = False) -> float:
        """Run a program as a %%torchrun cell; seconds from the request until the kernel is idle."""
        began = time.perf_counter()
        shown = self.run(program.world_cell if world else program.cell)
        seconds = time.perf_counter() - began
        program.check_cell(shown)
        return seconds

    def __enter__(self) -> Notebook:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel()


# ── Whole commands ───────────────────────────────────────────────────────────────────────────


def torchrun(program: Program) -> float:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS)]
    # --standalone would do the same here, with a rendezvous that takes longer.
    return _command(program, program.script, [*command, "--master-port", str(free_port())])


def spawn(program: Program) -> float:
    """torch.multiprocessing.spawn, which needs a script: it cannot run a notebook's function."""
    script = f"""\
import os
import torch.multiprocessing as mp

{program.function}

def rank_main(rank, port):
    os.environ.update(RANK=str(rank), WORLD_SIZE="{RANKS}", MASTER_ADDR="127.0.0.1")
    os.environ.update(LOCAL_RANK=str(rank), MASTER_PORT=port)
    run()

if __name__ == "__main__":
    mp.spawn(rank_main, ("{free_port()}",), nprocs={RANKS})
"""
    return _command(program, script, [sys.executable])


def accelerate(program: Program) -> float:
    """accelerate's notebook_launcher in a fresh Python: it forks the process that calls it."""
    script = f"""\
from accelerate import notebook_launcher

{program.function}
notebook_launcher(run, num_processes={RANKS}, use_port="{free_port()}")
"""
    return _command(program, script, [sys.executable])


def _command(program: Program, script: str, command: list[str]) -> float:
    """Write a script, run it, check what its ranks printed; returns the command's seconds."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "job.py")
        path.write_text(script)
        began = time.perf_counter()
        done = subprocess.run(
            [*command, str(path)], capture_output=True, text=True, timeout=PATIENCE
        )
        seconds = time.perf_counter() - began
    if done.returncode:
        raise RuntimeError(f"{command} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    program.check([line for line in done.stdout.splitlines() if line.startswith("[")])
    return seconds


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


# ── ipyparallel ──────────────────────────────────────────────────────────────────────────────


class Engines:
    """An ipyparallel cluster of four engines, which stay alive. Use as a context manager."""

    def __init__(self) -> None:
        import ipyparallel

        self._cluster = ipyparallel.Cluster(
            n=RANKS, profile_dir=tempfile.mkdtemp(), log_level=40, shutdown_atexit=False
        )

    def __enter__(self) -> Engines:
        client = self._cluster.start_and_connect_sync(activate=False)
        self._view = client[:]
        self._view.scatter("rank", range(RANKS), flatten=True, block=True)
        return self

    def run(self, program: Program) -> float:
        """Make a process group in the engines and use it, as a %%px cell would; seconds."""
        environment = (
            "import os\n"
            "os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), MASTER_ADDR='127.0.0.1', "
            f"WORLD_SIZE='{RANKS}', MASTER_PORT='{free_port()}')\n"
        )
        began = time.perf_counter()
        self._view.execute(environment + program.body, block=True)
        values = self._view["value"]
        seconds = time.perf_counter() - began
        program.check([str(value) for value in values])
        self._view.execute("dist.destroy_process_group()", block=True)
        return seconds

    def __exit__(self, *_: object) -> None:
        self._view.client.close()
        self._cluster.stop_cluster_sync()


# ── PyTorch alone ────────────────────────────────────────────────────────────────────────────────


def plain_reduces(blocks: int = 20, calls: int = 500) -> list[float]:
    """Microseconds that a small all-reduce takes in one rank, one value a block."""
    script = f"""\
import time
import torch
import torch.distributed as dist

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
torch.set_num_threads(1)
x = torch.zeros(4)
for _ in range({blocks}):
    dist.barrier()
    began = time.perf_counter()
    for _ in range({calls}):
        dist.all_reduce(x)
    print((time.perf_counter() - began) / {calls} * 1e6)
dist.destroy_process_group()
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=PATIENCE)
    return [float(line) for line in done.stdout.split()]


@contextlib.contextmanager
def forking_process() -> Iterator[subprocess.Popen[str]]:
    """The warm process of `floor.py`: what forking four ranks costs without any launcher."""
    path = Path(__file__).with_name("floor.py")
    process = subprocess.Popen(
        # NumPy's BLAS starts threads on import, and a process with threads cannot be forked.
        [sys.executable, str(path)],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    try:
        floor(process, "fork")  # it has imported everything when it answers
        yield process
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


def floor(process: subprocess.Popen[str], what: str) -> float:
    """Seconds that one job took. what: "fork" (the children leave at once) or "reduce"."""
    process.stdin.write(f"{what}\n")
    return float(process.stdout.readline())
