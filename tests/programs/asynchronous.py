# Programs that wait for collectives in odd ways, or not at all.

# %% collectives in the executor of an asyncio loop
import asyncio
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
async def run():
    loop = asyncio.get_running_loop()
    ticks = []
    async def tick():
        for n in range(3):
            ticks.append(n)
            await asyncio.sleep(0.01)
    ticker = asyncio.create_task(tick())
    value = torch.tensor([rank + 1.0])
    for step in range(3):
        result = await loop.run_in_executor(None, dist.all_reduce, value)
        print(step, result, value.item())
    await ticker
    return ticks
print(asyncio.run(run()))
dist.destroy_process_group()

# %% asyncio to_thread, gather and a timeout
import asyncio
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
async def run():
    value = torch.tensor([rank])
    got = torch.zeros(1, dtype=torch.int64)
    pair = [asyncio.to_thread(dist.send, value, 1 - rank), asyncio.to_thread(dist.recv, got, 1 - rank)]
    print(await asyncio.gather(*pair), got.item())
    try:
        await asyncio.wait_for(asyncio.sleep(5), 0.05)
    except asyncio.TimeoutError as error:
        print(type(error).__name__)
    await asyncio.to_thread(dist.barrier)
asyncio.run(run())
dist.destroy_process_group()

# %% is_completed is polled until it is true
import asyncio
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
value = torch.arange(3) * (rank + 1)
work = dist.all_reduce(value, async_op=True)
while not work.is_completed():
    pass
print(value.tolist(), work.is_completed(), work.wait(), isinstance(work, dist.Work))
async def poll(work):
    while not work.is_completed():
        await asyncio.sleep(0)
    return "done"
values = [value * n for n in range(1, 3)]
works = [dist.all_reduce(value, async_op=True) for value in values]
async def both():
    return await asyncio.gather(*map(poll, works))
print(asyncio.run(both()), [value.tolist() for value in values])
dist.destroy_process_group()

# %% callbacks are chained to the future of a work
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
value = torch.tensor([2.0 + rank])
future = dist.all_reduce(value, async_op=True).get_future()
doubled = future.then(lambda f: [t * 2 for t in f.value()])
named = doubled.then(lambda f: f"sum {f.wait()[0].item()}")
print(type(future).__name__, future.wait(), doubled.wait(), named.wait(), named.done())
bad = future.then(lambda f: 1 / 0)
try:
    bad.wait()
except Exception as error:
    print(type(error).__name__, str(error).splitlines()[0])
seen = []
future.add_done_callback(lambda f: seen.append(f.done()))
print(seen, future.value()[0] is value, future.value()[0].data_ptr() == value.data_ptr())
dist.destroy_process_group()

# %% the values of the futures of several kinds of calls
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
value = torch.tensor([rank])
for name, call in [
    ("broadcast", lambda: dist.broadcast(value, 1, async_op=True)),
    ("reduce", lambda: dist.reduce(torch.tensor([rank]), 0, async_op=True)),
    ("all_gather", lambda: dist.all_gather([torch.zeros(1, dtype=torch.int64) for n in range(2)], torch.tensor([rank]), async_op=True)),
    ("barrier", lambda: dist.barrier(async_op=True)),
]:
    work = call()
    print(name, isinstance(work, dist.Work), work.wait(), work.is_completed(), work.is_success(), work.exception())
    try:
        print("   ", [str(item) for item in torch.utils._pytree.tree_leaves(work.get_future().wait())][: 0 if name == "reduce" else 9])
    except RuntimeError as error:
        print("   ", type(error).__name__)
dist.destroy_process_group()

# %% works that nobody waits for
import gc
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
values = [torch.ones(100) for n in range(50)]
for value in values:
    dist.all_reduce(value, async_op=True)
gc.collect()
dist.barrier()
last = torch.ones(1)
dist.all_reduce(last)
print(last.item(), sum(value.sum().item() for value in values))
dist.destroy_process_group()

# %% a work is waited for twice and from two threads
import threading
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
value = torch.ones(1)
work = dist.all_reduce(value, async_op=True)
print([work.wait(), work.wait(), value.item()])
work = dist.all_reduce(value, async_op=True)
answers = []
threads = [threading.Thread(target=lambda: answers.append(work.wait())) for n in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(answers, value.item(), work.is_completed())
dist.destroy_process_group()

# %% a wait with a timeout, in three spellings
from datetime import timedelta
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
value = torch.ones(1)
print(dist.all_reduce(value, async_op=True).wait(timedelta(seconds=20)))
print(dist.all_reduce(value, async_op=True).wait(timeout=timedelta(seconds=20)))
work = dist.all_reduce(value, async_op=True)
try:
    print(work.wait(20))
except TypeError as error:
    print(type(error).__name__)
    work.wait()
try:
    print(work.wait(timeout=timedelta(seconds=1), again=True))
except TypeError as error:
    print(type(error).__name__)
print(value.item())
dist.destroy_process_group()

# %% a wait runs into its timeout
import os
import time
from datetime import timedelta
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
value = torch.tensor([float(rank)])
if rank == 0:
    work = dist.irecv(value, 1)
    try:
        print("wait", work.wait(timedelta(milliseconds=200)))
    except Exception as error:
        print(type(error).__name__)
    open("late", "w").close()
else:
    while not os.path.exists("late"):
        time.sleep(0.01)
    print("the other has stopped to wait")
    os.remove("late")

# %% isend and irecv awaited in other orders than they were begun
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
peer = 1 - rank
buffers = [torch.zeros(2) for n in range(5)]
receives = [dist.irecv(buffer, src=peer, tag=n) for n, buffer in enumerate(buffers)]
sends = [dist.isend(torch.full((2,), float(10 * rank + n)), dst=peer, tag=n) for n in (3, 1, 4, 0, 2)]
for n in (4, 0, 3, 1, 2):
    print(n, receives[n].wait(), buffers[n].tolist())
print([send.wait() for send in reversed(sends)])
dist.destroy_process_group()

# %% messages with the same tag keep their order
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
got = [torch.zeros(1) for n in range(4)]
if rank == 0:
    works = [dist.isend(torch.tensor([float(n)]), 1) for n in range(4)]
else:
    works = [dist.irecv(item, 0) for item in got]
for work in reversed(works):
    work.wait()
print([item.item() for item in got], len(works))
dist.destroy_process_group()

# %% batch_isend_irecv
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
mine, theirs = torch.arange(3.0) + rank, torch.zeros(3)
operations = [dist.P2POp(dist.isend, mine, 1 - rank), dist.P2POp(dist.irecv, theirs, 1 - rank)]
if rank:
    operations.reverse()
works = dist.batch_isend_irecv(operations)
print(len(works), [work.wait() for work in works], theirs.tolist())
print(operations[0].op is dist.isend, operations[0].op is dist.irecv, operations[0].op.__name__, operations[0].peer)
for bad in ([], [dist.isend], [1]):
    try:
        dist.batch_isend_irecv(bad)
    except Exception as error:
        print(type(error).__name__, error)
try:
    dist.P2POp(dist.all_reduce, mine, 0)
except Exception as error:
    print(type(error).__name__, error)
dist.destroy_process_group()

# %% context variables and context managers around collectives
import contextlib
import contextvars
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
where = contextvars.ContextVar("where", default="outside")
value = torch.ones(1)
def inside():
    where.set("inside")
    dist.all_reduce(value)
    return where.get()
print(contextvars.copy_context().run(inside), where.get(), value.item())
@contextlib.contextmanager
def announced(name):
    print("enter", name, dist.barrier())
    try:
        yield name
    finally:
        print("leave", name, dist.barrier())
with contextlib.suppress(KeyError), announced("a"), announced("b"):
    dist.all_reduce(value)
    raise KeyError(rank)
with contextlib.ExitStack() as stack:
    stack.callback(print, "last", value.item())
    stack.callback(dist.barrier)
dist.destroy_process_group()

# %% a generator and a coroutine hold works that are closed early
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
def steps():
    value = torch.ones(1)
    try:
        while True:
            work = dist.all_reduce(value, async_op=True)
            yield work
            work.wait()
    except GeneratorExit:
        work.wait()
        print("closed at", value.item())
        raise
generator = steps()
for n, work in zip(range(3), generator):
    print(n, type(work.wait()).__name__)
generator.close()
print(next(generator, "ended"))
dist.destroy_process_group()

# %% collectives issued from a then-callback and from a finalizer
import weakref
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
other = dist.new_group()
order = []
first, second = torch.ones(1), torch.ones(1)
def follow(future):
    order.append("callback")
    dist.all_reduce(second, group=other)
    return second.item()
print(dist.all_reduce(first, async_op=True).get_future().then(follow).wait(), first.item())
class Owner:
    pass
owner = Owner()
weakref.finalize(owner, lambda: order.append(dist.all_reduce(second)))
del owner
print(order, second.item())
dist.destroy_process_group()

# %% futures of torch.futures besides those of works
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
own = torch.futures.Future()
value = torch.ones(2)
both = torch.futures.collect_all([own, dist.all_reduce(value, async_op=True).get_future()])
print(own.done(), both.done())
own.set_result("mine")
print([type(f.wait()).__name__ for f in both.wait()], torch.futures.wait_all([own]))
failed = torch.futures.Future()
failed.set_exception(ValueError("no value"))
for call in failed.wait, failed.value:
    try:
        call()
    except Exception as error:
        print(type(error).__name__, error)
dist.destroy_process_group()

# %% a work outlives the group
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
value = torch.ones(1)
work = dist.all_reduce(value, async_op=True)
work.wait()
future = work.get_future()
dist.destroy_process_group()
print(work.wait(), work.is_completed(), future.done(), value.item())
try:
    dist.all_reduce(value)
except ValueError as error:
    print(type(error).__name__, error)
