"""Programs of others as they were published: what they print here and under PyTorch's torchrun.

`python -m experiments unchanged/FOLDER -n 2` takes a checkout of gpt-fast (generates with cut
layers, compiled, from a small random model) or nanoGPT (trains a small model, compiled, in DDP).
Both want a GPU for each rank. The tokenizer that gpt-fast imports is stood in for by bytes. A
program that has printed what it had to and does not leave is ended: `ended` is false then.
"""

from __future__ import annotations

import os
import pickle
import random
import re
import shlex
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lockstep.base.machine import Machine

from .experiment import CannotRecord, Experiment, ExperimentFailed, Result, device_name, end

LIMIT = 100  # seconds for each run
_MEASURED = re.compile(
    r"-?\d+(\.\d+)?(?= ?(ms|%|sec|GB|TF|tokens))|(?<=time: )\d+\.\d+|(?<=tokens/sec: )\d+\.\d+"
)
_BYTES = """
class SentencePieceProcessor:
    def __init__(self, path): pass
    def EncodeAsIds(self, text): return list(text.encode())
    def DecodeIds(self, ids): return " ".join(map(str, ids))
    def bos_id(self): return 256
    def eos_id(self): return 257
"""
_RANDOM_MODEL = """
import sys, torch
from model import Transformer
torch.manual_seed(0)
torch.save(Transformer.from_name("stories15M").state_dict(), sys.argv[1])
"""
_BY_LOCKSTEP = """
import sys
from lockstep.launch import Logs, torchrun
n, logs, *command = sys.argv[1:]
torchrun(*command, nproc_per_node=int(n), show=False, logs=Logs(log_dir=logs, redirects="1"))
"""


def gpt_fast(checkout: Path, place: Path) -> list[str]:
    """Make a random model below `place`; returns the command that generates with it."""
    model = place / "stories15M"
    (place / "tiktoken").mkdir()
    model.mkdir()
    (place / "sentencepiece.py").write_text(_BYTES)
    (place / "tiktoken" / "__init__.py").touch()
    (place / "tiktoken" / "load.py").write_text("load_tiktoken_bpe = None\n")
    (model / "tokenizer.model").touch()
    _finished([sys.executable, "-c", _RANDOM_MODEL, str(model / "model.pth")], checkout, place)
    options = "--compile --num_samples 2 --max_new_tokens 16 --prompt Hello --checkpoint_path"
    return ["generate.py", *shlex.split(options), str(model / "model.pth")]


def nano_gpt(checkout: Path, place: Path) -> list[str]:
    """Make random data below `place`; returns the command that trains on it."""
    draw = random.Random(0)
    for part in ("train", "val"):
        tokens = array("H", (draw.randrange(64) for _ in range(4096)))
        (place / f"{part}.bin").write_bytes(tokens.tobytes())
    (place / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 64}))
    options = """--max_iters=12 --eval_interval=6 --eval_iters=2 --log_interval=1 --n_layer=2
        --n_head=2 --n_embd=64 --block_size=32 --batch_size=4 --gradient_accumulation_steps=2
        --always_save_checkpoint=False"""
    return ["train.py", f"--dataset={place}", f"--out_dir={place / 'out'}", *shlex.split(options)]


# A file by which a checkout is known, and what makes it ready to run.
PROGRAMS: dict[str, Callable[[Path, Path], list[str]]] = {
    "tp.py": gpt_fast,
    "configurator.py": nano_gpt,
}


def by_torchrun(nproc: int, logs: Path) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={nproc}"]
    return [*launcher, "--standalone", "--redirects=1", f"--log-dir={logs}"]


def by_lockstep(nproc: int, logs: Path) -> list[str]:
    return [sys.executable, "-c", _BY_LOCKSTEP, str(nproc), str(logs)]


# Torchrun once more, as two runs of a program need not agree to the letter.
LAUNCHERS = {"torchrun": by_torchrun, "lockstep": by_lockstep, "torchrun again": by_torchrun}


def _finished(command: list[str], checkout: Path, place: Path) -> bool:
    """Run it in the checkout, with what is in `place` to import; false if LIMIT ended it."""
    paths = [str(place), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    own = {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "TORCHINDUCTOR_CACHE_DIR": str(place / "cache"),
        "TRITON_CACHE_DIR": str(place / "cache" / "triton"),
        "TORCHINDUCTOR_COMPILE_THREADS": "4",
        "PYTHONFAULTHANDLER": "1",
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",
    }
    process = subprocess.Popen(
        command,
        cwd=checkout,
        env=os.environ | own,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    try:
        said, _ = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return False
    finally:
        end(process)
    if process.returncode:
        raise ExperimentFailed(f"exit code {process.returncode}: {said}"[-4000:])
    return True


def without_times(text: str, place: Path) -> list[str]:
    return [_MEASURED.sub("…", line.replace(str(place), "")) for line in text.splitlines()]


def run(machine: Machine, nproc: int) -> list[Result]:
    """Raises CannotRecord: without a program there is nothing to record."""
    raise CannotRecord("unchanged runs a program of others: say unchanged/FOLDER")


def of_checkout(folder: str, machine: Machine, nproc: int) -> list[Result]:
    """Run the program in this folder by each launcher. Raises CannotRecord where it is none."""
    checkout = Path(folder).resolve()
    known = [program for file, program in PROGRAMS.items() if (checkout / file).is_file()]
    if not known:
        raise CannotRecord(f"{folder} is no checkout of gpt-fast or nanoGPT")

    def told(launcher: Callable[[int, Path], list[str]]) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as name:
            place = Path(name).resolve()
            command = known[0](checkout, place)
            began = time.perf_counter()
            try:
                ended = _finished([*launcher(nproc, place / "logs"), *command], checkout, place)
            except ExperimentFailed as failed:
                return {"failed": str(failed), "lines": []}
            seconds = time.perf_counter() - began
            printed = next((place / "logs").rglob("0/stdout.log")).read_text()
            return {"lines": without_times(printed, place), "seconds": seconds, "ended": ended}

    launched = {name: told(launcher) for name, launcher in LAUNCHERS.items()}
    lines = [launched[name]["lines"] for name in ("torchrun", "lockstep")]
    content = {"program": checkout.name, "same": lines[0] == lines[1] != [], **launched}
    what = f"{checkout.name} as published, on {nproc} ranks, here and under torchrun"
    name = f"launch/unchanged-{checkout.name.lower()}-{device_name(machine)}-x{nproc}.json"
    return [Result(name, what, content)]


EXPERIMENT = Experiment(
    "unchanged",
    "programs of others as published, here and under torchrun: unchanged/FOLDER",
    minutes=2,
    run=run,
    part=of_checkout,
    least=2,
    writes={"launch/unchanged-*.json": ("program", "same", *LAUNCHERS)},
)
