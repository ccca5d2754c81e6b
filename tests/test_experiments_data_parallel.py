"""What `python -m experiments data-parallel` measures, under gloo: the same code."""

from __future__ import annotations

from experiments import data_parallel
from lockstep.base import machine


def test_every_way_takes_a_step_under_gloo() -> None:
    (result,) = data_parallel.run(machine.probe(), 2)
    assert result.content["world_size"] == 2
    ways = {
        "steps": data_parallel.ways(),
        "wide": data_parallel.wide_ways(),
        "hooked": data_parallel.compressed_ways(),
    }
    for rows, names in ways.items():
        assert [step["how"] for step in result.content[rows]] == list(names)
        assert all(0 < one["host_seconds"] <= one["seconds"] for one in result.content[rows])
    assert list(result.content) == list(next(iter(data_parallel.EXPERIMENT.writes.values())))
