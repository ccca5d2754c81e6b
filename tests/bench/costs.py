"""data/COSTS.md's figures, from the files that commands wrote: `python tests/bench/costs.py`.

Between `<!-- of FILES: -->` and `<!-- to here -->` stands what the recordings of that name below
`data/` say. `costs/` has what `make bench` measured last, the rest what `python -m experiments`
did. What stands outside of these marks was written by hand, and says when it was measured.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments import manifest
from experiments.recording import compared
from lockstep.base.formatting import quantity
from report import text

DATA = Path(__file__).parents[2] / "data"
COSTS = DATA / "COSTS.md"
_BLOCK = re.compile(r"<!-- of (\S+): -->\n.*?<!-- to here -->\n", re.DOTALL)

Found = dict[str, Any]  # what a file holds; a recording's entry in the manifest is its "entry"


# ── What `make bench` wrote ──────────────────────────────────────────────────────────────────


def where(found: Found) -> str:
    """Say where and when it ran, in words."""
    machine, versions = found["machine"], found["versions"]
    return (
        f"{machine['cores']} cores ({machine['cpu']}), load {machine['load_at_start']:.1f} before, "
        f"{found['date'][:10]}, Python {versions['python']}, PyTorch {versions['torch']}"
    )


def rows(found: Found) -> dict[str, Found]:
    return {row["name"]: row for row in found["rows"]}


def said(row: Found) -> str:
    return text(row["median"], row["unit"])


def times(ratio: float) -> str:
    return f"{ratio:.1f}" if ratio < 10 else f"{ratio:.0f}"


LAUNCHERS = {
    "fresh: %%torchrun cell": "**a `%%torchrun` cell**, fresh processes",
    "fresh: torchrun(function)": "the same as a function, `torchrun(f, nproc_per_node=4)`",
    "ddp: %%torchrun cell": "the same with DDP and an optimizer step",
    "fresh: torchrun": "`torchrun` of the same script",
    "ddp: torchrun": "`torchrun` of that with DDP",
    "fresh: torch.multiprocessing.spawn": "`torch.multiprocessing.spawn`",
    "fresh: accelerate notebook_launcher": "accelerate's `notebook_launcher`, in a fresh Python",
    "fresh: ipyparallel, cluster start": "ipyparallel, cluster start",
    "fresh: ipyparallel, warm engines": "ipyparallel, warm engines",
    "fresh: fork 4, init, all-reduce (floor)": "the floor: four forks, init and all-reduce alone",
    "fresh: fork 4 and leave (bare floor)": "four forks that leave at once",
}


HOW = ("recorded", "not recorded")


def launching(found: Found) -> str:
    its = rows(found)
    lines = [
        "| four gloo ranks, one all-reduce, value back | takes | × the floor | torchrun ÷ it |",
        "| --- | --- | --- | --- |",
    ]
    for name, label in LAUNCHERS.items():
        if row := its.get(name):
            over = times(row["median"] / row["floor"])
            ratio = times(row["torchrun"] / row["median"]) if row["torchrun"] else ""
            lines.append(f"| {label} | {said(row)} | {over} | {ratio} |")
    return "\n".join([f"On {where(found)}; medians:", "", *lines, "", *kernels(found)])


def kernels(found: Found) -> list[str]:
    """A sentence of each other part that was measured."""
    its, sentences = rows(found), []
    if row := its.get("first: load_ext and cell in a new kernel"):
        sentences.append(f"The first job of a new kernel takes {said(row)}.")
    for name, row in its.items():
        if name.startswith("thousand: "):
            slowest = max(row["samples"]) / row["median"]
            count = len(row["samples"])
            sentences.append(f"Of {count} jobs in a row the slowest took {slowest:.1f} medians.")
    if idle := its.get("memory: idle kernel + forkserver"):
        added, own = its["memory: added to the whole by a rank"], its["memory: each of 4 ranks"]
        sentences.append(
            f"An idle kernel with its forkserver needs {said(idle)} (PSS). Each of four ranks "
            f"adds {said(added)}; its own PSS is {said(own)}, for it shares the parent's pages."
        )
        notes = (note.partition("memory: ")[2] for note in found["notes"])
        sentences += [f"({note[:1].upper()}{note[1:]}.)" for note in notes if note]
    if row := its.get("notebooks: 30, first cell, parents still cold: until all are done"):
        after = its["notebooks: 30, second cell: until all are done"]
        sentences.append(
            "Thirty notebooks with four ranks each at the same time: all results right, "
            f"{said(row)} with every kernel and parent cold, {said(after)} for the next cell."
        )
    if "record: all-reduce, 1 rank(s), recorded" in its:
        four, alone = (
            [said(its[f"record: all-reduce, {ranks} rank(s), {how}"]) for how in HOW]
            for ranks in (4, 1)
        )
        sentences.append(
            f"With the record of every call a small all-reduce takes {four[0]} on four ranks and "
            f"{alone[0]} on one, without it {four[1]} and {alone[1]}."
        )
    return sentences


def reading(found: Found) -> str:
    its = rows(found)
    (what,) = (name.partition(": ")[2] for name in its if "events" in name and "HTA" in name)
    lines = [
        f"On {where(found)}; medians of runs by turns:",
        "",
        f"| {what}, gz | Lockstep | HTA {found['versions']['HolisticTraceAnalysis']} |",
        "| --- | --- | --- |",
    ]
    for name, label in (
        (what, "load, align, break down"),
        ("CPU time", "CPU time of all processes"),
        ("peak memory", "their peak memory (PSS)"),
    ):
        ours, theirs = its[f"lockstep: {name}"], its[f"HTA: {name}"]
        lines.append(f"| {label} | **{said(ours)}** | {said(theirs)} |")
    if plain := its.get("step of two gloo ranks"):
        recorded = its["the same, recorded"]
        lines += [
            "",
            f"A DDP step of two gloo ranks takes {said(plain)}, recorded {said(recorded)}.",
        ]
    return "\n".join(lines)


def drawing(found: Found) -> str:
    its = rows(found)
    counts = dict.fromkeys(name.partition(" slices: ")[0] for name in its)
    lines = [
        f"On {where(found)}:",
        "",
        "| a timeline of | painted, after its cell began | zoom, from wheel to screen |",
        "| --- | --- | --- |",
    ]
    for count in counts:
        painted = its[f"{count} slices: first paint after the cell's start"]
        zoomed = its[f"{count} slices: zoom: wheel until shown"]
        lines.append(f"| {count} slices | {said(painted)} | {said(zoomed)} |")
    return "\n".join(lines)


def grading(found: Found) -> str:
    whole, each = found["rows"]
    return (
        f"On {where(found)}: `lockstep report` judges {whole['name'].partition(',')[0]} in "
        f"{said(whole)}; {said(each)} of CPU time a notebook."
    )


# ── What `python -m experiments` wrote ───────────────────────────────────────────────────────


def recorded(found: Found) -> str:
    """Say on what and when it ran, with a link."""
    entry = found["entry"]
    versions = entry["versions"]
    machine = entry["machine"].partition(" of one host")[0]
    conditions = (f", {name}={value}" for name, value in (entry["conditions"] or {}).items())
    nccl = f", NCCL {versions['nccl']}" if versions["nccl"] else ""
    return (
        f"On {machine} ([recorded]({entry['file']}), {entry['date']}, PyTorch {versions['torch']}"
        f"{nccl}{''.join(conditions)})"
    )


def fresh_on_gpus(found: Found) -> str:
    ranks = max(int(key.removeprefix("fresh, ")) for key in found if key.startswith("fresh, "))
    fresh, world = found[f"fresh, {ranks}"], found[f"world, {ranks}"]
    told = [failure["seconds"] for failure in found["failures"].values()]
    return (
        f"{recorded(found)}, {ranks} fresh ranks take {fresh['cell to result']:.1f} s: "
        f"{fresh['CUDA context']:.1f} s for the CUDA context, {fresh['init_process_group']:.1f} s "
        f"for the process group, {fresh['first all_reduce']:.1f} s for the first all-reduce, "
        f"{fresh['teardown']:.1f} s to go. In a kept `World` the next cell with an all-reduce "
        f"takes {text(world['later cells, median'], 's')}. Failures under NCCL are told after "
        f"{min(told):.1f} to {max(told):.1f} s."
    )


RESERVES = {
    "off": "none",
    "ready": "ready: the learner has read meanwhile",
    "at once": "one cell straight after the other",
    "behind": "coming up behind the running cell",
}


def reserve(found: Found) -> str:
    head = "all_reduce of 4 KiB, reserve"
    before, beside = (found[f"{head} {when}"]["99 %"] for when in ("off", "behind"))
    return "\n".join(
        [
            f"{recorded(found)}, medians of {len(found['off, all'])} cells:",
            "",
            "| ranks in reserve | a cell with one all-reduce of 4 KiB |",
            "| --- | --- |",
            *(f"| {label} | {text(found[way]['cell'], 's')} |" for way, label in RESERVES.items()),
            "",
            f"They come up in {found['seconds until it is ready']:.1f} s and hold "
            f"{found['bytes in use with a reserve'][0] / 2**20:.0f} MiB of each GPU. Behind a "
            f"running cell the 99th percentile of its all-reduces of 4 KiB is {text(beside, 's')} "
            f"instead of {text(before, 's')}. Of a cell with ranks that are ready "
            f"{text(found['ready']['first all_reduce'], 's')} are the first all-reduce, in which "
            "NCCL connects the GPUs.",
        ]
    )


def recording(found: Found) -> str:
    return "\n".join(
        [
            f"{recorded(found)}, medians of all turns:",
            "",
            "| | torchrun | Lockstep | more, by turns | torchrun again, by turns |",
            "| --- | --- | --- | --- | --- |",
            *(
                f"| {name} | {quantity(plain, 's')} | {quantity(own, 's')} | {more - 1:+.0%} "
                f"| {noise - 1:+.0%} |"
                for name, (plain, own, more, noise) in compared(found).items()
            ),
        ]
    )


def overhead(found: Found) -> str:
    programs = {name: row for name, row in found.items() if name != "entry"}
    return "\n".join(
        [
            f"{recorded(found)}, medians of 30 steps:",
            "",
            "| program | a step | recorded | more |",
            "| --- | --- | --- | --- |",
            *(
                f"| {name} | {text(row['step_seconds'], 's')} | "
                f"{text(row['recorded_step_seconds'], 's')} | {row['percent']:.0f} % |"
                for name, row in programs.items()
            ),
        ]
    )


# ── The page ─────────────────────────────────────────────────────────────────────────────────

BLOCKS: dict[str, Callable[[Found], str]] = {
    "recording/cpu-x4.json": recording,
    "recording/h100-80gb-hbm3-x2.json": recording,
    "recording/h200-x2.json": recording,
    "costs/grading.json": grading,
    "costs/launch.json": launching,
    "costs/trace.json": reading,
    "costs/timeline.json": drawing,
    "launch/h200-x2.json": fresh_on_gpus,
    "launch/h200-x4.json": fresh_on_gpus,
    "launch/reserve-h200-x2.json": reserve,
    "launch/reserve-h200-x4.json": reserve,
    "traces/overhead.json": overhead,
}


def block(file: str) -> str:
    found: Found = json.loads((DATA / file).read_text(encoding="utf-8"))
    found["entry"] = {one["file"]: one for one in manifest.read(DATA)}.get(file)
    return f"<!-- of {file}: -->\n{BLOCKS[file](found)}\n<!-- to here -->\n"


def written(page: str) -> str:
    """The page with the figures of today's files."""
    return _BLOCK.sub(lambda found: block(found[1]), page)


def files(page: str) -> list[str]:
    """Whose figures the page has."""
    return _BLOCK.findall(page)


if __name__ == "__main__":
    COSTS.write_text(written(COSTS.read_text(encoding="utf-8")), encoding="utf-8")
