"""Programs for torchrun: PROGRAMS differ in how they end, and say what each has to leave behind;
FAMILIES are those of programs/, whose outcome under torchrun is recorded in programs/torchrun.json.

Each is an ordinary script. As a function it is the body of `main()`; "bare" forms, and a World's
cell, go without the line that makes the default group, because the launcher has made it.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path(__file__).with_name("programs")
INIT = 'dist.init_process_group("gloo")\n'
_INIT = re.compile(  # on GPUs, too
    r'^dist\.init_process_group\(("nccl" if device\.type == "cuda" else )?"gloo"\)\n', re.M
)
OF_FAMILIES = ("script", "function", "cell", "world")
FORMS = ("script", "function", "bare function", "cell", "bare cell", "world")


@dataclass(frozen=True)
class Program:
    """A program and how it has to end.

    lines: what each rank prints. files: what is there afterwards, with its content (None: any).
    code: the exit code of the rank that fails first, 0 where none fails. jobs: how many times in
    a row it runs in one folder; the lines are those of all of them.
    """

    source: str
    lines: tuple[str, ...] = ()
    files: dict[str, str | None] = field(default_factory=dict)
    code: int = 0
    jobs: int = 1
    forms: tuple[str, ...] = FORMS[:5]
    ranks: int = 2

    def text(self, form: str) -> str:
        bare = form.startswith("bare") or form == "world"
        text = _INIT.sub("", self.source) if bare else self.source
        return f"def main():\n{textwrap.indent(text, '    ')}" if "function" in form else text


def rests(program: Program, number: int, form: str) -> bool:
    """Whether a form is left to `make test-long`: each program runs in one, by turns."""
    return form != program.forms[number % len(program.forms)]


START = f"""\
import gc
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

{INIT}rank = dist.get_rank()
"""

# On 2 ranks each of the five steps takes 0.02 off every weight.
LAYER = """\
layer = torch.nn.Linear(4, 1, bias=False)
torch.nn.init.ones_(layer.weight)
"""
FIVE_STEPS = """\
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for _ in range(5):
    optimizer.zero_grad()
    model(torch.ones(2, 4) * rank).sum().backward()
    optimizer.step()
"""
SHOW = "print([round(w, 4) for w in layer.weight.flatten().tolist()], flush=True)\n"
TRAINED = ("[0.9, 0.9, 0.9, 0.9]",)

DDP = f"{START}{LAYER}model = DistributedDataParallel(layer)\n{FIVE_STEPS}{SHOW}"
DESTROY = "dist.destroy_process_group()\n"
OUTSTANDING = f"""\
{START}
ones = [torch.ones(100_000) for _ in range(20)]
works = [dist.all_reduce(x, async_op=True) for x in ones]
works.append(dist.isend(torch.ones(1000), 1 - rank))
works.append(dist.irecv(torch.empty(1000), 1 - rank))
print("all begun", flush=True)
"""
TWO_GROUPS = f"""\
{START}
everybody = dist.new_group([0, 1])
{LAYER}model = DistributedDataParallel(layer, process_group=everybody)
{FIVE_STEPS}{SHOW}"""
DROP = "del model, optimizer, everybody\ngc.collect()\n"

# Rank 0 waits until the launcher ends it: all that is left is what rank 1 did before it ended.
FAILING = f"""\
import atexit, os, sys, threading
{START}
dist.all_reduce(torch.ones(4))
if rank == 0:
    threading.Event().wait()
atexit.register(lambda: open("atexit", "w").write("written at exit"))
unflushed = open("unflushed", "w")
unflushed.write("never flushed")
print("last words")
"""
KEPT: dict[str, str | None] = {"atexit": "written at exit", "unflushed": "never flushed"}

PROGRAMS = {
    "destroy, model alive": Program(DDP + DESTROY, TRAINED),
    "destroy, then delete the model": Program(
        DDP + DESTROY + "del model, optimizer\ngc.collect()\n", TRAINED
    ),
    "delete the model, then destroy": Program(DDP + "del model\n" + DESTROY, TRAINED),
    "no destroy, model alive": Program(DDP, TRAINED),
    "no destroy, nothing alive": Program(DDP + "del model, layer, optimizer\n", TRAINED),
    "works outstanding, destroy": Program(OUTSTANDING + DESTROY, ("all begun",)),
    "works outstanding, no destroy": Program(OUTSTANDING, ("all begun",)),
    "two groups, inner first": Program(
        TWO_GROUPS + "dist.destroy_process_group(everybody)\n" + DESTROY + DROP, TRAINED
    ),
    "two groups, both at once": Program(TWO_GROUPS + DESTROY + DROP, TRAINED),
    "FSDP2": Program(
        "from torch.distributed.fsdp import fully_shard\n"
        f"{START}{LAYER}model = fully_shard(layer)\n{FIVE_STEPS}"
        "whole = model.weight.full_tensor().flatten().tolist()\n"
        f"print([round(w, 4) for w in whole], flush=True)\n{DESTROY}",
        TRAINED,
    ),
    "compiled": Program(
        f"{START}{LAYER}"
        f'model = torch.compile(DistributedDataParallel(layer), backend="eager")\n'
        f"{FIVE_STEPS}{SHOW}{DESTROY}",
        TRAINED,
    ),
    # The thread still saves when the main thread ends.
    "saver thread": Program(
        f"""\
import queue, threading
{DDP}
states = queue.Queue()

def save():
    while (state := states.get()) is not None:
        torch.save(state[1], f"{{rank}}-{{state[0]}}.pt")

threading.Thread(target=save).start()
for number in range(10):
    states.put((number, layer.state_dict()))
states.put(None)
{DESTROY}""",
        TRAINED,
        {f"{rank}-{number}.pt": None for rank in range(2) for number in range(10)},
    ),
    "thread after main": Program(
        f"""\
import threading
{DDP}
def save():
    threading.main_thread().join()
    torch.save(layer.state_dict(), f"{{rank}}.pt")

threading.Thread(target=save).start()
{DESTROY}""",
        TRAINED,
        {"0.pt": None, "1.pt": None},
    ),
    "resume": Program(
        f"""\
import os
{START}{LAYER}
if os.path.exists("snapshot.pt"):
    layer.load_state_dict(torch.load("snapshot.pt", weights_only=True))
model = DistributedDataParallel(layer)
{FIVE_STEPS}{SHOW}
if rank == 0:
    torch.save(layer.state_dict(), "snapshot.pt")
{DESTROY}""",
        (*TRAINED, "[0.8, 0.8, 0.8, 0.8]"),
        {"snapshot.pt": None},
        jobs=2,
    ),
    "atexit and open files": Program(
        f"""\
import atexit
{DDP}
atexit.register(lambda: open(f"atexit-{{rank}}", "w").write("written at exit"))
unflushed = open(f"unflushed-{{rank}}", "w")
unflushed.write("never flushed")
print("last words")
{DESTROY}""",
        (*TRAINED, "last words"),
        {f"{name}-{rank}": content for name, content in KEPT.items() for rank in range(2)},
    ),
    "sys.exit(0)": Program(f"import sys\n{DDP}{DESTROY}sys.exit(0)\n", TRAINED),
    "sys.exit(3)": Program(f"{FAILING}sys.exit(3)\n", ("last words",), KEPT, code=3),
    "exception": Program(f"{FAILING}raise OSError(28)\n", ("last words",), KEPT, code=1),
    "os._exit(0)": Program(f"import os\n{DDP}{DESTROY}os._exit(0)\n", TRAINED, forms=("script",)),
    "os._exit(5)": Program(
        f"{FAILING}sys.stdout.flush()\nos._exit(5)\n",
        ("last words",),
        {"unflushed": ""},
        code=5,
        forms=("script",),
    ),
}


def _family(path: Path) -> dict[str, Program]:
    """The programs of a file: `# %% name`, what is special about it, its source."""
    programs = {}
    _, *parts = re.split(r"^# %% (.*)\n", path.read_text(), flags=re.M)
    for name, source in zip(parts[::2], parts[1::2], strict=True):
        said = dict(re.findall(r"^# (forms|ranks): (.*)\n", source, re.M))
        source = re.sub(r"^# (forms|ranks): .*\n", "", source, flags=re.M).strip("\n") + "\n"
        forms = tuple(said["forms"].split(", ")) if "forms" in said else OF_FAMILIES
        assert name not in programs and set(forms) <= set(OF_FAMILIES), name
        programs[name] = Program(source, forms=forms, ranks=int(said.get("ranks", 2)))
    return programs


FAMILIES = {path.stem: _family(path) for path in sorted(FOLDER.glob("*.py"))}
