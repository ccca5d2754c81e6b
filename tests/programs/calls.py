# Programs that spell c10d's calls in odd ways, and wrong ones.

# %% the same collective, positional and by keyword
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
value = torch.tensor([rank + 1.0])
print(dist.all_reduce(value), dist.all_reduce(tensor=value), dist.all_reduce(value, dist.ReduceOp.SUM, None, False), dist.all_reduce(async_op=False, group=dist.group.WORLD, op=dist.ReduceOp.MAX, tensor=value), value.item())
print(dist.broadcast(value, 0), dist.broadcast(src=1, tensor=value), dist.broadcast(value, 1, dist.group.WORLD, False), dist.broadcast(value, group_src=0), value.item())
lists = [torch.zeros(1), torch.zeros(1)]
print(dist.all_gather(tensor=value, tensor_list=lists), dist.all_gather(lists, value, None, False), [item.item() for item in lists])
print(dist.reduce(value, 0), dist.reduce(value, dst=1, op=dist.ReduceOp.MIN), dist.barrier(None), dist.barrier(group=None, async_op=False, device_ids=None))
for call in (lambda: dist.all_reduce(), lambda: dist.all_reduce(value, value, value, value, value), lambda: dist.all_reduce(value, colour=1), lambda: dist.broadcast(value), lambda: dist.barrier(1, 2, 3, 4)):
    try:
        call()
    except Exception as error:
        print(type(error).__name__, str(error).split("\n")[0])
dist.destroy_process_group()

# %% every reduction on whole numbers, floats and truth values
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
for name in "SUM PRODUCT MIN MAX BAND BOR BXOR AVG PREMUL_SUM UNUSED".split():
    for dtype in torch.int64, torch.float32, torch.bool, torch.uint8:
        value = torch.tensor([6 + rank, 3 - rank, rank]).to(dtype)
        try:
            print(name, dtype, dist.all_reduce(value, op=getattr(dist.ReduceOp, name)), value.tolist())
        except Exception as error:
            print(name, dtype, type(error).__name__)
dist.destroy_process_group()

# %% operations that are compared, copied and misspelled
import copy
import pickle
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
operation = dist.ReduceOp.MAX
print(operation == dist.ReduceOp("MAX") if False else operation == dist.ReduceOp.MAX, operation == dist.ReduceOp.MIN, str(operation), copy.deepcopy(dist.ReduceOp(operation)) == operation)
print(pickle.loads(pickle.dumps(dist.ReduceOp(operation))) == operation, type(operation).__name__, type(dist.ReduceOp(operation)).__name__, isinstance(operation, dist.ReduceOp))
value = torch.tensor([float(dist.get_rank())])
for wrong in "sum", "MAX", 0, None, max, torch.add:
    try:
        dist.all_reduce(value, op=wrong)
        print("accepted", wrong)
    except Exception as error:
        print(type(error).__name__)
dist.all_reduce(value, op=dist.ReduceOp(dist.ReduceOp.MAX))
dist.all_reduce(value, op=dist.ReduceOp.RedOpType.SUM)
print(value.item())
dist.destroy_process_group()

# %% all_gather of every type and shape
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
for dtype in torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float64, torch.complex64, torch.complex128, torch.float8_e4m3fn:
    for shape in (), (1,), (0,), (2, 0, 3), (2, 2):
        mine = torch.full(shape, rank + 1, dtype=torch.float32).to(dtype)
        others = [torch.zeros(shape).to(dtype) for n in range(2)]
        try:
            print(dtype, shape, dist.all_gather(others, mine), [o.to(torch.complex64).real.tolist() for o in others], others[0].dtype == dtype)
        except Exception as error:
            print(dtype, shape, type(error).__name__)
dist.destroy_process_group()

# %% all_reduce of half, complex, sparse and empty tensors
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
for value in [torch.tensor([1 + rank], dtype=torch.float16), torch.tensor([1 + rank], dtype=torch.bfloat16), torch.tensor([1 + rank * 2j]), torch.tensor(rank + 0.5), torch.zeros(0), torch.zeros(0, 4), torch.tensor([True, rank == 0]), torch.eye(2).to_sparse(), torch.tensor([float("nan"), float("inf")])]:
    result = value
    try:
        print(value.dtype, tuple(value.shape), dist.all_reduce(value), str(value.to_dense().tolist() if value.is_sparse else value.tolist()))
    except Exception as error:
        print(value.dtype, tuple(value.shape), type(error).__name__)
dist.destroy_process_group()

# %% tensors that are views, transposed, expanded, strided, or need gradients
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
base = torch.arange(12.0).reshape(3, 4) + rank
parameter = torch.nn.Parameter(torch.ones(2))
leaf = torch.ones(2, requires_grad=True)
for name, value in [("row", base[1]), ("column", base[:, 1]), ("transposed", base.t()), ("strided", base.flatten()[::2]), ("expanded", torch.ones(1).expand(3)), ("parameter", parameter), ("leaf", leaf), ("computed", leaf * 2), ("data", parameter.data), ("channels", torch.ones(1, 2, 2, 2).to(memory_format=torch.channels_last)), ("conjugate", torch.tensor([1 + 2j]).conj()), ("meta", torch.ones(2, device="meta"))]:
    try:
        print(name, dist.all_reduce(value), value.requires_grad, value.is_leaf, value._version, type(value).__name__, str(value.tolist()))
    except Exception as error:
        print(name, type(error).__name__)
print(base.tolist(), parameter.tolist())
dist.destroy_process_group()

# %% all_gather_into_tensor, reduce_scatter and their shapes
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
mine = torch.arange(4.0) + 10 * rank
for name, call in [
    ("flat", lambda: (out := torch.zeros(8), dist.all_gather_into_tensor(out, mine))), ("stacked", lambda: (out := torch.zeros(2, 4), dist.all_gather_into_tensor(output_tensor=out, input_tensor=mine))),
    ("wrong size", lambda: (out := torch.zeros(7), dist.all_gather_into_tensor(out, mine))), ("wrong type", lambda: (out := torch.zeros(8, dtype=torch.int64), dist.all_gather_into_tensor(out, mine))),
    ("scatter tensor", lambda: (out := torch.zeros(2), dist.reduce_scatter_tensor(out, mine))), ("scatter list", lambda: (out := torch.zeros(2), dist.reduce_scatter(out, list(mine.split(2)), op=dist.ReduceOp.MAX))),
    ("scatter wrong", lambda: (out := torch.zeros(3), dist.reduce_scatter_tensor(out, mine))), ("old gather", lambda: (out := torch.zeros(8), dist._all_gather_base(out, mine))), ("old scatter", lambda: (out := torch.zeros(2), dist._reduce_scatter_base(out, mine))),
]:
    try:
        out, answer = call()
        print(name, out.tolist(), answer)
    except Exception as error:
        print(name, type(error).__name__)
work = dist.all_gather_into_tensor(torch.zeros(8), mine, async_op=True)
print(isinstance(work, dist.Work), work.wait())
dist.destroy_process_group()

# %% all_to_all with even and uneven splits
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
def attempt(name, call):
    try:
        print(name, call())
    except Exception as error:
        print(name, type(error).__name__)
even = torch.zeros(4)
attempt("single", lambda: dist.all_to_all_single(even, torch.arange(4.0) + 10 * rank))
send = [[1, 2], [3, 0]][rank]
receive = [[1, 3], [2, 0]][rank]
uneven = torch.zeros(sum(receive))
attempt("uneven", lambda: dist.all_to_all_single(uneven, torch.arange(3.0) + 10 * rank, receive, send))
attempt("wrong", lambda: dist.all_to_all_single(torch.zeros(2), torch.zeros(2), [1, 2], [1, 1]))
lists = [torch.zeros(2), torch.zeros(3)]
attempt("list", lambda: dist.all_to_all(lists, [torch.full((2 + rank,), rank + 0.5)] * 2))
print(even.tolist(), uneven.tolist())
dist.destroy_process_group()

# %% gather and scatter with None, with lists and from any root
# ranks: 3
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
value = torch.tensor([rank * 1.5])
for root in range(3):
    gathered = [torch.zeros(1) for n in range(3)] if rank == root else None
    print(dist.gather(value, gathered, dst=root), gathered and torch.cat(gathered).tolist())
    out = torch.zeros(2)
    parts = [torch.full((2,), 10.0 * root + n) for n in range(3)] if rank == root else None
    print(dist.scatter(out, parts, src=root), out.tolist())
print(dist.gather(value, group_dst=1, gather_list=[torch.zeros(1)] * 3 if rank == 1 else []))
for call in (lambda: dist.gather(value, [torch.zeros(1)] if rank != 0 else None), lambda: dist.scatter(value, [value] * 3 if rank != 0 else None), lambda: dist.gather(value, [1, 2]), lambda: dist.scatter("text")):
    try:
        call()
        print("no error")
    except Exception as error:
        print(type(error).__name__)
dist.destroy_process_group()

# %% objects of every kind are broadcast, gathered, scattered and sent
# ranks: 3
import collections
import decimal
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
mine = [rank, {"t": torch.tensor([rank])}, None, "é" * rank, decimal.Decimal(rank) / 4, collections.Counter(a=rank), {rank}, b"\0" * rank, Ellipsis, len][rank::3]
everything = [None] * 3
print(dist.all_gather_object(everything, mine), everything)
objects = mine[:2] if rank == 1 else [None, None]
print(dist.broadcast_object_list(objects, src=1), objects)
out = [None]
print(dist.scatter_object_list(out, [f"for {n}" for n in range(3)] if rank == 2 else None, src=2), out)
gathered = [None] * 3 if rank == 0 else None
print(dist.gather_object({"from": rank}, gathered), gathered)
received = [None, None]
if rank == 0:
    print(dist.send_object_list([1, ("two", 3)], dst=2))
if rank == 2:
    print(dist.recv_object_list(received, src=0), received)
dist.destroy_process_group()

# %% objects that cannot be sent
import threading
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
class Stubborn:
    def __reduce__(self):
        raise ValueError("not me")
for thing in memoryview(b"a"), threading.Lock(), (n for n in "a"), Stubborn():
    try:
        dist.all_gather_object([None, None], thing)
    except Exception as error:
        print(type(error).__name__)
for call in (lambda: dist.broadcast_object_list(7), lambda: dist.scatter_object_list([], None), lambda: dist.gather_object(1, dst=9)):
    try:
        print(call())
    except Exception as error:
        print(type(error).__name__)
print(dist.barrier())
dist.destroy_process_group()

# %% barriers of all kinds
from datetime import timedelta
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
work = dist.barrier(async_op=True)
print(isinstance(work, dist.Work), work.wait(), work.is_completed())
print(dist.monitored_barrier(), dist.monitored_barrier(timeout=timedelta(seconds=10), wait_all_ranks=True), dist.monitored_barrier(dist.group.WORLD, timedelta(seconds=5)))
for call in (lambda: dist.barrier(device_ids="0"), lambda: dist.monitored_barrier(timeout=-1)):
    try:
        print(call())
    except Exception as error:
        print(type(error).__name__)
print(dist.barrier(), dist.barrier(dist.group.WORLD))
dist.destroy_process_group()

# %% a monitored barrier that one rank does not reach in time
import os
import time
from datetime import timedelta
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 0:
    try:
        dist.monitored_barrier(timeout=timedelta(milliseconds=300))
    except RuntimeError as error:
        print(type(error).__name__, "Rank 1 failed to pass monitoredBarrier" in str(error))
    open("over", "w").close()
else:
    while not os.path.exists("over"):
        time.sleep(0.01)
    print("never came")

# %% broadcast and reduce with roots of the group
# ranks: 3
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
group = dist.new_group([1, 2])
value = torch.tensor([rank])
if rank:
    print(dist.broadcast(value, src=2, group=group), value.item(), dist.broadcast(value, group_src=0, group=group), value.item())
    total = torch.tensor([rank])
    print(dist.reduce(total, group_dst=1, group=group), total.item() if rank == 2 else "any")
    if rank == 1:
        print(dist.send(value, group_dst=1, group=group, tag=3))
    else:
        print(dist.recv(value, group_src=0, group=group, tag=3), value.item())
    for call in (lambda: dist.broadcast(value, src=0, group=group), lambda: dist.broadcast(value, src=1, group_src=0, group=group), lambda: dist.broadcast(value, group=group), lambda: dist.reduce(value, dst=9, group=group), lambda: dist.send(value, 0, group=group)):
        try:
            print(call())
        except Exception as error:
            print(type(error).__name__, str(error).split(" <")[0])
dist.barrier()
dist.destroy_process_group()

# %% a tensor is received from anyone
# ranks: 3
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
if rank == 0:
    values = torch.zeros(2)
    senders = [dist.recv(values[n:n + 1]) for n in range(2)]
    print(sorted(senders), sorted(values.tolist()), [float(s) for s in senders] == values.tolist())
    got = torch.zeros(1)
    work = dist.irecv(got, None, tag=5)
    print(work.wait(), got.item())
    print(dist.recv(got, src=2, tag=6), got.item())
else:
    print(dist.send(torch.tensor([float(rank)]), 0))
    if rank == 2:
        print(dist.isend(torch.tensor([5.5]), 0, tag=5).wait(), dist.send(tensor=torch.tensor([6.5]), dst=0, tag=6))
dist.barrier()
dist.destroy_process_group()

# %% sends to oneself, to nobody, and with odd tags
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
value = torch.ones(1)
for call in (lambda: dist.send(value, rank), lambda: dist.isend(value, rank), lambda: dist.isend(value, group_dst=rank), lambda: dist.send([1.0], 1 - rank), lambda: dist.recv("text"), lambda: dist.send(value, None), lambda: dist.send(value, 1 - rank, tag="a"), lambda: dist.irecv(value, 1 - rank, tag=1.5), lambda: dist.send(value, "one")):
    try:
        print(call())
    except Exception as error:
        print(type(error).__name__, str(error).split(" at ")[0][:60] if not isinstance(error, TypeError) else "")
dist.all_reduce(value)
print(value.item())
dist.destroy_process_group()

# %% tags keep messages apart, and a pair is sent without a receiver yet
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
a, b = torch.zeros(3), torch.zeros(2, 2, dtype=torch.int32)
if rank == 0:
    works = [dist.isend(torch.full((2, 2), 7, dtype=torch.int32), 1, tag=2_000_000_000), dist.isend(torch.arange(3.0), 1, tag=1)]
    print(dist.barrier(), [work.wait() for work in works])
else:
    print(dist.barrier(), dist.recv(a, 0, tag=1), dist.recv(b, 0, tag=2_000_000_000), a.tolist(), b.tolist())
dist.destroy_process_group()

# %% arguments that are no tensors
import torch
import torch.distributed as dist
import numpy
dist.init_process_group("gloo")
value = torch.ones(2)
for call in (lambda: dist.all_reduce([value]), lambda: dist.all_reduce(3.0), lambda: dist.all_reduce(numpy.ones(2)), lambda: dist.all_reduce(None), lambda: dist.broadcast([value], 0), lambda: dist.all_gather(value, value), lambda: dist.all_gather([value], 3), lambda: dist.all_gather([], value), lambda: dist.all_gather([value], value), lambda: dist.reduce_scatter(value, value), lambda: dist.all_gather([value, value.int()], value), lambda: dist.all_gather([torch.ones(3)] * 2, value), lambda: dist.broadcast(value, "0"), lambda: dist.broadcast(value, 7), lambda: dist.reduce(value, -1), lambda: dist.all_reduce(value, group="WORLD"), lambda: dist.all_reduce(value, group=7)):
    try:
        print(call())
    except Exception as error:
        print(type(error).__name__, str(error).split(".")[0][:70])
dist.all_reduce(value)
print(value.tolist())
dist.destroy_process_group()

# %% coalesced collectives
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
values = [torch.tensor([float(n + rank)]) for n in range(3)]
def attempt(name, call):
    try:
        print(name, call(), [v.item() for v in values])
    except Exception as error:
        print(name, type(error).__name__, str(error)[:50] if isinstance(error, AttributeError) else "")
attempt("all_reduce_coalesced", lambda: dist.all_reduce_coalesced(values))
attempt("async", lambda: dist.all_reduce_coalesced(values, async_op=True).wait())
outs = [[torch.zeros(1) for v in values] for n in range(2)]
attempt("all_gather_coalesced", lambda: dist.all_gather_coalesced(outs, values))
def managed():
    with dist.distributed_c10d._coalescing_manager():
        for value in values:
            dist.all_reduce(value)
attempt("manager", managed)
print([[o.item() for o in row] for row in outs], len(dist.distributed_c10d._world.pg_coalesce_state))
dist.destroy_process_group()

# %% the functions themselves
import inspect
import torch
import torch.distributed as dist
from torch.distributed import all_reduce, distributed_c10d
from torch.distributed.distributed_c10d import broadcast as spread
dist.init_process_group("gloo")
value = torch.ones(1)
print(all_reduce(value), spread(value, 0), value.item(), all_reduce is dist.all_reduce, dist.all_reduce is distributed_c10d.all_reduce)
for function in dist.all_reduce, dist.broadcast, dist.send, dist.barrier, dist.new_group, dist.init_process_group, dist.destroy_process_group:
    print(function.__name__, function.__qualname__, function.__module__, inspect.isfunction(function), len(inspect.signature(function).parameters), bool(function.__doc__))
print(list(inspect.signature(dist.all_reduce).parameters), dist.Work.wait.__name__, inspect.getsource(dist.all_reduce).lstrip().startswith("@"))
dist.destroy_process_group()

# %% functions replaced by the program, and partial ones
import functools
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
value = torch.ones(1)
calls = []
original = dist.all_reduce
def counted(*args, **kwargs):
    calls.append(sorted(kwargs))
    return original(*args, **kwargs)
dist.all_reduce = counted
dist.all_reduce(value), dist.all_reduce(tensor=value, async_op=True).wait()
dist.all_reduce = original
total = functools.partial(dist.all_reduce, op=dist.ReduceOp.MAX)
print(calls, total(value), value.item(), dist.all_reduce is original)
print(list(map(dist.all_reduce, [value, value])), value.item(), [*map(type, [dist.get_rank()])])
dist.destroy_process_group()

# %% subclasses of tensors and tensors in modes
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
class Named(torch.Tensor):
    seen = []
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        cls.seen.append(getattr(function, "__name__", "?"))
        return super().__torch_function__(function, types, args, kwargs or {})
value = torch.ones(2).as_subclass(Named)
Named.seen.clear()
print(dist.all_reduce(value), type(value).__name__, Named.seen)
with torch.no_grad():
    print(value.sum().item())
with torch.inference_mode():
    inner = torch.ones(1)
    print(dist.all_reduce(inner), inner.item(), inner.is_inference())
with torch.autocast("cpu"):
    print(dist.all_reduce(inner.clone()))
dist.destroy_process_group()

# %% dispatch modes see the collectives
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
dist.init_process_group("gloo")
class See(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))
value = torch.ones(2)
with See() as see:
    print(dist.all_reduce(value), dist.broadcast(value, 0), dist.all_reduce(value, async_op=True).wait(), dist.barrier())
print([name for name in see.names if "c10d" in name], len(see.names), value.tolist())
dist.destroy_process_group()

# %% the operators of the dispatcher are called again with the same arguments
import time
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
dist.init_process_group("gloo")
kept = []
class Keep(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if "c10d" in str(function):
            kept.append((function, args, kwargs or {}))
        return function(*args, **(kwargs or {}))
value = torch.ones(2)
with Keep():
    dist.all_reduce(value)
function, args, kwargs = kept.pop()
tensors, work = function(*args, **kwargs)
print(str(function), len(args), len(tensors), tensors[0].data_ptr() == value.data_ptr(), type(work).__name__)
dist.barrier()
print(value.tolist(), torch.ops.c10d.allreduce_.default._schema.name, torch.ops.c10d.allreduce_.overloads())
del args, kwargs, tensors, work
time.sleep(0.3)  # gloo's threads let go of the last tensors: at the end of Python that may abort
dist.destroy_process_group()

# %% a profiler records the collectives
import time
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile
dist.init_process_group("gloo")
value = torch.ones(2)
with profile(activities=[ProfilerActivity.CPU]) as profiled:
    dist.all_reduce(value)
    dist.broadcast(value, 0)
    dist.all_reduce(value, async_op=True).wait()
counts = {event.key: event.count for event in profiled.key_averages() if "c10d::" in event.key or "gloo:" in event.key}
print(sorted(counts.items()), value.tolist())
time.sleep(0.3)  # gloo's threads let go of the last tensors: at the end of Python that may abort
dist.destroy_process_group()
