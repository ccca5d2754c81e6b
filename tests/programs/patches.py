# Programs that replace functions below everybody's feet.

# %% clocks are replaced by ones that stand still, return text or raise
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
def play():
    value = torch.ones(1)
    dist.all_reduce(value, group=dist.new_group())
    work = dist.broadcast(value, 0, async_op=True)
    return work.wait(), dist.barrier(), value.item()
names = "perf_counter", "perf_counter_ns", "time", "time_ns", "monotonic_ns", "process_time", "thread_time", "sleep", "localtime", "strftime"
def broken(*arguments, **named):
    raise RuntimeError("no clock")
for replacement in (lambda *arguments: 0.0), (lambda *arguments: "noon"), (lambda *arguments: None), broken:
    before = {name: getattr(time, name) for name in names}
    for name in names:
        setattr(time, name, replacement)
    try:
        result = play()
        same = all(getattr(time, name) is replacement for name in names)
    finally:
        for name in names:
            setattr(time, name, before[name])
    print(result, same, play())
dist.destroy_process_group()

# %% clocks are replaced and stay so
# forms: script, function
import atexit
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
calls = []
def fake():
    calls.append("asked")
    return len(calls) * 1000.0
time.time = time.perf_counter = time.monotonic = fake
time.time_ns = time.perf_counter_ns = lambda: calls.append("asked ns")
value = torch.ones(1)
for n in range(5):
    dist.all_reduce(value)
    dist.all_reduce(value, async_op=True).wait()
    dist.barrier()
print(value.item(), calls)
atexit.register(lambda: print("at exit", calls))
dist.destroy_process_group()

# %% the process and the threads say that they are others
import os
import threading
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
def wrong(*arguments):
    raise OSError("nobody is asked")
lines = []
def play():
    value = torch.ones(1)
    dist.all_reduce(value)
    group = dist.new_group()
    dist.barrier(group)
    dist.all_reduce(value, group=group, async_op=True).wait()
    return value.item()
patched = [(os, "getpid"), (os, "getppid"), (threading, "get_ident"), (threading, "get_native_id"), (threading, "current_thread"), (threading, "main_thread"), (os, "cpu_count")]
for replacement in (lambda: 7), wrong:
    before = [getattr(module, name) for module, name in patched]
    for module, name in patched:
        setattr(module, name, replacement)
    lines.append(play())
    lines.append(play())
    for (module, name), function in zip(patched, before):
        setattr(module, name, function)
    print(lines, threading.active_count(), os.getpid() == before[0](), threading.current_thread() is threading.main_thread())
dist.destroy_process_group()

# %% print, open, input and their like are replaced
import builtins
import io
import os
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
calls = []
def record(name):
    def replacement(*arguments, **named):
        calls.append((name, str(arguments)[:50]))
        raise PermissionError(name)
    return replacement
group, value = dist.new_group(), torch.ones(1)
patched = [(builtins, name) for name in ("print", "open", "input", "exec", "eval", "compile", "vars", "locals", "dir", "globals", "breakpoint")]
patched += [(os, name) for name in ("open", "write", "read", "pipe", "replace", "rename", "makedirs", "listdir", "stat", "fsync")] + [(io, "open"), (io, "StringIO"), (io, "BytesIO")]
before = [getattr(module, name) for module, name in patched]
for module, name in patched:
    setattr(module, name, record(name))
try:
    for n in range(5):
        dist.all_reduce(value, group=group)
        dist.barrier()
        dist.broadcast(value, 1, async_op=True).wait()
finally:
    for (module, name), function in zip(patched, before):
        setattr(module, name, function)
print(calls, value.item())
dist.destroy_process_group()

# %% what looks at frames and tracebacks is replaced
import inspect
import linecache
import sys
import traceback
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
calls = []
def record(name):
    def replacement(*arguments, **named):
        calls.append(name)
        raise LookupError(name)
    return replacement
patched = [(sys, "_getframe"), (sys, "exc_info"), (sys, "_current_frames"), (inspect, "currentframe"), (inspect, "stack"), (inspect, "signature"), (inspect, "getsource"), (inspect, "unwrap")]
patched += [(traceback, name) for name in ("extract_stack", "walk_stack", "format_stack", "format_exc", "StackSummary", "extract_tb", "print_exc")] + [(linecache, name) for name in ("getline", "getlines", "checkcache")]
value, group = torch.ones(1), dist.new_group()
dist.barrier(group)
before = [getattr(module, name) for module, name in patched]
for module, name in patched:
    setattr(module, name, record(name))
try:
    dist.all_reduce(value, group=group)
    dist.all_reduce(value, async_op=True).wait()
    dist.barrier()
    made = len(calls)
    other = dist.new_group()
    dist.all_reduce(value, group=other)
except BaseException as error:
    calls.append(repr(error))
finally:
    for (module, name), function in zip(patched, before):
        setattr(module, name, function)
print(made, calls, value.item())
dist.destroy_process_group()

# %% torch.distributed's functions are wrapped and given back
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
dist.init_process_group("gloo")
calls = []
def wrap(module, name):
    function = getattr(module, name)
    def wrapped(*arguments, **named):
        calls.append((name, len(arguments), sorted(named)))
        return function(*arguments, **named)
    setattr(module, name, wrapped)
    return module, name, function
kept = [wrap(module, name) for module in (dist, c10d) for name in ("all_reduce", "barrier", "new_group", "get_rank", "broadcast")]
kept += [wrap(dist.Work, "wait"), wrap(dist.Work, "is_completed"), wrap(torch.futures.Future, "wait")]
value = torch.ones(1)
dist.all_reduce(value, dist.ReduceOp.SUM, async_op=False)
group = dist.new_group([0, 1])
work = dist.broadcast(value, src=0, group=group, async_op=True)
work.wait()
work.get_future().wait()
c10d.barrier(group=group)
dist.all_gather_object([None, None], "x")
print(work.is_completed())
for module, name, function in reversed(kept):
    setattr(module, name, function)
print(calls)
print([getattr(module, name) is function for module, name, function in kept], dist.all_reduce(value), value.item(), len(calls))
dist.destroy_process_group()

# %% mocks instead of collectives and of a work's wait
import torch
import torch.distributed as dist
from unittest import mock
dist.init_process_group("gloo")
value = torch.ones(1)
with mock.patch.object(dist, "all_reduce", autospec=True, return_value="mocked") as fake:
    print(dist.all_reduce(value, group=None), value.item(), fake.call_count, fake.call_args.kwargs)
    try:
        dist.all_reduce(value, colour=1)
    except TypeError as error:
        print(error)
with mock.patch("torch.distributed.all_reduce", wraps=dist.all_reduce) as fake:
    print(dist.all_reduce(value), value.item(), fake.mock_calls == [mock.call(value)])
with mock.patch("torch.distributed.distributed_c10d.get_world_size", return_value=5), mock.patch.object(dist, "get_rank", side_effect=[7, 8]):
    print(dist.get_rank(), dist.get_rank(), dist.distributed_c10d.get_world_size(), dist.get_world_size())
with mock.patch.object(dist.Work, "wait", lambda self, *arguments: "not waited"):
    work = dist.barrier(async_op=True)
    print(work.wait(), dist.all_reduce(torch.ones(1)))
    other = dist.distributed_c10d._get_default_group().allreduce([torch.ones(1)])
print(work.wait(), other.wait(), dist.barrier())
with mock.patch.dict("os.environ", {"RANK": "9", "WORLD_SIZE": "10"}, clear=True):
    print(dist.all_reduce(value), dist.get_rank() < 2, dist.get_world_size(dist.new_group()))
with mock.patch("builtins.print") as fake:
    print("unseen", dist.barrier())
print(fake.call_args)
dist.destroy_process_group()

# %% methods of tensors are counted
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
calls = []
group = dist.new_group()
names = "numel", "element_size", "data_ptr", "clone", "detach", "size", "dim", "tolist", "item", "cpu", "numpy", "nelement", "untyped_storage", "__repr__", "__len__", "__hash__", "__bool__", "__eq__"
def wrap(name):
    function = getattr(torch.Tensor, name)
    def wrapped(self, *arguments, **named):
        calls.append(name)
        return function(self, *arguments, **named)
    return wrapped
value, both = torch.ones(3), [torch.zeros(3), torch.zeros(3)]
own = {name: torch.Tensor.__dict__.get(name) for name in names}
for name in names:
    setattr(torch.Tensor, name, wrap(name))
dist.all_reduce(value, group=group)
dist.all_gather(both, value)
dist.broadcast(value, 0, async_op=True).wait()
dist.reduce_scatter_tensor(both[0], torch.ones(6))
dist.barrier(group)
counted = list(calls)
for name in names:
    if own[name] is None:
        delattr(torch.Tensor, name)
    else:
        setattr(torch.Tensor, name, own[name])
print(counted, value.tolist(), both[0].tolist())
dist.destroy_process_group()

# %% functions of the standard library that others may lean on raise
import atexit
import contextlib
import functools
import gc
import json
import pickle
import queue
import signal
import socket
import struct
import weakref
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
calls = []
def record(name):
    def replacement(*arguments, **named):
        calls.append(name)
        raise OSError(name)
    return replacement
value, group = torch.ones(1), dist.new_group()
dist.barrier(group)
patched = [(json, "dumps"), (json, "dump"), (json.JSONEncoder, "encode"), (json.JSONEncoder, "iterencode"), (struct, "pack"), (socket.socket, "sendall"), (socket, "socket"), (queue.Queue, "put"), (queue, "Queue"), (signal, "signal"), (signal, "getsignal"), (atexit, "register"), (gc, "collect"), (gc, "get_objects"), (gc, "get_referrers"), (weakref, "ref"), (weakref, "WeakKeyDictionary"), (functools, "wraps"), (contextlib, "contextmanager")]
before = [getattr(module, name) for module, name in patched]
for module, name in patched:
    setattr(module, name, record(name))
try:
    for n in range(10):
        dist.all_reduce(value, group=group)
        dist.broadcast(value.fill_(n), 1, async_op=True).wait()
        dist.barrier()
finally:
    for (module, name), function in zip(patched, before):
        setattr(module, name, function)
print(calls, value.item())
dist.destroy_process_group()

# %% builtins that count whoever asks them
import builtins
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
counts, value, group = {}, torch.ones(1), dist.new_group()
dist.all_reduce(value, group=group)
def wrap(name, function):
    def wrapped(*arguments, **named):
        counts[name] = counts.get(name, 0) + 1
        return function(*arguments, **named)
    return wrapped
names = "id", "vars", "dir", "locals", "globals", "sorted", "repr", "hash", "callable", "format", "iter", "next", "delattr", "enumerate"
before = {name: getattr(builtins, name) for name in names}
for name in names:
    setattr(builtins, name, wrap(name, before[name]))
dist.all_reduce(value, group=group)
dist.all_reduce(value, async_op=True).wait()
dist.barrier()
for name in names:
    setattr(builtins, name, before[name])
print(sorted(counts.items()), value.item())
dist.destroy_process_group()

# %% import is replaced by one that tells and refuses
import builtins
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
value, group = torch.ones(1), dist.new_group()
def play():
    dist.all_reduce(value, group=group)
    dist.broadcast(value, 0, async_op=True).wait()
    dist.barrier()
play()
names, before = [], builtins.__import__
def fake(name, *arguments, **named):
    names.append(name)
    raise ImportError("nothing is imported: " + name)
class Finder:
    def find_spec(self, name, path=None, target=None):
        names.append(name)
        raise ImportError("nothing is found: " + name)
finder = Finder()
builtins.__import__ = fake
sys.meta_path.insert(0, finder)
path, sys.path[:] = list(sys.path), []
try:
    play()
    play()
finally:
    builtins.__import__ = before
    sys.meta_path.remove(finder)
    sys.path[:] = path
print(names, value.item())
dist.destroy_process_group()
