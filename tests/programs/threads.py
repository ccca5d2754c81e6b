# Programs that communicate from threads of all kinds.

# %% four threads, each on a group of its own
import threading
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
groups = [dist.new_group() for n in range(4)]
results = {n: [] for n in range(4)}
def reduce(n):
    for step in range(20):
        value = torch.tensor([rank + n + step])
        work = dist.all_reduce(value, group=groups[n], async_op=bool(step % 2))
        results[n].append((None if work is None else work.wait(), value.item()))
threads = [threading.Thread(target=reduce, args=(n,), name=f"lane-{n}") for n in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for n in range(4):
    print(threads[n].name, threads[n].is_alive(), results[n][:2], sum(item[1] for item in results[n]))
print(threading.active_count(), threading.current_thread() is threading.main_thread())
dist.destroy_process_group()

# %% a pool's thread raises and its exception has the program's frames
import traceback
from concurrent.futures import ThreadPoolExecutor
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
def wrong(value):
    return dist.all_reduce(value)
def inner(value):
    return wrong(value)
with ThreadPoolExecutor(1, thread_name_prefix="pool") as pool:
    jobs = [pool.submit(inner, value) for value in ("text", None, torch.ones(1), 3)]
for job in jobs:
    error = job.exception()
    names = [frame.name for frame in traceback.extract_tb(error.__traceback__)] if error else []
    print(type(error).__name__, names[1:3], names[-1:], error and (error.__cause__, error.__context__, error.args[0][:40]))
print([job.done() for job in jobs], jobs[2].result(), jobs[0].exception() is jobs[0].exception())
dist.destroy_process_group()

# %% threading.excepthook sees what a thread raised
import threading
import traceback
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
def hook(args):
    names = [frame.name for frame in traceback.extract_tb(args.exc_traceback)]
    print(args.exc_type.__name__, args.exc_value, args.thread.name, names[-1], args.thread is threading.current_thread(), len(args))
threading.excepthook, before = hook, threading.excepthook
def last():
    raise KeyError(rank)
def fail(kind):
    dist.barrier()
    if kind == "key":
        last()
    if kind == "group":
        dist.barrier(group="no group")
    if kind == "exit":
        raise SystemExit(7)
    raise BaseException("all of it")
for kind in "key", "exit", "other":
    thread = threading.Thread(target=fail, args=(kind,), name=kind)
    thread.start()
    thread.join()
threading.excepthook = before
print(before is threading.__excepthook__, threading.active_count(), dist.barrier())
dist.destroy_process_group()

# %% thread-local values and names in every thread that communicates
import threading
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
class Local(threading.local):
    def __init__(self, start):
        self.calls = [start]
local = Local(10)
seen = []
def run():
    for n in range(3):
        value = torch.tensor([float(n)])
        dist.all_reduce(value)
        local.calls.append(value.item())
    seen.append((threading.current_thread().name, local.calls, sorted(vars(local))))
for n in range(2):
    thread = threading.Thread(target=run, name=f"thread {n} of {rank}")
    thread.start()
    thread.join()
print(seen, local.calls, sorted(vars(local)))
print(threading.active_count(), type(threading.current_thread()).__name__, threading.current_thread().name)
dist.destroy_process_group()

# %% two threads take turns by a condition, on one group
import threading
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
turn, condition, order = [0], threading.Condition(), []
def play(me):
    for step in range(5):
        with condition:
            assert condition.wait_for(lambda: turn[0] == me, timeout=20)
            value = torch.tensor([me + 1.0, step])
            if step % 2:
                dist.all_reduce(value)
            else:
                dist.broadcast(value, me)
            order.append((me, step, value.tolist()))
            turn[0] = 1 - me
            condition.notify_all()
threads = [threading.Thread(target=play, args=(me,)) for me in (1, 0)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(order)
dist.destroy_process_group()

# %% daemons use the program's names until the very end
# forms: script, function
import threading
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
table = {"calls": 0}
value = torch.ones(4)
def complain(args, say=print):
    say("a daemon failed", args.exc_type, args.exc_value)
threading.excepthook = complain
def tick(add):
    table["calls"] += dist.is_initialized() + len(table) + add
def daemon():
    while True:
        tick(1)
        time.sleep(0.0005)
for n in range(3):
    threading.Thread(target=daemon, daemon=True).start()
time.sleep(0.1)
dist.all_reduce(value)
print(value.tolist(), table["calls"] > 0, threading.active_count())

# %% a daemon waits in a store when the program ends
# forms: script, function
import threading
import time
import datetime
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
store = dist.HashStore()
store.set_timeout(datetime.timedelta(seconds=100))
def complain(args, say=print):
    say("a daemon failed", args.exc_type, args.exc_value)
threading.excepthook = complain
def wait(call):
    try:
        call()
    finally:
        print("a daemon's wait ended")
for call in (lambda: store.wait(["never"])), (lambda: store.get("nothing")), (lambda: torch.futures.Future().wait()), threading.Event().wait:
    threading.Thread(target=wait, args=(call,), daemon=True).start()
time.sleep(0.05)
value = torch.ones(2)
dist.all_reduce(value)
store.set("another", "x")
print(value.tolist(), store.get("another"), threading.active_count())
dist.destroy_process_group()

# %% a thread outlives the program's last line and communicates
# forms: script, function
import atexit
import threading
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
other = dist.new_group()
done = []
atexit.register(lambda: print("at exit", done, threading.active_count()))
def late():
    while threading.main_thread().is_alive():
        time.sleep(0.01)
    value = torch.tensor([rank + 5.0])
    dist.all_reduce(value, group=other)
    done.append(value.item())
    print("late", value.item(), dist.get_world_size(other), threading.main_thread().is_alive())
    second = threading.Thread(target=later, args=(value,))
    second.start()
def later(value):
    print("later", dist.broadcast(value.add_(rank), 1), value.item(), dist.is_initialized())
    dist.destroy_process_group()
    done.append(dist.is_initialized())
thread = threading.Thread(target=late)
thread.start()
dist.barrier()
print("last line", thread.is_alive(), done)

# %% messages in both directions from threads that are joined
import threading
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank, other = dist.get_rank(), 1 - dist.get_rank()
got = [torch.zeros(3) for n in range(6)]
def send(n):
    dist.send(torch.arange(3.0) + 10 * n + 100 * rank, other, tag=n)
def receive(n):
    sources.append(dist.recv(got[n], other if n % 2 else None, tag=n))
sources = []
threads = [threading.Thread(target=call, args=(n,)) for n in range(6) for call in (receive, send)]
for thread in reversed(threads):
    thread.start()
for thread in threads:
    thread.join(20)
print([item.tolist() for item in got], sources, [thread.is_alive() for thread in threads].count(True))
dist.destroy_process_group()

# %% timers that fire, that are cancelled and that communicate
import threading
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
lines = []
def fire(word, times=2):
    lines.append((word, times, dist.barrier(), type(threading.current_thread()).__name__))
first = threading.Timer(0.02, fire, ("first",), {"times": 3})
never = threading.Timer(30, fire, ("never",))
never.start()
first.start()
first.join()
never.cancel()
never.join()
print(lines, first.finished.is_set(), never.is_alive(), threading.active_count())
dist.destroy_process_group()

# %% callbacks of executor futures communicate, and one raises
import logging
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
logger = logging.getLogger("concurrent.futures")
class Show(logging.Handler):
    def emit(self, record):
        print("logged", record.getMessage()[:30], record.exc_info[0].__name__, record.exc_info[1])
handler = Show()
logger.addHandler(handler)
logger.propagate = False
gate = threading.Event()
def job(value):
    gate.wait()
    return dist.all_reduce(value, async_op=True)
def after(future):
    value = torch.ones(1)
    dist.all_reduce(value)
    print("after", future.done(), value.item(), threading.current_thread().name)
    raise ValueError("from a callback")
with ThreadPoolExecutor(1, "one", initializer=dist.barrier) as pool:
    value = torch.full((2,), 3.0)
    future = pool.submit(job, value)
    future.add_done_callback(after)
    gate.set()
    future.result().wait()
print([type(item.result()).__name__ for item in as_completed([future])], len(wait([future]).done))
print(value.tolist(), threading.active_count(), list(map(type, (gate, future)))[0].__name__)
logger.removeHandler(handler)
logger.propagate = True
dist.destroy_process_group()

# %% threads with small stacks
import threading
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
before = threading.stack_size(256 * 1024)
lines = []
def run(depth):
    if depth:
        return run(depth - 1)
    value = torch.ones(1000)
    dist.all_reduce(value)
    objects = [None, None]
    dist.all_gather_object(objects, {"value": value[:2].tolist()})
    group = dist.new_group()
    dist.barrier(group)
    lines.append((value.sum().item(), objects))
for n in range(3):
    thread = threading.Thread(target=run, args=(20 * n,))
    thread.start()
    thread.join()
print(before, threading.stack_size(before), lines)
dist.destroy_process_group()

# %% a bare thread's exception goes to the hook for unraisable ones
import _thread
import sys
import threading
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
lines, done = [], threading.Event()
def hook(unraisable):
    lines.append((unraisable.exc_type.__name__, str(unraisable.exc_value), getattr(unraisable.object, "__name__", unraisable.object)))
    done.set()
sys.unraisablehook, before = hook, sys.unraisablehook
def fail():
    dist.barrier()
    raise LookupError("bare")
_thread.start_new_thread(fail, ())
print(done.wait(20), lines, threading.active_count() >= 1)
sys.unraisablehook = before
print(before is sys.__unraisablehook__, dist.barrier())
dist.destroy_process_group()

# %% one thread makes a group, another uses it, a third destroys it
import threading
import weakref
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
box = {}
def make():
    box["group"] = dist.new_group([1, 0])
def use():
    value = torch.ones(2)
    work = dist.all_reduce(value, group=box["group"], async_op=True)
    box["result"] = work.wait(), value.tolist(), dist.get_process_group_ranks(box["group"])
def drop():
    dist.destroy_process_group(box.pop("group"))
for call in make, use, drop, make, use, drop:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    gone = weakref.ref(thread)
    del thread
    print(call.__name__, sorted(box), box.get("result"), gone())
dist.destroy_process_group()

# %% a subclass of Thread that keeps its result, and Thread.run replaced
import threading
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
class Kept(threading.Thread):
    value = None
    def run(self):
        self.value = torch.tensor([dist.get_rank() + 1.0])
        self.result = dist.all_reduce(self.value, dist.ReduceOp.PRODUCT)
    def join(self, *args):
        super().join(*args)
        return self.result, self.value.item()
    def __eq__(self, other):
        raise TypeError("threads are not compared")
    __hash__ = threading.Thread.__hash__
kept = Kept()
kept.start()
print(kept.join())
calls, run = [], threading.Thread.run
def counted(self):
    calls.append(self.name)
    run(self)
threading.Thread.run = counted
plain = threading.Thread(target=dist.barrier, name="plain")
plain.start()
plain.join()
value = torch.ones(1)
dist.all_reduce(value)
work = dist.all_reduce(value, async_op=True)
work.wait()
group = dist.new_group()
dist.barrier(group)
threading.Thread.run = run
print(calls, value.item(), threading.active_count())
dist.destroy_process_group()

# %% locks held while a thread communicates, and ones that count
import threading
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
lock, again, few = threading.Lock(), threading.RLock(), threading.BoundedSemaphore(2)
lines = []
def run(n):
    with few, again, again:
        value = torch.full((1,), float(n))
        dist.all_reduce(value)
        lines.append((value.item(), again._is_owned(), lock.locked()))
with lock:
    for n in range(3):
        thread = threading.Thread(target=run, args=(n,))
        thread.start()
        thread.join()
print(lines, lock.acquire(timeout=0), few.acquire(), few.acquire(), few.acquire(blocking=False))
try:
    again.release()
except RuntimeError as error:
    print(error)
barrier = threading.Barrier(2, action=lambda: lines.append(dist.barrier()))
thread = threading.Thread(target=barrier.wait)
thread.start()
print(barrier.wait() in (0, 1), thread.join(), barrier.broken, lines[-1])
dist.destroy_process_group()
