# Programs that handle signals between, within and instead of collectives.

# %% a handler runs between two lines, in the function that was interrupted
import os
import signal
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
lines = []
def handler(number, frame):
    lines.append((signal.Signals(number).name, frame.f_code.co_name, value.item()))
before = signal.signal(signal.SIGUSR1, handler)
value = torch.ones(1)
def step():
    dist.all_reduce(value)
    os.kill(os.getpid(), signal.SIGUSR1)
    signal.raise_signal(signal.SIGUSR1)
    return dist.barrier(dist.new_group())
print([step() for n in range(3)], lines, before == signal.SIG_DFL)
print(signal.signal(signal.SIGUSR1, before) is handler, signal.getsignal(signal.SIGUSR1) == before)
dist.destroy_process_group()

# %% an alarm raises out of loops of collectives, thirty times
import signal
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
alone = [dist.new_group([n]) for n in range(2)][dist.get_rank()]
class Late(Exception):
    pass
def handler(number, frame):
    rung.append(number)
    raise Late
signal.signal(signal.SIGALRM, handler)
rung, caught, value = [], 0, torch.ones(4)
for n in range(30):
    end = time.monotonic() + 5
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        while time.monotonic() < end:
            dist.all_reduce(value, group=alone)
            work = dist.all_reduce(value, group=alone, async_op=True)
            work.wait()
            dist.barrier(alone)
    except Late:
        caught += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
print(len(rung), caught, value.tolist(), signal.getitimer(signal.ITIMER_REAL))
signal.signal(signal.SIGALRM, signal.SIG_DFL)
dist.barrier()
dist.destroy_process_group()

# %% an alarm raises out of stores, futures and works
import signal
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
alone = [dist.new_group([n]) for n in range(2)][dist.get_rank()]
def handler(number, frame):
    raise TimeoutError("rung")
signal.signal(signal.SIGALRM, handler)
texts, store = [], dist.HashStore()
store.set("key", "value")
for n in range(15):
    end = time.monotonic() + 5
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        while time.monotonic() < end:
            store.wait(["key"])
            store.get("key")
            dist.all_reduce(torch.ones(1), group=alone, async_op=True).get_future().wait()
            dist.get_world_size(alone)
    except TimeoutError as error:
        texts.append(str(error))
    signal.setitimer(signal.ITIMER_REAL, 0)
signal.signal(signal.SIGALRM, signal.SIG_DFL)
print(texts.count("rung"), store.get("key"))
dist.barrier()
dist.destroy_process_group()

# %% the descriptor that signals wake
import os
import signal
import threading
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
read, write = os.pipe()
os.set_blocking(write, False)
os.set_blocking(read, False)
print(signal.set_wakeup_fd(write, warn_on_full_buffer=False))
seen = []
signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(threading.current_thread().name))
signal.signal(signal.SIGUSR2, lambda number, frame: seen.append(number == signal.SIGUSR2))
def other():
    dist.barrier()
    os.kill(os.getpid(), signal.SIGUSR2)
    dist.barrier()
signal.raise_signal(signal.SIGUSR1)
dist.all_reduce(torch.ones(3))
thread = threading.Thread(target=other)
thread.start()
thread.join()
dist.barrier(dist.new_group())
print(list(os.read(read, 100)) == [signal.SIGUSR1, signal.SIGUSR2], seen, signal.set_wakeup_fd(-1) == write)
os.close(read)
os.close(write)
signal.signal(signal.SIGUSR1, signal.SIG_DFL)
signal.signal(signal.SIGUSR2, signal.SIG_DFL)
dist.destroy_process_group()

# %% a signal from the other rank while this one receives
import os
import signal
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
lines = []
value = torch.zeros(1)
def handler(number, frame):
    lines.append("signal")
signal.signal(signal.SIGUSR1, handler)
pids = [None, None]
dist.all_gather_object(pids, os.getpid())
if rank == 0:
    time.sleep(0.2)
    os.kill(pids[1], signal.SIGUSR1)
    time.sleep(0.2)
    dist.send(torch.ones(1), 1)
else:
    dist.recv(value, 0)
    lines.append("after")
print(lines, value.item(), dist.barrier())
signal.signal(signal.SIGUSR1, signal.SIG_DFL)
dist.destroy_process_group()

# %% a handler that communicates itself
import os
import signal
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
other = dist.new_group()
value, lines = torch.tensor([rank + 1.0]), []
def handler(number, frame):
    dist.all_reduce(value, group=other)
    group = dist.new_group()
    lines.append((number == signal.SIGUSR2, value.item(), dist.get_world_size(group)))
    dist.barrier(group)
signal.signal(signal.SIGUSR2, handler)
for n in range(3):
    dist.barrier()
    os.kill(os.getpid(), signal.SIGUSR2)
    dist.barrier()
print(lines)
signal.signal(signal.SIGUSR2, signal.SIG_DFL)
dist.destroy_process_group()

# %% a thread interrupts main, and main interrupts itself
# forms: script, function, cell
import _thread
import os
import signal
import threading
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
alone = [dist.new_group([n]) for n in range(2)][dist.get_rank()]
lines = []
before = signal.signal(signal.SIGINT, signal.default_int_handler)
for n in range(5):
    thread = threading.Timer(0.02, _thread.interrupt_main)
    end = time.monotonic() + 5
    try:
        thread.start()
        while time.monotonic() < end:
            dist.all_reduce(torch.ones(2), group=alone)
    except KeyboardInterrupt as error:
        lines.append(error.args)
    thread.join()
try:
    dist.barrier(alone)
    os.kill(os.getpid(), signal.SIGINT)
    dist.barrier(alone)
except KeyboardInterrupt:
    lines.append("itself")
signal.signal(signal.SIGINT, signal.SIG_IGN)
os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, lambda number, frame: lines.append("handled"))
_thread.interrupt_main()
print(lines, dist.barrier())
signal.signal(signal.SIGINT, before)
dist.destroy_process_group()

# %% SIGTERM is handled, ignored and handled again
# forms: script, function, cell
import os
import signal
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
class Term(BaseException):
    pass
def handler(number, frame):
    raise Term(number)
before = signal.signal(signal.SIGTERM, handler)
try:
    dist.barrier()
    os.kill(os.getpid(), signal.SIGTERM)
    print("not here", dist.barrier())
except Term as error:
    print("caught", error.args[0] == signal.SIGTERM, error.__traceback__.tb_next is not None)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.kill(os.getpid(), signal.SIGTERM)
value = torch.ones(1)
dist.all_reduce(value)
print(value.item(), signal.signal(signal.SIGTERM, before) == signal.SIG_IGN, before == signal.SIG_DFL)
dist.destroy_process_group()

# %% signals are blocked, pending and waited for, also in threads
import os
import signal
import threading
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
own = {signal.SIGUSR1, signal.SIGUSR2}
before = signal.pthread_sigmask(signal.SIG_BLOCK, own)
lines = []
signal.signal(signal.SIGUSR2, lambda number, frame: lines.append("handled"))
signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
signal.pthread_kill(threading.get_ident(), signal.SIGUSR2)
dist.barrier(dist.new_group())
print(sorted(signal.sigpending() & own), signal.sigwait([signal.SIGUSR1]), before & own, lines)
def run():
    lines.append(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, []) & own))
    value = torch.ones(1)
    dist.all_reduce(value)
    lines.append(value.item())
thread = threading.Thread(target=run)
thread.start()
thread.join()
print(lines, signal.sigtimedwait([signal.SIGUSR1], 0.01), sorted(signal.pthread_sigmask(signal.SIG_UNBLOCK, own) & own))
print(lines[-1], dist.barrier(), signal.pthread_sigmask(signal.SIG_BLOCK, []) & own)
signal.signal(signal.SIGUSR2, signal.SIG_DFL)
dist.destroy_process_group()

# %% children that nobody reaps, and a handler of their ends
import os
import signal
import subprocess
import sys
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
ended = []
signal.signal(signal.SIGCHLD, lambda number, frame: ended.append(number == signal.SIGCHLD))
process = subprocess.Popen(["sh", "-c", "exit 7"])
value = torch.ones(1)
dist.all_reduce(value)
print(process.wait(), dist.barrier(), ended)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print(subprocess.run(["true"]).returncode, dist.barrier(dist.new_group()), ended, value.item())
print(signal.signal(signal.SIGCHLD, signal.SIG_DFL) == signal.SIG_IGN)
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError as error:
    print(error)
dist.destroy_process_group()
