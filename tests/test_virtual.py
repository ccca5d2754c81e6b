"""The virtual GPU: ordinary PyTorch on it, its clocks, its streams and events, its memory."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lockstep
import numpy as np
import pytest
import torch
from lockstep import virtual
from lockstep.trace import Kind
from torch import nn

US = 1_000
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(lockstep.__file__).parents[1])}


def test_an_operation_that_fails_is_named_with_its_line(cuda: Any) -> None:
    x = torch.zeros(3, device="cuda")
    x[torch.tensor([5], device="cuda")]
    with pytest.raises(RuntimeError, match=r"index, launched in .*x\[torch.tensor\(\[5\]"):
        cuda.synchronize()


@pytest.fixture
def cuda() -> Iterator[Any]:
    with virtual.device() as module:
        yield module


def test_all_names_of_the_package_are_there() -> None:
    for name in virtual.__all__:
        assert getattr(virtual, name) is not None


# ── Ordinary PyTorch ─────────────────────────────────────────────────────────────────────────


def mlp_step(device: Any, optimizer: Callable[..., Any]) -> list[torch.Tensor]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.3), nn.LayerNorm(32))
    model.append(nn.Linear(32, 4))
    model.to(device)
    steps = optimizer(model.parameters())
    torch.manual_seed(2)
    for _ in range(3):
        x = torch.randn(8, 16, device=device)
        loss = nn.functional.cross_entropy(model(x), torch.arange(8, device=device) % 4)
        steps.zero_grad()
        loss.backward()
        steps.step()
    return [loss.detach().cpu(), *(p.detach().cpu() for p in model.parameters())]


def conv_step(device: Any) -> list[torch.Tensor]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
    model.to(device)
    torch.manual_seed(2)  # host and device draw from generators of their own
    x = torch.rand(2, 3, 12, 12, device=device)
    out = model(x)
    out.square().mean().backward()
    every = [out, *model.parameters(), *model.buffers(), *(p.grad for p in model.parameters())]
    return [one.detach().cpu() for one in every if one is not None]


def attention(device: Any) -> list[torch.Tensor]:
    torch.manual_seed(1)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True).to(device)
    torch.manual_seed(2)
    out = layer(torch.rand(2, 5, 32, device=device))
    out.sum().backward()
    return [out.detach().cpu(), *(p.grad.cpu() for p in layer.parameters() if p.grad is not None)]


def views_and_indices(device: Any) -> list[torch.Tensor]:
    torch.manual_seed(3)
    x = torch.randn(6, 8, device=device)
    x[1:3, ::2] = 7
    x.t()[0].mul_(2)
    picked = x[torch.tensor([0, 2], device=device)]
    rolled = torch.cat([x[:, :3], x[:, 3:].flip(0)], dim=1).contiguous()
    parts = rolled.view(3, 16).chunk(2, dim=1)
    y = torch.zeros_like(x).masked_fill_(x > 0, 1.5)
    z = torch.where(x > 0, x, y).expand(2, 6, 8).permute(2, 0, 1)
    found = (x > 1).nonzero()
    values, order = x.sort(dim=1)
    half = x.to(torch.bfloat16) @ x.t().to(torch.bfloat16)
    made = torch.arange(5, device=device).float().cumsum(0)
    every = [x, picked, rolled, parts[1], y, z, found, values, order, half, made]
    return [one.cpu() for one in every]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_products_of_16_bits_are_summed_in_32_and_rounded(cuda: Any, dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    a, b, c = (torch.randn(3, 64, 64).to(dtype) for _ in range(3))
    for product in (
        lambda a, b, c: a[0] @ b[0],
        lambda a, b, c: torch.addmm(c[0], a[0], b[0], beta=0.5, alpha=2),
        lambda a, b, c: a @ b,
        lambda a, b, c: torch.baddbmm(c, a, b, beta=2),
        lambda a, b, c: nn.functional.conv1d(a, b),
        lambda a, b, c: torch.mm(a[0], b[0], out=c[0].clone()),
    ):
        given = [one.cuda() for one in (a, b, c)]
        found, exact = product(*given), product(a.float(), b.float(), c.float())
        assert found.dtype == dtype
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(found.cpu().float(), exact, rtol=eps, atol=8 * eps)


def random_numbers(device: Any) -> list[torch.Tensor]:
    torch.manual_seed(4)
    a = torch.randn(33, device=device)
    b = torch.empty(20, device=device).uniform_()
    c = torch.rand_like(a).bernoulli(0.4)
    d = nn.functional.dropout(a, 0.5)
    e = torch.randperm(9, device=device)
    f = torch.multinomial(torch.ones(6, device=device), 3)
    return [one.cpu() for one in (a, b, c, d, e, f)]


PROGRAMS: dict[str, Callable[[Any], list[torch.Tensor]]] = {
    "sgd": lambda device: mlp_step(device, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
    "adam": lambda device: mlp_step(device, lambda p: torch.optim.Adam(p, 0.01)),
    "adamw": lambda device: mlp_step(device, lambda p: torch.optim.AdamW(p, 0.01)),
    "conv": conv_step,
    "views": views_and_indices,
    "random": random_numbers,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_are_those_of_plain_pytorch_bit_for_bit(name: str) -> None:
    expected = PROGRAMS[name]("cpu")
    with virtual.device():
        found = PROGRAMS[name](virtual.gpu())
        assert list(virtual.races()) == []
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


def test_where_pytorch_takes_other_operations_by_device_only_rounding_differs() -> None:
    expected = attention("cpu")
    with virtual.device():
        found = attention(virtual.gpu())
        q = torch.rand(1, 2, 4, 8, device="cuda")
        nn.functional.scaled_dot_product_attention(q, q, q)
        kernels = {one.name for one in virtual.trace()}
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert "attention" in kernels  # one kernel, as on a GPU


def test_the_device_called_cuda_is_the_virtual_one(cuda: Any) -> None:
    x = torch.ones(3, device="cuda:0")
    assert x.device == torch.ones(3).cuda().device == torch.ones(3).to("cuda").device
    assert nn.Linear(2, 2).cuda().weight.device == virtual.gpu()
    assert str(x.device) == "virtual:0"


def test_shown_as_a_tensor_of_the_device(cuda: Any) -> None:
    x = torch.tensor([1.0, 2.0], device="cuda")
    assert repr(x) == "tensor([1., 2.], device='virtual:0')"
    assert f"{x.sum():.2f}" == "3.00"
    assert x.tolist() == [1.0, 2.0]
    with pytest.raises(TypeError, match=r"Use Tensor.cpu\(\)"):
        x.numpy()


def test_parameters_stay_parameters(cuda: Any) -> None:
    model = nn.Linear(3, 2).to("cuda")
    twin = copy.deepcopy(model)
    with torch.no_grad():
        model.weight.zero_()
    model.weight.data = model.weight.data + 2
    assert isinstance(twin.weight, nn.Parameter)
    assert model.weight.sum().item() == 12.0
    assert twin.weight.abs().sum().item() > 0
    model.load_state_dict(twin.state_dict())
    assert torch.equal(model.weight, twin.weight)


def test_a_tensor_of_the_host_is_not_mixed_in(cuda: Any) -> None:
    with pytest.raises(RuntimeError, match="virtual:0 and cpu"):
        torch.ones(3, device="cuda") + torch.ones(3)
    assert (torch.ones(3, device="cuda") * torch.tensor(2.0)).sum().item() == 6.0


@pytest.mark.parametrize(
    "refused",
    [
        lambda x: x.to_sparse(),
        lambda x: x.resize_(7),
        lambda x: torch.poisson(x),
        lambda x: x.t_(),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(cuda: Any, refused: Callable[..., Any]) -> None:
    with pytest.raises(NotImplementedError, match="the virtual GPU does not model aten::"):
        refused(torch.ones(2, 2, device="cuda"))


def test_names_of_torch_cuda_that_it_lacks(cuda: Any) -> None:
    with pytest.raises(virtual.NotModelled, match=r"torch\.cuda\.memory_snapshot"):
        cuda.memory_snapshot()
    with pytest.raises(AttributeError, match="no attribute 'strem'"):
        cuda.strem  # noqa: B018
    with pytest.raises(virtual.NotModelled, match="external"):
        cuda.Event(external=True)


def test_no_values_only_times() -> None:
    with virtual.device(values=False) as cuda:
        x = torch.empty(65536, 16384, device="cuda", dtype=torch.bfloat16)
        begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        x @ x.t()[:, :16384]
        end.record()
        end.synchronize()
        assert begin.elapsed_time(end) > 1
        with pytest.raises(virtual.NotModelled, match="values=False"):
            x[0, 0].item()


# ── Time ─────────────────────────────────────────────────────────────────────────────────────


def test_a_launch_comes_back_before_the_work_is_done(cuda: Any) -> None:
    machine = virtual.MACHINES["H200"]
    x = torch.zeros(1 << 24, device="cuda")
    cuda.synchronize()
    before = virtual.perf_counter()
    x.add_(1)
    launched = virtual.perf_counter()
    cuda.synchronize()
    done = virtual.perf_counter()
    assert launched - before == pytest.approx((machine.dispatch + machine.launch) / 1e9)
    moving = 2 * x.nbytes / machine.memory
    assert done - before == pytest.approx(
        (machine.dispatch + machine.latency + machine.kernel) / 1e9 + moving
    )


def test_a_value_makes_the_host_wait(cuda: Any) -> None:
    cuda._sleep(10_000_000)
    before = virtual.perf_counter()
    torch.ones(3, device="cuda").sum().item()
    assert virtual.perf_counter() - before > 0.004
    waits = [one for one in virtual.trace() if one.name == "cudaStreamSynchronize"]
    assert waits[-1].duration > 4_000 * US


@pytest.mark.parametrize(
    "look",
    [
        lambda x: bool(x.sum() > 3),
        lambda x: x.tolist(),
        lambda x: x.nonzero(),
        lambda x: torch.equal(x, x),
        lambda x: repr(x),
        lambda x: float(x[0]),
        lambda x: x.cpu(),
    ],
)
def test_what_needs_a_value_waits(cuda: Any, look: Callable[..., Any]) -> None:
    x = torch.ones(4, device="cuda")
    cuda._sleep(10_000_000)
    before = virtual.perf_counter()
    look(x)
    assert virtual.perf_counter() - before > 0.004


def test_a_full_queue_holds_the_host(cuda: Any) -> None:
    x = torch.zeros(4, device="cuda")
    cuda._sleep(200_000_000)  # 0.1 s
    before = virtual.perf_counter()
    for _ in range(1000):
        x.add_(1)
    assert virtual.perf_counter() - before < 0.02
    for _ in range(100):
        x.add_(1)
    assert virtual.perf_counter() - before > 0.09
    assert x.sum().item() == 4400


def test_times_are_the_same_on_every_run() -> None:
    traces = []
    for _ in range(2):
        with virtual.device():
            mlp_step(virtual.gpu(), lambda p: torch.optim.Adam(p))
            traces.append([(one.name, one.start, one.duration) for one in virtual.trace()])
    assert traces[0] == traces[1]


def spins(cuda: Any, streams: list[Any], cycles: int = 2_000_000) -> float:
    """Milliseconds from the first to the last of one spinning kernel on each stream."""
    begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for stream in streams:
        stream.wait_event(begin)
        with cuda.stream(stream):
            cuda._sleep(cycles)
        cuda.current_stream().wait_stream(stream)
    end.record()
    cuda.synchronize()
    return begin.elapsed_time(end)


def test_streams_run_beside_each_other(cuda: Any) -> None:
    one, two = cuda.Stream(), cuda.Stream()
    alone = spins(cuda, [one])
    assert spins(cuda, [one, two]) < 1.2 * alone
    assert spins(cuda, [one, one]) > 1.9 * alone


def products(cuda: Any, streams: list[Any], size: int) -> float:
    x = torch.zeros(size, size, device="cuda", dtype=torch.bfloat16)
    begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
    cuda.synchronize()
    begin.record()
    for stream in streams:
        stream.wait_event(begin)
        with cuda.stream(stream):
            x @ x
        cuda.current_stream().wait_stream(stream)
    end.record()
    cuda.synchronize()
    return begin.elapsed_time(end)


def test_kernels_that_fill_the_gpu_gain_nothing_from_streams() -> None:
    with virtual.device(values=False) as cuda:
        one, two = cuda.Stream(), cuda.Stream()
        large = [products(cuda, [one, other], 8192) for other in (one, two)]
        assert large[1] > 0.95 * large[0]


def test_a_stream_of_higher_priority_goes_first() -> None:
    with virtual.device(values=False) as cuda:
        low, high = cuda.Stream(), cuda.Stream(priority=-1)
        assert cuda.Stream(priority=-99).priority == -5
        x = torch.empty(8192, 8192, device="cuda", dtype=torch.bfloat16)
        ends = []
        for second in (low, high):
            done = cuda.Event(enable_timing=True)
            begin = cuda.Event(enable_timing=True)
            begin.record()
            with cuda.stream(low):
                for _ in range(3):
                    x @ x
            with cuda.stream(second):
                x @ x
                done.record()
            cuda.synchronize()
            ends.append(begin.elapsed_time(done))
        assert ends[1] < 0.6 * ends[0]


def test_copies_in_both_directions_run_beside_kernels(cuda: Any) -> None:
    side = cuda.Stream()
    host = torch.zeros(1 << 20).pin_memory()
    assert host.is_pinned() and not torch.zeros(3).is_pinned()
    with cuda.stream(side):
        host.to("cuda", non_blocking=True)
    cuda._sleep(1_000_000)
    cuda.synchronize()
    trace = virtual.trace()
    (copy,) = [one for one in trace if one.kind is Kind.COPY]
    (spin,) = [one for one in trace if one.name == "spin"]
    assert copy.start < spin.end and spin.start < copy.end
    rate = host.nbytes / copy.duration
    assert rate == pytest.approx(virtual.MACHINES["H200"].pinned / 1e9, rel=0.05)


def test_a_pageable_copy_holds_the_host(cuda: Any) -> None:
    source = torch.zeros(1 << 20)
    before = virtual.perf_counter()
    source.to("cuda", non_blocking=True)
    assert virtual.perf_counter() - before > source.nbytes / 30e9


# ── Streams and events ───────────────────────────────────────────────────────────────────────


def test_current_stream_follows_the_context(cuda: Any) -> None:
    side = cuda.Stream()
    assert cuda.current_stream() == cuda.default_stream() != side
    with cuda.stream(side):
        assert cuda.current_stream() == side
        with cuda.stream(None):
            assert cuda.current_stream() == side
    with side:
        assert cuda.current_stream() == side
    assert cuda.current_stream() == cuda.default_stream()
    assert len({cuda.Stream() for _ in range(40)}) == 32  # a pool, as on a GPU


def test_events_say_what_torch_cuda_says(cuda: Any) -> None:
    plain, begin, end = cuda.Event(), *(cuda.Event(enable_timing=True) for _ in range(2))
    assert begin.query()
    begin.synchronize()
    begin.wait()
    with pytest.raises(ValueError, match="must be recorded before"):
        begin.elapsed_time(end)
    begin.record()
    cuda._sleep(1_980_000)
    end.record()
    plain.record()
    with pytest.raises(ValueError, match="enable_timing=True"):
        begin.elapsed_time(plain)
    assert not end.query()
    with pytest.raises(RuntimeError, match="must be completed"):
        begin.elapsed_time(end)
    end.synchronize()
    assert end.query()
    assert begin.elapsed_time(end) == pytest.approx(1.0, rel=0.02)


def test_a_stream_says_whether_it_is_done(cuda: Any) -> None:
    side = cuda.Stream()
    with cuda.stream(side):
        cuda._sleep(1_000_000)
    assert not side.query()
    assert cuda.current_stream().query()
    side.synchronize()
    assert side.query()


# ── Memory ───────────────────────────────────────────────────────────────────────────────────


def test_memory_is_counted_and_used_again(cuda: Any) -> None:
    x = torch.zeros(1 << 20, device="cuda")
    assert cuda.memory_allocated() == x.nbytes
    assert cuda.memory_reserved() == 20 << 20
    where = x.data_ptr()
    del x
    assert cuda.memory_allocated() == 0
    assert cuda.max_memory_allocated() == 4 << 20
    y = torch.empty(1 << 20, device="cuda")
    assert y.data_ptr() == where
    del y
    cuda.empty_cache()
    assert cuda.memory_reserved() == 0


def test_memory_used_on_another_stream_waits_with_record_stream(cuda: Any) -> None:
    side = cuda.Stream()
    for recorded in (False, True):
        x = torch.zeros(1000, device="cuda")
        where = x.data_ptr()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            cuda._sleep(1_000_000)
            x.mean()
        if recorded:
            x.record_stream(side)
        del x
        assert (torch.empty(1000, device="cuda").data_ptr() == where) is not recorded
        cuda.synchronize()
        assert torch.empty(1000, device="cuda").data_ptr() == where


def test_too_much_memory_is_refused_as_on_a_gpu() -> None:
    with virtual.device("A100", values=False) as cuda:
        kept = torch.empty(60 << 30, dtype=torch.uint8, device="cuda")
        with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
            torch.empty(20 << 30, dtype=torch.uint8, device="cuda")
        assert cuda.memory_allocated() == kept.nbytes


# ── Autograd and streams ─────────────────────────────────────────────────────────────────────


def test_the_backward_pass_uses_the_streams_of_the_forward_pass(cuda: Any) -> None:
    side = cuda.Stream()
    w = torch.ones(64, 64, device="cuda", requires_grad=True)
    x = w @ w
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        y = x.exp()
    cuda.current_stream().wait_stream(side)
    y.sum().backward()
    assert w.grad is not None and w.grad.isfinite().all()
    assert list(virtual.races()) == []
    lanes = {one.name: one.lane for one in virtual.trace() if one.stream != -1}
    assert lanes["exp"] == "stream 13"
    assert lanes["mul"] == "stream 13"  # of exp's backward
    assert lanes["mm 64×64×64"] == "stream 7"


# ── Its trace ────────────────────────────────────────────────────────────────────────────────


def test_it_gives_a_trace_that_answers(cuda: Any) -> None:
    x = torch.randn(256, 256, device="cuda")
    for number in range(3):
        with lockstep.step(number):
            (x @ x).relu().sum().item()
    trace = virtual.trace()
    assert trace.stamp is not None
    assert str(trace.stamp) == "simulated · virtual H200"
    spent = trace.breakdown(skip=1)
    assert [step.number for step in trace.steps()] == [0, 1, 2]
    assert spent.totals[0].compute > 0
    assert trace.critical_path().by_kind["host"] > 0
    assert "launches" in str(trace.launches())
    ours = {one.name: one.correlation for one in trace if one.kind is Kind.COMPUTE}
    calls = {one.correlation for one in trace if one.kind is Kind.LAUNCH}
    assert set(ours.values()) <= calls
    assert len(virtual.joined([trace, trace])) == 2 * len(trace)


# ── On and off ───────────────────────────────────────────────────────────────────────────────


def test_lockstep_cuda_and_device() -> None:
    """In a process of its own: it stays on for good."""
    program = """
import lockstep, sys
assert "torch" not in sys.modules and not lockstep.virtual.is_on()
cuda = lockstep.cuda(virtual=True)
assert lockstep.cuda() is cuda and lockstep.virtual.is_on()
import torch
x = torch.ones(3, device=lockstep.device())
assert str(x.device) == "virtual:0" and x.sum().item() == 3
print(cuda.get_device_name())
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=ENVIRONMENT
    )
    assert (ran.returncode, ran.stdout) == (0, "virtual H200\n"), ran.stderr


def test_off_again() -> None:
    with virtual.device():
        x = torch.ones(3, device="cuda")
    assert not virtual.is_on()
    assert str(lockstep.device()) == "cpu"
    with pytest.raises(RuntimeError, match="switched off"):
        x + 1
    with pytest.raises(RuntimeError, match="no virtual GPU is on"):
        virtual.trace()
    with pytest.raises(ValueError, match="A100"), virtual.device("H20"):
        pass
    assert virtual.perf_counter() != 0


def test_a_real_gpus_backward_pass_says_why_it_fails_after_a_virtual_one() -> None:
    """PyTorch's own words are of a machine with a GPU; test_gpu has it for real."""
    from lockstep.virtual.switch import explained

    def failing(*_: Any) -> None:
        raise RuntimeError("opt_ready_stream && opt_parent_stream INTERNAL ASSERT FAILED")

    with pytest.raises(RuntimeError, match=r"has had a virtual GPU.*restart the kernel"):
        explained(failing)()
    with pytest.raises(RuntimeError, match=r"^element 0"):
        explained(torch.ones(1).backward)()
    with virtual.device():
        x = torch.ones(3, device="cuda", requires_grad=True)
        x.sum().backward()
    y = torch.ones(3, requires_grad=True)
    y.sum().backward()
    assert y.grad is not None and x.grad is not None


def test_what_belongs_to_another_virtual_gpu_says_so_at_once(cuda: Any) -> None:
    x, side, event = torch.ones(3, device="cuda"), cuda.Stream(), cuda.Event()
    event.record(side)
    with virtual.device("A100") as inner:
        y = torch.ones(3, device="cuda")
        for wrong in (
            lambda: x + y,
            lambda: side.wait_stream(inner.current_stream()),
            lambda: inner.stream(side).__enter__(),
            lambda: event.wait(),
            lambda: event.synchronize(),
        ):
            with pytest.raises(RuntimeError, match="to another virtual GPU"):
                wrong()
        assert (y + 1).sum().item() == 6
    event.synchronize()
    assert (x + 1).sum().item() == 6


def test_tensors_like_those_of_the_other_side(cuda: Any) -> None:
    host, here = torch.full((3,), 7.0), torch.full((3,), 7.0, device="cuda")
    for like, device in ((host, "cuda"), (here, "cpu")):
        made = [
            torch.empty_like(like, device=device),
            torch.zeros_like(like, device=device),
            torch.full_like(like, 2, device=device),
            torch.rand_like(like, device=device),
            like.new_ones(3, device=device),
        ]
        there = "virtual" if device == "cuda" else "cpu"
        assert {one.device.type for one in made} == {there}
        assert [one.sum().item() for one in (made[1], made[2], made[4])] == [0, 6, 3]


def test_streams_are_called_what_the_program_calls_them(cuda: Any) -> None:
    left, right = cuda.Stream(), cuda.Stream()
    many = [cuda.Stream() for _ in range(2)]
    by_name = {"late": cuda.Stream()}
    x = torch.ones(8, device="cuda")
    cuda.synchronize()
    with cuda.stream(right):
        x.mul_(2)
    with cuda.stream(many[1]):
        x.add_(1)
    cuda.synchronize()
    with cuda.stream(by_name["late"]):
        x.sub_(1)
    with cuda.stream(left):
        x.div_(2)
    named = [name.partition(" (")[0] for race in virtual.races() for name in race.streams]
    assert named == ["`right`", "`many[1]`", "`by_name['late']`", "`left`"]
    assert "many[1].wait_stream(right)" in str(virtual.races())


def test_lines_of_a_notebooks_cell_have_no_file() -> None:
    from lockstep.virtual.race_detector import SourceLine

    for file in ("/tmp/ipykernel_12/345.py", "cell-7", "<ipython-input-3-abc>"):
        assert str(SourceLine(file, 3)) == "line 3"
    assert str(SourceLine("/home/me/train.py", 3)) == "train.py, line 3"


@pytest.mark.parametrize("machine", ["H200", "H100", "A100", "B200"])
def test_machines(machine: str) -> None:
    with virtual.device(machine) as cuda:
        assert torch.ones(5, device="cuda").sum().item() == 5
        assert cuda.get_device_name() == f"virtual {machine}"
    assert machine in str(virtual.MACHINES[machine])


@pytest.mark.parametrize(
    "index",
    [
        [0, 2],
        [-1],
        [],
        [True, False, True],
        ([0, 2], [1, 3]),
        [[0, 1], [1, 2]],
        (slice(None), [0, 1]),
        (..., [3]),
        np.array([2, 0]),
        torch.tensor([1]),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")
def test_indices_of_the_host(cuda: Any, index: Any) -> None:
    plain = torch.arange(12.0).view(3, 4)
    x = plain.to("cuda")
    assert torch.equal(x[index].cpu(), plain[index])
    x[index] = plain[index] = 50.0
    assert torch.equal(x.cpu(), plain)


def test_a_copy_to_the_host_takes_its_time_without_values() -> None:
    spent = []
    for values in (True, False):
        with virtual.device(values=values) as cuda:
            x = torch.zeros(1 << 20, device="cuda")
            cuda.synchronize()
            before = virtual.perf_counter()
            x.cpu()
            spent.append(virtual.perf_counter() - before)
    assert spent[0] == spent[1] > 100e-6


def test_a_launch_keeps_the_numbers_of_the_host(cuda: Any) -> None:
    number, place = torch.tensor(2.0), torch.tensor([1])
    x = torch.arange(4.0, device="cuda")
    y, z = x * number, x[place]
    number.fill_(9), place.fill_(3)
    assert (y[1].item(), z.item()) == (2.0, 1.0)


def test_rms_norm_without_a_weight() -> None:
    given = torch.randn(4, 8)
    expected = given.clone().requires_grad_()
    nn.functional.rms_norm(expected, (8,)).square().sum().backward()
    with virtual.device():
        x = given.to("cuda").requires_grad_()
        nn.functional.rms_norm(x, (8,)).square().sum().backward()
        assert x.grad is not None and expected.grad is not None
        torch.testing.assert_close(x.grad.cpu(), expected.grad)
