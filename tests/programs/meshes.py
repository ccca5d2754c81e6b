# Programs that use device meshes, DTensor, functional collectives and backends of their own.

# %% a mesh of one dimension
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("all",))
print(mesh.mesh.tolist(), mesh.ndim, mesh.size(), mesh.get_rank(), mesh.get_local_rank(), mesh.get_coordinate(), mesh.mesh_dim_names)
value = torch.tensor([mesh.get_rank() + 1])
dist.all_reduce(value, group=mesh.get_group())
print(value.item(), dist.get_process_group_ranks(mesh.get_group("all")), mesh["all"] == mesh)
for call in (lambda: init_device_mesh("cpu", (3,)), lambda: mesh["none"], lambda: mesh.get_group(5), lambda: init_device_mesh("cpu:0", (2,))):
    try:
        print(call())
    except Exception as error:
        print(type(error).__name__)
dist.destroy_process_group()

# %% a mesh makes the default group
# forms: script
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
print(dist.is_initialized())
mesh = init_device_mesh("cpu", (2,))
print(dist.is_initialized(), mesh.get_rank() == dist.get_rank(), dist.get_backend(), dist.get_world_size())
value = torch.ones(1)
dist.all_reduce(value, group=mesh.get_group(0))
print(value.item())
dist.destroy_process_group()

# %% a mesh of two dimensions and its slices
# ranks: 4
import time
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
dist.init_process_group("gloo")
rank = dist.get_rank()
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
for name in "data", "model":
    group = mesh[name].get_group()
    value = torch.tensor([10 ** rank])
    dist.all_reduce(value, group=group)
    print(name, value.item(), dist.get_process_group_ranks(group), mesh.get_local_rank(name), mesh[name].mesh.tolist())
print(mesh.get_coordinate(), mesh["data", "model"].mesh.tolist(), len(mesh.get_all_groups()), mesh.shape)
flat = mesh["data", "model"]._flatten("flat")
value = torch.ones(1)
dist.all_reduce(value, group=flat.get_group())
print(value.item(), flat.size())
del group, mesh, flat
time.sleep(0.3)  # gloo's threads let go of the last tensors: at the end of Python that may abort
dist.destroy_process_group()

# %% tensors are distributed, changed and collected
import time
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
whole = torch.arange(12.0).reshape(4, 3)
sharded = distribute_tensor(whole, mesh, [Shard(0)])
print(sharded.to_local().tolist(), sharded.placements, tuple(sharded.shape), type(sharded).__name__)
print(sharded.redistribute(mesh, [Shard(1)]).to_local().tolist(), sharded.redistribute(mesh, [Replicate()]).to_local().shape)
print(torch.equal(sharded.full_tensor(), whole), (sharded + 1).placements, sharded.sum().placements, sharded.sum().full_tensor().item())
product = sharded @ distribute_tensor(torch.ones(3, 2), mesh, [Replicate()])
print(product.placements, product.full_tensor().tolist())
partial = DTensor.from_local(torch.ones(2) * (dist.get_rank() + 1), mesh, [Partial()])
print(partial.placements, partial.redistribute(mesh, [Replicate()]).to_local().tolist(), partial.redistribute(mesh, [Shard(0)]).to_local().tolist())
uneven = distribute_tensor(torch.arange(5.0), mesh, [Shard(0)])
print(uneven.to_local().tolist(), uneven.full_tensor().tolist())
time.sleep(0.3)  # gloo's threads let go of the last tensors: at the end of Python that may abort
dist.destroy_process_group()

# %% gradients through DTensor
import time
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
weight = distribute_tensor(torch.arange(6.0).reshape(2, 3), mesh, [Shard(0)]).requires_grad_()
x = distribute_tensor(torch.ones(2, 3), mesh, [Replicate()])
loss = (x @ weight.t()).pow(2).sum()
loss.backward()
print(loss.full_tensor().item(), weight.grad.placements, weight.grad.full_tensor().tolist(), weight.grad.to_local().tolist())
del mesh, weight, x, loss
time.sleep(0.3)  # gloo's threads let go of the last tensors: at the end of Python that may abort
dist.destroy_process_group()

# %% functional collectives
import time
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
dist.init_process_group("gloo")
rank = dist.get_rank()
value = torch.tensor([rank + 1.0, 5.0])
result = funcol.all_reduce(value, "sum", dist.group.WORLD)
print(type(result).__name__, result.shape, (result * 2).tolist(), value.tolist(), type(result * 2).__name__)
gathered = funcol.all_gather_tensor(value, 0, dist.group.WORLD)
print(type(gathered).__name__, funcol.wait_tensor(gathered).tolist(), type(funcol.wait_tensor(gathered)).__name__)
print(funcol.reduce_scatter_tensor(value, "sum", 0, dist.group.WORLD).tolist(), funcol.broadcast(value, 1, dist.group.WORLD).tolist())
late = funcol.all_reduce(torch.ones(3), "avg", [0, 1]) if False else funcol.all_reduce(torch.ones(3), "max", dist.group.WORLD)
print(isinstance(late, torch.Tensor), late.wait().tolist(), late.completed, late.tolist())
never = funcol.all_reduce(torch.ones(3), "sum", dist.group.WORLD)
del never
try:
    funcol.all_reduce(value, "nonsense", dist.group.WORLD).tolist()
except Exception as error:
    print(type(error).__name__)
print(funcol.all_reduce_coalesced([value, value], "sum", dist.group.WORLD)[1].tolist(), dist.barrier())
time.sleep(0.3)  # gloo's threads let go of the last tensors: at the end of Python that may abort
dist.destroy_process_group()

# %% functional collectives with gradients
import time
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
dist.init_process_group("gloo")
rank = dist.get_rank()
value = torch.tensor([rank + 1.0, 2.0], requires_grad=True)
gathered = funcol.all_gather_tensor_autograd(value, 0, dist.group.WORLD)
(gathered * torch.arange(4.0)).sum().backward()
print(gathered.tolist(), value.grad.tolist())
value.grad = None
scattered = funcol.reduce_scatter_tensor_autograd(value * 3, "sum", 0, dist.group.WORLD)
(scattered * (rank + 1)).sum().backward()
print(scattered.tolist(), value.grad.tolist())
del gathered, scattered, value
time.sleep(0.3)  # gloo's threads let go of the last tensors: at the end of Python that may abort
dist.destroy_process_group()

# %% torch.distributed.nn
import warnings
warnings.simplefilter("ignore")
import torch
import torch.distributed as dist
import torch.distributed.nn.functional as nnf
dist.init_process_group("gloo")
rank = dist.get_rank()
value = torch.tensor([rank + 1.0], requires_grad=True)
for name, call in [("all_reduce", lambda: nnf.all_reduce(value * 2)), ("all_gather", lambda: torch.cat(nnf.all_gather(value))), ("broadcast", lambda: nnf.broadcast(value.clone(), 1)), ("reduce", lambda: nnf.reduce(value.clone(), 0))]:
    value.grad = None
    try:
        out = call()
        (out * torch.arange(1.0, 1 + out.numel())).sum().backward()
        print(name, out.tolist() if name != "reduce" or rank == 0 else "", value.grad.tolist(), type(out.grad_fn).__name__)
    except Exception as error:
        print(name, type(error).__name__)
dist.destroy_process_group()

# %% a module is parallelized
import time
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
x = torch.arange(8.0).reshape(2, 4) / 8
before = model(x)
parallel = parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
after = parallel(x)
print(torch.allclose(before, after, atol=1e-6), type(parallel[0].weight).__name__, parallel[0].weight.to_local().shape, parallel[2].weight.placements)
after.sum().backward()
print([p.grad.placements for p in parallel.parameters()])
time.sleep(0.3)  # gloo's threads let go of the last tensors: at the end of Python that may abort
dist.destroy_process_group()

# %% functions with functional collectives are compiled
import time
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
dist.init_process_group("gloo")
rank = dist.get_rank()
@torch.compile(backend="eager", fullgraph=True)
def step(x):
    y = funcol.all_reduce(x * 2, "sum", "0" if False else dist.group.WORLD)
    return y + funcol.all_gather_tensor(x, 0, dist.group.WORLD).sum()
print(step(torch.tensor([rank + 1.0])).tolist(), step(torch.tensor([rank + 5.0])).tolist())
@torch.compile(backend="eager")
def plain(x):
    y = x + 1
    dist.all_reduce(y)
    return y * 2
print(plain(torch.tensor([float(rank)])).tolist())
explained = torch._dynamo.utils.counters["graph_break"]
print(sum(explained.values()), torch._dynamo.utils.counters["stats"]["unique_graphs"])
time.sleep(0.3)  # gloo's threads let go of the last tensors: at the end of Python that may abort
dist.destroy_process_group()

# %% CommDebugMode counts collectives
import time
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
value = distribute_tensor(torch.arange(4.0), mesh, [Shard(0)])
with CommDebugMode() as mode:
    value.full_tensor()
    value.sum().full_tensor()
    dist.all_reduce(torch.ones(1))
print(mode.get_total_counts(), sorted((str(k), v) for k, v in mode.get_comm_counts().items()))
time.sleep(0.3)  # gloo's threads let go of the last tensors: at the end of Python that may abort
dist.destroy_process_group()

# %% a process group written in Python
import torch
import torch.distributed as dist
class Done(dist.Work):
    def __init__(self, result):
        super().__init__()
        self.result_ = result
    def wait(self, timeout=None):
        print("wait of the program's own work")
        return True
    def get_future(self):
        future = torch.futures.Future()
        future.set_result(self.result_)
        return future
class Alone(dist.ProcessGroup):
    def __init__(self):
        super().__init__(0, 1)
    def allreduce(self, tensors, options=None):
        for tensor in tensors:
            tensor.mul_(10)
        return Done(tensors)
    def getBackendName(self):
        return "alone"
dist.init_process_group("gloo")
group = Alone()
value = torch.ones(2)
work = group.allreduce([value])
print(type(work).__name__, isinstance(work, dist.Work), work.wait(), value.tolist(), work.get_future().wait()[0].tolist(), group.size(), group.rank())
dist.all_reduce(value)
print(value.tolist())
dist.destroy_process_group()

# %% a backend written in Python is registered and used as the default
# forms: script, function
import os
import torch
import torch.distributed as dist
class Done(dist.Work):
    def __init__(self, tensors):
        super().__init__()
        self.future = torch.futures.Future()
        self.future.set_result(tensors)
    def wait(self, timeout=None):
        return True
    def get_future(self):
        return self.future
class Echo(dist.ProcessGroup):
    def __init__(self, rank, size):
        super().__init__(rank, size)
        self.calls = []
    def allreduce(self, tensors, options=None):
        self.calls.append("allreduce")
        tensors[0].mul_(self.size())
        return Done(tensors)
    def broadcast(self, tensors, options=None):
        self.calls.append("broadcast")
        return Done(tensors)
    def getBackendName(self):
        return "echo"
made = []
def make(store, rank, size, timeout):
    made.append(Echo(rank, size))
    return made[-1]
dist.Backend.register_backend("echo", make, devices=["cpu"])
dist.init_process_group("echo")
value = torch.ones(1)
for call in (lambda: dist.all_reduce(value), lambda: dist.broadcast(value, 0), lambda: dist.all_reduce(value, async_op=True).wait(), lambda: dist.get_backend(), lambda: dist.barrier()):
    try:
        print(call(), value.item())
    except Exception as error:
        print(type(error).__name__)
print([m.calls for m in made], dist.get_rank() == int(os.environ["RANK"]), dist.get_world_size())
dist.destroy_process_group()

# %% the fake backend
# forms: script, function
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
dist.init_process_group("fake", rank=3, world_size=8, store=FakeStore())
value = torch.ones(2)
print(dist.all_reduce(value), value.tolist(), dist.get_rank(), dist.get_world_size(), dist.get_backend())
work = dist.all_reduce(value, async_op=True)
print(work.wait(), work.is_completed(), isinstance(work, dist.Work), dist.barrier())
outs = [torch.zeros(2) for n in range(8)]
print(dist.all_gather(outs, value), dist.new_group([3, 5]).size(), dist.send(value, 1), dist.broadcast(value, 7))
from torch.distributed.device_mesh import init_device_mesh
mesh = init_device_mesh("cpu", (2, 4))
print(mesh.get_coordinate(), mesh.mesh.tolist())
dist.destroy_process_group()

# %% data parallelism with a communication hook
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(2, 1))
seen = []
def hook(state, bucket):
    seen.append((bucket.index(), bucket.is_last(), bucket.buffer().numel()))
    future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return future.then(lambda f: f.value()[0] / state)
model.register_comm_hook(2, hook)
model(torch.full((1, 2), rank + 1.0)).sum().backward()
print([p.grad.tolist() for p in model.parameters()], seen)
with model.no_sync():
    model(torch.ones(1, 2)).sum().backward()
print(len(seen), model.module.bias.grad.item(), type(model).__name__)
dist.destroy_process_group()

# %% fully sharded modules
import time
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Linear(4, 1))
try:
    mesh = init_device_mesh("cpu", (2,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    out = model(torch.ones(1, 2) * (rank + 1))
    out.sum().backward()
    print(tuple(model[0].weight.shape), model[0].weight.to_local().shape, model[0].weight.grad.full_tensor().shape, type(model).__name__)
    print([round(v, 4) for v in model[1].weight.grad.full_tensor().flatten().tolist()])
except Exception as error:
    print(type(error).__name__)
time.sleep(0.3)  # gloo's threads let go of the last tensors: at the end of Python that may abort
dist.destroy_process_group()
