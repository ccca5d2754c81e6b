# Programs that trace, profile and audit themselves.

# %% sys.settrace sees the program's own lines and nothing replaces it
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
events = []
def step(value):
    group = dist.new_group()
    dist.all_reduce(value, group=group)
    work = dist.broadcast(value, 0, async_op=True)
    work.wait()
    return value.item()
def trace(frame, event, argument):
    if frame.f_code is step.__code__:
        line = frame.f_lineno - frame.f_code.co_firstlineno
        events.append((event, line, argument if event == "return" else None))
        return trace
sys.settrace(trace)
result = step(torch.ones(1))
dist.barrier()
mine = sys.gettrace() is trace
sys.settrace(None)
print(result, mine, sys.gettrace(), events)
dist.destroy_process_group()

# %% a trace function raises within a collective's caller, and switches itself off
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
seen = []
def step(value):
    dist.all_reduce(value)
    dist.barrier(dist.new_group())
    return value.item()
def trace(frame, event, argument):
    if frame.f_code is step.__code__:
        seen.append(event)
        if seen.count("line") == 2:
            raise ArithmeticError("traced")
        return trace
sys.settrace(trace)
try:
    print(step(torch.ones(1)))
except ArithmeticError as error:
    print(error, error.__traceback__.tb_next.tb_frame.f_code.co_name, sys.gettrace())
print(seen, step(torch.ones(1)), len(seen))
dist.destroy_process_group()

# %% sys.setprofile counts calls of the program's own functions
import sys
from collections import Counter
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
counts = Counter()
def leaf(value):
    dist.all_reduce(value)
    return value.item()
def branch(n):
    return leaf(torch.ones(1)) + (branch(n - 1) if n else 0)
def lazy(n):
    for item in range(n):
        yield dist.barrier()
def profile(frame, event, argument):
    if frame.f_code in codes and event in ("call", "return"):
        counts[event, frame.f_code.co_name] += 1
codes = {leaf.__code__, branch.__code__, lazy.__code__}
sys.setprofile(profile)
total = branch(4)
list(lazy(3))
dist.all_gather_object([None, None], total)
kept = sys.getprofile() is profile
sys.setprofile(None)
print(total, kept, sorted(counts.items()))
dist.destroy_process_group()

# %% threads are traced and profiled, and only the program's own
import sys
import threading
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
calls, names, kept = [], set(), []
def run(n):
    value = torch.tensor([float(n)])
    dist.all_reduce(value)
    work = dist.barrier(async_op=True)
    work.wait()
    inner(value)
    kept.append((sys.gettrace() is trace, sys.getprofile() is profile))
def inner(value):
    dist.broadcast(value, 1)
def trace(frame, event, argument):
    names.add(threading.current_thread().name)
    if frame.f_code in (run.__code__, inner.__code__):
        calls.append((frame.f_code.co_name, event))
def profile(frame, event, argument):
    if event == "return" and frame.f_code is inner.__code__:
        calls.append(event)
threading.settrace(trace)
threading.setprofile(profile)
for n in range(2):
    thread = threading.Thread(target=run, args=(n,), name=f"own {n}")
    thread.start()
    thread.join()
dist.barrier(dist.new_group())
dist.all_reduce(torch.ones(1), async_op=True).wait()
threading.settrace(None)
threading.setprofile(None)
print(calls, sorted(names), kept, sys.gettrace(), sys.getprofile())
dist.destroy_process_group()

# %% sys.monitoring, where there is one
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
monitoring, events = getattr(sys, "monitoring", None), []
def step(value):
    dist.all_reduce(value)
    return value.item()
def started(code, offset):
    if code is step.__code__:
        events.append(code.co_name)
    return None
def raised(code, offset, error):
    if code is step.__code__:
        events.append(type(error).__name__)
if monitoring:
    free = [n for n in range(6) if monitoring.get_tool(n) is None]
    events.append(free)
    monitoring.use_tool_id(3, "own")
    monitoring.register_callback(3, monitoring.events.PY_START, started)
    monitoring.register_callback(3, monitoring.events.RAISE, raised)
    monitoring.set_events(3, monitoring.events.PY_START | monitoring.events.RAISE)
print(step(torch.ones(1)), step(torch.ones(1)))
try:
    step("text")
except TypeError as error:
    print(type(error).__name__)
if monitoring:
    events.append(monitoring.get_tool(3))
    monitoring.set_events(3, 0)
    monitoring.free_tool_id(3)
print(events, dist.barrier())
dist.destroy_process_group()

# %% an audit hook forbids nearly everything while collectives run
# forms: script, function, cell
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
group = dist.new_group()
forbidding, seen = [False], []
forbidden = "open", "socket.", "os.", "subprocess.", "exec", "compile", "import", "code.", "sys._getframe", "gc.", "ctypes.", "shutil.", "tempfile.", "pickle.", "builtins.id", "object.__setattr__", "sys.set", "cpython.", "signal."
def hook(event, arguments):
    if forbidding[0] and event.startswith(forbidden):
        seen.append((event, str(arguments)[:60]))
        raise RuntimeError("forbidden: " + event)
    if event == "own.event":
        seen.append(arguments)
value = torch.ones(2)
def play():
    dist.all_reduce(value, group=group)
    dist.barrier()
    dist.broadcast(value, 0, async_op=True).wait()
    dist.all_reduce(value, async_op=True).get_future().wait()
play()
sys.addaudithook(hook)
forbidding[0] = True
for n in range(20):
    play()
    value.fill_(1)
forbidding[0] = False
sys.audit("own.event", dist.get_world_size())
print(seen, value.tolist())
dist.destroy_process_group()

# %% an audit hook lists what files the program opens
# forms: script, function
import os
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
opened = []
def hook(event, arguments, sep=os.sep):
    if event == "open" and isinstance(arguments[0], str) and not arguments[0].startswith(sep):
        opened.append(arguments[:2])
sys.addaudithook(hook)
for n in range(3):
    with open(f"own-{dist.get_rank()}", "a") as file:
        value = torch.ones(1)
        dist.all_reduce(value, group=dist.new_group())
        file.write(f"{value.item()}\n")
objects = [None, None]
dist.all_gather_object(objects, len(opened))
print(opened, objects)
dist.destroy_process_group()

# %% faulthandler is switched on, dumps and is switched off by the program
import faulthandler
import os
import re
import signal
import threading
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
def outer_function(file):
    value = torch.ones(1)
    dist.all_reduce(value)
    inner_function(file)
    return value.item()
def inner_function(file):
    dist.barrier(dist.new_group())
    faulthandler.dump_traceback(file, all_threads=False)
def names(path):
    with open(path) as file:
        return re.findall(r" in (outer_function|inner_function|handler)$", file.read(), re.M)
with open("dump", "w") if dist.get_rank() else open("dump0", "w") as file:
    path = file.name
    before = faulthandler.is_enabled()
    faulthandler.enable(file)
    print(before, faulthandler.is_enabled(), outer_function(file), names(path))
    faulthandler.register(signal.SIGUSR2, file, all_threads=False)
    def handler():
        dist.barrier()
        signal.raise_signal(signal.SIGUSR2)
    handler()
    print(names(path), faulthandler.unregister(signal.SIGUSR2))
    faulthandler.dump_traceback_later(30, file=file)
    dist.all_reduce(torch.ones(1))
    faulthandler.cancel_dump_traceback_later()
    faulthandler.disable()
os.remove(path)
print(faulthandler.is_enabled(), threading.active_count(), dist.barrier())
dist.destroy_process_group()

# %% tracemalloc counts what the program's own lines allocate
import tracemalloc
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
def make(n):
    dist.barrier()
    return [bytes(1000) for item in range(n)]
print(tracemalloc.is_tracing())
tracemalloc.start()
kept = make(50)
dist.all_reduce(torch.ones(1), group=dist.new_group())
trace = tracemalloc.get_object_traceback(kept[0])
first = make.__code__.co_firstlineno
own = [(item.size, item.domain) for item in tracemalloc.take_snapshot().traces if item.traceback[0].lineno == first + 2 and item.traceback[0].filename == make.__code__.co_filename and item.size > 1000]
print(len(trace), trace[0].lineno - first, tracemalloc.get_traceback_limit(), len(own), own[0], tracemalloc.is_tracing())
tracemalloc.stop()
print(tracemalloc.get_traced_memory(), dist.barrier())
dist.destroy_process_group()

# %% cProfile and pstats count the program's own functions
import cProfile
import pstats
import io
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
def step(n):
    value = torch.ones(1)
    dist.all_reduce(value)
    return value.item() + (step(n - 1) if n else 0)
def main_part():
    group = dist.new_group()
    return step(3) + step(0), dist.barrier(group)
profile = cProfile.Profile()
print(profile.runcall(main_part))
with profile:
    step(1)
    dist.all_reduce(torch.ones(1), async_op=True).wait()
stats = pstats.Stats(profile, stream=io.StringIO()).stats
print(sorted((name[2], item[0], item[1]) for name, item in stats.items() if name[0] == step.__code__.co_filename))
print([sorted(caller[2] for caller in item[4]) for name, item in stats.items() if name[2] == "step"])
dist.destroy_process_group()

# %% the debugger steps over collectives by commands from a text
import io
import pdb
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
def step(value):
    dist.all_reduce(value)
    work = dist.barrier(async_op=True)
    work.wait()
    return value.item()
output = io.StringIO()
debugger = pdb.Pdb(stdin=io.StringIO("next\nnext\np value.item()\nnext\np work.is_completed()\nwhere 1\nreturn\np __return__ if '__return__' in locals() else None\ncontinue\n"), stdout=output, nosigint=True, readrc=False)
debugger.use_rawinput = False
debugger.prompt = ""
print(debugger.runcall(step, torch.ones(1)))
print([line for line in output.getvalue().splitlines() if not line.startswith((">", "->", " ", "--"))])
print(len([line for line in output.getvalue().splitlines() if line.startswith("> ") and line.split("(")[-1].startswith(")")]) > 3, dist.barrier())
dist.destroy_process_group()
