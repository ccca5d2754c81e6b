"""Every benchmark and script that people run by hand, in seconds: does it still run?

Other tests run the rest: test_browser the timelines' benchmark and the README's pictures,
test_interrupts each_line.py, test_touched touched.py, test_virtual_model programs_06.py; test_hub
and test_slurm what installs those.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent / "bench"))
import costs

TESTS = Path(__file__).parent
ROOT = TESTS.parent

# What is typed after `python tests/`, at the checkout's root, and what its output has.
RUNS = {
    "bench/grading.py --learners 1 --labs 1 --without-walls": "^1 notebooks of 1 labs, ",
    "endings.py --only sys.exit(0) --form cell --warm 1 --elastic 0 --torchrun 0": r"warm +1 +0",
    "mutants.py streams --sample 1 --own": r"streams: 0 of 1 mutants survive",
    "painted.py data/traces/slow-rank/rank0.json.gz": "^exact ",
    "walked.py data/traces/slow-rank": "^agrees .*slow-rank",
}
LONG = {
    "judge.py 05 --only blocks_needed --seeds 1": r"(\d+) of \1 wrong ones always caught",
    "bench/launch.py --quick": r"ddp: torchrun +\d",
    "bench/trace.py --ranks 2 --events 3000 --runs 1": r"recording costs these ranks \d",
    "survivors.py 05 --only blocks_needed --seeds 1": r"0 of [1-9]\d* mutants survive",
}


def run(command: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "lib")}
    done = subprocess.run(
        [sys.executable, *f"{TESTS}/{command}".split()],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("command", "said"),
    [
        *(pytest.param(*one, id=one[0]) for one in RUNS.items()),
        *(pytest.param(*one, id=one[0], marks=pytest.mark.long) for one in LONG.items()),
    ],
)
def test_it_runs(command: str, said: str) -> None:
    assert re.search(said, (shown := run(command)), re.MULTILINE), shown


def test_the_costs_are_what_was_measured() -> None:
    page = costs.COSTS.read_text(encoding="utf-8")
    assert sorted(costs.files(page)) == sorted(costs.BLOCKS)
    assert costs.written(page) == page, "python tests/bench/costs.py mends it"


@pytest.mark.long
def test_how_often_the_gate_errs_is_as_it_was_written(tmp_path: Path) -> None:
    """All but the rates, which are of 300 pairs."""
    run(f"bench/gate.py --pairs 1 --to {tmp_path}/GATE.md")
    new, written = (folder / "GATE.md" for folder in (tmp_path, ROOT / "data"))
    rates = re.compile(r"(\d+ pairs it)|(\| \d+ \| \d+ \| \d+ \|$)", re.MULTILINE)
    assert rates.sub("", new.read_text()) == rates.sub("", written.read_text())
