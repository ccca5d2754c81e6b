"""Recorded programs of others, whose collectives follow from what they are."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from lockstep import Trace
from lockstep.trace import TraceError
from recorded import FOREIGN, MISALIGNED

# Of two steps on two ranks, by operation and bytes of the input.
CALLS = {
    # Ten blocks of 3,216 float32 and a root of 33,824, all gathered for the forward pass, the
    # blocks again for the backward pass; one all-reduce for the norms of 125 gradients.
    "FSDP2-example": {
        ("all_gather", 6432): 40,
        ("all_gather", 67648): 2,
        ("reduce_scatter", 12864): 20,
        ("reduce_scatter", 135296): 2,
        ("all_reduce", 500): 2,
    },
    # 20 rows of 5 outputs; the input of the first layer needs no gradient.
    "tensor_parallelism-tensor_parallel_example": {("all_reduce", 400): 2},
    # Each rank has 20 rows of 10 inputs; of 5 outputs it sums 40 rows, and gathers 20.
    "tensor_parallelism-sequence_parallel_example": {
        ("all_gather", 800): 2,
        ("reduce_scatter", 800): 2,
        ("all_gather", 400): 2,
    },
    # A linear layer of 20 inputs and one output, in one bucket.
    "ddp-tutorial-series-multigpu_torchrun": {("all_reduce", 84): 2},
}
# nanoGPT's of 3 layers of width 512, 1024 tokens and 128 places; the head has the tokens' weights.
GPT_BLOCK = 12 * 512**2 + 2 * 512
GPT_WEIGHTS = (1024 + 128) * 512 + 3 * GPT_BLOCK + 512
GPTS = ("nanoGPT-train", "nanoGPT-compiled-train")


NAMES = {one.name for one in FOREIGN.iterdir()}


def test_every_recorded_program_is_known() -> None:
    assert {*CALLS, *GPTS} >= NAMES


@pytest.mark.parametrize("name", sorted(CALLS.keys() & NAMES))
def test_calls_are_those_that_follow_from_the_program(name: str) -> None:
    trace = Trace.load(FOREIGN / name)
    for rank in (0, 1):
        found = Counter(
            (one.collective.operation, one.collective.bytes_in)
            for one in trace
            if one.rank == rank and one.collective and one.collective.evidence == "metadata"
        )
        assert found == CALLS[name], rank


@pytest.mark.parametrize("name", sorted(NAMES.intersection(GPTS)))
def test_ddp_reduces_each_gradient_of_a_model_once_a_step(name: str) -> None:
    trace = Trace.load(FOREIGN / name)
    for rank in (0, 1):
        reduced = [one.collective for one in trace if one.rank == rank and one.collective]
        assert {one.operation for one in reduced} == {"all_reduce"}
        assert sum(one.bytes_in for one in reduced) == 2 * 4 * GPT_WEIGHTS


@pytest.mark.parametrize("folder", MISALIGNED, ids=lambda folder: folder.name)
def test_why_clocks_cannot_be_compared_is_said(folder: Path) -> None:
    few, jump = r"clocks of these ranks cannot be compared: 0 / 1\.", r"rank \d's clock jumps by"
    with pytest.raises(TraceError, match=f"{few}|{jump}"):
        Trace.load(folder).align()
