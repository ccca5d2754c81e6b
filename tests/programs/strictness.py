# Programs that run under strict rules: warnings, recursion, limits, modes and defaults.

# %% warnings are errors
import warnings
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
with warnings.catch_warnings():
    warnings.simplefilter("error")
    value = torch.ones(1)
    dist.all_reduce(value)
    group = dist.new_group()
    dist.all_reduce(value, group=group, async_op=True).wait()
    lists = [torch.zeros(1), torch.zeros(1)]
    dist.all_gather(lists, value, group)
    dist.barrier(group)
    objects = [None, None]
    dist.all_gather_object(objects, value.item())
    dist.broadcast_object_list(objects, 1)
    dist.destroy_process_group(group)
    print(value.item(), objects, len(warnings.filters) > 0)
    try:
        warnings.warn("own", DeprecationWarning)
    except DeprecationWarning as error:
        print("raised", error)
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    dist.barrier(dist.new_group())
    dist.broadcast(value, 0)
    warnings.warn("once", ResourceWarning)
print([str(item.message) for item in seen])
dist.destroy_process_group()

# %% showwarning is replaced and registries stay as they are
import warnings
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
lines, before = [], warnings.showwarning
def show(message, category, filename, lineno, file=None, line=None):
    lines.append((str(message), category.__name__))
warnings.showwarning = show
filters = list(warnings.filters)
def step():
    dist.barrier()
    warnings.warn("from step", UserWarning)
    dist.all_reduce(torch.ones(1), group=dist.new_group())
for n in range(3):
    step()
print(lines, warnings.filters == filters)
warnings.simplefilter("always")
step()
warnings.filters[:] = filters
warnings.showwarning = before
print(len(lines), warnings.filters == filters, dist.barrier())
dist.destroy_process_group()

# %% collectives nine hundred frames deep
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
group, value = dist.new_group(), torch.ones(1)
dist.barrier(group)
def deep(n):
    if n:
        return deep(n - 1)
    dist.all_reduce(value, group=group)
    dist.broadcast(value, 0, async_op=True).wait()
    dist.barrier()
    other = dist.new_group()
    dist.barrier(other)
    return value.item()
before = sys.getrecursionlimit()
for depth in 500, 700, 900:
    print(depth, deep(depth), sys.getrecursionlimit() == before)
dist.destroy_process_group()

# %% a low recursion limit
import sys
import threading
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
group, value = dist.new_group(), torch.ones(1)
dist.barrier(group)
lines, before = [], sys.getrecursionlimit()
def play():
    dist.all_reduce(value, group=group)
    dist.broadcast(value, 0, async_op=True).wait()
    dist.barrier()
    lines.append((value.item(), sys.getrecursionlimit()))
sys.setrecursionlimit(150)
try:
    play()
    thread = threading.Thread(target=play)
    thread.start()
    thread.join()
finally:
    sys.setrecursionlimit(before)
print(lines)
dist.destroy_process_group()

# %% RecursionError is caught and collectives go on
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
alone = [dist.new_group([n]) for n in range(2)][dist.get_rank()]
value, deepest = torch.ones(1), [0]
def endless(n):
    dist.barrier(alone)
    deepest[0] = n
    return endless(n + 1)
for attempt in range(3):
    try:
        endless(0)
    except RecursionError as error:
        print(type(error).__name__, str(error)[:32], deepest[0] > 800)
    dist.all_reduce(value)
    print(value.item(), dist.get_world_size(alone), dist.barrier(alone))
def compare(n):
    return [compare(n - 1)] if n else []
nested = compare(500)
dist.barrier(dist.new_group())
print(len(nested), nested == compare(500), sys.getrecursionlimit() >= 1000)
dist.destroy_process_group()

# %% few descriptors are left
import errno
import os
import resource
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
value, group = torch.ones(1), dist.new_group()
dist.barrier(group)
before = resource.getrlimit(resource.RLIMIT_NOFILE)
used = max(map(int, os.listdir("/proc/self/fd"))) + 1
kept = []
resource.setrlimit(resource.RLIMIT_NOFILE, (used + 8, before[1]))
try:
    while True:
        kept.append(os.open("/dev/null", os.O_RDONLY))
except OSError as error:
    print(error.errno == errno.EMFILE)
try:
    for n in range(10):
        dist.all_reduce(value, group=group)
        dist.broadcast(value, 1, async_op=True).wait()
        dist.barrier()
        both = [torch.zeros(1), torch.zeros(1)]
        dist.all_gather(both, value)
    print(value.item(), both[0].item())
finally:
    for descriptor in kept:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, before)
print(dist.barrier(dist.new_group()))
dist.destroy_process_group()

# %% no file may be written
import resource
import signal
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
value, group = torch.ones(1), dist.new_group()
files, core = resource.getrlimit(resource.RLIMIT_FSIZE), resource.getrlimit(resource.RLIMIT_CORE)
ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, files[1]))
resource.setrlimit(resource.RLIMIT_CORE, (0, core[1]))
failed = []
try:
    for n in range(10):
        dist.all_reduce(value, group=group)
        dist.all_reduce(value, async_op=True).wait()
    dist.barrier(dist.new_group())
except BaseException as error:
    failed.append(repr(error))
finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, files)
    resource.setrlimit(resource.RLIMIT_CORE, core)
    signal.signal(signal.SIGXFSZ, ignored)
print(failed, value.item())
dist.destroy_process_group()

# %% locale, decimal context and formats of numbers
import decimal
import locale
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
before = locale.setlocale(locale.LC_ALL)
locale.setlocale(locale.LC_ALL, "C")
torch.set_printoptions(precision=2, sci_mode=True)
context = decimal.getcontext()
context.prec, context.rounding, context.traps[decimal.Inexact] = 3, decimal.ROUND_UP, True
digits = sys.get_int_max_str_digits()
sys.set_int_max_str_digits(640)
value = torch.tensor([rank + 1 / 3])
dist.all_reduce(value)
group = dist.new_group()
objects = [None, None]
dist.all_gather_object(objects, decimal.Decimal(rank) / 2, group)
print(value, objects, decimal.getcontext() is context, context.prec, sorted(flag.__name__ for flag, on in context.flags.items() if on), locale.setlocale(locale.LC_ALL))
try:
    str(10 ** 700)
except ValueError as error:
    print(dist.barrier(group), str(error)[:13], sys.get_int_max_str_digits())
try:
    decimal.Decimal(1) / 3
except decimal.Inexact as error:
    print(type(error).__name__, sys.set_int_max_str_digits(digits), torch.set_printoptions(profile="default"))
locale.setlocale(locale.LC_ALL, before)
decimal.setcontext(decimal.Context())
dist.destroy_process_group()

# %% default types and devices of tensors
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.set_default_dtype(torch.float64)
value = torch.ones(1) / 3 + rank
dist.all_reduce(value)
objects = [None, None]
dist.all_gather_object(objects, value.item())
print(value.dtype, objects[0] == objects[1], dist.barrier(dist.new_group()), torch.get_default_dtype())
torch.set_default_dtype(torch.float32)
torch.set_default_device("meta")
try:
    value = torch.ones(2, device="cpu")
    dist.all_reduce(value)
    work = dist.broadcast(value, 0, async_op=True)
    print(work.wait(), value.tolist(), torch.ones(1).device)
finally:
    torch.set_default_device(None)
with torch.device("meta"):
    value = torch.ones(2, device="cpu")
    dist.all_reduce(value)
    print(value.tolist(), torch.empty(3).device)
torch.set_default_device("cpu")
print(dist.barrier(dist.new_group()), torch.ones(1).device, torch.get_default_device())
torch.set_default_device(None)
dist.destroy_process_group()

# %% inference, gradients switched off, autocast and anomalies
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
group = dist.new_group()
with torch.inference_mode():
    value = torch.ones(2)
    dist.all_reduce(value, group=group)
    print(value.is_inference(), value.tolist(), dist.barrier(dist.new_group()), torch.is_inference_mode_enabled())
dist.all_reduce(value)
weight = torch.ones(2, requires_grad=True)
try:
    print(dist.all_reduce(weight), weight.tolist())
except RuntimeError as error:
    print(type(error).__name__)
with torch.no_grad():
    dist.all_reduce(weight)
    print(weight.tolist(), torch.is_grad_enabled(), weight._version)
with torch.autocast("cpu", torch.bfloat16), torch.autograd.detect_anomaly(check_nan=False):
    product = torch.ones(2, 2) @ torch.ones(2, 2)
    dist.all_reduce(product)
    print(product.dtype, product.tolist(), torch.is_anomaly_enabled(), torch.is_autocast_enabled("cpu"))
dist.destroy_process_group()

# %% modes of functions and of the dispatcher count what is called
import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
dist.init_process_group("gloo")
group = dist.new_group()
class Functions(TorchFunctionMode):
    def __torch_function__(self, function, types, arguments=(), named=None):
        names.append(getattr(function, "__name__", "?"))
        return function(*arguments, **(named or {}))
class Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        names.append(str(function))
        return function(*arguments, **(named or {}))
names, value = [], torch.ones(2)
with Functions():
    dist.all_reduce(value, group=group)
    dist.broadcast(value, 0, async_op=True).wait()
    dist.barrier(group)
    group.allreduce([value], dist.AllreduceOptions()).wait()
print(list(names), names.clear())
with Dispatch():
    dist.all_reduce(value, group=group)
    dist.broadcast(value, 0, async_op=True).wait()
    dist.all_gather([torch.zeros(2), torch.zeros(2)], value)
print(list(names), names.clear())
with Dispatch(), Functions(), torch.no_grad():
    dist.barrier(group)
    value.add_(1)
print(names, value.tolist())
dist.destroy_process_group()

# %% tensors of classes that print and count
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
class Counting(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, arguments=(), named=None):
        names.append(getattr(function, "__name__", str(function)))
        return super().__torch_function__(function, types, arguments, named or {})
class Silent(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl
    def __repr__(self):
        names.append("shown")
        return "silent"
names = []
value = torch.ones(2).as_subclass(Counting)
names.clear()
dist.all_reduce(value)
dist.broadcast(value, 0, dist.new_group(), async_op=True).wait()
dist.all_gather([torch.zeros(2).as_subclass(Counting), torch.zeros(2)], value)
dist.group.WORLD.allreduce([value], dist.AllreduceOptions()).wait()
print(list(names), type(value).__name__, names.clear())
silent = torch.full((2,), rank + 1.0).as_subclass(Silent)
dist.all_reduce(silent)
objects = [None, None]
dist.all_gather_object(objects, silent.tolist())
parameter, buffer = torch.nn.Parameter(torch.ones(2), requires_grad=False), torch.nn.Buffer(torch.ones(1))
dist.all_reduce(parameter)
dist.all_reduce(buffer)
print(names, silent, objects, type(parameter).__name__, parameter.tolist(), buffer.tolist())
dist.destroy_process_group()

# %% random numbers and their generators are not touched by calls
import random
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(5)
random.seed(5)
expected = torch.rand(3).tolist(), random.random(), torch.randint(100, (2,)).tolist()
torch.manual_seed(5)
random.seed(5)
first = torch.rand(3)
dist.all_reduce(torch.ones(1), group=dist.new_group())
dist.barrier()
number = random.random()
objects = [None, None]
dist.all_gather_object(objects, {"number": number})
got = first.tolist(), number, torch.randint(100, (2,)).tolist()
print(got == expected, torch.initial_seed(), objects[0] == objects[1], hash(1.5) == hash(1.5))
dist.destroy_process_group()
