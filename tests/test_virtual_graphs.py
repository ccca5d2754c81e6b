"""CUDA graphs on the virtual GPU: what is captured, what a replay does, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from lockstep import virtual
from lockstep.trace import Kind
from torch import nn


@pytest.fixture
def cuda() -> Iterator[Any]:
    with virtual.device() as module:
        yield module


def captured(cuda: Any, run: Callable[[], Any], **options: Any) -> tuple[Any, Any]:
    graph = cuda.CUDAGraph()
    with cuda.graph(graph, **options):
        out = run()
    return graph, out


def test_capturing_runs_nothing_and_a_replay_all_of_it(cuda: Any) -> None:
    x = torch.full((8,), 2.0, device="cuda")
    graph, y = captured(cuda, lambda: x.mul_(3) + 1)
    assert x.mean().item() == 2.0
    graph.replay()
    assert (x.mean().item(), y.mean().item()) == (6.0, 7.0)
    graph.replay()
    assert (x.mean().item(), y.mean().item()) == (18.0, 19.0)
    assert list(virtual.races()) == []


def test_a_replay_reads_addresses_and_not_variables(cuda: Any) -> None:
    x = torch.ones(8, device="cuda")
    graph, y = captured(cuda, lambda: x * 10)
    x = torch.full((8,), 2.0, device="cuda")  # another tensor: the graph does not know it
    graph.replay()
    assert y.mean().item() == 10.0


def test_an_input_that_was_freed_is_whatever_lies_there(cuda: Any) -> None:
    inputs = [torch.ones(8, device="cuda")]
    graph, y = captured(cuda, lambda: inputs[0] * 10)
    inputs.clear()
    other = torch.full((8,), 7.0, device="cuda")  # takes the address
    graph.replay()
    assert y.mean().item() == 10 * other.mean().item()


def test_a_replay_overwrites_what_the_last_one_gave(cuda: Any) -> None:
    x = torch.zeros(8, device="cuda")
    graph, y = captured(cuda, lambda: x + 1)
    kept, copied = [], []
    for value in range(3):
        x.fill_(value)
        graph.replay()
        kept.append(y)
        copied.append(y.clone())
    assert [one.mean().item() for one in kept] == [3.0, 3.0, 3.0]
    assert [one.mean().item() for one in copied] == [1.0, 2.0, 3.0]


def training(cuda: Any, graphed: bool) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    x, t = torch.zeros(4, 8, device="cuda"), torch.zeros(4, 2, device="cuda")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        nn.functional.mse_loss(model(x), t).backward()
        optimizer.step()

    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        for _ in range(2):
            step()
    cuda.current_stream().wait_stream(side)
    run = step
    if graphed:
        graph, _ = captured(cuda, step)
        run = graph.replay
    for seed in range(4):
        data = torch.Generator().manual_seed(seed)
        x.copy_(torch.rand(4, 8, generator=data))
        t.copy_(torch.rand(4, 2, generator=data))
        run()
    return [one.detach().cpu() for one in model.parameters()]


def test_a_captured_training_step_trains_as_the_eager_one() -> None:
    results = []
    for graphed in (False, True):
        with virtual.device() as cuda:
            results.append(training(cuda, graphed))
            assert list(virtual.races()) == []
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


def test_graphed_callables_give_the_same_gradients() -> None:
    results = []
    for graphed in (False, True):
        with virtual.device() as cuda:
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)).to("cuda")
            sample = torch.zeros(4, 8, device="cuda")
            if graphed:
                model = cuda.make_graphed_callables(model, (sample,))
            x = torch.arange(32.0, device="cuda").reshape(4, 8)
            model(x).square().sum().backward()
            results.append([one.grad.cpu() for one in model.parameters()])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


def test_each_replay_draws_new_random_numbers(cuda: Any) -> None:
    torch.manual_seed(3)
    graph, y = captured(cuda, lambda: torch.randn(4, device="cuda"))
    drawn = []
    for _ in range(2):
        graph.replay()
        drawn.append(y.cpu())
    torch.manual_seed(3)
    assert torch.equal(drawn[0], torch.randn(4))
    assert torch.equal(drawn[1], torch.randn(4))


# ── Time and memory ──────────────────────────────────────────────────────────────────────────


def test_a_replay_costs_the_host_one_launch(cuda: Any) -> None:
    x = torch.zeros(8, device="cuda")

    def chain() -> None:
        for _ in range(50):
            x.add_(1)

    graph, _ = captured(cuda, chain)
    spent = []
    for run in (chain, graph.replay):
        cuda.synchronize()
        before = virtual.perf_counter()
        run()
        launched = virtual.perf_counter() - before
        cuda.synchronize()
        spent.append((launched, virtual.perf_counter() - before))
    machine = virtual.MACHINES["H200"]
    assert spent[0][0] == pytest.approx(50 * (machine.dispatch + machine.launch) / 1e9)
    assert spent[1][0] == pytest.approx((machine.launch + 50 * machine.graph_launch) / 1e9)
    assert spent[1][1] < 0.35 * spent[0][1]
    assert x.mean().item() == 100
    trace = virtual.trace()
    assert len([one for one in trace if one.name == "cudaGraphLaunch"]) == 1
    (calls,) = [one for one in trace.launches().calls if one.how == "graph"]
    assert (calls.calls, calls.launched) == (1, 50)


def test_a_graph_has_a_pool_of_its_own_and_uses_it_again(cuda: Any) -> None:
    x = torch.zeros(1 << 20, device="cuda")
    cuda.empty_cache()
    before = cuda.memory_reserved()

    def three() -> torch.Tensor:
        return ((x + 1) * 2) - 3  # the first result's memory is the third's

    graph, y = captured(cuda, three)
    assert cuda.memory_reserved() == before + (20 << 20)
    assert cuda.memory_allocated() == x.nbytes + y.nbytes
    outside = torch.zeros(1 << 20, device="cuda")
    graph.replay()
    assert (y.mean().item(), outside.mean().item()) == (-1.0, 0.0)
    cuda.empty_cache()
    alone = cuda.memory_reserved()
    second, z = captured(cuda, three, pool=graph.pool())
    assert cuda.memory_reserved() == alone
    third, u = captured(cuda, three)
    assert cuda.memory_reserved() > alone
    del graph, second, third, y, z, u
    cuda.empty_cache()
    assert cuda.memory_reserved() <= alone


def test_branches_of_a_graph_run_beside_each_other_and_are_joined(cuda: Any) -> None:
    x = torch.ones(8, device="cuda")
    side = cuda.Stream()

    def fork() -> torch.Tensor:
        main = cuda.current_stream()
        side.wait_stream(main)
        with cuda.stream(side):
            cuda._sleep(1_000_000)
            a = x + 1
        cuda._sleep(1_000_000)
        main.wait_stream(side)
        return a * 2

    graph, y = captured(cuda, fork)
    graph.replay()
    assert y.mean().item() == 4.0
    assert list(virtual.races()) == []
    spins = [one for one in virtual.trace() if one.name == "spin"]
    assert len(spins) == 2
    assert spins[0].start < spins[1].end and spins[1].start < spins[0].end
    assert len({one.stream for one in spins}) == 2


def test_a_race_inside_of_a_graph_is_found(cuda: Any) -> None:
    x = torch.ones(8, device="cuda")
    side = cuda.Stream()

    def fork() -> torch.Tensor:
        main = cuda.current_stream()
        side.wait_stream(main)
        with cuda.stream(side):
            x.mul_(5)
        y = x + 1
        main.wait_stream(side)
        return y

    graph, y = captured(cuda, fork)
    graph.replay()
    assert y.mean().item() == 2.0
    (race,) = virtual.races()
    assert race.kind == "read after write"
    assert race.lines[0].text == "x.mul_(5)" and race.lines[1].text == "y = x + 1"


# ── What is refused ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "run",
    [
        lambda x, cuda: x.sum().item(),
        lambda x, cuda: x.cpu(),
        lambda x, cuda: print(x),
        lambda x, cuda: x.nonzero(),
        lambda x, cuda: cuda.synchronize(),
        lambda x, cuda: cuda.current_stream().synchronize(),
        lambda x, cuda: cuda.current_stream().query(),
        lambda x, cuda: bool((x > 0).all()),
    ],
)
def test_what_makes_the_host_wait_cannot_be_captured(cuda: Any, run: Callable[..., Any]) -> None:
    x = torch.ones(8, device="cuda")
    graph = cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="due to a previous error") as caught, cuda.graph(graph):
        run(x, cuda)
    assert "not permitted when stream is capturing" in str(caught.value.__context__)
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()
    assert not cuda.is_current_stream_capturing()
    assert x.sum().item() == 8.0  # the device can be used on


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (lambda x, cuda: x.add_(torch.ones(8).to("cuda")), "unless the CPU tensor is pinned"),
        (lambda x, cuda: x[[0, 1]], "unless the CPU tensor is pinned"),
        (lambda x, cuda: x[torch.tensor([0, 1])], "unless the CPU tensor is pinned"),
        (lambda x, cuda: x.__setitem__([0, 1], 2.0), "unless the CPU tensor is pinned"),
        (lambda x, cuda: torch.manual_seed(1), "set_current_seed during CUDA graph capture"),
        (lambda x, cuda: cuda.manual_seed(1), "set_current_seed during CUDA graph capture"),
    ],
)
def test_what_pytorch_itself_refuses_says_so_in_its_words(
    cuda: Any, run: Callable[..., Any], words: str
) -> None:
    """PyTorch 2.11's; CUDA is not asked, and the capture goes on."""
    x, graph = torch.ones(8, device="cuda"), cuda.CUDAGraph()
    with cuda.graph(graph):
        x.mul_(2)
        with pytest.raises(RuntimeError, match=words):
            run(x, cuda)
    graph.replay()
    assert x.mean().item() == 2.0


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_a_stream_that_was_not_forked(cuda: Any, mode: str) -> None:
    """Its work is done at once, and is not in the graph; new memory for it ends the capture."""
    x, side = torch.ones(8, device="cuda"), cuda.Stream()
    graph = cuda.CUDAGraph()
    with cuda.graph(graph, capture_error_mode=mode), cuda.stream(side):
        x.add_(1)
    side.synchronize()
    assert x.mean().item() == 2.0
    graph.replay()
    assert x.mean().item() == 2.0
    refused = ""
    try:
        with cuda.graph(cuda.CUDAGraph(), capture_error_mode=mode), cuda.stream(side):
            torch.zeros(8, device="cuda")
    except RuntimeError as error:
        refused = str(error)
    assert ("cudaMalloc" in refused) == (mode != "relaxed")


def test_a_number_of_the_host_is_what_it_was_at_the_capture(cuda: Any) -> None:
    x, host, number = torch.ones(8, device="cuda"), torch.tensor(2.0), 3.0
    graph, y = captured(cuda, lambda: x * host + number)
    host.fill_(50)
    number = 70.0
    graph.replay()
    assert y.mean().item() == 5.0


def test_a_stream_that_is_not_joined_is_refused(cuda: Any) -> None:
    x = torch.ones(8, device="cuda")
    side = cuda.Stream()
    graph = cuda.graph(cuda.CUDAGraph())
    with pytest.raises(RuntimeError, match="unjoined work: stream 13"), graph:
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            x.add_(1)


def test_a_wait_for_what_is_not_captured_is_refused(cuda: Any) -> None:
    done = cuda.Event()
    done.record()
    graph = cuda.graph(cuda.CUDAGraph())
    with pytest.raises(RuntimeError, match="due to a previous error"), graph:
        done.wait()


def adam(cuda: Any, capturable: bool) -> Any:
    w = nn.Parameter(torch.zeros(4, device="cuda"))
    optimizer = torch.optim.Adam([w], lr=torch.tensor(0.5, device="cuda"), capturable=capturable)

    def step() -> None:
        optimizer.zero_grad()
        w.sum().backward()
        optimizer.step()

    step()
    graph, _ = captured(cuda, step)
    return graph, optimizer.param_groups[0]["lr"], w


def test_an_optimizer_that_counts_on_the_host_is_refused(cuda: Any) -> None:
    with pytest.raises(RuntimeError, match=r"an instance of Adam but .* capturable is False"):
        adam(cuda, capturable=False)
    graph, rate, w = adam(cuda, capturable=True)
    graph.replay()
    assert w.mean().item() == pytest.approx(-1.0, rel=1e-4)
    rate.fill_(0.0)  # a tensor's value is not in the graph
    graph.replay()
    assert w.mean().item() == pytest.approx(-1.0, rel=1e-4)


def test_other_mistakes(cuda: Any) -> None:
    graph = cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="non-default stream"):
        graph.capture_begin()
    with pytest.raises(RuntimeError, match=r"pool\(\) without a preceding"):
        graph.pool()
    with cuda.graph(graph):
        assert cuda.is_current_stream_capturing()
        torch.ones(3, device="cuda")
    with pytest.raises(RuntimeError, match="already owns a captured graph"), cuda.graph(graph):
        pass
    kinds = {one.kind for one in virtual.trace() if one.name == "cudaGraphLaunch"}
    assert kinds <= {Kind.LAUNCH}


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_what_a_program_may_ask_while_it_captures(mode: str) -> None:
    """As an H200 answers: in relaxed mode about streams that are not captured, else nothing."""
    with virtual.device() as cuda:
        x, side, event = torch.ones(3, device="cuda"), cuda.Stream(), cuda.Event()
        event.record(side)
        cuda.synchronize()
        asks: list[tuple[Any, bool]] = [
            (side.synchronize, False),
            (side.query, False),
            (event.query, False),
            (event.synchronize, False),
            (lambda: cuda.current_stream().query(), True),
            (cuda.synchronize, True),
            (lambda: x.sum().item(), True),
        ]
        for ask, always in asks:
            graph, refused = cuda.CUDAGraph(), ""
            try:
                with cuda.graph(graph, capture_error_mode=mode):
                    x.add_(1)
                    ask()
            except RuntimeError as error:
                refused = str(error)
            assert bool(refused) == (always or mode != "relaxed"), ask


@pytest.mark.parametrize(
    ("order", "copied", "shared", "kept"),
    [
        ((0, 1), False, True, 100),  # as they were captured
        ((1, 0), False, True, 2),
        ((0, 1, 0), False, True, 2),
        ((0, 1, 0, 1), False, True, 100),
        ((1, 0), True, True, 100),
        ((1, 0), False, False, 100),
    ],
)
def test_a_replay_that_overwrites_what_another_graph_made_is_reported(
    cuda: Any, order: tuple[int, ...], copied: bool, shared: bool, kept: float
) -> None:
    x = torch.ones(3, 5, dtype=torch.float64, device="cuda")
    pool, graphs, outputs = cuda.graph_pool_handle(), [cuda.CUDAGraph(), cuda.CUDAGraph()], []
    with cuda.graph(graphs[0], pool=pool if shared else None):
        outputs.append(x * 2 + 3)
    with cuda.graph(graphs[1], pool=pool if shared else None):
        outputs.append(x * 100)
    found = None
    for number in order:
        graphs[number].replay()
        if copied and number == 1:
            found = outputs[1].clone()
    read = found if found is not None else outputs[1]
    assert read[2, 4].item() == kept and outputs[0][0, 0].item() == 5
    reports = [str(one) for one in virtual.races()]
    if kept == 100:
        assert reports == []
    else:
        (report,) = reports
        assert report.startswith("race, pool shared: mul") and "outputs.append(x * 2 + 3)" in report
        assert "order in which they were captured" in report
