# Programs that end in every way there is. Where one fails, rank 1 does, and its code is told.

# %% the program exits by sys.exit of zero, None and nothing
# forms: script, function
import atexit
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
value = torch.ones(1)
dist.all_reduce(value)
atexit.register(print, "at exit", value.item(), rank)
try:
    sys.exit(*[(0,), (None,)][rank])
finally:
    print("finally", dist.barrier(), sys.exc_info()[0].__name__, sys.exc_info()[1].code)
    dist.destroy_process_group()

# %% rank 1 exits with 3
# forms: script, function
# exit code of rank 1: 3
import atexit
import sys
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
value = torch.ones(1)
dist.all_reduce(value)
atexit.register(lambda: print("at exit", dist.is_initialized(), flush=True))
print("value", value.item(), flush=True)
if rank == 1:
    time.sleep(1.5)
    with torch.no_grad():
        sys.exit(3)
dist.destroy_process_group()

# %% rank 1 exits with a text
# forms: script, function
# exit code of rank 1: 1
import sys
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
print("text", flush=True)
if dist.get_rank() == 1:
    time.sleep(1.5)
    try:
        sys.exit("a text for stderr")
    except SystemExit as error:
        print(repr(error.code), error.args, flush=True)
        raise
dist.destroy_process_group()

# %% codes that are no codes but end well
# forms: script, function
import atexit
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
class Exit(SystemExit):
    pass
dist.barrier()
print("exits with", (256, False)[rank])
error = Exit(5)
error.code = (256, False)[rank]
raise error

# %% rank 1 exits with minus one, from a callback within a sort
# forms: script, function
# exit code of rank 1: 255
import sys
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
def key(item):
    dist.barrier()
    print("key", item, flush=True)
    if item == 2 and rank == 1:
        time.sleep(1.5)
        sys.exit(-1)
    return item
print(sorted([1, 2], key=key), flush=True)
dist.destroy_process_group()

# %% exits in threads end only the threads
# forms: script, function
import sys
import threading
import _thread
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
def leave(code):
    dist.barrier()
    sys.exit(code)
for code in 0, 4, "text", None:
    thread = threading.Thread(target=leave, args=(code,))
    thread.start()
    thread.join()
    print("after", code, thread.is_alive())
thread = threading.Thread(target=lambda: (dist.barrier(), _thread.exit()))
thread.start()
thread.join()
print("end", threading.active_count())
dist.destroy_process_group()

# %% os._exit loses what was not flushed and runs nothing
# forms: script, function
import atexit
import os
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
class Thing:
    def __del__(self):
        print("deleted", flush=True)
thing = Thing()
atexit.register(print, "never", flush=True)
file = open(f"file-{rank}", "w")
file.write("flushed")
file.flush()
file.write("lost")
dist.barrier()
print("flushed", flush=True)
try:
    os._exit(0)
finally:
    print("never")

# %% rank 1 leaves by os._exit(5) in a thread
# forms: script, function
# exit code of rank 1: 5
import os
import threading
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
value = torch.ones(2)
dist.all_reduce(value)
print("value", value.tolist(), flush=True)
def leave():
    time.sleep(1.5)
    print("leaves", flush=True)
    os._exit(5)
if dist.get_rank() == 1:
    threading.Thread(target=leave).start()
    time.sleep(30)
dist.destroy_process_group()

# %% rank 1 raises and its own hook tells of it
# forms: script, function
# exit code of rank 1: 1
import atexit
import sys
import time
import traceback
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
def hook(kind, error, trace):
    names = [frame.name for frame in traceback.extract_tb(trace)]
    print(kind.__name__, error, names[-1], error.__cause__, type(error.__context__).__name__, getattr(error, "__notes__", None), flush=True)
sys.excepthook = hook
atexit.register(lambda: print("at exit", hasattr(sys, "last_value"), flush=True))
def inner():
    try:
        dist.all_reduce("text")
    except TypeError as error:
        raise LookupError("rank one") from None
dist.barrier()
print("before", flush=True)
if rank == 1:
    time.sleep(1.5)
    inner()
dist.destroy_process_group()

# %% rank 1 raises within a collective
# forms: script, function
# exit code of rank 1: 1
import sys
import time
import traceback
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank, before = dist.get_rank(), sys.excepthook
def hook(kind, error, trace):
    names = [frame.name for frame in traceback.extract_tb(trace)]
    print(kind.__name__, names[-1], sys.excepthook is hook, flush=True)
    before(kind, error, trace)
sys.excepthook = hook
dist.barrier()
print("before", callable(before), flush=True)
if rank == 1:
    time.sleep(1.5)
    dist.broadcast(torch.ones(1), src=9)
dist.destroy_process_group()

# %% rank 1 raises and the hook raises too
# forms: script, function
# exit code of rank 1: 1
import sys
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
class Odd(BaseException):
    def __str__(self):
        print("asked for its text", flush=True)
        raise ValueError("no text")
def hook(*arguments):
    print("hook", len(arguments), flush=True)
    raise RuntimeError("in the hook")
sys.excepthook = hook
dist.barrier()
print("before", flush=True)
if dist.get_rank() == 1:
    time.sleep(1.5)
    raise Odd
dist.destroy_process_group()

# %% callbacks at exit raise, exit, register more and are taken back
# forms: script, function
import atexit
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
value = torch.ones(1)
def fail():
    print("fails", dist.all_reduce(value), value.item())
    raise ValueError("at exit")
def leave():
    print("leaves", dist.barrier())
    sys.exit(6)
def more():
    atexit.register(print, "registered at exit", dist.get_world_size())
def never():
    print("never")
atexit.register(print, "last of all", file=sys.stdout)
atexit.register(dist.destroy_process_group)
for call in fail, leave, more, never, never:
    atexit.register(call)
atexit.unregister(never)
decorated = atexit.register(lambda: print("first", dist.is_initialized()))
print(callable(decorated), atexit._ncallbacks() >= 6)

# %% files that nobody closes are written at the end
# forms: script, function
import io
import os
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
kept = [open(f"kept-{rank}-{n}", "w") for n in range(3)]
raw = open(f"raw-{rank}", "wb", buffering=100000)
wrapper = io.TextIOWrapper(io.BufferedWriter(io.FileIO(f"wrapped-{rank}", "w")), encoding="utf-16-le", newline="\r\n")
for n, file in enumerate(kept):
    file.write(f"line of {rank}\n" * n)
value = torch.tensor([rank + 1], dtype=torch.uint8)
dist.all_reduce(value)
raw.write(bytes(value.tolist()) * 5000)
wrapper.write("wrapped\n")
print(os.path.getsize(f"raw-{rank}"), os.path.getsize(f"wrapped-{rank}"), [file.closed for file in kept])
dist.destroy_process_group()

# %% rank 1 is interrupted
# forms: script, function
# exit code of rank 1: -2
import atexit
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
alone = [dist.new_group([rank]) for rank in range(2)]
dist.barrier()
atexit.register(print, "at exit", flush=True)
print("before", flush=True)
if dist.get_rank() == 1:
    time.sleep(1.5)
    try:
        dist.barrier(alone[1])
        raise KeyboardInterrupt("by itself")
    finally:
        print("finally", flush=True)
dist.destroy_process_group()

# %% rank 1 aborts itself
# forms: script, function
# exit code of rank 1: -6
import atexit
import os
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
work = dist.barrier(async_op=True)
work.wait()
print("before", work.is_completed(), flush=True)
if dist.get_rank() == 1:
    atexit.register(print, "never", flush=True)
    time.sleep(1.5)
    os.abort()
dist.destroy_process_group()

# %% rank 1 is killed by its own child
# forms: script, function
# exit code of rank 1: -9
import os
import signal
import subprocess
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
print("before", flush=True)
if dist.get_rank() == 1:
    time.sleep(1.5)
    subprocess.run(["sh", "-c", f"kill -{int(signal.SIGKILL)} {os.getpid()}"])
    time.sleep(20)
dist.destroy_process_group()

# %% the standard output cannot be flushed at the end
# forms: script, function
# exit code of rank 1: 120
import sys
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
dist.barrier()
print("before", flush=True)
class Broken:
    closed = False
    def write(self, text):
        return len(text)
    def flush(self):
        raise OSError("not flushed")
dist.destroy_process_group()
if rank == 1:
    time.sleep(1.5)
    sys.stdout = Broken()

# %% works that nobody awaits, no destroy and an exit within nested blocks
# forms: script, function
import contextlib
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
group = dist.new_group()
values = [torch.full((100,), float(n)) for n in range(8)]
@contextlib.contextmanager
def told(word):
    try:
        yield word
    except BaseException as error:
        print(word, type(error).__name__, error.args, dist.barrier(group))
        raise
    finally:
        print(word, "finally")
with contextlib.ExitStack() as stack:
    stack.callback(print, "callback")
    stack.enter_context(told("outer"))
    stack.enter_context(torch.inference_mode())
    with told("inner"):
        works = [dist.all_reduce(value, group=group, async_op=True) for value in values]
        works[-1].wait()
        print(values[-1][0].item())
        exit(0)
