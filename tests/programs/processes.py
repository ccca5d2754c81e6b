# Programs whose ranks start processes of their own.

# %% the output of a subprocess, captured and passed on
import subprocess
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
done = subprocess.run([sys.executable, "-c", "import sys; print(6 * 7); print('e', file=sys.stderr); sys.exit(3)"], capture_output=True, text=True)
print(done.returncode, repr(done.stdout), repr(done.stderr), flush=True)
number = torch.tensor([int(done.stdout) + rank])
dist.all_reduce(number)
subprocess.run([sys.executable, "-c", f"print('child says', {number.item()})"], check=True)
try:
    subprocess.run(["false"], check=True)
except subprocess.CalledProcessError as error:
    print(type(error).__name__, error.returncode)
dist.destroy_process_group()

# %% a subprocess that is fed through a pipe between collectives
import subprocess
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
cat = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
for step in range(3):
    value = torch.tensor([step * 10 + rank])
    dist.all_reduce(value)
    cat.stdin.write(f"line {value.item()}\n")
    print(repr(cat.stdout.readline()), cat.poll())
cat.stdin.close()
print(cat.wait(), repr(cat.stdout.read()))
dist.destroy_process_group()

# %% a subprocess reads the standard input that it inherits
import subprocess
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
print(repr(subprocess.run(["cat"], stdout=subprocess.PIPE, timeout=10).stdout))
dist.barrier()
print(repr(subprocess.run(["wc", "-c"], stdout=subprocess.PIPE, timeout=10).stdout.strip()))
dist.destroy_process_group()

# %% children that are forked and end in four ways
import os
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
def child(way):
    print("child", way, torch.arange(way + 3).sum().item(), flush=True)
    if way == 0:
        os._exit(5)
    if way == 1:
        sys.exit(6)
    if way == 2:
        raise ValueError("in the child")
    os.kill(os.getpid(), 9)
for way in range(4):
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            child(way)
        except SystemExit as end:
            os._exit(end.code + 10)
        except ValueError as error:
            print("child raised", error, flush=True)
            os._exit(20)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    total = torch.tensor([code])
    dist.all_reduce(total)
    print(way, code, total.item(), flush=True)
dist.destroy_process_group()

# %% a forked child ends by sys.exit or by an exception through everything that is above it
# forms: script
import os
import sys
import torch
import torch.distributed as dist
print("before", flush=True)
pid = os.fork()
if pid == 0:
    print("child", torch.ones(3).sum().item(), dist.is_initialized())
    sys.exit(7)
print("parent", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
pid = os.fork()
if pid == 0:
    sys.stderr = open(os.devnull, "w")
    raise RuntimeError("the child's own")
print("parent", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print(total.item())
dist.destroy_process_group()

# %% a forked child asks for its rank and answers through a pipe
import os
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
reader, writer = os.pipe()
pid = os.fork()
if pid == 0:
    os.close(reader)
    os.write(writer, f"{dist.get_rank()} of {dist.get_world_size()} in the child".encode())
    os._exit(0)
os.close(writer)
text = os.fdopen(reader).read()
os.waitpid(pid, 0)
texts = [None] * dist.get_world_size()
dist.all_gather_object(texts, text)
print(texts)
dist.destroy_process_group()

# %% a forked child sets the key for which its parent waits
import os
import time
from datetime import timedelta
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
pid = os.fork()
if pid == 0:
    time.sleep(0.2)
    store = dist.FileStore(f"from_child_{rank}", 2)
    store.set("answer", f"child of {rank}")
    os._exit(0)
store = dist.FileStore(f"from_child_{rank}", 2)
store.wait(["answer"], timedelta(seconds=20))
print(store.get("answer"), store.check(["answer"]), store.check(["question"]))
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
del store
dist.barrier()
if os.path.exists(f"from_child_{rank}"):
    os.remove(f"from_child_{rank}")
dist.destroy_process_group()

# %% a subprocess sets a key in the rank's own TCPStore
import subprocess
import sys
from datetime import timedelta
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
code = f"import torch.distributed as d; s = d.TCPStore('127.0.0.1', {store.port}, is_master=False, wait_for_workers=False); s.set('k', 'value {rank}'); print(s.add('n', 4))"
child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
store.wait(["k"], timedelta(seconds=60))
print(store.get("k"))
print(child.communicate(), child.returncode, store.add("n", 1))
dist.barrier()
dist.destroy_process_group()

# %% multiprocessing with the fork context
import multiprocessing
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
context = multiprocessing.get_context("fork")
queue = context.Queue()
def work(number):
    queue.put((number, float(torch.full((3,), float(number)).sum()), dist.is_initialized(), multiprocessing.current_process().name[:5]))
children = [context.Process(target=work, args=(n,)) for n in range(3)]
for child in children:
    child.start()
results = sorted(queue.get(timeout=30) for child in children)
for child in children:
    child.join()
print(results, [child.exitcode for child in children], multiprocessing.active_children())
print(multiprocessing.current_process().name, multiprocessing.parent_process(), multiprocessing.current_process().daemon)
total = torch.tensor(sum(r[1] for r in results) + rank)
dist.all_reduce(total)
print(total)
dist.destroy_process_group()

# %% a forked process of multiprocessing that raises, exits, is killed
import multiprocessing
import sys
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
context = multiprocessing.get_context("fork")
def leave():
    sys.exit(9)
def fail():
    sys.stderr.close()
    raise KeyError("gone")
def sleep():
    time.sleep(60)
for target in leave, fail, sleep:
    child = context.Process(target=target)
    child.start()
    if target is sleep:
        child.terminate()
    child.join(30)
    dist.barrier()
    print(target.__name__, child.exitcode, child.is_alive())
dist.destroy_process_group()

# %% a pool of forked workers used between collectives
import multiprocessing
import operator
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(pool.map(abs, range(-4, 1)))
    value = torch.tensor(pool.starmap(operator.mul, [(rank + 1, 5), (2, 3)]))
    dist.all_reduce(value)
    print(value.tolist())
    try:
        pool.apply(operator.truediv, (1, 0))
    except ZeroDivisionError as error:
        print(type(error).__name__, error)
    late = pool.apply_async(pow, (2, 10))
    dist.barrier()
    print(late.get(20))
dist.destroy_process_group()

# %% a pool of spawned workers under a main guard
# forms: script
import multiprocessing
import torch
import torch.distributed as dist
def square(number):
    return number * number, __name__, dist.is_initialized()
if __name__ == "__main__":
    dist.init_process_group("gloo")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        answers = pool.map(square, [dist.get_rank(), 5])
    print(answers)
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, answers[0][0])
    print(gathered)
    dist.destroy_process_group()

# %% a process of the forkserver under a main guard
# forms: script
import multiprocessing
import sys
def report(queue):
    queue.put((__name__, "torch" in sys.modules, sys.argv[1:]))
if __name__ == "__main__":
    import torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
    context = multiprocessing.get_context("forkserver")
    queue = context.SimpleQueue()
    child = context.Process(target=report, args=(queue,))
    child.start()
    print(queue.get())
    child.join()
    print(child.exitcode, multiprocessing.get_start_method())
    dist.barrier()
    dist.destroy_process_group()

# %% torch.multiprocessing starts a world inside every rank before its own
# forms: script
import os
import torch
import torch.distributed as dist
import torch.multiprocessing
def inner(index, outer):
    store = dist.FileStore(f"inner_{outer}", 2)
    dist.init_process_group("gloo", store=store, rank=index, world_size=2)
    value = torch.tensor([index + 10 * outer])
    dist.all_reduce(value)
    with open(f"answer_{outer}_{index}", "w") as file:
        print(index, value.item(), dist.get_world_size(), file=file)
    dist.destroy_process_group()
if __name__ == "__main__":
    rank = int(os.environ["RANK"])
    torch.multiprocessing.start_processes(inner, args=(rank,), nprocs=2, start_method="fork")
    for index in range(2):
        print(open(f"answer_{rank}_{index}").read().strip())
    dist.init_process_group("gloo")
    dist.barrier()
    if os.path.exists(f"inner_{rank}"):
        os.remove(f"inner_{rank}")
    dist.destroy_process_group()

# %% a data loader with two workers and a distributed sampler
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset, get_worker_info
from torch.utils.data.distributed import DistributedSampler
dist.init_process_group("gloo")
data = TensorDataset(torch.arange(12.0))
sampler = DistributedSampler(data, shuffle=True, seed=5)
loader = DataLoader(data, batch_size=2, sampler=sampler, num_workers=2)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for (batch,) in loader:
        total = batch.sum()
        dist.all_reduce(total)
        print(epoch, batch.tolist(), total.item())
print(get_worker_info())
dist.destroy_process_group()

# %% a worker of a data loader raises
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, get_worker_info
dist.init_process_group("gloo")
class Bad(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        if index == 2:
            raise IndexError(f"item {index} in worker {get_worker_info().id}, rank {dist.get_rank()}")
        return index
try:
    for batch in DataLoader(Bad(), num_workers=1):
        dist.barrier()
        print(batch)
except IndexError as error:
    print(type(error).__name__, str(error).splitlines()[-1])
dist.barrier()
dist.destroy_process_group()

# %% posix_spawn, system and popen
import os
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
print("first", flush=True)
pid = os.posix_spawn("/bin/echo", ["echo", "spawned", os.environ["RANK"]], os.environ)
print(os.waitpid(pid, 0)[1], flush=True)
print(os.system("echo from a shell; exit 3"), flush=True)
with os.popen("echo $WORLD_SIZE $LOCAL_RANK") as pipe:
    print(pipe.read().split(), flush=True)
print(os.spawnlp(os.P_WAIT, "sh", "sh", "-c", "echo spawned again; kill -9 $$"), flush=True)
dist.barrier()
dist.destroy_process_group()

# %% the program reaps whatever children it has
import os
import torch
import torch.distributed as dist
def reap():
    codes = []
    while True:
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return codes
        codes.append(os.waitstatus_to_exitcode(status))
print("before init", reap())
dist.init_process_group("gloo")
for code in 0, 4, 8:
    if os.fork() == 0:
        os._exit(code)
dist.barrier()
print("after", sorted(reap()))
value = torch.ones(2)
dist.all_reduce(value)
print(value.tolist(), reap())
dist.destroy_process_group()

# %% a handler of SIGCHLD counts children
import os
import signal
import time
import torch
import torch.distributed as dist
print(signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL, signal.getsignal(signal.SIGINT) is signal.default_int_handler)
print(signal.getsignal(signal.SIGPIPE) == signal.SIG_IGN, signal.pthread_sigmask(signal.SIG_BLOCK, []))
dist.init_process_group("gloo")
ended = []
def handle(number, frame):
    pid, status = os.waitpid(-1, os.WNOHANG)
    ended.append(os.waitstatus_to_exitcode(status) if pid else None)
signal.signal(signal.SIGCHLD, handle)
for code in 1, 2:
    before = len(ended)
    if os.fork() == 0:
        os._exit(code)
    while len(ended) == before:
        time.sleep(0.01)
    dist.barrier()
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
print(ended)
dist.destroy_process_group()

# %% tensors and blocks of shared memory
import multiprocessing
import torch
import torch.distributed as dist
from multiprocessing import shared_memory
dist.init_process_group("gloo")
rank = dist.get_rank()
context = multiprocessing.get_context("fork")
shared = torch.zeros(4).share_memory_()
def fill():
    shared.add_(rank + 1)
child = context.Process(target=fill)
child.start()
child.join()
print(shared.is_shared(), shared.tolist(), child.exitcode)
dist.all_reduce(shared)
print(shared.is_shared(), shared.tolist())
block = shared_memory.SharedMemory(create=True, size=64)
names = [None] * dist.get_world_size()
dist.all_gather_object(names, block.name)
block.buf[0] = 100 + rank
dist.barrier()
path = "/dev/shm/" + names[(rank + 1) % len(names)].lstrip("/")
print(open(path, "rb").read(1)[0])
dist.barrier()
block.close()
block.unlink()
dist.destroy_process_group()

# %% a process pool executor and collectives from its callbacks
import concurrent.futures
import multiprocessing
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
seen = []
with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
    future = pool.submit(divmod, 17 + rank, 5)
    future.add_done_callback(lambda done: seen.append(done.result()))
    print(future.result(30))
    value = torch.tensor(future.result())
    dist.all_reduce(value)
    print(value.tolist())
print(seen)
dist.destroy_process_group()

# %% what descriptors a subprocess has
# forms: script, function, cell
import subprocess
import torch
import torch.distributed as dist
for close in True, False:
    print(subprocess.run(["ls", "/proc/self/fd"], capture_output=True, text=True, close_fds=close).stdout.split())
dist.init_process_group("gloo")
dist.barrier()
print(subprocess.run(["ls", "/proc/self/fd"], capture_output=True, text=True).stdout.split())
dist.destroy_process_group()
