"""What `python -m experiments tensor-parallel` measures, under gloo: the same code."""

from __future__ import annotations

import pytest
import torch
from experiments import tensor_parallel
from experiments.experiment import Result
from lockstep.base import machine
from lockstep.launch import torchrun


def outputs(name: str) -> list[torch.Tensor]:
    torch.manual_seed(0)
    layer = tensor_parallel.LAYERS[name](256, "cpu", tensor_parallel.Together())
    x_sD = tensor_parallel.random(24, 256, "cpu")
    return [layer(x_sD, pieces) for pieces in (1, 2, 3, 8)]


@pytest.mark.parametrize("name", tensor_parallel.LAYERS)
def test_pieces_change_nothing_but_the_time(name: str) -> None:
    job = torchrun(outputs, name, nproc_per_node=2, show=False)
    for rank in range(2):
        serial, *in_pieces = job[rank]
        assert serial.shape == (24, 256)
        for other in in_pieces:
            torch.testing.assert_close(other, serial)


@pytest.fixture(scope="module")
def result() -> Result:
    (found,) = tensor_parallel.run(machine.probe(), 2)
    return found


def test_every_layer_is_timed_under_gloo(result: Result) -> None:
    layers = result.content["layers"]
    assert [(one["layer"], one["width"]) for one in layers] == [
        (name, width) for width in tensor_parallel.WIDTHS["cpu"] for name in tensor_parallel.LAYERS
    ]
    for one in layers:
        assert set(one["seconds"]) == set(one["products"]) == set(map(str, tensor_parallel.PIECES))
        assert one["collectives"] > 0 and one["whole"] > 0
    assert list(result.content) == list(next(iter(tensor_parallel.EXPERIMENT.writes.values())))


def test_each_product_that_does_not_wait_is_that_of_all_rows(result: Result) -> None:
    alone, others = result.content["products"][:2], result.content["products"][2:]
    assert all(one["seconds"] > 0 for one in alone)
    assert [one["how"] for one in others] == list(tensor_parallel.product_ways())[:-1]
    assert all(one["right"] for one in others)
