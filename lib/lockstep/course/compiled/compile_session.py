"""One process that compiles, with a cache of its own; and what a lab shows where none can."""

from __future__ import annotations

import fcntl
import logging
import os
import shlex
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...base.formatting import number, quantity
from ...base.machine import compiler, python_headers
from ...base.provenance import Provenance, live, recorded
from ...launch import Job, World, gpu_count
from ...launch.processes import FOLDER

RECORDING = "compile/cpu.json"
# A pool of processes that compile, or of threads that compute, costs more than it brings to small
# graphs; and the code of one thread is the same on every machine.
CPU_ALONE = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "1"}


class CannotCompile(RuntimeError):
    """Inductor would find no compiler here; the message says what is missing."""


def require() -> None:
    """Raise CannotCompile where torch.compile could generate nothing for the CPU.

    To be called where torch is, before anything is compiled: it settles for what code is written.
    """
    ready = compiler()
    if ready is None:
        missing = "a C++ compiler, and there is none (or CXX names none)"
    elif not python_headers():
        missing = "Python's header files, and there is no Python.h"
    else:
        _settle(ready.path)
        return
    raise CannotCompile(f"torch.compile needs {missing}. `lockstep doctor` says what to install")


def _settle(compiler: str) -> None:
    """Have Inductor call this compiler, and write for AVX2 on every x86 CPU.

    It tries each set of vector instructions that the CPU has: it compiles and loads something for
    each, and PyTorch 2.11 imports torch in a new process for each. Code for one set is the same on
    every machine, too. On other CPUs nothing changes.
    """
    from torch._inductor import config, cpu_vec_isa

    config.cpp.cxx = (None, compiler)  # it has read CXX when it was imported, perhaps long ago
    config.cpp.vec_isa_ok = True  # every compiler of today knows AVX2
    # It warns of a CUDA without a GPU: just that is meant where a notebook hides the GPUs.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    # Inductor's own, where max-autotune tries templates on a CPU.
    warnings.filterwarnings("ignore", "TypedStorage is deprecated")
    sets: list[Any] = cpu_vec_isa.supported_vec_isa_list
    sets[:] = [one for one in sets if not str(one).startswith("avx512")]


def compile_session() -> World:
    """Make a world of one rank that stays, for cells that compile: compilers are loaded once.

    Its caches are in a temporary folder, which is removed with the world. While this process lives
    it holds a lock on it; without one it is taken for that of a killed job, and swept as those are.
    """
    folder = Path(tempfile.mkdtemp(prefix=FOLDER))
    claim = os.open(folder, os.O_RDONLY)
    fcntl.flock(claim, fcntl.LOCK_SH)
    world = World(1, env=variables(folder))
    weakref.finalize(world, _remove, folder, claim)
    return world


def _remove(folder: Path, claim: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(claim)


def variables(folder: Path) -> dict[str, str]:
    """Return the variables by which a rank keeps all caches in this folder."""
    own = {"TORCHINDUCTOR_CACHE_DIR": str(folder), "TRITON_CACHE_DIR": str(folder / "triton")}
    return own if gpu_count() else own | CPU_ALONE


def counted(folder: Path) -> dict[str, str]:
    """Return the variables by which a rank's runs of the C++ compiler are counted in this folder,
    which is made: `compiler_runs` tells them."""
    ready = compiler()
    if ready is None:
        return {}
    script = folder / "counted" / Path(ready.path).name  # PyTorch tells compilers by their names
    script.parent.mkdir(parents=True, exist_ok=True)
    count, real = (shlex.quote(str(path)) for path in (_runs(folder), ready.path))
    script.write_text(f'#!/bin/sh\necho >>{count}\nexec {real} "$@"\n')
    script.chmod(0o700)
    return {"CXX": str(script)}


def compiler_runs(folder: Path) -> int:
    """Return how often the C++ compiler has run for ranks with the variables of `counted`."""
    runs = _runs(folder)
    return runs.read_text().count("\n") if runs.exists() else 0


def _runs(folder: Path) -> Path:
    return folder / "counted" / "runs"


class Findings:
    """The findings of a rank, which a notebook shows in words: a line for each dict that holds no
    other, with what it has of these names: `Findings(took, seconds="a step")`."""

    def __init__(self, content: Any, **names: str):
        self.content, self._names = content, names

    def __repr__(self) -> str:
        return "\n".join(self._line(name, one) for name, one in _each(self.content))

    def _line(self, name: str, one: dict[str, Any]) -> str:
        known = [key for key in self._names if one.get(key) is not None]
        said = " · ".join(f"{self._names[key]} {_said(key, one[key])}" for key in known)
        return f"{name}: {said}" if name else said


def _each(content: Any, *names: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the dicts that hold no other, with the names that lead to them: "dense, eager"."""
    if isinstance(content, list):
        for one in content:
            yield from _each(one, *names)
    elif any(isinstance(one, dict) for one in content.values()):
        for name, one in content.items():
            yield from _each(one, name, *names)
    else:
        yield ", ".join(names), content


def _said(key: str, value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return quantity(value, "s") if key.endswith("seconds") else number(value)


def found(job: Job, key: str) -> tuple[Any, Provenance]:
    """Return what a job's only rank has found, with its stamp; where it could not compile, what
    was recorded under this key on another machine's CPU.
    """
    if job.ok:
        value = job[0]
        return value.content if isinstance(value, Findings) else value, live(job)
    recording = recorded(RECORDING)
    return recording.content[key], recording.stamp
