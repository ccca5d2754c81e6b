# Ordinary training programs: DDP, FSDP2, tensor and pipeline parallelism, and what people write around them.

# %% DDP trains a small model
import os, torch
import torch.distributed as dist
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]) else torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
if device.type == "cuda":
    torch.cuda.set_device(device)
rank = dist.get_rank()
from torch.nn.parallel import DistributedDataParallel as DDP
torch.manual_seed(0)
model = DDP(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(1 + rank)
for step in range(5):
    x, y = torch.randn(16, 8).to(device), torch.randn(16, 1).to(device)
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.5f}")
print(f"{sum(p.abs().sum().item() for p in model.parameters()):.5f}")
dist.destroy_process_group()

# %% DDP accumulates gradients with no_sync
import os, torch
import torch.distributed as dist
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]) else torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
if device.type == "cuda":
    torch.cuda.set_device(device)
rank = dist.get_rank()
import contextlib
from torch.nn.parallel import DistributedDataParallel as DDP
torch.manual_seed(3)
model = DDP(torch.nn.Linear(6, 3).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
torch.manual_seed(10 + rank)
for step in range(3):
    total = 0.0
    for micro in range(4):
        x = torch.randn(4, 6).to(device)
        with model.no_sync() if micro < 3 else contextlib.nullcontext():
            loss = model(x).square().mean() / 4
            loss.backward()
        total += loss.item()
        print(step, micro, f"{model.module.weight.grad.norm().item():.5f}")
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {total:.5f}")
dist.destroy_process_group()

# %% DDP finds parameters that another rank did not use
import os, torch
import torch.distributed as dist
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]) else torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
if device.type == "cuda":
    torch.cuda.set_device(device)
rank = dist.get_rank()
from torch.nn.parallel import DistributedDataParallel as DDP
class Branches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right, self.never = (torch.nn.Linear(4, 2) for n in range(3))
    def forward(self, x, left):
        return self.left(x) if left else self.right(x)
torch.manual_seed(5)
model = DDP(Branches().to(device), find_unused_parameters=True)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
torch.manual_seed(rank)
for step in range(4):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 4).to(device), (step + rank) % 2 == 0).pow(2).mean()
    loss.backward()
    optimizer.step()
    grads = [None if p.grad is None else round(p.grad.abs().sum().item(), 5) for p in model.parameters()]
    print(f"step {step} loss {loss.item():.5f}", grads)
dist.destroy_process_group()

# %% DDP with a static graph and activation checkpointing
import os, torch
import torch.distributed as dist
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]) else torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
if device.type == "cuda":
    torch.cuda.set_device(device)
rank = dist.get_rank()
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint
class Blocks(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()) for n in range(3))
        self.ran = 0
    def block(self, n, x):
        self.ran += 1
        return self.blocks[n % 3](x)
    def forward(self, x):
        for n in range(4):
            x = checkpoint(self.block, n, x, use_reentrant=n % 2 == 1)
        return x
torch.manual_seed(7)
model = DDP(Blocks().to(device), static_graph=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
torch.manual_seed(20 + rank)
for step in range(3):
    optimizer.zero_grad()
    loss = (model(torch.randn(4, 8, requires_grad=True).to(device)) - 1).square().mean()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.5f} blocks run {model.module.ran}")
dist.destroy_process_group()

# %% DDP compresses gradients to fp16, and on GPUs to bf16
import os, torch
import torch.distributed as dist
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]) else torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
if device.type == "cuda":
    torch.cuda.set_device(device)
rank = dist.get_rank()
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
hooks = [default_hooks.allreduce_hook, default_hooks.fp16_compress_hook]
if device.type == "cuda":
    hooks.append(default_hooks.bf16_compress_hook)
for hook in hooks:
    torch.manual_seed(2)
    model = DDP(torch.nn.Linear(16, 4).to(device))
    model.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    torch.manual_seed(30 + rank)
    for step in range(3):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 16).to(device)).square().mean()
        loss.backward()
        optimizer.step()
        print(hook.__name__, step, f"{loss.item():.5f}", f"{model.module.weight.grad.sum().item():.5f}")
dist.destroy_process_group()

# %% DDP with PowerSGD
import os, torch
import torch.distributed as dist
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]) else torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
if device.type == "cuda":
    torch.cuda.set_device(device)
rank = dist.get_rank()
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
torch.manual_seed(4)
model = DDP(torch.nn.Sequential(torch.nn.Linear(24, 32), torch.nn.Tanh(), torch.nn.Linear(32, 24)).to(device))
state = powerSGD_hook.PowerSGDState(process_group=None, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=1)
model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
torch.manual_seed(40 + rank)
x = torch.randn(8, 24).to(device)
for step in range(6):
    optimizer.zero_grad()
    loss = (model(x) - x).square().mean()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.5f} grad {model.module[0].weight.grad.norm().item():.4f}")
print(state.iter, state.total_numel_before_compression, state.total_numel_after_compression)
dist.destroy_process_group()

# %% a DDP hook in Python with future.then
import os, torch
import torch.distributed as dist
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]) else torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
if device.type == "cuda":
    torch.cuda.set_device(device)
rank = dist.get_rank()
from torch.nn.parallel import DistributedDataParallel as DDP
seen = []
def hook(state, bucket):
    seen.append((bucket.index(), bucket.buffer().numel(), bucket.is_last()))
    grad = bucket.buffer().double()
    future = dist.all_reduce(grad, group=state, async_op=True).get_future()
    return future.then(lambda f: (f.value()[0] / dist.get_world_size()).to(bucket.buffer().dtype))
torch.manual_seed(6)
model = DDP(torch.nn.Sequential(*(torch.nn.Linear(12, 12) for n in range(4))).to(device), bucket_cap_mb=0.001)
model.register_comm_hook(dist.group.WORLD, hook)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(50 + rank)
for step in range(3):
    seen.clear()
    optimizer.zero_grad()
    loss = model(torch.randn(4, 12).to(device)).square().mean()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.5f}", seen)
dist.destroy_process_group()

# %% DDP joins ranks with uneven inputs
# ranks: 3
import os, torch
import torch.distributed as dist
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]) else torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
if device.type == "cuda":
    torch.cuda.set_device(device)
rank = dist.get_rank()
from torch.nn.parallel import DistributedDataParallel as DDP
torch.manual_seed(8)
model = DDP(torch.nn.Linear(5, 1).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(60 + rank)
batches = [torch.randn(4, 5) for n in range(2 + 2 * rank)]
with model.join():
    for n, batch in enumerate(batches):
        optimizer.zero_grad()
        loss = (model(batch.to(device)) - 1).square().mean()
        loss.backward()
        optimizer.step()
        print(f"batch {n} of {len(batches)} loss {loss.item():.5f}")
print([round(v, 5) for v in model.module.weight.flatten().tolist()])
dist.destroy_process_group()

# %% the Join context with an optimizer that shards its state
import os, torch
import torch.distributed as dist
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]) else torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
if device.type == "cuda":
    torch.cuda.set_device(device)
rank = dist.get_rank()
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP
torch.manual_seed(9)
model = DDP(torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 1)).to(device))
optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.02)
torch.manual_seed(70 + rank)
with Join([model, optimizer]):
    for n in range(3 + rank):
        optimizer.zero_grad()
        loss = (model(torch.randn(4, 5).to(device)) - 1).square().mean()
        loss.backward()
        optimizer.step()
        print(f"batch {n} loss {loss.item():.5f}")
print(f"{sum(p.sum().item() for p in model.parameters()):.5f}")
dist.destroy_process_group()

# %% batch norm is synchronized on GPUs and refused on CPUs
import os, torch
import torch.distributed as dist
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]) else torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
if device.type == "cuda":
    torch.cuda.set_device(device)
rank = dist.get_rank()
from torch.nn.parallel import DistributedDataParallel as DDP
torch.manual_seed(11)
model = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 2))
model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model).to(device)
print(type(model[1]).__name__)
try:
    model = DDP(model)
except ValueError as error:
    print(error)
torch.manual_seed(80 + rank)
for step in range(2):
    try:
        loss = model(torch.randn(4, 1, 8, 8).to(device)).square().mean()
        loss.backward()
        print(f"step {step} loss {loss.item():.5f}")
    except ValueError as error:
        print(step, error)
model.eval()
print(f"{model(torch.ones(2, 1, 8, 8).to(device)).sum().item():.5f}")
dist.destroy_process_group()

# %% DDP broadcasts the buffers of batch norm
import os, torch
import torch.distributed as dist
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]) else torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
if device.type == "cuda":
    torch.cuda.set_device(device)
rank = dist.get_rank()
from torch.nn.parallel import DistributedDataParallel as DDP
torch.manual_seed(12)
model = DDP(torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 1)).to(device), gradient_as_bucket_view=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(90 + rank)
for step in range(4):
    optimizer.zero_grad(set_to_none=step % 2 == 0)
    loss = (model(torch.randn(8, 6).to(device) * (rank + 1)) - 1).square().mean()
    loss.backward()
    optimizer.step()
    norm = model.module[1]
    print(f"step {step} loss {loss.item():.5f} mean {norm.running_mean.sum().item():.5f}", norm.num_batches_tracked.item(), norm.weight.grad._is_view())
dist.destroy_process_group()

# %% many small buckets, rebuilt after the first step
import os, torch
import torch.distributed as dist
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]) else torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
if device.type == "cuda":
    torch.cuda.set_device(device)
rank = dist.get_rank()
from torch.nn.parallel import DistributedDataParallel as DDP
torch.manual_seed(13)
layers = [torch.nn.Sequential(torch.nn.Linear(20, 20), torch.nn.LayerNorm(20), torch.nn.GELU()) for n in range(8)]
model = DDP(torch.nn.Sequential(*layers).to(device), bucket_cap_mb=0.002, gradient_as_bucket_view=True)
optimizer = torch.optim.RMSprop(model.parameters(), lr=0.005)
torch.manual_seed(100 + rank)
for step in range(4):
    optimizer.zero_grad()
    loss = (model(torch.randn(4, 20).to(device)) - 0.5).square().mean()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.5f}")
logging = model._get_ddp_logging_data()
print(len(logging["bucket_sizes"].split(",")), logging["has_rebuilt_buckets"], len(logging["rebuilt_bucket_sizes"].split(",")))
dist.destroy_process_group()

# %% DDP over process groups of its own
# ranks: 4
import os, torch
import torch.distributed as dist
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]) else torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
if device.type == "cuda":
    torch.cuda.set_device(device)
rank = dist.get_rank()
from torch.nn.parallel import DistributedDataParallel as DDP
pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
group = pairs[rank % 2]
torch.manual_seed(14 + rank)
model = DDP(torch.nn.Linear(4, 4).to(device), process_group=group)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    loss = model(torch.randn(6, 4).to(device)).square().mean()
    loss.backward()
    optimizer.step()
    mean = loss.detach().clone()
    dist.all_reduce(mean, op=dist.ReduceOp.SUM, group=group)
    print(f"step {step} loss {loss.item():.5f} of my pair {mean.item() / 2:.5f}", dist.get_process_group_ranks(group))
total = model.module.weight.detach().sum()
dist.all_reduce(total)
print(f"{total.item():.5f}")
dist.destroy_process_group()

# %% DDP of an embedding with sparse gradients
import os, torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
from torch.nn.parallel import DistributedDataParallel as DDP
torch.manual_seed(15)
model = DDP(torch.nn.EmbeddingBag(50, 4, sparse=True, mode="sum"))
optimizer = torch.optim.SparseAdam(list(model.parameters()), lr=0.05)
torch.manual_seed(110 + rank)
for step in range(3):
    optimizer.zero_grad()
    loss = (model(torch.randint(50, (6, 3))) - 1).square().mean()
    loss.backward()
    grad = model.module.weight.grad.coalesce()
    optimizer.step()
    print(f"step {step} loss {loss.item():.5f}", grad.is_sparse, grad.indices().flatten().tolist())
dist.destroy_process_group()

# %% an optimizer that shards its state, saved on rank 0
import os, torch
import torch.distributed as dist
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]) else torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
if device.type == "cuda":
    torch.cuda.set_device(device)
rank = dist.get_rank()
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP
torch.manual_seed(16)
model = DDP(torch.nn.Sequential(*(torch.nn.Linear(10, 10) for n in range(4))).to(device))
optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=0.01)
torch.manual_seed(120 + rank)
for step in range(4):
    optimizer.zero_grad()
    loss = (model(torch.randn(4, 10).to(device)) - 1).square().mean()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.5f} states {len(optimizer.optim.state)}")
optimizer.consolidate_state_dict(to=0)
if rank == 0:
    print(sorted(optimizer.state_dict()["state"]))
dist.destroy_process_group()

# %% FSDP2 shards each layer
import os, torch
import torch.distributed as dist
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]) else torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
if device.type == "cuda":
    torch.cuda.set_device(device)
rank = dist.get_rank()
from torch.distributed.fsdp import fully_shard
torch.manual_seed(17)
model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(9, 9), torch.nn.ReLU()) for n in range(3))).to(device)
for layer in model:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
torch.manual_seed(130 + rank)
for step in range(4):
    optimizer.zero_grad()
    loss = (model(torch.randn(4, 9).to(device)) - 1).square().mean()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    print(f"step {step} loss {loss.item():.5f} norm {norm.full_tensor().item():.5f}")
for name, p in model.named_parameters():
    print(name, tuple(p.shape), tuple(p.to_local().shape), p.placements, f"{p.full_tensor().sum().item():.5f}")
dist.destroy_process_group()

# %% FSDP2 with mixed precision and without resharding
import os, torch
import torch.distributed as dist
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]) else torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
if device.type == "cuda":
    torch.cuda.set_device(device)
rank = dist.get_rank()
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
torch.manual_seed(18)
model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for n in range(3))).to(device)
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for layer in model:
    fully_shard(layer, mp_policy=policy, reshard_after_forward=False)
fully_shard(model, mp_policy=policy)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(140 + rank)
for step in range(4):
    model.set_requires_gradient_sync(step % 2 == 1)
    out = model(torch.randn(4, 16).to(device))
    loss = (out - 1).float().square().mean()
    loss.backward()
    if step % 2 == 1:
        optimizer.step()
        optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.5f}", out.dtype, model[0].weight.dtype)
dist.destroy_process_group()

# %% FSDP2 prefetches explicitly
import os, torch
import torch.distributed as dist
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]) else torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
if device.type == "cuda":
    torch.cuda.set_device(device)
rank = dist.get_rank()
from torch.distributed.fsdp import fully_shard
torch.manual_seed(19)
model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for n in range(5))).to(device)
for layer in model:
    fully_shard(layer)
fully_shard(model)
for n, layer in enumerate(model):
    layer.set_modules_to_forward_prefetch(list(model[n + 1 : n + 3]))
    layer.set_modules_to_backward_prefetch([model[m] for m in (n - 1, n - 2) if m >= 0])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
torch.manual_seed(150 + rank)
for step in range(4):
    model.unshard(async_op=True)
    optimizer.zero_grad()
    loss = (model(torch.randn(4, 8).to(device)) - 1).square().mean()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.5f}")
dist.destroy_process_group()

# %% FSDP2 offloads to the CPU, and its state dict is gathered
import os, torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
torch.manual_seed(21)
model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
mesh = torch.distributed.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
fully_shard(model, mesh=mesh, offload_policy=CPUOffloadPolicy(pin_memory=False))
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
torch.manual_seed(160 + rank)
for step in range(4):
    optimizer.zero_grad()
    loss = (model(torch.randn(4, 7)) - 1).square().mean()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.5f}")
state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
print({name: (tuple(t.shape), round(t.sum().item(), 5)) for name, t in state.items()})
dist.destroy_process_group()

# %% FSDP2 shards in pairs and replicates over them
# ranks: 4
import os, torch
import torch.distributed as dist
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]) else torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
if device.type == "cuda":
    torch.cuda.set_device(device)
rank = dist.get_rank()
from torch.distributed.fsdp import fully_shard
mesh = torch.distributed.init_device_mesh(device.type, (2, 2), mesh_dim_names=("replicate", "shard"))
torch.manual_seed(22)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8)).to(device)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
torch.manual_seed(170 + rank)
for step in range(3):
    optimizer.zero_grad()
    loss = (model(torch.randn(4, 8).to(device)) - 1).square().mean()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.5f}", model[0].weight.placements, mesh.get_coordinate())
dist.destroy_process_group()

# %% the first FSDP with its full state dict
import os, torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel as FSDP, StateDictType
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
torch.manual_seed(23)
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({torch.nn.Linear}), device_id=torch.device("cpu"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(180 + rank)
for step in range(3):
    optimizer.zero_grad()
    loss = (model(torch.randn(4, 6)) - 1).square().mean()
    loss.backward()
    norm = model.clip_grad_norm_(1.0)
    optimizer.step()
    print(f"step {step} loss {loss.item():.5f} norm {norm.item():.5f}")
with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(rank0_only=True)):
    print({name: round(t.sum().item(), 5) for name, t in model.state_dict().items()})
dist.destroy_process_group()

# %% tensor parallel: columns, then rows
import os, torch
import torch.distributed as dist
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]) else torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
if device.type == "cuda":
    torch.cuda.set_device(device)
rank = dist.get_rank()
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
mesh = torch.distributed.init_device_mesh(device.type, (dist.get_world_size(),))
torch.manual_seed(24)
model = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.ReLU(), torch.nn.Linear(32, 5)).to(device)
model = parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, foreach=True)
torch.manual_seed(190)
for step in range(4):
    optimizer.zero_grad()
    loss = (model(torch.randn(6, 10).to(device)) - 1).square().mean()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.5f}")
print([(n, tuple(p.to_local().shape), str(p.placements)) for n, p in model.named_parameters()])
dist.destroy_process_group()

# %% sequence parallel with a layer norm
import os, torch
import torch.distributed as dist
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]) else torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
if device.type == "cuda":
    torch.cuda.set_device(device)
rank = dist.get_rank()
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, parallelize_module
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = torch.nn.LayerNorm(8), torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)
    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))
mesh = torch.distributed.init_device_mesh(device.type, (dist.get_world_size(),))
torch.manual_seed(25)
plan = {"": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Shard(1), use_local_output=False), "norm": SequenceParallel(), "up": ColwiseParallel(input_layouts=Shard(1)), "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False)}
model = parallelize_module(Block().to(device), mesh, plan)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(200 + rank)
for step in range(3):
    optimizer.zero_grad()
    loss = (model(torch.randn(2, 4, 8).to(device)).full_tensor() - 1).square().mean()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.5f} norm {model.norm.weight.full_tensor().sum().item():.5f}")
dist.destroy_process_group()

# %% the loss is parallel over the vocabulary
import os, torch
import torch.distributed as dist
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]) else torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
if device.type == "cuda":
    torch.cuda.set_device(device)
rank = dist.get_rank()
from torch.distributed.tensor import Shard, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module
mesh = torch.distributed.init_device_mesh(device.type, (dist.get_world_size(),))
torch.manual_seed(26)
model = torch.nn.Sequential(torch.nn.Embedding(32, 8), torch.nn.Linear(8, 32, bias=False)).to(device)
plan = {"0": RowwiseParallel(input_layouts=Replicate()), "1": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)}
model = parallelize_module(model, mesh, plan)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
torch.manual_seed(210)
tokens = torch.randint(32, (16,)).to(device)
for step in range(4):
    optimizer.zero_grad()
    with loss_parallel():
        loss = torch.nn.functional.cross_entropy(model(tokens[:-1]), tokens[1:])
        loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.full_tensor().item():.5f}")
dist.destroy_process_group()

# %% a mesh of two by two: tensor parallel and FSDP2
# ranks: 4
import os, torch
import torch.distributed as dist
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]) else torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
if device.type == "cuda":
    torch.cuda.set_device(device)
rank = dist.get_rank()
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
mesh = torch.distributed.init_device_mesh(device.type, (2, 2), mesh_dim_names=("dp", "tp"))
torch.manual_seed(27)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8)).to(device)
parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
fully_shard(model, mesh=mesh["dp"])
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
torch.manual_seed(220 + mesh["dp"].get_local_rank())
for step in range(3):
    optimizer.zero_grad()
    loss = (model(torch.randn(4, 8).to(device)) - 1).square().mean()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()
    optimizer.step()
    print(f"step {step} loss {loss.item():.5f} norm {norm.item():.5f}")
print(mesh, mesh["tp"].get_local_rank(), [(str(p.placements), tuple(p.to_local().shape)) for p in model.parameters()])
dist.destroy_process_group()

# %% a pipeline by GPipe
import os, torch
import torch.distributed as dist
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]) else torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
if device.type == "cuda":
    torch.cuda.set_device(device)
rank = dist.get_rank()
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
torch.manual_seed(28)
layers = [torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh()) for n in range(dist.get_world_size())]
stage = PipelineStage(layers[rank].to(device), rank, dist.get_world_size(), device)
schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=torch.nn.functional.mse_loss)
optimizer = torch.optim.SGD(layers[rank].parameters(), lr=0.1)
torch.manual_seed(230)
x, y = torch.randn(8, 6).to(device), torch.randn(8, 6).to(device)
for step in range(3):
    optimizer.zero_grad()
    losses = []
    if rank == 0:
        schedule.step(x)
    else:
        schedule.step(target=y, losses=losses)
    optimizer.step()
    print(f"step {step}", [f"{loss.item():.5f}" for loss in losses], f"{layers[rank][0].weight.grad.norm().item():.5f}")
dist.destroy_process_group()

# %% a pipeline by 1F1B on three ranks
# ranks: 3
import os, torch
import torch.distributed as dist
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]) else torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
if device.type == "cuda":
    torch.cuda.set_device(device)
rank = dist.get_rank()
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
world = dist.get_world_size()
torch.manual_seed(29)
layers = [torch.nn.Sequential(torch.nn.Linear(5, 5), torch.nn.GELU()) for n in range(world)]
stage = PipelineStage(layers[rank].to(device), rank, world, device)
schedule = Schedule1F1B(stage, 6, loss_fn=lambda out, target: (out - target).square().mean())
optimizer = torch.optim.AdamW(layers[rank].parameters(), lr=0.01)
torch.manual_seed(240)
for step in range(3):
    x, y = torch.randn(12, 5).to(device), torch.randn(12, 5).to(device)
    optimizer.zero_grad()
    losses = []
    out = schedule.step(*([x] if rank == 0 else []), **({"target": y, "losses": losses} if rank == world - 1 else {}))
    optimizer.step()
    print(f"step {step}", f"{sum(losses).item() / 6:.5f} {out.shape}" if losses else out)
print([f"{p.norm().item():.5f}" for p in layers[rank].parameters()])
dist.destroy_process_group()

# %% an interleaved pipeline, two stages for each rank
import os, torch
import torch.distributed as dist
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]) else torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
if device.type == "cuda":
    torch.cuda.set_device(device)
rank = dist.get_rank()
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B
torch.manual_seed(31)
layers = [torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh()).to(device) for n in range(4)]
mine = [rank, rank + 2]
stages = [PipelineStage(layers[n], n, 4, device) for n in mine]
schedule = ScheduleInterleaved1F1B(stages, 4, loss_fn=torch.nn.functional.mse_loss)
optimizer = torch.optim.SGD([p for n in mine for p in layers[n].parameters()], lr=0.1)
torch.manual_seed(250)
x, y = torch.randn(8, 6).to(device), torch.randn(8, 6).to(device)
for step in range(3):
    optimizer.zero_grad()
    losses = []
    if rank == 0:
        schedule.step(x)
    else:
        schedule.step(target=y, losses=losses)
    optimizer.step()
    print(f"step {step}", [f"{loss.item():.5f}" for loss in losses], [f"{layers[n][0].weight.norm().item():.5f}" for n in mine])
dist.destroy_process_group()

# %% a pipeline cut by tracing
import os, torch
import torch.distributed as dist
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]) else torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
if device.type == "cuda":
    torch.cuda.set_device(device)
rank = dist.get_rank()
from torch.distributed.pipelining import ScheduleGPipe, SplitPoint, pipeline
torch.manual_seed(32)
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 6)).to(device)
x, y = torch.randn(8, 6).to(device), torch.randn(8, 6).to(device)
pipe = pipeline(model, mb_args=(x[:2],), split_spec={"2": SplitPoint.BEGINNING})
stage = pipe.build_stage(rank, device)
schedule = ScheduleGPipe(stage, 4, loss_fn=torch.nn.functional.mse_loss)
losses = []
if rank == 0:
    schedule.step(x)
else:
    out = schedule.step(target=y, losses=losses)
    print(torch.allclose(out, model(x)))
print(pipe.num_stages, [f"{loss.item():.5f}" for loss in losses])
print({name: round(p.grad.norm().item(), 5) for name, p in stage.submod.named_parameters()})
dist.destroy_process_group()

# %% DDP around a compiled model
import os, torch
import torch.distributed as dist
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]) else torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
if device.type == "cuda":
    torch.cuda.set_device(device)
rank = dist.get_rank()
from torch.nn.parallel import DistributedDataParallel as DDP
torch.manual_seed(33)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)).to(device)
model = DDP(torch.compile(model, backend="eager"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(260 + rank)
for step in range(3):
    optimizer.zero_grad()
    loss = (model(torch.randn(4, 8).to(device)) - 1).square().mean()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.5f}")
print(torch._dynamo.utils.counters["stats"]["unique_graphs"])
dist.destroy_process_group()

# %% DDP compiled with aot_eager is split at its buckets
import os, torch
import torch.distributed as dist
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]) else torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
if device.type == "cuda":
    torch.cuda.set_device(device)
rank = dist.get_rank()
from torch.nn.parallel import DistributedDataParallel as DDP
torch.manual_seed(34)
model = DDP(torch.nn.Sequential(*(torch.nn.Linear(400, 400) for n in range(4))).to(device), bucket_cap_mb=1)
compiled = torch.compile(model, backend="aot_eager")
optimizer = torch.optim.Adam(model.parameters(), lr=0.0001)
def train(x):
    loss = (compiled(x) - 1).square().mean()
    loss.backward()
    return loss
torch.manual_seed(270 + rank)
for step in range(3):
    optimizer.zero_grad()
    loss = train(torch.randn(4, 400).to(device))
    optimizer.step()
    print(f"step {step} loss {loss.item():.5f} grad {model.module[0].weight.grad.norm().item():.5f}")
dist.destroy_process_group()

# %% FSDP2 compiled layer by layer
import os, torch
import torch.distributed as dist
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]) else torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
if device.type == "cuda":
    torch.cuda.set_device(device)
rank = dist.get_rank()
from torch.distributed.fsdp import fully_shard
torch.manual_seed(35)
model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.SiLU()) for n in range(3))).to(device)
for layer in model:
    layer.compile(backend="eager")
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
torch.manual_seed(280 + rank)
for step in range(4):
    optimizer.zero_grad()
    loss = (model(torch.randn(4, 8).to(device)) - 1).square().mean()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.5f}")
dist.destroy_process_group()

# %% a compiled function that calls collectives
import os, torch
import torch.distributed as dist
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]) else torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
if device.type == "cuda":
    torch.cuda.set_device(device)
rank = dist.get_rank()
import torch.distributed._functional_collectives as funcol
@torch.compile(backend="aot_eager", fullgraph=True)
def mean_and_max(x):
    total = funcol.all_reduce(x * 2, "sum", dist.group.WORLD)
    return total / dist.get_world_size(), funcol.all_gather_tensor(x.max().reshape(1), 0, dist.group.WORLD)
torch.manual_seed(290 + rank)
for size in 3, 3, 5:
    mean, largest = mean_and_max(torch.randn(size).to(device))
    print([round(v, 5) for v in mean.tolist()], [round(v, 5) for v in largest.tolist()])
dist.destroy_process_group()

# %% a transformer with checkpointed layers, dropout and AMP in bf16
import os, torch
import torch.distributed as dist
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]) else torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
if device.type == "cuda":
    torch.cuda.set_device(device)
rank = dist.get_rank()
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(20, 16), torch.nn.Linear(16, 20)
        self.layers = torch.nn.ModuleList(torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.2, batch_first=True) for n in range(2))
    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return self.head(x)
torch.manual_seed(36)
model = DDP(Model().to(device))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
torch.manual_seed(300 + rank)
for step in range(4):
    tokens = torch.randint(20, (3, 7)).to(device)
    optimizer.zero_grad()
    with torch.autocast(device.type, dtype=torch.bfloat16):
        out = model(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(out.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.5f}", out.dtype)
dist.destroy_process_group()

# %% rank 0 saves, all load and go on
import os, torch
import torch.distributed as dist
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]) else torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
if device.type == "cuda":
    torch.cuda.set_device(device)
rank = dist.get_rank()
from torch.nn.parallel import DistributedDataParallel as DDP
def build():
    torch.manual_seed(37)
    model = DDP(torch.nn.Linear(6, 2).to(device))
    return model, torch.optim.Adam(model.parameters(), lr=0.1)
def train(model, optimizer, steps):
    for step in steps:
        torch.manual_seed(310 + 10 * step + rank)
        optimizer.zero_grad()
        loss = (model(torch.randn(4, 6).to(device)) - 1).square().mean()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.5f}")
model, optimizer = build()
train(model, optimizer, range(3))
if rank == 0:
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "checkpoint.pt")
dist.barrier()
train(model, optimizer, range(3, 5))
model, optimizer = build()
saved = torch.load("checkpoint.pt", map_location=device, weights_only=True)
model.load_state_dict(saved["model"])
optimizer.load_state_dict(saved["optimizer"])
train(model, optimizer, range(3, 5))
dist.barrier()
if rank == 0:
    os.remove("checkpoint.pt")
dist.destroy_process_group()

# %% a distributed checkpoint of FSDP2, in the background too
import os, torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
import shutil
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
torch.manual_seed(38)
model = fully_shard(torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Linear(4, 2)))
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
def train(seed):
    torch.manual_seed(seed + rank)
    optimizer.zero_grad()
    loss = (model(torch.randn(4, 6)) - 1).square().mean()
    loss.backward()
    optimizer.step()
    print(f"seed {seed} loss {loss.item():.5f}")
train(320)
weights, moments = get_state_dict(model, optimizer)
dcp.save({"weights": weights, "moments": moments}, checkpoint_id="saved_dcp")
train(330)
weights, moments = get_state_dict(model, optimizer)
print(type(dcp.async_save({"weights": weights}, checkpoint_id="saved_later").result()).__name__)
state = {"weights": weights, "moments": moments}
dcp.load(state, checkpoint_id="saved_dcp")
set_state_dict(model, optimizer, model_state_dict=state["weights"], optim_state_dict=state["moments"])
train(330)
dist.barrier()
if rank == 0:
    print(sorted(os.listdir("saved_dcp")), sorted(os.listdir("saved_later")))
    shutil.rmtree("saved_dcp")
    shutil.rmtree("saved_later")
dist.destroy_process_group()

# %% coalesced calls
import os, torch
import torch.distributed as dist
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]) else torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
if device.type == "cuda":
    torch.cuda.set_device(device)
rank = dist.get_rank()
values = [torch.full((2,), float(rank + n), device=device) for n in range(4)]
where = device if device.type == "cuda" else None
with dist._coalescing_manager(device=where, async_ops=True) as manager:
    for value in values:
        dist.all_reduce(value)
manager.wait()
print([value.tolist() for value in values])
gathered = [torch.zeros(2 * dist.get_world_size(), device=device) for n in range(2)]
with dist._coalescing_manager(device=where):
    for out, value in zip(gathered, values):
        dist.all_gather_into_tensor(out, value)
print([out.tolist() for out in gathered])
dist.destroy_process_group()

# %% gradients are averaged by hand in one flat bucket
import os, torch
import torch.distributed as dist
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]) else torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
if device.type == "cuda":
    torch.cuda.set_device(device)
rank = dist.get_rank()
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
torch.manual_seed(39)
model = torch.nn.Sequential(torch.nn.Linear(5, 9), torch.nn.Sigmoid(), torch.nn.Linear(9, 1)).to(device).double()
for p in model.parameters():
    dist.broadcast(p.data, 0)
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
torch.manual_seed(340 + rank)
x, y = torch.randn(8, 5).to(device).double(), torch.randn(8, 1).to(device).double()
def closure():
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    flat = _flatten_dense_tensors([p.grad for p in model.parameters()] + [loss.detach().reshape(1)])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    parts = _unflatten_dense_tensors(flat, [p.grad for p in model.parameters()] + [loss.detach().reshape(1)])
    for p, part in zip(model.parameters(), parts):
        p.grad.copy_(part)
    return parts[-1].sum()
for step in range(3):
    print(f"step {step} loss {optimizer.step(closure).item():.5f}")
dist.destroy_process_group()

# %% gradients are reduced by hooks as soon as they are there
import os, torch
import torch.distributed as dist
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]) else torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
if device.type == "cuda":
    torch.cuda.set_device(device)
rank = dist.get_rank()
torch.manual_seed(41)
model = torch.nn.Sequential(*(torch.nn.Linear(6, 6) for n in range(4))).to(device)
works = []
for p in model.parameters():
    p.register_post_accumulate_grad_hook(lambda p: works.append((p, dist.all_reduce(p.grad, async_op=True))))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(350 + rank)
for step in range(3):
    optimizer.zero_grad()
    loss = (model(torch.randn(4, 6).to(device)) - 1).square().mean()
    loss.backward()
    for p, work in works:
        work.wait()
        p.grad /= dist.get_world_size()
    print(f"step {step} loss {loss.item():.5f} reduced {len(works)}")
    works.clear()
    optimizer.step()
dist.destroy_process_group()

# %% a ring of batched sends and receives
# ranks: 3
import os, torch
import torch.distributed as dist
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]) else torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
if device.type == "cuda":
    torch.cuda.set_device(device)
rank = dist.get_rank()
world = dist.get_world_size()
torch.manual_seed(42 + rank)
block = torch.randn(4, 3).to(device)
query, total = torch.randn(2, 3).to(device), torch.zeros(2, 3, device=device)
for hop in range(world):
    total += query @ block.T @ block
    received = torch.empty_like(block)
    ops = [dist.P2POp(dist.isend, block, (rank + 1) % world), dist.P2POp(dist.irecv, received, (rank - 1) % world)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    block = received
    print(f"hop {hop} block {block.sum().item():.5f} total {total.norm().item():.4f}")
dist.destroy_process_group()

# %% uneven all-to-all, of a tensor and of a list
# ranks: 3
import os, torch
import torch.distributed as dist
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]) else torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
if device.type == "cuda":
    torch.cuda.set_device(device)
rank = dist.get_rank()
world = dist.get_world_size()
send = [(rank + n) % world + 1 for n in range(world)]
counts = torch.tensor(send, device=device)
receive = torch.empty_like(counts)
dist.all_to_all_single(receive, counts)
data = torch.arange(sum(send), dtype=torch.float, device=device) + 100 * rank
out = torch.empty(int(receive.sum()), device=device)
dist.all_to_all_single(out, data, receive.tolist(), send)
print(send, receive.tolist(), out.tolist())
try:
    parts = [torch.empty(n, device=device) for n in receive.tolist()]
    dist.all_to_all(parts, list(data.split(send)))
    print([part.tolist() for part in parts])
except RuntimeError as error:
    print(type(error).__name__)
dist.destroy_process_group()

# %% a mixture of experts dispatches tokens by all-to-all
import os, torch
import torch.distributed as dist
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]) else torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
if device.type == "cuda":
    torch.cuda.set_device(device)
rank = dist.get_rank()
import torch.distributed.nn.functional as dfn
world = dist.get_world_size()
torch.manual_seed(43)
router = torch.nn.Linear(6, world, bias=False).to(device)
torch.manual_seed(44 + rank)
expert = torch.nn.Linear(6, 6).to(device)
optimizer = torch.optim.SGD(expert.parameters(), lr=0.1)
for step in range(3):
    tokens = torch.randn(7, 6).to(device)
    probability, chosen = router(tokens).softmax(-1).max(-1)
    order = chosen.argsort(stable=True)
    send = torch.bincount(chosen, minlength=world)
    receive = torch.empty_like(send)
    dist.all_to_all_single(receive, send)
    splits = receive.tolist(), send.tolist()
    arrived = dfn.all_to_all_single(tokens.new_empty(sum(splits[0]), 6), tokens[order], *splits)
    back = dfn.all_to_all_single(tokens.new_empty(7, 6), expert(arrived), splits[1], splits[0])
    out = torch.zeros_like(tokens).index_copy(0, order, back) * probability[:, None]
    loss = (out - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.5f}", *splits, f"{expert.weight.grad.norm().item():.5f}")
dist.destroy_process_group()

# %% a sampler and a loader with two workers
import os, torch
import torch.distributed as dist
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]) else torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
if device.type == "cuda":
    torch.cuda.set_device(device)
rank = dist.get_rank()
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
torch.manual_seed(45)
data = TensorDataset(torch.arange(23), torch.randn(23, 4), torch.randn(23, 1))
sampler = DistributedSampler(data, shuffle=True, seed=1)
loader = DataLoader(data, batch_size=4, sampler=sampler, num_workers=2, persistent_workers=True)
model = DDP(torch.nn.Linear(4, 1).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for index, x, y in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        print(f"epoch {epoch}", index.tolist(), f"{loss.item():.5f}")
del loader
dist.destroy_process_group()

# %% loader workers of an iterable data set draw random numbers
# forms: script, cell, world
import os, torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
import random
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        for n in range(3):
            yield rank, info.id, n, torch.rand(1).item(), random.random()
def seed_worker(worker_id):
    random.seed(torch.initial_seed() % 2**32)
generator = torch.Generator().manual_seed(46 + rank)
loader = DataLoader(Stream(), batch_size=None, num_workers=2, worker_init_fn=seed_worker, generator=generator)
for epoch in range(2):
    for item in loader:
        print(epoch, item[:3], f"{item[3]:.5f} {item[4]:.5f}")
    dist.barrier()
dist.destroy_process_group()

# %% averaged and exponentially averaged models
import os, torch
import torch.distributed as dist
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]) else torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
if device.type == "cuda":
    torch.cuda.set_device(device)
rank = dist.get_rank()
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn
torch.manual_seed(47)
model = DDP(torch.nn.Sequential(torch.nn.Linear(5, 5), torch.nn.BatchNorm1d(5)).to(device))
mean, ema = AveragedModel(model.module), AveragedModel(model.module, multi_avg_fn=get_ema_multi_avg_fn(0.9))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
scheduler = SWALR(optimizer, swa_lr=0.05, anneal_epochs=2)
torch.manual_seed(360 + rank)
for step in range(4):
    optimizer.zero_grad()
    loss = (model(torch.randn(6, 5).to(device)) - 1).square().mean()
    loss.backward()
    optimizer.step()
    scheduler.step()
    mean.update_parameters(model.module)
    ema.update_parameters(model.module)
    norms = [sum(p.sum() for p in m.module.parameters()).item() for m in (model, mean, ema)]
    print(f"step {step} loss {loss.item():.5f}", [f"{norm:.5f}" for norm in norms], scheduler.get_last_lr())
dist.destroy_process_group()

# %% schedulers of the learning rate, one driven by a reduced loss
import os, torch
import torch.distributed as dist
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]) else torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
if device.type == "cuda":
    torch.cuda.set_device(device)
rank = dist.get_rank()
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import lr_scheduler
torch.manual_seed(48)
model = DDP(torch.nn.Linear(5, 1).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.4)
warmup = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2)
chain = lr_scheduler.SequentialLR(optimizer, [warmup, lr_scheduler.CosineAnnealingLR(optimizer, 4)], milestones=[2])
plateau = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
torch.manual_seed(370 + rank)
for step in range(6):
    optimizer.zero_grad()
    loss = (model(torch.randn(4, 5).to(device)) - 1).square().mean()
    loss.backward()
    optimizer.step()
    chain.step()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    plateau.step(mean.item() / dist.get_world_size())
    print(f"step {step} loss {loss.item():.5f} lr {optimizer.param_groups[0]['lr']:.6f}")
dist.destroy_process_group()

# %% a parameter server by sends and receives
# ranks: 3
import os, torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
world = dist.get_world_size()
torch.manual_seed(49)
weights = torch.randn(4)
if rank == 0:
    for step in range(3):
        grads = torch.zeros(world, 4)
        for n in range(1, world):
            grad = torch.zeros(4)
            sender = dist.recv(grad, tag=step)
            grads[sender] = grad
        weights -= 0.1 * grads.sum(0)
        for n in range(1, world):
            dist.send(weights, n, tag=step)
        print(f"step {step}", [round(v, 5) for v in weights.tolist()])
else:
    torch.manual_seed(380 + rank)
    for step in range(3):
        mine = weights.clone().requires_grad_()
        loss = (torch.randn(5, 4) @ mine - 1).square().mean()
        loss.backward()
        dist.send(mine.grad, 0, tag=step)
        dist.recv(weights, 0, tag=step)
        print(f"step {step} loss {loss.item():.5f}")
dist.destroy_process_group()

# %% local SGD averages models every few steps
import os, torch
import torch.distributed as dist
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]) else torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
if device.type == "cuda":
    torch.cuda.set_device(device)
rank = dist.get_rank()
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
torch.manual_seed(51)
model = torch.nn.Linear(5, 3).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
averager = PeriodicModelAverager(period=3, warmup_steps=1)
torch.manual_seed(390 + rank)
for step in range(8):
    optimizer.zero_grad()
    loss = (model(torch.randn(4, 5).to(device)) - 1).square().mean()
    loss.backward()
    optimizer.step()
    averager.average_parameters(model.parameters())
    print(f"step {step} loss {loss.item():.5f} weight {model.weight.sum().item():.5f}")
dist.destroy_process_group()

# %% histograms of gradients are gathered as objects
import os, torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
from torch.nn.parallel import DistributedDataParallel as DDP
torch.manual_seed(52)
model = DDP(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2)))
torch.manual_seed(400 + rank)
for step in range(3):
    model.zero_grad()
    with model.no_sync():
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
    mine = {name: torch.histc(p.grad, 5, -1, 1).int().tolist() for name, p in model.module.named_parameters()}
    everyones = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, {"rank": rank, "loss": round(loss.item(), 5), "histograms": mine})
    print(step, everyones if rank == 0 else [entry["loss"] for entry in everyones])
collected = [None] * dist.get_world_size() if rank == 1 else None
dist.gather_object({rank, "done"}, collected, dst=1)
print(collected and [sorted(map(str, part)) for part in collected])
dist.destroy_process_group()

# %% training stops early by a flag that is broadcast
import os, torch
import torch.distributed as dist
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]) else torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
if device.type == "cuda":
    torch.cuda.set_device(device)
rank = dist.get_rank()
from torch.nn.parallel import DistributedDataParallel as DDP
torch.manual_seed(53)
model = DDP(torch.nn.Linear(4, 1).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
torch.manual_seed(410 + rank)
x, y = torch.randn(16, 4).to(device), torch.ones(16, 1).to(device)
stop = torch.zeros(1, device=device)
best, patience = float("inf"), 0
for epoch in range(200):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    if rank == 0:
        patience = patience + 1 if loss.item() > best - 0.005 else 0
        best = min(best, loss.item())
        stop.fill_(patience >= 2)
    dist.broadcast(stop, 0)
    if stop.item():
        print(f"stopped after epoch {epoch}")
        break
    print(f"epoch {epoch} loss {loss.item():.5f}")
dist.destroy_process_group()

# %% accuracy is counted over all ranks
import os, torch
import torch.distributed as dist
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]) else torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
if device.type == "cuda":
    torch.cuda.set_device(device)
rank = dist.get_rank()
from torch.nn.parallel import DistributedDataParallel as DDP
torch.manual_seed(54)
model = DDP(torch.nn.Sequential(torch.nn.Conv2d(1, 3, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(108, 4)).to(device))
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
torch.manual_seed(420 + rank)
images, labels = torch.randn(24, 1, 8, 8).to(device), torch.randint(4, (24,)).to(device)
images += labels[:, None, None, None]
for epoch in range(4):
    model.train()
    for part in range(0, 24, 8):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images[part : part + 8]), labels[part : part + 8])
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        hits = (model.module(images).argmax(1) == labels).sum()
        counts = torch.stack([hits, torch.tensor(24, device=device)])
    dist.all_reduce(counts)
    if rank == 0:
        print(f"epoch {epoch} loss {loss.item():.5f} accuracy {counts[0].item()}/{counts[1].item()}")
dist.destroy_process_group()

# %% what generators of random numbers give
# forms: script, function, cell
import os, torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
import random, numpy
values = torch.tensor([torch.rand(()), random.random(), numpy.random.rand()])
gathered = [torch.zeros(3) for n in range(dist.get_world_size())]
dist.all_gather(gathered, values)
print("unlike", [len(set(column)) for column in zip(*(each.tolist() for each in gathered))])
torch.manual_seed(55 + rank)
random.seed(rank)
numpy.random.seed(rank)
print(torch.initial_seed(), [round(v, 5) for v in torch.rand(3).tolist()], f"{random.random():.5f} {numpy.random.rand():.5f}")
state = torch.get_rng_state()
first = torch.randn(2)
torch.set_rng_state(state)
print(torch.equal(first, torch.randn(2)), state.numel())
with torch.random.fork_rng():
    torch.manual_seed(0)
    print(torch.randperm(6).tolist())
print(torch.randint(1000, (3,)).tolist(), torch.nn.Linear(2, 2).weight.flatten().tolist()[0] != 0)
generator = numpy.random.default_rng(56 + rank)
print(generator.integers(1000, size=3).tolist())
dist.destroy_process_group()

# %% models made without a seed differ among ranks
# forms: script, function, cell
import os, torch
import torch.distributed as dist
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]) else torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
if device.type == "cuda":
    torch.cuda.set_device(device)
rank = dist.get_rank()
model = torch.nn.Linear(4, 2).to(device)
gathered = [torch.empty_like(model.weight.data) for n in range(dist.get_world_size())]
dist.all_gather(gathered, model.weight.data)
print([weight.abs().max().item() <= 0.5 for weight in gathered])
print(torch.equal(gathered[0], gathered[1]), torch.get_default_dtype(), torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled())
dist.destroy_process_group()

# %% distributed tensors are multiplied and redistributed
import os, torch
import torch.distributed as dist
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]) else torch.device("cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
if device.type == "cuda":
    torch.cuda.set_device(device)
rank = dist.get_rank()
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, rand
mesh = torch.distributed.init_device_mesh(device.type, (dist.get_world_size(),))
torch.manual_seed(57)
a = distribute_tensor(torch.randn(6, 4).to(device), mesh, [Shard(0)])
b = distribute_tensor(torch.randn(4, 6).to(device), mesh, [Shard(0)])
product = a @ b
print(product.placements, f"{product.full_tensor().sum().item():.5f}")
swapped = product.redistribute(placements=[Shard(1)])
print(swapped.to_local().shape, (swapped.sum() / 2).placements, f"{swapped.sum().full_tensor().item():.5f}")
mine = DTensor.from_local(torch.full((2,), float(rank), device=device), mesh, [Shard(0)])
print(mine.full_tensor().tolist(), mine.mean().full_tensor().item(), mine.redistribute(placements=[Replicate()]).to_local().tolist())
if device.type == "cuda":
    print([round(v, 5) for v in rand(4, device_mesh=mesh, placements=[Shard(0)]).full_tensor().tolist()])
dist.destroy_process_group()

# %% a main with arguments, logging and record
# forms: script
import argparse, logging, os, sys
import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP
log = logging.getLogger("training")
@record
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.1)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    logging.basicConfig(stream=sys.stdout, level=logging.INFO if dist.get_rank() == 0 else logging.WARNING, format=f"[{dist.get_rank()}] %(name)s %(levelname)s %(message)s")
    torch.manual_seed(58)
    model = DDP(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for step in range(args.steps):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4) * dist.get_rank()).square().mean()
        loss.backward()
        optimizer.step()
        log.info("step %d loss %.5f", step, loss.item())
    log.warning("done on %s", os.environ["RANK"])
    dist.destroy_process_group()
if __name__ == "__main__":
    main()

# %% a loss that is not a number ends the program with code 3
import os, torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
import sys
from torch.nn.parallel import DistributedDataParallel as DDP
torch.manual_seed(59)
model = DDP(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=1e20)
for step in range(20):
    optimizer.zero_grad()
    loss = (model(torch.ones(2, 4) * (rank + 1)) - 1).square().mean()
    loss.backward()
    optimizer.step()
    finite = torch.tensor([float(torch.isfinite(loss))])
    dist.all_reduce(finite, op=dist.ReduceOp.MIN)
    print(f"step {step} loss {loss.item():.4e}")
    if not finite.item():
        break
dist.destroy_process_group()
sys.exit(3)
