# Programs whose calls have no frame of Python above them, or odd ones.

# %% a bare thread runs the dispatcher's operator itself
import _thread
import sys
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
x = torch.full((3,), rank + 1.0)
for n in range(3):
    tensors = [x]
    _thread.start_new_thread(torch.ops.c10d.broadcast_.default._op, (tensors, dist.group.WORLD.boxed(), 1, 0, True, -1))
    while sys.getrefcount(tensors) > 2:
        time.sleep(0.001)
    dist.barrier()
    print(n, x.tolist(), sys.getrefcount(tensors))
    x.add_(rank)
devices = []
_thread.start_new_thread(torch.ops.c10d.barrier.default._op, (torch.zeros(1), dist.group.WORLD.boxed(), devices, True, -1))
while sys.getrefcount(devices) > 2:
    time.sleep(0.001)
dist.all_reduce(x)
print(x.tolist())
dist.destroy_process_group()

# %% functions of C call the collectives
import functools
import itertools
import operator
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
values = [torch.tensor([rank + n]) for n in range(4)]
print(list(map(dist.all_reduce, values)), list(map(torch.Tensor.item, values)))
print(any(map(functools.partial(dist.broadcast, src=1), values)), list(itertools.starmap(dist.reduce, zip(values, (0, 1, 0, 1)))))
works = list(map(functools.partial(dist.all_reduce, async_op=True), values))
print(list(map(dist.Work.wait, works)), list(map(operator.methodcaller("is_completed"), works)), [item.item() for item in values][rank % 2::2])
print(sorted([3, 1, 2], key=lambda n: (dist.barrier(), -n)[1]), next(filter(dist.barrier, [None]), "none"))
def add(total, value):
    dist.all_reduce(value)
    return total + value.item()
print(functools.reduce(add, [torch.tensor([n + rank]) for n in range(3)], 0), next(iter(dist.barrier, None), "end"))
print(operator.call(dist.get_rank) == rank if hasattr(operator, "call") else True, functools.cache(dist.all_reduce)(values[0]))
dist.destroy_process_group()

# %% callbacks of weak references, finalizers and the collector communicate
import functools
import gc
import weakref
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
class Thing:
    pass
def reduced(value, reference):
    value.add_(dist.get_rank())
    dist.all_reduce(value)
    lines.append(("weak", value.item(), reference()))
lines = []
thing = Thing()
reference = weakref.ref(thing, functools.partial(reduced, torch.ones(1)))
direct = weakref.ref(thing, lambda gone: lines.append(dist.new_group([0, 1]).size()))
del thing
print(lines)
thing = Thing()
thing.itself, value = thing, torch.ones(1)
weakref.finalize(thing, dist.all_reduce, value)
del thing
gc.collect()
print(value.item(), len(lines))
def collected(phase, info):
    if phase == "start":
        dist.all_reduce(value)
gc.disable()
gc.callbacks.append(collected)
gc.collect()
gc.callbacks.remove(collected)
gc.enable()
print(value.item())
dist.destroy_process_group()

# %% ctypes calls back into Python, which communicates
import ctypes
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
libc = ctypes.CDLL(None)
calls = []
def compare(a, b):
    value = torch.tensor([float(a[0] - b[0])])
    dist.all_reduce(value)
    calls.append(value.item())
    return int(value.item())
kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int))
array = (ctypes.c_int * 5)(5, 3, 9, 1, 7)
libc.qsort(array, 5, ctypes.sizeof(ctypes.c_int), kind(compare))
print(list(array), len(calls), set(map(type, calls)))
call = ctypes.pythonapi.PyObject_CallObject
call.restype, call.argtypes = ctypes.py_object, [ctypes.py_object, ctypes.py_object]
value = torch.ones(1)
print(call(dist.all_reduce, (value,)), value.item())
try:
    call(dist.all_reduce, ("text",))
except Exception as error:
    print(type(error).__name__, error.__traceback__.tb_frame.f_code.co_name in ("<module>", "main"))
dist.destroy_process_group()

# %% a thread that C made communicates
import ctypes
import threading
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
lines = []
def run(argument):
    value = torch.tensor([rank + 1.0])
    work = dist.all_reduce(value, async_op=True)
    lines.append((type(threading.current_thread()).__name__, work.wait(), value.item(), dist.get_world_size(dist.new_group())))
    return 0
routine = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(run)
libc = ctypes.CDLL(None)
for n in range(3):
    handle = ctypes.c_ulong()
    print(libc.pthread_create(ctypes.byref(handle), None, routine, None), libc.pthread_join(handle, None), lines[n:])
dist.barrier()
dist.destroy_process_group()

# %% the dispatcher's operators by map, partial and a thread pool
import functools
from concurrent.futures import ThreadPoolExecutor
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
group = dist.group.WORLD.boxed()
broadcast = functools.partial(torch.ops.c10d.broadcast_, process_group=group, root_rank=1, root_tensor=0, timeout=-1)
values = [torch.tensor([rank + n]) for n in range(3)]
returned = list(map(broadcast, ([value] for value in values)))
dist.barrier()
print([value.item() for value in values], [type(item).__name__ for item in returned], [len(item) for item in returned], [item[0][0] is value for item, value in zip(returned, values)])
with ThreadPoolExecutor(1) as pool:
    got = pool.submit(torch.ops.c10d.allgather_.default, [[torch.zeros(1), torch.zeros(1)]], [torch.tensor([rank + 1.0])], group, True, -1).result()
    dist.barrier()
    print([[item.item() for item in inner] for inner in got[0]])
    print(pool.submit(torch.ops.c10d.barrier, torch.zeros(1), group, [], True, -1).exception())
print(torch.ops.c10d.broadcast_.default.name(), str(torch.ops.c10d.broadcast_.default._schema)[:30], torch.ops.c10d.broadcast_.overloads())
dist.destroy_process_group()

# %% hooks of autograd communicate in the backward pass
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
class Sum(torch.autograd.Function):
    @staticmethod
    def forward(context, value):
        result = value.clone()
        dist.all_reduce(result)
        return result
    @staticmethod
    def backward(context, gradient):
        order.append("backward")
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient
order = []
weight = torch.tensor([rank + 1.0, 2.0], requires_grad=True)
weight.register_hook(lambda gradient: order.append(("hook", gradient.tolist(), dist.all_reduce(gradient.clone()))))
weight.register_post_accumulate_grad_hook(lambda parameter: order.append(("after", dist.all_reduce(parameter.grad))))
result = Sum.apply(weight)
result.register_hook(lambda gradient: gradient * (rank + 1))
(result * result).sum().backward()
print(result.tolist(), type(result.grad_fn).__name__, order, weight.grad.tolist())
def broken(gradient):
    dist.barrier()
    raise ArithmeticError("in a hook")
other = torch.ones(1, requires_grad=True)
handle = other.register_hook(broken)
try:
    (other * 2).backward()
except ArithmeticError as error:
    print(error, error.__traceback__.tb_next is not None, other.grad)
handle.remove()
dist.destroy_process_group()

# %% a module that is replicated, its hook on communication and its reducer
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Linear(2, 1), bucket_cap_mb=1)
start = [parameter.clone() for parameter in model.parameters()]
calls = []
def hook(state, bucket):
    calls.append((state["name"], bucket.index(), bucket.is_last(), tuple(bucket.buffer().shape)))
    future = dist.all_reduce(bucket.buffer().div_(2), async_op=True).get_future()
    return future.then(lambda done: done.value()[0])
model.register_comm_hook({"name": "mine"}, hook)
for step in range(2):
    model(torch.full((1, 2), rank + 1.0)).sum().backward()
with model.no_sync():
    model(torch.ones(1, 2)).sum().backward()
gathered = [None, None]
dist.all_gather_object(gathered, [parameter.tolist() for parameter in start])
print(gathered[0] == gathered[1], calls, [parameter.grad.tolist() for parameter in model.parameters()])
def bad(state, bucket):
    raise LookupError("no communication")
second = DistributedDataParallel(torch.nn.Linear(1, 1))
second.register_comm_hook(None, bad)
try:
    second(torch.ones(1, 1)).sum().backward()
except Exception as error:
    print(type(error).__name__, str(error)[:40])
dist.barrier()
dist.destroy_process_group()

# %% replicated modules with unused parameters, buffers and built-in hooks
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
rank = dist.get_rank()
class Two(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.norm = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1), torch.nn.BatchNorm1d(1)
        for parameter in self.parameters():
            torch.nn.init.constant_(parameter, 0.5)
    def forward(self, value, which):
        return self.norm((self.one, self.two)[which](value))
group = dist.new_group()
for name, hook, options in ("none", None, {"find_unused_parameters": True}), ("half", default_hooks.fp16_compress_hook, {"find_unused_parameters": True, "gradient_as_bucket_view": True}), ("reduce", default_hooks.allreduce_hook, {"process_group": group, "find_unused_parameters": True}):
    model = DistributedDataParallel(Two(), **options)
    if hook:
        model.register_comm_hook(options.get("process_group"), hook)
    for step in range(2):
        model(torch.tensor([[1.0 + rank], [3.0]]), step).square().sum().backward()
    print(name, [parameter.grad is not None for parameter in model.parameters()], model.module.norm.num_batches_tracked.item(), round(model.module.norm.bias.grad.item(), 3))
dist.destroy_process_group()

# %% generators are advanced, thrown into and closed between collectives
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
def inner(value):
    try:
        while True:
            dist.all_reduce(value)
            sent = yield value.item()
            value.fill_(sent or 1)
    except KeyError as error:
        group = dist.new_group()
        yield "thrown", error.args, dist.get_world_size(group)
    finally:
        dist.barrier()
        lines.append("closed")
def outer(value):
    result = yield from inner(value)
    return result
lines = []
generator = outer(torch.ones(1))
print(next(generator), generator.send(5.0), generator.send(None), generator.throw(KeyError("key")), generator.gi_frame is not None)
print(generator.close(), lines, generator.gi_frame, sys.getrefcount(generator))
print([dist.barrier() for n in range(2)], {n: dist.get_rank() * 0 for n in range(2)}, list(outer(torch.ones(1)) for n in range(1))[0].close(), next(outer(torch.ones(1))), lines)
dist.destroy_process_group()

# %% special methods communicate
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
def call(word):
    value = torch.ones(1)
    dist.all_reduce(value)
    dist.barrier(dist.new_group())
    words.append(word)
    return int(value.item())
words = []
class Meta(type):
    def __call__(cls, *args):
        call("call")
        return super().__call__(*args)
    def __instancecheck__(cls, item):
        return call("isinstance") == 2
class Odd(metaclass=Meta):
    def __init_subclass__(cls):
        call("subclass")
    def __set_name__(self, owner, name):
        call("name " + name)
    def __getattr__(self, name):
        return call("get " + name)
    def __index__(self):
        return call("index") - 1
    def __eq__(self, other):
        return call("eq") == 2
    def __hash__(self):
        return call("hash")
    def __format__(self, spec):
        return spec * call("format")
    def __enter__(self):
        return call("enter")
    def __exit__(self, kind, value, traceback):
        return call(f"exit {kind and kind.__name__}") == 2
    def __missing__(self, key):
        return call("missing")
class Sub(Odd):
    part = Odd()
odd = Odd()
print(isinstance(3, Odd), odd.colour, [5, 6][odd], [3, 4].index(odd), len({odd: 1, 2: 3}), f"{odd:ab}")
with odd as entered:
    raise ValueError(entered)
print(words)
dist.destroy_process_group()

# %% code whose lines, names and files are odd
import sys
import types
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
def work(value):
    import sys
    import torch.distributed as dist
    group = dist.new_group()
    dist.all_reduce(value, group=group)
    dist.barrier()
    return value.item(), sys._getframe().f_code.co_name
code = work.__code__
changes = [{"co_linetable": b""}, {"co_filename": ""}, {"co_filename": "\udcff<>/\0nowhere"}, {"co_name": "two words"}, {"co_name": ""}, {"co_firstlineno": 10 ** 8}, {"co_filename": "torch/distributed/distributed_c10d.py"}, {"co_filename": "<frozen runpy>"}]
for change in changes:
    function = types.FunctionType(code.replace(**change), {})
    print(ascii(change), ascii(function(torch.ones(1))), sorted(function.__globals__))
for names in {"__name__": 3}, {"__name__": None, "__file__": 5}, {"__name__": "torch.distributed.x", "__spec__": 1, "__loader__": 2}, {"__name__": "\udc80", "__package__": []}:
    function = types.FunctionType(code, names)
    print(function(torch.ones(1)), ascii(sorted(names.items(), key=str)))
dist.destroy_process_group()

# %% collectives with gradients, functional ones and their waits
import warnings
import torch
import torch.distributed as dist
warnings.simplefilter("ignore")
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as differentiable
dist.init_process_group("gloo")
rank = dist.get_rank()
value = torch.tensor([rank + 1.0, 2.0], requires_grad=True)
total = differentiable.all_reduce(value)
gathered = differentiable.all_gather(value)
(total.sum() * (rank + 1) + gathered[0].sum()).backward()
print(total.tolist(), [item.tolist() for item in gathered], value.grad.tolist())
result = functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD)
print(type(result).__name__, (result + 1).tolist(), functional.all_gather_tensor(torch.tensor([rank]), 0, dist.group.WORLD).tolist())
raw = torch.ops._c10d_functional.all_reduce(torch.full((2,), 3.0), "sum", dist.group.WORLD.group_name)
print(torch.ops._c10d_functional.wait_tensor(raw).tolist(), type(raw).__name__)
works = [dist.all_reduce(torch.ones(1), async_op=True) for n in range(3)]
print([work.wait() for work in works], dist.barrier())
dist.destroy_process_group()

# %% a checkpointed module communicates again when it is recomputed
import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint
dist.init_process_group("gloo")
rank = dist.get_rank()
calls = []
def layer(value):
    scale = torch.tensor([rank + 1.0])
    dist.all_reduce(scale)
    calls.append(scale.item())
    return torch.sin(value * scale)
for reentrant in True, False:
    value = torch.tensor([0.5, 0.25], requires_grad=True)
    checkpoint(layer, value, use_reentrant=reentrant).sum().backward()
    print(reentrant, calls, [round(item, 4) for item in value.grad.tolist()])
def pack(tensor):
    dist.barrier()
    calls.append("pack")
    return tensor
with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: (dist.barrier(), tensor)[1]):
    (value * value).sum().backward()
print(calls[-3:], value.grad.shape)
dist.destroy_process_group()
