"""Recorded programs of others, whose collectives follow from what they are."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from lockstep import Trace
from lockstep.trace import TraceError
from recorded import FOREIGN, MISALIGNED

# Bytes of a rank's part of a Llama of two layers, width 256 and 768, whose five norms are whole.
LLAMA_PART = 4 * ((2 * 32000 * 256 + 2 * (4 * 256**2 + 3 * 256 * 768)) // 2 + 5 * 256)
# Of two steps, by operation, bytes of the input and ranks of the group.
CALLS = {
    # Ten blocks of 3,216 float32 and a root of 33,824, all gathered for the forward pass, the
    # blocks again for the backward pass; one all-reduce for the norms of 125 gradients.
    **{
        f"FSDP2-example-x{n}": {
            ("all_gather", 4 * 3216 // n, n): 40,
            ("all_gather", 4 * 33824 // n, n): 2,
            ("reduce_scatter", 4 * 3216, n): 20,
            ("reduce_scatter", 4 * 33824, n): 2,
            ("all_reduce", 500, n): 2,
        }
        for n in (2, 4)
    },
    # 20 rows of 5 outputs; the input of the first layer needs no gradient.
    **{
        f"tensor_parallelism-tensor_parallel_example-x{n}": {("all_reduce", 400, n): 2}
        for n in (2, 4)
    },
    # Each rank has 20 rows of 10 inputs; of 5 outputs it sums the rows of all, and gathers its own.
    **{
        f"tensor_parallelism-sequence_parallel_example-x{n}": {
            ("all_gather", 800, n): 2,
            ("reduce_scatter", 400 * n, n): 2,
            ("all_gather", 400, n): 2,
        }
        for n in (2, 4)
    },
    # 8 × 256 tokens of width 256, in pairs; a pair has half of 32,000 logits and of the weights.
    "tensor_parallelism-fsdp_tp_example-x4": {
        ("all_gather", 4 * 8 * 256 * 256 // 2, 2): 20,
        ("reduce_scatter", 4 * 8 * 256 * 256, 2): 20,
        ("all_gather", 4 * 8 * 256 * 32000 // 2, 2): 2,
        ("all_reduce", 4 * 256, 2): 10,
        ("all_gather", LLAMA_PART // 2, 2): 2,
        ("reduce_scatter", LLAMA_PART, 2): 2,
    },
    # A linear layer of 20 inputs and one output, in one bucket.
    "ddp-tutorial-series-multigpu_torchrun-x2": {("all_reduce", 84, 2): 2},
}
# nanoGPT's of 3 layers of width 512, 1024 tokens and 128 places; the head has the tokens' weights.
GPT_BLOCK = 12 * 512**2 + 2 * 512
GPT_WEIGHTS = (1024 + 128) * 512 + 3 * GPT_BLOCK + 512
GPTS = ("nanoGPT-train-x2", "nanoGPT-train-x4")


NAMES = {one.name for one in FOREIGN.iterdir()}


def test_every_recorded_program_is_known() -> None:
    assert {*CALLS, *GPTS} >= NAMES


@pytest.mark.parametrize("name", sorted(CALLS.keys() & NAMES))
def test_calls_are_those_that_follow_from_the_program(name: str) -> None:
    trace = Trace.load(FOREIGN / name)
    for rank in trace.ranks:
        found = Counter(
            (one.collective.operation, one.collective.bytes_in, len(one.collective.ranks))
            for one in trace
            if one.rank == rank and one.collective and one.collective.evidence == "metadata"
        )
        assert found == CALLS[name], rank


@pytest.mark.parametrize("name", sorted(NAMES.intersection(GPTS)))
def test_ddp_reduces_each_gradient_of_a_model_once_a_step(name: str) -> None:
    trace = Trace.load(FOREIGN / name)
    for rank in trace.ranks:
        reduced = [
            one.collective
            for one in trace
            if one.rank == rank and one.collective and one.collective.evidence == "metadata"
        ]  # kernels of a step before are known by name
        assert {one.operation for one in reduced} == {"all_reduce"}
        assert sum(one.bytes_in for one in reduced) == 2 * 4 * GPT_WEIGHTS


@pytest.mark.parametrize("folder", MISALIGNED, ids=lambda folder: folder.name)
def test_why_clocks_cannot_be_compared_is_said(folder: Path) -> None:
    few, jump = (
        r"clocks of these ranks cannot be compared: 0[ ,/1-3]+\.",
        r"rank \d's clock jumps by",
    )
    with pytest.raises(TraceError, match=f"{few}|{jump}"):
        Trace.load(folder).align()


def test_kernels_of_a_step_before_do_not_hide_which_collectives_go_together() -> None:
    found = Trace.load(FOREIGN / "nanoGPT-train-x4").collectives()
    assert len(found) == 6 and all(found.matches.complete)
    assert found.matches.unmatched == {"the calls come before the recording": 3}
