"""Lab 09's solutions beside PyTorch's DTensor: the same numbers, on sizes that ranks do not divide.

DTensor cuts by `chunk`, the lab by `tensor_split`: 7 in three parts are 3, 3 and 1, or 3, 2 and 2.
So whole tensors are compared, or the lab's functions get DTensor's parts. And DTensor has to be
told to keep DTensors between two layers: else it takes the parts of all ranks to be equally large.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import lockstep
import pytest
import torch
import torch.distributed as dist

RANKS = (2, 3)


def mesh() -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (dist.get_world_size(),))


def on_ranks(n: int, function: Callable[..., Any], *args: Any) -> Any:
    return lockstep.torchrun(function, *args, nproc_per_node=n, backend="gloo", show=False).results


def mlps(mlp: Any, hidden: int, local: bool) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Of both: y, and the gradients of x and of the weights, whole. local: between DTensor's layers
    are plain tensors, as by default."""
    from torch.distributed.tensor import parallel

    torch.manual_seed(0)
    up, down = torch.nn.Linear(5, hidden), torch.nn.Linear(hidden, 5)
    layers = OrderedDict(up=up, relu=torch.nn.ReLU(), down=down)
    model = torch.nn.Sequential(layers).double()
    given = [torch.randn(2, 3, 5).double(), *(one.detach() for one in model.parameters())]
    ours = [one.clone().requires_grad_() for one in given]
    weight = torch.randn(2, 3, 5).double()
    y = mlp(*ours)
    (y * weight).sum().backward()
    for one in ours[1:4]:  # each rank has the gradient of its part
        dist.all_reduce(one.grad)

    up_plan = parallel.ColwiseParallel(use_local_output=local)
    plan = {"up": up_plan, "down": parallel.RowwiseParallel()}
    parallel.parallelize_module(model, mesh(), plan)
    x = given[0].clone().requires_grad_()
    theirs = model(x)
    (theirs * weight).sum().backward()
    grads = [one.grad.full_tensor() for one in model.parameters()]
    found = [y, *(one.grad for one in ours)], [theirs, x.grad, *grads]
    return [(a.detach(), b.detach()) for a, b in zip(*found, strict=True)]


@pytest.mark.parametrize("n", RANKS)
def test_the_mlp_is_that_of_column_and_row_parallel(n: int) -> None:
    for found in on_ranks(n, mlps, lockstep.carry_on("mlp"), 7, False):
        for one, other in found:
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_what_dtensor_refuses_by_default_the_lab_computes() -> None:
    with pytest.raises(lockstep.JobFailed, match="must have same reduction dim"):
        on_ranks(2, mlps, lockstep.carry_on("mlp"), 7, True)


def blocks(block: Any, sequence: int, hidden: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Of both: this rank's y, and the gradients of its x, of the gain, and of its parts."""
    from torch.distributed.tensor import Shard, parallel

    torch.manual_seed(0)
    rank, n = dist.get_rank(), dist.get_world_size()
    norm, relu = torch.nn.RMSNorm(5, eps=0.0), torch.nn.ReLU()
    up, down = torch.nn.Linear(5, hidden, False), torch.nn.Linear(hidden, 5, False)
    layers = OrderedDict(norm=norm, up=up, relu=relu, down=down)
    model = torch.nn.Sequential(layers).double()
    torch.nn.init.normal_(norm.weight)
    gain_D, w1_FD, w2_DF = (one.detach().clone() for one in model.parameters())
    x_BSD, weight_BSD = torch.randn(2, 2, sequence, 5).double()
    x_BsD, weight_BsD = (one.chunk(n, 1)[rank] for one in (x_BSD, weight_BSD))
    parts = x_BsD, gain_D, w1_FD.chunk(n)[rank], w2_DF.chunk(n, 1)[rank]
    ours = [one.clone().requires_grad_() for one in parts]
    y = block(*ours, lambda x, seed: x, 0)
    (y * weight_BsD).sum().backward()

    plan = {
        "norm": parallel.SequenceParallel(),
        "up": parallel.ColwiseParallel(input_layouts=Shard(1), use_local_output=False),
        "down": parallel.RowwiseParallel(output_layouts=Shard(1)),
    }
    parallel.parallelize_module(model, mesh(), plan)
    x = x_BsD.clone().requires_grad_()
    theirs = model(x)
    (theirs * weight_BsD).sum().backward()
    gain, *cut = (one.grad for one in model.parameters())
    assert gain.placements[0].is_partial()
    grads = [gain.full_tensor(), *(one.to_local() for one in cut)]
    found = [y, *(one.grad for one in ours)], [theirs, x.grad, *grads]
    return [(a.detach(), b.detach()) for a, b in zip(*found, strict=True)]


@pytest.mark.parametrize("n", RANKS)
def test_the_block_is_that_of_sequence_parallel(n: int) -> None:
    for found in on_ranks(n, blocks, lockstep.carry_on("block"), 5 * n, 7):
        for one, other in found:
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def losses(vocabulary_loss: Any, words: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Of both: each token's loss, and the gradient of this rank's logits."""
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.distributed.tensor.parallel import loss_parallel

    torch.manual_seed(0)
    rank, n = dist.get_rank(), dist.get_world_size()
    logits_TV, target_T = 30 * torch.randn(11, words).double(), torch.randint(words, (11,))
    weight_T = torch.randn(11).double()
    parts = logits_TV.chunk(n, 1)
    logits_Tv = parts[rank].clone().requires_grad_()
    loss_T = vocabulary_loss(logits_Tv, target_T, sum(one.shape[1] for one in parts[:rank]))
    (loss_T * weight_T).sum().backward()

    logits = distribute_tensor(logits_TV, mesh(), [Shard(1)]).requires_grad_()
    with loss_parallel():
        theirs: Any = torch.nn.functional.cross_entropy(logits, target_T, reduction="none")
        theirs.backward(distribute_tensor(weight_T, theirs.device_mesh, theirs.placements))
    found = (loss_T, theirs.to_local()), (logits_Tv.grad, logits.grad.to_local())
    return [(a.detach(), b.detach()) for a, b in found]


@pytest.mark.parametrize("n", RANKS)
def test_the_loss_is_that_of_loss_parallel(n: int) -> None:
    for found in on_ranks(n, losses, lockstep.carry_on("vocabulary_loss"), 7):
        for one, other in found:
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
