"""Whose results each launch of the virtual GPU needs."""

from __future__ import annotations

import torch
from lockstep import virtual
from lockstep.trace.slices import DEVICE_KINDS


def needed() -> dict[str, set[str]]:
    """The names of what each launch so far needs; its number comes with those that are alike."""
    trace, needs = virtual.trace(), virtual.needs()
    rows = sorted(trace.where(*DEVICE_KINDS).tolist(), key=lambda row: trace[row].correlation)
    names: dict[int, str] = {}
    for row in rows:
        one = trace[row]
        short = one.name.split()[0].split("_")[0]
        alike = sum(other.split(" ")[0] == short for other in names.values())
        names[one.correlation] = f"{short} {alike + 1}" if alike else short
    return {names[at]: {names[one] for one in needs[at]} for at in names}


def test_operations_need_what_they_read_and_what_they_change() -> None:
    with virtual.device():
        x = torch.ones(64, 64).cuda()
        y = x.exp()
        y.mul_(2)
        z = x.exp()
        _ = y.add(z)
        assert needed() == {
            "copy": set(), "exp": {"copy"}, "mul": {"exp"}, "exp 2": {"copy"},
            "add": {"mul", "exp 2"},
        }  # fmt: skip


def test_parts_of_a_tensor_are_apart_and_views_are_not() -> None:
    with virtual.device():
        x = torch.ones(8, 64).cuda()
        x[:4].exp_()
        x[4:].sin_()
        _ = x[:3].neg()
        _ = x.t().tanh()
        found = needed()
        assert found["sin"] == {"copy"} and found["neg"] == {"exp"}
        assert found["tanh"] == {"exp", "sin"}
        x[:, ::2].cos_()  # what lies between stays
        _ = x[:, 1].round()
        assert needed()["round"] == {"exp", "sin", "cos"}


def test_memory_that_is_given_out_again_is_new() -> None:
    with virtual.device():
        x = torch.ones(64).cuda()
        y = x.exp()
        address = y.data_ptr()
        del y
        z = x.sin()
        assert z.data_ptr() == address
        assert needed()["sin"] == {"copy"}


def test_streams_and_waits_of_the_host_change_nothing() -> None:
    with virtual.device() as cuda:
        side = cuda.Stream()
        x = torch.ones(64).cuda()
        y = x.exp()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            z = x.sin()
        assert y.sum().item()
        cuda.current_stream().wait_stream(side)
        _ = z.neg()
        found = needed()
        assert found["sin"] == {"copy"} and found["neg"] == {"sin"}


def test_all_kernels_of_an_operation_need_what_it_reads() -> None:
    with virtual.device():
        x = torch.rand(64, 64).cuda()
        _ = x.exp().logsumexp(1).neg()
        found = needed()
        several = [name for name in found if name.startswith("logsumexp")]
        assert len(several) > 1
        assert all("exp" in found[name] for name in several)
        assert found["neg"] == {several[-1]} and found[several[-1]] == {"exp", *several[:-1]}


def test_a_replay_needs_what_its_kernels_need_of_others() -> None:
    with virtual.device() as cuda:
        x = torch.ones(64).cuda()
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            y = x.exp().sin()
        x.mul_(2)
        graph.replay()
        _ = y.neg()
        trace, needs = virtual.trace(), virtual.needs()
        launch = {one.name.split()[0]: one.correlation for one in trace if one.stream > 0}
        by_name = {name.split("_")[0]: at for name, at in launch.items()}
        assert by_name["exp"] == by_name["sin"]
        assert needs[by_name["exp"]] == {by_name["mul"]}
        assert needs[by_name["neg"]] == {by_name["exp"]}
