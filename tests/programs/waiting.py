# Correct programs that wait long or oddly: somebody else acts later (a thread, a child, a signal, a late rank), so none may ever be ended.

# %% a daemon thread sends what breaks the tie
# forms: script
import threading
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
t = torch.zeros(1)

def later():
    time.sleep(3)
    dist.send(torch.tensor([7.0]), 1)

if rank == 0:
    threading.Thread(target=later, daemon=True).start()
    dist.recv(t, 1)
else:
    dist.recv(t, 0)
    dist.send(t * 2, 0)
print(rank, "has", t.item())
dist.destroy_process_group()

# %% a bare thread of the _thread module sends
# forms: script
import _thread
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank, other = dist.get_rank(), 1 - dist.get_rank()
t = torch.zeros(2)

def later(value):
    time.sleep(3)
    dist.send(torch.full((2,), value), other)

_thread.start_new_thread(later, (float(rank + 1),))
dist.recv(t, other)
print(rank, "received", t.tolist())
time.sleep(0.3)
dist.barrier()
dist.destroy_process_group()

# %% bare threads that have not begun when their ranks wait
# forms: script
import _thread
import os
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
rank, other = dist.get_rank(), 1 - dist.get_rank()
t, value = torch.zeros(2), torch.full((2,), rank + 1.0)

def later():
    time.sleep(2)
    dist.send(value, other)

_thread.start_new_thread(later, ())
dist.recv(t, other)
print(rank, "received", t.tolist())
dist.barrier()
dist.destroy_process_group()

# %% bare threads that have not begun when their ranks wait, after others that have ended
# forms: script
import _thread
import os
import threading
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
rank, other = dist.get_rank(), 1 - dist.get_rank()
t, value = torch.zeros(2), torch.full((2,), rank + 1.0)

for _ in range(5):
    ended = threading.Thread(target=int)
    ended.start()
    for _ in range(100):
        dist.all_reduce(t)
    ended.join()

def later():
    time.sleep(2)
    dist.send(value, other)

_thread.start_new_thread(later, ())
dist.recv(t, other)
print(rank, "received", t.tolist())
dist.barrier()
dist.destroy_process_group()

# %% a thread of gloo's sends later what both ranks wait for, after many calls
# forms: script
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank, t = dist.get_rank(), torch.zeros(2)

for _ in range(300):
    dist.all_reduce(t)

def later(_):
    time.sleep(2)
    dist.send(torch.ones(2), 1)

if rank == 0:
    sent = dist.all_reduce(t, async_op=True).get_future().then(later)
    dist.recv(t, 1)
    sent.wait()
else:
    time.sleep(0.5)  # the other one says first what is to be done at the end
    dist.all_reduce(t)
    dist.recv(t, 0)
    dist.send(t + 1, 0)
print(rank, "received", t.tolist())
dist.barrier()
dist.destroy_process_group()

# %% a timer sets the key that both ranks wait for
# forms: script
import threading
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if rank == 0 else None
port = torch.tensor([server.port if rank == 0 else 0])
dist.broadcast(port, 0)
store = dist.TCPStore("127.0.0.1", int(port), is_master=False)
if rank == 0:
    threading.Timer(3.0, server.set, ("go", "now")).start()
store.wait(["go"])
print(rank, store.get("go").decode())
dist.barrier()
dist.destroy_process_group()

# %% a job of a thread pool runs the collective
# forms: script
import time
from concurrent.futures import ThreadPoolExecutor
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()

def job(delay):
    time.sleep(delay)
    t = torch.tensor([rank + 1.0])
    dist.all_reduce(t)
    return t.item()

with ThreadPoolExecutor(1) as pool:
    print(rank, "sum", pool.submit(job, 3 + 0.5 * rank).result())
dist.destroy_process_group()

# %% a thread with its own group while the main threads meet in a barrier
# forms: script
import threading
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
group = dist.new_group([0, 1])
t = torch.tensor([rank + 10.0])

def work():
    time.sleep(3 if rank == 1 else 0)
    dist.all_reduce(t, group=group)

thread = threading.Thread(target=work)
thread.start()
if rank == 1:
    thread.join()
dist.barrier()
thread.join()
print(rank, t.item())
dist.destroy_process_group()

# %% a helper thread waits in a store while the main threads compute together
# forms: script
import threading
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if rank == 0 else None
port = torch.tensor([server.port if rank == 0 else 0])
dist.broadcast(port, 0)
store = dist.TCPStore("127.0.0.1", int(port), is_master=False)
helper = threading.Thread(target=store.wait, args=(["stop"],))
helper.start()
total = torch.zeros(1)
for step in range(5):
    time.sleep(0.7 * (rank == step % 2))
    part = torch.tensor([float(rank + step)])
    dist.all_reduce(part)
    total += part
if rank == 0:
    threading.Timer(3.0, server.set, ("stop", "yes")).start()
helper.join()
print(rank, "total", total.item())
dist.barrier()
dist.destroy_process_group()

# %% two threads send and receive at the same time with tags of their own
# forms: script
import threading
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank, other = dist.get_rank(), 1 - dist.get_rank()
got = torch.zeros(2)

def receiver(tag):
    dist.recv(got[tag - 1:tag], other, tag=tag)

def sender(tag):
    time.sleep(1.5 * tag)
    dist.send(torch.tensor([tag * 10.0 + rank]), other, tag=tag)

threads = [threading.Thread(target=f, args=(tag,)) for tag in (1, 2) for f in (receiver, sender)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(rank, got.tolist())
dist.destroy_process_group()

# %% a thread polls is_completed and sets the event that main waits on
# forms: script
import threading
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
t = torch.tensor([rank + 1.0])
done = threading.Event()

def poll(work):
    while not work.is_completed():
        time.sleep(0.2)
    done.set()

if rank == 1:
    time.sleep(3.5)
work = dist.all_reduce(t, async_op=True)
threading.Thread(target=poll, args=(work,), daemon=True).start()
done.wait()
print(rank, t.item())
dist.destroy_process_group()

# %% main waits on a queue that a receiving thread fills
# forms: script
import queue
import threading
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
box = queue.Queue()

def receive():
    for _ in range(3):
        t = torch.zeros(1)
        dist.recv(t, 0)
        box.put(t.item())

if rank == 0:
    for i in range(3):
        time.sleep(1.2)
        dist.send(torch.tensor([float(i)]), 1)
else:
    threading.Thread(target=receive, daemon=True).start()
    print([box.get() for _ in range(3)])
dist.barrier()
dist.destroy_process_group()

# %% an asyncio loop sleeps before it sends
# forms: script
import asyncio
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank, other = dist.get_rank(), 1 - dist.get_rank()
t = torch.zeros(1)

async def speak():
    await asyncio.sleep(3)
    await asyncio.to_thread(dist.send, torch.tensor([rank + 4.0]), other)

async def main():
    await asyncio.gather(speak(), asyncio.to_thread(dist.recv, t, other))

asyncio.run(main())
print(rank, "heard", t.item())
dist.destroy_process_group()

# %% a daemon thread runs the collective while its main waits for the answer
# forms: script
import threading
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
t = torch.tensor([rank + 1.0])
answer = torch.zeros(1)

def later():
    time.sleep(3)
    dist.all_reduce(t)

if rank == 0:
    thread = threading.Thread(target=later, daemon=True)
    thread.start()
    dist.recv(answer, 1)
    thread.join()
else:
    dist.all_reduce(t)
    dist.send(t * 10, 0)
print(rank, t.item(), answer.item())
dist.destroy_process_group()

# %% a thread starts a thread that starts the thread that broadcasts
# forms: script
import threading
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
t = torch.tensor([9.0 if rank == 0 else 0.0])
done = threading.Event()

def chain(depth):
    time.sleep(1)
    if depth:
        threading.Thread(target=chain, args=(depth - 1,), daemon=True).start()
    else:
        dist.broadcast(t, 0)
        done.set()

if rank == 0:
    chain_start = threading.Thread(target=chain, args=(2,), daemon=True)
    chain_start.start()
    done.wait()
else:
    dist.broadcast(t, 0)
print(rank, t.item())
dist.destroy_process_group()

# %% main waits for a lock that its thread holds while it receives
# forms: script
import threading
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
t = torch.zeros(1)
lock, taken = threading.Lock(), threading.Event()

def receive():
    with lock:
        taken.set()
        dist.recv(t, 0)

if rank == 1:
    threading.Thread(target=receive).start()
    taken.wait()
    lock.acquire()
    print("the lock is free and t is", t.item())
else:
    time.sleep(3.5)
    dist.send(torch.ones(1), 1)
dist.destroy_process_group()

# %% a process pool ends its job and the callback sets the key
# forms: script
import time
from concurrent.futures import ProcessPoolExecutor
import multiprocessing
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if rank == 0 else None
port = torch.tensor([server.port if rank == 0 else 0])
dist.broadcast(port, 0)
store = dist.TCPStore("127.0.0.1", int(port), is_master=False)
if rank == 0:
    pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork"))
    pool.submit(time.sleep, 3).add_done_callback(lambda job: server.set("slept", "well"))
print(rank, store.get("slept").decode())
dist.barrier()
dist.destroy_process_group()

# %% one rank is initialized by a thread after three seconds
# forms: script
import os
import threading
import time
import torch
import torch.distributed as dist

def late():
    time.sleep(3)
    dist.init_process_group("gloo")

if os.environ["RANK"] == "1":
    thread = threading.Thread(target=late)
    thread.start()
    thread.join()
else:
    dist.init_process_group("gloo")
t = torch.ones(1)
dist.all_reduce(t)
print(dist.get_rank(), t.item())
dist.destroy_process_group()

# %% a thread makes the new group while its main waits for an event
# forms: script
import threading
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
ready, made = threading.Event(), []

def make():
    time.sleep(3)
    made.append(dist.new_group([0, 1]))
    ready.set()

if rank == 0:
    threading.Thread(target=make, daemon=True).start()
    ready.wait()
else:
    made.append(dist.new_group([0, 1]))
t = torch.tensor([rank + 5.0])
dist.all_reduce(t, group=made[0])
print(rank, t.item())
dist.destroy_process_group()

# %% an alarm's handler sends while main pauses
# forms: script
import signal
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
t = torch.zeros(1)
if rank == 1:
    signal.signal(signal.SIGALRM, lambda number, frame: dist.send(torch.tensor([3.0]), 0))
    signal.alarm(3)
    signal.pause()
    print("the alarm has rung")
else:
    dist.recv(t, 1)
    print("received", t.item())
dist.destroy_process_group()

# %% a signal wakes a thread while both mains are in recv
# forms: script
import signal
import socket
import threading
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
t = torch.zeros(1)
near, far = socket.socketpair()
near.setblocking(False)

def woken():
    far.recv(1)
    dist.send(torch.tensor([6.0]), 1)

if rank == 0:
    threading.Thread(target=woken, daemon=True).start()
    signal.signal(signal.SIGALRM, lambda number, frame: None)
    signal.set_wakeup_fd(near.fileno())
    signal.setitimer(signal.ITIMER_REAL, 3)
    dist.recv(t, 1)
else:
    dist.recv(t, 0)
    dist.send(t + 1, 0)
print(rank, t.item())
dist.destroy_process_group()

# %% four threads receive by tag what is sent in reverse
# forms: script
import threading
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
got = torch.zeros(4)
if rank == 0:
    for tag in (3, 2, 1, 0):
        time.sleep(1)
        dist.send(torch.tensor([tag * 1.5]), 1, tag=tag)
else:
    threads = [threading.Thread(target=dist.recv, args=(got[i:i + 1], 0), kwargs={"tag": i}) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(got.tolist())
dist.destroy_process_group()

# %% three ranks wait in a ring and one thread starts it
# forms: script
# ranks: 3
import threading
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()
t = torch.zeros(1)

def start():
    time.sleep(4)
    dist.send(torch.tensor([1.0]), 1)

if rank == 0:
    threading.Thread(target=start).start()
dist.recv(t, (rank - 1) % n)
if rank != 0:
    dist.send(t + 1, (rank + 1) % n)
print(rank, t.item())
dist.destroy_process_group()

# %% main thread waits in a HashStore that a thread fills
# forms: script
import threading
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
store = dist.HashStore()

def fill():
    time.sleep(3 + 0.5 * rank)
    store.set("word", f"hash{rank}")

threading.Thread(target=fill, daemon=True).start()
store.wait(["word"])
print(store.get("word").decode())
dist.barrier()
dist.destroy_process_group()

# %% a subprocess sets the key that all wait for
# forms: script
import subprocess
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if rank == 0 else None
port = torch.tensor([server.port if rank == 0 else 0])
dist.broadcast(port, 0)
store = dist.TCPStore("127.0.0.1", int(port), is_master=False)
child = """
import sys, time
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False)
time.sleep(2)
store.set("from the child", "hello")
"""
if rank == 0:
    process = subprocess.Popen([sys.executable, "-c", child, str(int(port))])
store.wait(["from the child"])
print(rank, store.get("from the child").decode())
dist.barrier()
if rank == 0:
    process.wait()
dist.destroy_process_group()

# %% a forked child sets a key in a FileStore
# forms: script
import os
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
store = dist.FileStore(os.path.abspath("keys"), -1)
if rank == 1:
    pid = os.fork()
    if pid == 0:
        time.sleep(3)
        dist.FileStore(os.path.abspath("keys"), -1).set("child", "done")
        os._exit(0)
store.wait(["child"])
print(rank, store.get("child").decode())
if rank == 1:
    os.waitpid(pid, 0)
dist.barrier()
if rank == 0:
    os.remove("keys")
dist.destroy_process_group()

# %% a multiprocessing child by fork sets a key in a TCPStore
# forms: script
import multiprocessing
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if rank == 0 else None
port = torch.tensor([server.port if rank == 0 else 0])
dist.broadcast(port, 0)
store = dist.TCPStore("127.0.0.1", int(port), is_master=False)

def child(port):
    time.sleep(3)
    dist.TCPStore("127.0.0.1", port, is_master=False).set("key", "forked")

if rank == 1:
    process = multiprocessing.get_context("fork").Process(target=child, args=(int(port),))
    process.start()
print(rank, store.get("key").decode())
if rank == 1:
    process.join()
dist.barrier()
dist.destroy_process_group()

# %% a multiprocessing child by spawn sets a key in a FileStore
# forms: script
import multiprocessing
import os
import time
import torch
import torch.distributed as dist

def child(path):
    time.sleep(2)
    dist.FileStore(path, -1).set("key", "spawned")

if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank, path = dist.get_rank(), os.path.abspath("keys")
    if rank == 0:
        process = multiprocessing.get_context("spawn").Process(target=child, args=(path,))
        process.start()
    store = dist.FileStore(path, -1)
    store.wait(["key"])
    print(rank, store.get("key").decode())
    dist.barrier()
    if rank == 0:
        process.join()
        os.remove(path)
    dist.destroy_process_group()

# %% a child of rank 0 is the third member of the world
# forms: script
import os
import subprocess
import sys
import torch
import torch.distributed as dist
path = os.path.abspath("world")
member = f"""
import time
import torch
import torch.distributed as dist
time.sleep(2)
dist.init_process_group("gloo", store=dist.FileStore({path!r}, 3), rank=2, world_size=3)
t = torch.tensor([100.0])
dist.all_reduce(t)
dist.destroy_process_group()
"""
rank = int(os.environ["RANK"])
if rank == 0:
    child = subprocess.Popen([sys.executable, "-c", member])
dist.init_process_group("gloo", store=dist.FileStore(path, 3), rank=rank, world_size=3)
t = torch.tensor([rank + 1.0])
dist.all_reduce(t)
print(rank, "of", dist.get_world_size(), "sum", t.item())
dist.destroy_process_group()
if rank == 0:
    child.wait()
    if os.path.exists(path):
        os.remove(path)

# %% a forked member of the world sends late to both ranks
# forms: script
import os
import time
import torch
import torch.distributed as dist
path, rank = os.path.abspath("world"), int(os.environ["RANK"])
pid = os.fork() if rank == 1 else -1
me = 2 if pid == 0 else rank
dist.init_process_group("gloo", store=dist.FileStore(path, 3), rank=me, world_size=3)
t = torch.zeros(1)
if me == 2:
    for peer in (0, 1):
        time.sleep(2)
        dist.send(torch.tensor([peer + 0.5]), peer)
    os._exit(0)
dist.recv(t, 2)
print(rank, t.item())
if rank == 1:
    os.waitpid(pid, 0)
    dist.send(t, 0)
else:
    dist.recv(t, 1)
    os.remove(path)
dist.destroy_process_group()

# %% a rank becomes another python that joins the others late
# forms: script
import os
import sys
import torch
import torch.distributed as dist
program = """
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
time.sleep(3)
t = torch.tensor([50.0])
dist.all_reduce(t)
print("the new python has", t.item())
dist.destroy_process_group()
"""
if os.environ["RANK"] == "1":
    os.execv(sys.executable, [sys.executable, "-c", program])
dist.init_process_group("gloo")
t = torch.tensor([5.0])
dist.all_reduce(t)
print("rank 0 has", t.item())
dist.destroy_process_group()

# %% a child detached by a double fork sets the key
# forms: script
import os
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank, path = dist.get_rank(), os.path.abspath("keys")
if rank == 0 and (pid := os.fork()) == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(3)
        dist.FileStore(path, -1).set("orphan", "was here")
    os._exit(0)
store = dist.FileStore(path, -1)
store.wait(["orphan"])
print(rank, store.get("orphan").decode())
dist.barrier()
if rank == 0:
    os.waitpid(pid, 0)
    os.remove(path)
dist.destroy_process_group()

# %% a grandchild in a session of its own writes the file
# forms: script
import os
import subprocess
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
if rank == 1:
    script = "(sleep 3; echo 42 > note.new; mv note.new note) & exit 0"
    subprocess.run(["sh", "-c", script], start_new_session=True)
else:
    while not os.path.exists("note"):
        time.sleep(0.25)
    with open("note") as f:
        t = torch.tensor([float(f.read())])
    os.remove("note")
t = t if rank == 0 else torch.zeros(1)
dist.broadcast(t, 0)
print(rank, t.item())
dist.destroy_process_group()

# %% the ranks only start workers and the workers communicate
# forms: script
import multiprocessing
import os
import time
import torch
import torch.distributed as dist
rank, path = int(os.environ["RANK"]), os.path.abspath("workers")

def worker(number):
    dist.init_process_group("gloo", store=dist.FileStore(path, 4), rank=number, world_size=4)
    time.sleep(3 if number == 2 else 0)
    t = torch.tensor([float(number)])
    dist.all_reduce(t)
    dist.destroy_process_group()
    raise SystemExit(int(t))

context = multiprocessing.get_context("fork")
workers = [context.Process(target=worker, args=(rank * 2 + i,)) for i in range(2)]
for w in workers:
    w.start()
for w in workers:
    w.join()
print(rank, [w.exitcode for w in workers])

# %% every rank leaves its work to a subprocess
# forms: script
import subprocess
import sys
import torch
import torch.distributed as dist
program = """
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
time.sleep(2.5 * dist.get_rank())
t = torch.ones(3)
dist.all_reduce(t)
print(dist.get_rank(), t.tolist())
dist.destroy_process_group()
"""
result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
print("my child said", result.stdout.strip(), result.returncode)

# %% the parent only waits and its forked child is the rank
# forms: script
import os
import time
import torch
import torch.distributed as dist
pid = os.fork()
if pid:
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    print("my child ended with", code)
    raise SystemExit(code)
dist.init_process_group("gloo")
rank = dist.get_rank()
time.sleep(3 if rank == 0 else 0)
t = torch.tensor([rank + 2.0])
dist.all_reduce(t)
print(rank, "in the child", t.item(), flush=True)
dist.destroy_process_group()
os._exit(0)

# %% a store served in a subprocess that all ranks connect to
# forms: script
import subprocess
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
server = """
import time
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
time.sleep(3)
store.set("dinner", "is served")
store.wait(["closed"])
"""
port = torch.zeros(1, dtype=torch.int64)
if rank == 0:
    child = subprocess.Popen([sys.executable, "-c", server], stdout=subprocess.PIPE)
    port[0] = int(child.stdout.readline())
dist.broadcast(port, 0)
store = dist.TCPStore("127.0.0.1", int(port), is_master=False)
print(rank, "dinner", store.get("dinner").decode())
dist.barrier()
if rank == 0:
    store.set("closed", "yes")
    child.wait()
dist.destroy_process_group()

# %% keys arrive one after another from a thread
# forms: script
import threading
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if rank == 0 else None
port = torch.tensor([server.port if rank == 0 else 0])
dist.broadcast(port, 0)
store = dist.TCPStore("127.0.0.1", int(port), is_master=False)

def feed():
    for key in "cba":
        time.sleep(1.2)
        server.set(key, key.upper())

if rank == 0:
    threading.Thread(target=feed, daemon=True).start()
store.wait(["a", "b", "c"])
print(rank, [store.get(key).decode() for key in "abc"])
dist.barrier()
dist.destroy_process_group()

# %% a wait with a long timeout after set_timeout
# forms: script
import time
from datetime import timedelta
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if rank == 0 else None
port = torch.tensor([server.port if rank == 0 else 0])
dist.broadcast(port, 0)
if rank == 0:
    time.sleep(3.5)
    server.set("late", "but here")
else:
    store = dist.TCPStore("127.0.0.1", int(port), is_master=False)
    store.set_timeout(timedelta(milliseconds=100))
    store.wait(["late"], timedelta(seconds=600))
    print(store.get("late").decode())
dist.barrier()
dist.destroy_process_group()

# %% one rank polls check while the other waits for its word
# forms: script
import threading
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if rank == 0 else None
port = torch.tensor([server.port if rank == 0 else 0])
dist.broadcast(port, 0)
store = dist.TCPStore("127.0.0.1", int(port), is_master=False)
if rank == 0:
    threading.Timer(3.0, server.set, ("open", "1")).start()
    store.wait(["seen"])
    print("rank 1 has seen", store.get("seen").decode())
else:
    while not store.check(["open"]):
        time.sleep(0.3)
    store.set("seen", store.get("open"))
dist.barrier()
dist.destroy_process_group()

# %% a key is deleted and set again
# forms: script
import threading
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if rank == 0 else None
port = torch.tensor([server.port if rank == 0 else 0])
dist.broadcast(port, 0)
store = dist.TCPStore("127.0.0.1", int(port), is_master=False)

def again():
    time.sleep(3)
    server.set("page", "second")

if rank == 0:
    server.set("page", "first")
    print(server.get("page").decode(), server.delete_key("page"))
    threading.Thread(target=again, daemon=True).start()
dist.barrier()
store.wait(["page"])
print(rank, store.get("page").decode())
dist.barrier()
dist.destroy_process_group()

# %% a prefix of a FileStore waits for a child's key
# forms: script
import os
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank, path = dist.get_rank(), os.path.abspath("shared")
store = dist.PrefixStore("inner", dist.PrefixStore("outer", dist.FileStore(path, -1)))
if rank == 0 and (pid := os.fork()) == 0:
    time.sleep(3.2)
    dist.PrefixStore("outer/inner", dist.FileStore(path, -1)).set("key", "prefixed")
    os._exit(0)
print(rank, store.get("key").decode())
dist.barrier()
if rank == 0:
    os.waitpid(pid, 0)
    os.remove(path)
dist.destroy_process_group()

# %% a queue of the store is filled late by a forked child
# forms: script
import os
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if rank == 0 else None
port = torch.tensor([server.port if rank == 0 else 0])
dist.broadcast(port, 0)
store = dist.TCPStore("127.0.0.1", int(port), is_master=False)
if rank == 1 and (pid := os.fork()) == 0:
    feeder = dist.TCPStore("127.0.0.1", int(port), is_master=False)
    for name in ("queue0", "queue1"):
        time.sleep(1.5)
        feeder.queue_push(name, "for " + name)
    os._exit(0)
print(rank, store.queue_pop(f"queue{rank}").decode())
if rank == 1:
    os.waitpid(pid, 0)
dist.barrier()
dist.destroy_process_group()

# %% ranks take turns by compare_set
# forms: script
# ranks: 3
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()
server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if rank == 0 else None
port = torch.tensor([server.port if rank == 0 else 0])
dist.broadcast(port, 0)
store = dist.TCPStore("127.0.0.1", int(port), is_master=False)
if rank == 0:
    store.set("turn", "2")
dist.barrier()
while store.get("turn").decode() != str(rank):
    time.sleep(0.3)
time.sleep(1)
print(rank, "had its turn")
store.compare_set("turn", str(rank), str((rank - 1) % n))
dist.barrier()
dist.destroy_process_group()

# %% everybody has ended but an orphan that sets the key
# forms: script
# ranks: 3
import os
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
rank, path = dist.get_rank(), os.path.abspath("testament")
if rank == 2:
    if os.fork() == 0:
        time.sleep(4)
        dist.FileStore(path, -1).set("heir", "rank 0")
        os._exit(0)
    print("rank 2 leaves a child behind")
elif rank == 0:
    print("the heir is", dist.FileStore(path, -1).get("heir").decode())
    os.remove(path)
dist.destroy_process_group()

# %% a rank that sleeps before it initializes
# forms: script
import os
import time
import torch
import torch.distributed as dist
if os.environ["RANK"] == "0":
    time.sleep(4)
dist.init_process_group("gloo")
t = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(t)
print(dist.get_rank(), t.item())
dist.destroy_process_group()

# %% a rank that comes seven seconds late to initialize
# forms: script
# ranks: 3
import os
import time
import torch
import torch.distributed as dist
if os.environ["RANK"] == "2":
    time.sleep(7)
dist.init_process_group("gloo")
print(dist.get_rank(), "of", dist.get_world_size())
dist.barrier()
dist.destroy_process_group()

# %% a rank that sleeps before each new group
# forms: script
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
groups = []
for i in range(2):
    time.sleep(2 * (rank == i))
    groups.append(dist.new_group([0, 1]))
t = torch.tensor([rank + 1.0])
for group in groups:
    dist.all_reduce(t, group=group)
print(rank, t.item())
dist.destroy_process_group()

# %% a rank that sleeps before the first collective
# forms: script
# ranks: 3
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
time.sleep(6.5 if rank == 1 else 0)
parts = [torch.zeros(1) for _ in range(3)]
dist.all_gather(parts, torch.tensor([rank * 1.0]))
print(rank, [p.item() for p in parts])
dist.destroy_process_group()

# %% a rank that sleeps before destroy
# forms: script
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
dist.barrier()
time.sleep(4 * rank)
print(rank, "destroys")
dist.destroy_process_group()

# %% a FIFO that a child feeds slowly
# forms: script
import os
import subprocess
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
t = torch.zeros(3)
if rank == 0:
    os.mkfifo("pipe")
    child = subprocess.Popen(["sh", "-c", "for i in 1 2 3; do sleep 1.1; echo $i; done > pipe"])
    with open("pipe") as pipe:
        t = torch.tensor([float(line) for line in pipe])
    child.wait()
    os.remove("pipe")
dist.broadcast(t, 0)
print(rank, t.tolist())
dist.destroy_process_group()

# %% ranks wait in open of a FIFO without a writer
# forms: script
import os
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
rank = dist.get_rank()
name = f"pipe{rank}"
os.mkfifo(name)
pid = os.fork()
if pid == 0:
    time.sleep(3.5)
    with open(name, "w") as pipe:
        pipe.write(f"for {rank}")
    os._exit(0)
with open(name) as pipe:
    print(rank, pipe.read())
os.waitpid(pid, 0)
os.remove(name)
dist.destroy_process_group()

# %% ranks poll for a slow file
# forms: script
import os
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
if rank == 0:
    time.sleep(3.5)
    torch.save(torch.arange(4), "weights.part")
    os.rename("weights.part", "weights.pt")
while not os.path.exists("weights.pt"):
    time.sleep(0.5)
print(rank, torch.load("weights.pt").tolist())
dist.barrier()
if rank == 0:
    os.remove("weights.pt")
dist.destroy_process_group()

# %% ranks queue for a lock file
# forms: script
# ranks: 3
import os
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
while True:
    try:
        os.close(os.open("lock", os.O_CREAT | os.O_EXCL))
        break
    except FileExistsError:
        time.sleep(0.3)
time.sleep(1.2)
os.remove("lock")
t = torch.ones(1)
dist.all_reduce(t)
print(rank, "held the lock", t.item())
dist.destroy_process_group()

# %% reading what a slow shell prints
# forms: script
import os
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
t = torch.zeros(1)
if rank == 1:
    with os.popen("sleep 3.3; echo 12") as pipe:
        t += float(pipe.read())
dist.all_reduce(t)
print(rank, t.item())
dist.destroy_process_group()

# %% every rank runs sleep before it comes
# forms: script
import subprocess
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
subprocess.run(["sleep", str(2 + 1.5 * rank)], check=True)
dist.barrier()
print(rank, "slept")
dist.destroy_process_group()

# %% a rank in os.waitpid
# forms: script
import os
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
value = torch.zeros(1)
if rank == 0:
    pid = os.fork()
    if pid == 0:
        time.sleep(3.5)
        os._exit(33)
    value += os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
dist.broadcast(value, 0)
print(rank, value.item())
dist.destroy_process_group()

# %% a rank pauses until its alarm
# forms: script
import signal
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
rung = []
if rank == 0:
    signal.signal(signal.SIGALRM, lambda number, frame: rung.append(number))
    signal.setitimer(signal.ITIMER_REAL, 3.4)
    signal.pause()
dist.barrier()
print(rank, len(rung))
dist.destroy_process_group()

# %% both ranks wait in sigtimedwait
# forms: script
import signal
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
print(rank, signal.sigtimedwait([signal.SIGALRM], 3 + 0.5 * rank))
dist.barrier()
dist.destroy_process_group()

# %% a rank reads from a socketpair that its child holds
# forms: script
import os
import socket
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
here, there = socket.socketpair()
pid = os.fork()
if pid == 0:
    here.close()
    time.sleep(3)
    there.sendall(b"from child %d" % rank)
    os._exit(0)
there.close()
print(rank, here.recv(100).decode())
os.waitpid(pid, 0)
dist.barrier()
dist.destroy_process_group()

# %% a flock that a child holds
# forms: script
import fcntl
import os
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
if rank == 0:
    if (pid := os.fork()) == 0:
        with open("locked", "w") as f:
            fcntl.flock(f, fcntl.LOCK_EX)
            open("taken", "w").close()
            time.sleep(3.3)
        os._exit(0)
    while not os.path.exists("taken"):
        time.sleep(0.1)
dist.barrier()
with open("locked") as f:
    fcntl.flock(f, fcntl.LOCK_SH)
    print(rank, "has the lock")
dist.barrier()
if rank == 0:
    os.waitpid(pid, 0)
    os.remove("locked")
    os.remove("taken")
dist.destroy_process_group()

# %% ranks sleep in select and in poll
# forms: script
import select
import socket
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
near, far = socket.socketpair()
if rank == 0:
    print(select.select([near], [], [], 3.5))
else:
    poller = select.poll()
    poller.register(near, select.POLLIN)
    print(poller.poll(3000))
dist.barrier()
dist.destroy_process_group()

# %% a rank waits in poll of a pidfd
# forms: script
import os
import select
import subprocess
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
if rank == 1:
    child = subprocess.Popen(["sleep", "3"])
    fd = os.pidfd_open(child.pid)
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    poller.poll()
    os.close(fd)
    print("ended with", child.wait())
dist.barrier()
dist.destroy_process_group()

# %% a server on loopback answers late
# forms: script
import os
import socket
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
t = torch.zeros(1)
if rank == 0:
    server = socket.create_server(("127.0.0.1", 0))
    if (pid := os.fork()) == 0:
        client, _ = server.accept()
        time.sleep(3)
        client.sendall(b"21")
        os._exit(0)
    with socket.create_connection(server.getsockname()) as client:
        t += float(client.recv(10))
    os.waitpid(pid, 0)
    server.close()
dist.broadcast(t, 0)
print(rank, t.item())
dist.destroy_process_group()

# %% a rank that stops itself and is continued by its child
# forms: script
import os
import signal
import subprocess
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
if rank == 1:
    child = subprocess.Popen(["sh", "-c", f"sleep 3; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)
    child.wait()
t = torch.tensor([rank + 1.0])
dist.all_reduce(t)
print(rank, t.item())
dist.destroy_process_group()

# %% a C function sleeps with the lock of the interpreter held
# forms: script
import ctypes
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
if rank == 0:
    ctypes.PyDLL(None).sleep(4)
t = torch.tensor([rank + 1.0])
dist.all_reduce(t)
print(rank, t.item())
dist.destroy_process_group()

# %% a queue of multiprocessing is filled by a child
# forms: script
import multiprocessing
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
context = multiprocessing.get_context("fork")
queue = context.Queue()

def child():
    time.sleep(3)
    queue.put(rank + 70)

process = context.Process(target=child)
process.start()
t = torch.tensor([queue.get()])
process.join()
dist.all_reduce(t)
print(rank, t.item())
dist.destroy_process_group()

# %% a pool of processes maps slowly
# forms: script
import multiprocessing
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()

def square(x):
    time.sleep(1.5)
    return x * x

t = torch.zeros(4, dtype=torch.int64)
if rank == 0:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        t = torch.tensor(pool.map(square, range(4), chunksize=1))
dist.broadcast(t, 0)
print(rank, t.tolist())
dist.destroy_process_group()

# %% a DataLoader whose workers are slow
# forms: script
import time
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        time.sleep(0.9 + 0.1 * dist.get_rank())
        return float(i)

dist.init_process_group("gloo")
rank = dist.get_rank()
for batch in DataLoader(Slow(), batch_size=2, num_workers=1, multiprocessing_context="fork"):
    t = batch.sum()
    dist.all_reduce(t)
    print(rank, t.item())
dist.destroy_process_group()

# %% threads of a rank meet at a barrier of threading
# forms: script
import threading
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
meeting = threading.Barrier(3)

def walker(delay):
    time.sleep(delay)
    meeting.wait()

for delay in (1.0, 3.0 + 0.5 * rank):
    threading.Thread(target=walker, args=(delay,)).start()
meeting.wait()
dist.barrier()
print(rank, "met")
dist.destroy_process_group()

# %% a semaphore in shared memory is released by a child
# forms: script
import multiprocessing
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
context = multiprocessing.get_context("fork")
semaphore = context.Semaphore(0)

def child():
    for _ in range(2):
        time.sleep(1.6)
        semaphore.release()

if rank == 0:
    process = context.Process(target=child, daemon=True)
    process.start()
    semaphore.acquire()
    semaphore.acquire()
    process.join()
dist.barrier()
print(rank, "done")
dist.destroy_process_group()

# %% waits with a timeout that is meant to run out
# forms: script
import queue
import threading
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
if rank == 0:
    print(threading.Event().wait(3.5))
else:
    try:
        queue.Queue().get(timeout=3)
    except queue.Empty:
        print("nothing came")
dist.barrier()
dist.destroy_process_group()

# %% ranks in reverse order and the last of them late
# forms: script
# ranks: 3
import os
import time
import torch
import torch.distributed as dist
path, mine = os.path.abspath("reverse"), int(os.environ["RANK"])
n = int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", store=dist.FileStore(path, n), rank=n - 1 - mine, world_size=n)
rank = dist.get_rank()
t = torch.zeros(1)
if mine == 2:
    time.sleep(3.5)
    dist.send(torch.tensor([2.5]), 1)
elif rank == 1:
    dist.recv(t, 0)
    dist.send(t + 1, 2)
else:
    dist.recv(t, 1)
print(mine, "is", rank, "and has", t.item())
dist.destroy_process_group()

# %% rotated ranks where one is late in init
# forms: script
# ranks: 3
import os
import time
import torch
import torch.distributed as dist
path, mine = os.path.abspath("rotated"), int(os.environ["RANK"])
if mine == 1:
    time.sleep(4)
dist.init_process_group("gloo", store=dist.FileStore(path, 3), rank=(mine + 1) % 3, world_size=3)
t = torch.tensor([10.0 * mine])
dist.broadcast(t, 2)
print(mine, dist.get_rank(), t.item())
dist.destroy_process_group()

# %% two worlds one after the other with the ranks exchanged
# forms: script
import os
import time
import torch
import torch.distributed as dist
mine = int(os.environ["RANK"])
for turn, name in enumerate(("first", "second")):
    rank = mine if turn == 0 else 1 - mine
    store = dist.FileStore(os.path.abspath(name), 2)
    if rank == 1:
        time.sleep(2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    t = torch.tensor([float(mine)])
    dist.broadcast(t, 0)
    print(mine, "is", rank, "in the", name, t.item())
    dist.destroy_process_group()
    del store

# %% two separate worlds of two ranks each
# forms: script
# ranks: 4
import os
import time
import torch
import torch.distributed as dist
mine = int(os.environ["RANK"])
path = os.path.abspath(f"world{mine % 2}")
dist.init_process_group("gloo", store=dist.FileStore(path, 2), rank=mine // 2, world_size=2)
rank = dist.get_rank()
time.sleep(4 if mine == 2 else 2 if mine == 1 else 0)
t = torch.tensor([1.0 + mine])
dist.all_reduce(t)
print(mine, rank, t.item())
dist.destroy_process_group()

# %% a world of two of the three ranks
# forms: script
# ranks: 3
import os
import time
import torch
import torch.distributed as dist
mine = int(os.environ["RANK"])
if mine == 0:
    print("nothing to do here")
else:
    time.sleep(4 if mine == 2 else 0)
    store = dist.FileStore(os.path.abspath("pair"), 2)
    dist.init_process_group("gloo", store=store, rank=mine - 1, world_size=2)
    t = torch.tensor([float(mine)])
    dist.all_reduce(t)
    print(mine, t.item())
    dist.destroy_process_group()

# %% every rank is a world of its own and one waits for a file
# forms: script
import os
import time
import torch
import torch.distributed as dist
mine = int(os.environ["RANK"])
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
t = torch.tensor([mine + 1.0])
dist.all_reduce(t)
if mine == 0:
    time.sleep(3.5)
    torch.save(t, "t.part")
    os.rename("t.part", "t.pt")
else:
    while not os.path.exists("t.pt"):
        time.sleep(0.4)
    t += torch.load("t.pt")
    os.remove("t.pt")
dist.barrier()
print(mine, dist.get_rank(), t.item())
dist.destroy_process_group()

# %% two members make a group alone while the third sleeps
# forms: script
# ranks: 3
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
t = torch.tensor([rank + 1.0])
if rank == 0:
    time.sleep(4)
else:
    time.sleep(2 * (rank == 2))
    group = dist.new_group([1, 2], use_local_synchronization=True)
    dist.all_reduce(t, group=group)
print(rank, t.item())
dist.barrier()
dist.destroy_process_group()

# %% overlapping groups used in another order by each rank
# forms: script
# ranks: 3
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
left, right = dist.new_group([0, 1]), dist.new_group([1, 2])
t = torch.tensor([rank + 1.0])
if rank == 0:
    dist.all_reduce(t, group=left)
elif rank == 1:
    dist.all_reduce(t, group=right)
    dist.all_reduce(t, group=left)
else:
    time.sleep(3.5)
    dist.all_reduce(t, group=right)
print(rank, t.item())
dist.destroy_process_group()

# %% a crossing of groups that asynchronous works untie
# forms: script
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
groups = [dist.new_group([0, 1]) for _ in range(2)]
t = torch.tensor([[rank + 1.0], [rank + 3.0]])
order = (0, 1) if rank == 0 else (1, 0)
works = []
for i in order:
    works.append(dist.all_reduce(t[i], group=groups[i], async_op=True))
    time.sleep(1.6 * rank)
for work in works:
    work.wait()
print(rank, t.tolist())
dist.destroy_process_group()

# %% two communicate and the third sleeps and leaves without a call
# forms: script
# ranks: 3
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
pair = dist.new_group([0, 1])
if rank == 2:
    time.sleep(2)
    raise SystemExit
t = torch.tensor([rank + 1.0])
for step in range(2):
    time.sleep(1.9 * (rank == step))
    dist.all_reduce(t, group=pair)
print(rank, t.item())
dist.destroy_process_group()

# %% a rank leaves early without destroy while the others go on
# forms: script
# ranks: 3
import os
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
others = dist.new_group([1, 2])
dist.barrier()
if rank == 0:
    print("0 leaves", flush=True)
    os._exit(0)
t = torch.tensor([float(rank)])
time.sleep(4 if rank == 2 else 0)
dist.all_reduce(t, group=others)
print(rank, t.item())
dist.destroy_process_group()

# %% a rank ends after it has sent what is used late
# forms: script
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
t = torch.arange(3.0)
if rank == 0:
    dist.isend(t + 1, 1).wait()
    print("sent")
else:
    work = dist.irecv(t, 0)
    time.sleep(3.5)
    work.wait()
    print(t.tolist())
dist.destroy_process_group()

# %% receiving from anyone while one sends late
# forms: script
# ranks: 3
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
if rank == 0:
    t, got = torch.zeros(1), []
    for _ in range(2):
        source = dist.recv(t)
        got.append((source, t.item()))
    print(got)
else:
    time.sleep(2 * rank)
    dist.send(torch.tensor([rank * 11.0]), 0)
    print(rank, "sent")
dist.barrier()
dist.destroy_process_group()

# %% a monitored barrier with a late rank
# forms: script
# ranks: 3
import time
from datetime import timedelta
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
time.sleep(4 if rank == 2 else 0)
dist.monitored_barrier(timeout=timedelta(seconds=120))
print(rank, "through")
dist.destroy_process_group()

# %% barriers with a late rank that changes
# forms: script
# ranks: 3
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
for late in range(3):
    time.sleep(1.5 if rank == late else 0)
    dist.barrier()
    print(rank, "barrier", late)
dist.destroy_process_group()

# %% works begun now and waited for three seconds later
# forms: script
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
t = [torch.tensor([rank + float(i)]) for i in range(3)]
works = [dist.all_reduce(x, async_op=True) for x in t]
time.sleep(3 if rank == 0 else 3.5)
for work in works:
    work.wait()
print(rank, [x.item() for x in t])
dist.destroy_process_group()

# %% works that nobody waits for
# forms: script
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
t = torch.tensor([rank + 1.0])
time.sleep(2 * rank)
dist.all_reduce(t, async_op=True)
dist.barrier(async_op=True)
time.sleep(3)
dist.barrier()
print(rank, t.item())
dist.destroy_process_group()

# %% a batch of sends and receives with a late peer
# forms: script
# ranks: 3
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()
out, got = torch.tensor([rank + 0.5]), torch.zeros(1)
time.sleep(3.5 if rank == 1 else 0)
ops = [dist.P2POp(dist.isend, out, (rank + 1) % n), dist.P2POp(dist.irecv, got, (rank - 1) % n)]
for work in dist.batch_isend_irecv(ops):
    work.wait()
print(rank, got.item())
dist.destroy_process_group()

# %% a send to a rank that receives late
# forms: script
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
t = torch.full((100000,), 2.0)
if rank == 0:
    dist.send(t, 1)
    print("sent")
else:
    time.sleep(3.5)
    t.zero_()
    dist.recv(t, 0)
    print(t.sum().item())
dist.destroy_process_group()

# %% a pipeline of four stages that each take their time
# forms: script
# ranks: 4
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank, last = dist.get_rank(), dist.get_world_size() - 1
t = torch.zeros(1)
if rank > 0:
    dist.recv(t, rank - 1)
time.sleep(1.2)
t += rank + 1
if rank < last:
    dist.send(t, rank + 1)
print(rank, t.item())
dist.destroy_process_group()

# %% a root that comes late to a reduce and the rest is gone
# forms: script
# ranks: 3
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
work = dist.reduce(t := torch.tensor([rank + 1.0]), 0, async_op=True)
if rank == 0:
    work.wait()
    time.sleep(3.5)
    print("the sum is", t.item())
else:
    work.wait()
    print(rank, "is finished")
dist.destroy_process_group()

# %% objects scattered by a root that thinks first
# forms: script
# ranks: 3
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
mine = [None]
words = None
if rank == 1:
    time.sleep(3.5)
    words = ["yes", "no", "perhaps"]
dist.scatter_object_list(mine, words, src=1)
gathered = [None] * 3
dist.all_gather_object(gathered, (rank, mine[0]))
print(gathered)
dist.destroy_process_group()

# %% a mesh of devices made with a late rank
# forms: script
# ranks: 4
import time
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
dist.init_process_group("gloo")
rank = dist.get_rank()
time.sleep(3 if rank == 3 else 0)
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("row", "column"))
t = torch.tensor([rank + 1.0])
time.sleep(1.5 if rank == 0 else 0)
dist.all_reduce(t, group=mesh.get_group("column"))
print(rank, t.item())
dist.barrier()
dist.destroy_process_group()

# %% an atexit handler communicates after three seconds
# forms: script
import atexit
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()

def last():
    time.sleep(3 if rank == 0 else 0)
    t = torch.tensor([rank + 1.0])
    dist.all_reduce(t)
    print(rank, "at exit", t.item())
    dist.destroy_process_group()

atexit.register(last)
print(rank, "main ends")

# %% non-daemon threads communicate after main has ended
# forms: script
import threading
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()

def go_on():
    for step in range(2):
        time.sleep(1.8 if rank == step else 0)
        t = torch.tensor([rank + step + 1.0])
        dist.all_reduce(t)
        print(rank, step, t.item())
    dist.destroy_process_group()

threading.Thread(target=go_on).start()
print(rank, "main has ended")

# %% main has ended and its thread sends what the other waits for
# forms: script
import threading
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()

def send_late():
    time.sleep(4)
    dist.send(torch.tensor([8.0]), 1)

if rank == 0:
    threading.Thread(target=send_late).start()
    print("0 has ended")
else:
    t = torch.zeros(1)
    dist.recv(t, 0)
    print("1 has", t.item())
    dist.destroy_process_group()

# %% an object sends when it is deleted at exit
# forms: script
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()

class Last:
    def __init__(self):
        self.sleep, self.send, self.t = time.sleep, dist.send, torch.tensor([5.0])

    def __del__(self):
        self.sleep(3)
        self.send(self.t, 1)

if rank == 0:
    keep = Last()
    print("nothing left but the object")
else:
    t = torch.zeros(1)
    dist.recv(t, 0)
    print(t.item())

# %% a finalizer of weakref sends at exit
# forms: script
import time
import weakref
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
t = torch.zeros(1)

def farewell(value):
    time.sleep(3.5)
    dist.send(torch.tensor([value]), 0)

if rank == 1:
    weakref.finalize(t, farewell, 4.0)
    print("good bye")
else:
    dist.recv(t, 1)
    print(t.item())

# %% a program that goes on after SIGTERM
# forms: script
import os
import signal
import subprocess
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
caught = []
if rank == 1:
    signal.signal(signal.SIGTERM, lambda number, frame: caught.append(number))
    child = subprocess.Popen(["sh", "-c", f"sleep 3; kill -TERM {os.getpid()}"])
    while not caught:
        signal.pause()
    child.wait()
t = torch.tensor([float(len(caught))])
dist.all_reduce(t)
print(rank, "caught", len(caught), t.item())
dist.destroy_process_group()

# %% a child of one rank wakes another rank by a signal
# forms: script
import os
import signal
import subprocess
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
pid = torch.tensor([os.getpid()])
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
dist.broadcast(pid, 1)
if rank == 0:
    child = subprocess.Popen(["sh", "-c", f"sleep 3; kill -ALRM {int(pid)}"])
else:
    print("woken by", signal.sigwait([signal.SIGALRM]).name)
dist.barrier()
if rank == 0:
    print("the child ended with", child.wait())
dist.destroy_process_group()

# %% rank 0 exits at once and the others wait for a subprocess
# forms: script
# ranks: 3
import subprocess
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
group = dist.new_group([1, 2])
if rank == 0:
    sys.exit(0)
t = torch.zeros(1)
if rank == 2:
    t += float(subprocess.check_output(["sh", "-c", "sleep 4; echo 17"]))
dist.all_reduce(t, group=group)
print(rank, t.item())
dist.destroy_process_group()

# %% main has ended and multiprocessing joins its child
# forms: script
import multiprocessing
import os
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
rank, path = dist.get_rank(), os.path.abspath("keys")

def child():
    time.sleep(3.5)
    dist.FileStore(path, -1).set("news", "at last")

if rank == 1:
    multiprocessing.get_context("fork").Process(target=child).start()
    print("1 has ended")
else:
    print("0 has", dist.FileStore(path, -1).get("news").decode())
    os.remove(path)
dist.destroy_process_group()

# %% a rank ends at once and leaves its child in its place
# forms: script
import os
import time
import torch
import torch.distributed as dist
path, rank = os.path.abspath("place"), int(os.environ["RANK"])
if rank == 1 and os.fork():
    os._exit(0)
dist.init_process_group("gloo", store=dist.FileStore(path, 2), rank=rank, world_size=2)
if rank == 1:
    time.sleep(4)
t = torch.tensor([rank + 1.0])
dist.all_reduce(t)
if rank == 1:
    os._exit(0)
print(rank, t.item())
time.sleep(1.5)
dist.destroy_process_group()
if os.path.exists(path):
    os.remove(path)

# %% a wait with a timeout in a loop
# forms: script
import time
from datetime import timedelta
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
t = torch.tensor([rank + 1.0])
time.sleep(4 if rank == 1 else 0)
work = dist.all_reduce(t, async_op=True)
while True:
    try:
        work.wait(timedelta(seconds=0.8))
        break
    except RuntimeError:
        time.sleep(0.1)
print(rank, t.item())
dist.destroy_process_group()

# %% polling a work with sleeps between
# forms: script
# ranks: 3
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
t = torch.tensor([rank + 1.0])
time.sleep(3.8 if rank == 2 else 0)
work = dist.broadcast(t, 2, async_op=True)
while not work.is_completed():
    time.sleep(0.25)
work.wait()
print(rank, t.item())
dist.destroy_process_group()

# %% a future's callback sets the event that main waits on
# forms: script
import threading
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
t = torch.tensor([rank + 1.0])
done = threading.Event()
time.sleep(3.5 * rank)
future = dist.all_reduce(t, async_op=True).get_future()
future.add_done_callback(lambda f: done.set())
done.wait()
print(rank, t.item())
dist.barrier()
dist.destroy_process_group()

# %% a future is waited for in a thread
# forms: script
import threading
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
t = torch.tensor([rank + 1.0])
time.sleep(3.5 if rank == 0 else 0)
chain = dist.all_reduce(t, async_op=True).get_future().then(lambda f: f.value()[0].item() * 2)
thread = threading.Thread(target=lambda: print(rank, chain.wait()))
thread.start()
thread.join()
dist.barrier()
dist.destroy_process_group()

# %% the futures of all works are collected
# forms: script
# ranks: 3
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
t = [torch.tensor([rank * 10.0 + i]) for i in range(3)]
futures = []
for i, x in enumerate(t):
    time.sleep(1.2 if rank == i else 0)
    futures.append(dist.broadcast(x, i, async_op=True).get_future())
torch.futures.collect_all(futures).wait()
print(rank, [x.item() for x in t])
dist.destroy_process_group()

# %% a future that a thread completes
# forms: script
import threading
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
future = torch.futures.Future()
threading.Timer(3 + 0.5 * rank, future.set_result, (rank + 30.0,)).start()
t = torch.tensor([future.wait()])
dist.all_reduce(t)
print(rank, t.item())
dist.destroy_process_group()

# %% a join of very uneven work
# forms: script
import time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(2, 1))
steps = 0
with model.join():
    for _ in range(1 if rank == 0 else 4):
        time.sleep(1.2 if rank == 1 else 0)
        model(torch.ones(1, 2)).sum().backward()
        steps += 1
print(rank, "made", steps, "steps")
dist.barrier()
dist.destroy_process_group()

# %% a backward pass that waits for a slow rank's gradient
# forms: script
import time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(3, 1, bias=False))
for step in range(2):
    out = model(torch.full((1, 3), rank + 1.0))
    if rank == step:
        out.register_hook(lambda grad: time.sleep(1.8))
    out.sum().backward()
    print(rank, step, model.module.weight.grad.tolist())
    model.zero_grad()
dist.destroy_process_group()

# %% a checkpoint is saved by a thread that is slow to pickle
# forms: script
import io
import time
from concurrent.futures import ThreadPoolExecutor
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
saves = dist.new_group([0, 1])

def save(state):
    time.sleep(3 if rank == 1 else 1)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    dist.barrier(group=saves)
    return len(state)

pool = ThreadPoolExecutor(1)
job = pool.submit(save, {"w": torch.ones(3), "step": 1})
t = torch.tensor([rank + 1.0])
dist.all_reduce(t)
if rank == 1:
    job.result()
dist.barrier()
print(rank, t.item(), job.result())
dist.destroy_process_group()
