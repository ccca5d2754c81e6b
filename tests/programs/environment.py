# Programs that look at what surrounds a rank, and change it.

# %% the variables that a launcher sets
import os
import torch
import torch.distributed as dist
names = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_WORLD_SIZE ROLE_NAME".split()
names += "TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_USE_AGENT_STORE OMP_NUM_THREADS TORCH_NCCL_ASYNC_ERROR_HANDLING MASTER_ADDR".split()
for name in names:
    print(name, repr(os.environ.get(name)))
print(os.environ["MASTER_PORT"].isdigit(), "TORCHELASTIC_RUN_ID" in os.environ, "TORCHELASTIC_ERROR_FILE" in os.environ)
dist.init_process_group("gloo")
ports = [None] * dist.get_world_size()
dist.all_gather_object(ports, (os.environ["MASTER_PORT"], os.environ["TORCHELASTIC_RUN_ID"]))
print(len(set(ports)), dist.is_torchelastic_launched(), torch.get_num_threads(), dist.get_node_local_rank())
dist.destroy_process_group()
print([name for name in names[:4] if name not in os.environ])

# %% ranks are reversed by RANK before the group is made
# forms: script, function
import os
import torch
import torch.distributed as dist
launched = int(os.environ["RANK"])
os.environ["RANK"] = str(int(os.environ["WORLD_SIZE"]) - 1 - launched)
dist.init_process_group("gloo")
print(launched, dist.get_rank(), os.environ["RANK"], os.environ["LOCAL_RANK"], dist.get_node_local_rank())
value = torch.tensor([launched])
dist.broadcast(value, 0)
print(value.item())
dist.destroy_process_group()

# %% ranks are rotated by arguments
# forms: script, function
# ranks: 3
import os
import torch
import torch.distributed as dist
launched = int(os.environ["RANK"])
dist.init_process_group("gloo", rank=(launched + 1) % 3, world_size=3)
gathered = [torch.zeros(1, dtype=torch.int64) for n in range(3)]
dist.all_gather(gathered, torch.tensor([launched]))
print(launched, dist.get_rank(), torch.cat(gathered).tolist(), os.environ["RANK"])
dist.destroy_process_group()

# %% a port of the program's own, passed through a file
# forms: script, function
import os
import time
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"])
if rank == 0:
    store = dist.TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
    with open("port.new", "w") as file:
        file.write(str(store.port))
    os.rename("port.new", "port")
else:
    while not os.path.exists("port"):
        time.sleep(0.01)
    store = dist.TCPStore("127.0.0.1", int(open("port").read()), 2, is_master=False)
    os.remove("port")
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
value = torch.tensor([rank + 1])
dist.all_reduce(value)
store.set("own", "seen by both")
dist.barrier()
print(value.item(), store.get("own"))
dist.barrier()
dist.destroy_process_group()

# %% MASTER_ADDR and MASTER_PORT are set by the program as on a cluster
# forms: script, function
import os
import socket
import time
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"])
if rank == 0:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    open("port.new", "w").write(str(port))
    os.rename("port.new", "port")
while not os.path.exists("port"):
    time.sleep(0.01)
for name in "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID":
    os.environ.pop(name, None)
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=open("port").read())
dist.init_process_group("gloo")
value = torch.tensor([rank])
dist.all_reduce(value)
print(value.item(), dist.is_torchelastic_launched(), os.environ["MASTER_PORT"] == open("port").read())
dist.barrier()
if rank == 0:
    os.remove("port")
dist.destroy_process_group()

# %% the address of the launcher's store is used beside the default group
# forms: script, function
import os
import torch
import torch.distributed as dist
store, rank, size = next(dist.rendezvous("env://"))
print(rank, size)
store.set(f"from {rank}", str(rank * 7))
print(store.get(f"from {1 - rank}"))
dist.init_process_group("gloo")
print(dist.get_rank(), dist.get_world_size(), dist.barrier())
dist.destroy_process_group()

# %% init_method env:// with a rank that is given too
# forms: script, function
import os
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"])
dist.init_process_group(backend="gloo", init_method="env://", rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
value = torch.tensor([rank])
dist.all_reduce(value)
print(value.item(), dist.get_backend())
dist.destroy_process_group()
meeting = os.getcwd() + "-meeting"  # not in a folder whose files are compared: who removes it last is chance
dist.init_process_group(init_method=f"file://{meeting}", backend="gloo", rank=1 - rank, world_size=2)
print(dist.get_rank(), os.path.exists(meeting), dist.barrier())
dist.destroy_process_group()

# %% variables that are missing or wrong
# forms: script, function
import os
import torch
import torch.distributed as dist
for name, wrong in ("RANK", None), ("WORLD_SIZE", None), ("MASTER_ADDR", None), ("MASTER_PORT", None), ("RANK", "one"):
    right = os.environ.pop(name)
    if wrong is not None:
        os.environ[name] = wrong
    try:
        dist.init_process_group("gloo")
    except Exception as error:
        print(name, type(error).__name__, error)
    os.environ[name] = right
    print(dist.is_initialized())
dist.init_process_group("gloo")
print(dist.get_rank(), dist.get_world_size(), dist.barrier())
dist.destroy_process_group()

# %% variables are changed and cleared after the group was made
import os
import subprocess
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
kept = dict(os.environ)
os.environ["RANK"] = "17"
os.environ["WORLD_SIZE"] = "99"
print(dist.get_rank(), dist.get_world_size())
os.putenv("ONLY_IN_C", "set")
print(os.environ.get("ONLY_IN_C"), subprocess.run(["sh", "-c", "echo $ONLY_IN_C $RANK"], capture_output=True, text=True).stdout)
path = os.environ["PATH"]
os.environ.clear()
value = torch.ones(1)
dist.all_reduce(value)
dist.new_group([0])
print(len(os.environ), value.item(), dist.get_rank())
os.environ.update(kept)
dist.destroy_process_group()

# %% the folder is changed, and it is removed
import os
import tempfile
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
home = os.getcwd()
print(os.listdir(), os.path.samefile(home, "."))
dist.barrier()
os.mkdir(f"inner_{rank}")
os.chdir(f"inner_{rank}")
dist.barrier()
with open("note", "w") as file:
    print("rank", rank, file=file)
print(os.path.relpath(os.getcwd(), home) == f"inner_{rank}", os.listdir())
os.remove("note")
os.rmdir(os.path.join(home, f"inner_{rank}"))
try:
    os.getcwd()
except FileNotFoundError as error:
    print(type(error).__name__)
print(dist.new_group([0, 1]) is not None, dist.barrier())
os.chdir(home)
dist.destroy_process_group()

# %% the program stays in another folder at its end
# forms: script
import os
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
os.chdir("/")
print(os.getcwd(), dist.barrier())
dist.destroy_process_group()

# %% umask, nice and other settings of the process
import os
import stat
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
old = os.umask(0o077)
print(oct(old), oct(os.umask(0o077)))
with open(f"secret_{rank}", "w") as file:
    file.write("x")
print(oct(stat.S_IMODE(os.stat(f"secret_{rank}").st_mode)))
dist.barrier()
print(os.nice(0) - os.nice(0), os.getpriority(os.PRIO_PROCESS, 0) == os.nice(0), len(os.sched_getaffinity(0)) == len(os.sched_getaffinity(os.getppid())))
print(os.getpgid(0) == os.getpid(), os.getsid(0) == os.getpid(), os.getuid() == os.geteuid())
os.umask(old)
dist.destroy_process_group()

# %% limits of resources
import resource
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
for name in "RLIMIT_AS RLIMIT_CPU RLIMIT_FSIZE RLIMIT_DATA".split():
    print(name, resource.getrlimit(getattr(resource, name)))
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
print(dist.barrier(), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
try:
    files = [open("/dev/null") for n in range(200)]
except OSError as error:
    files = []
    print(type(error).__name__, error.errno)
value = torch.ones(1)
dist.all_reduce(value)
print(value.item())
dist.destroy_process_group()

# %% a script's names and arguments
# forms: script
import os
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
print(__name__, os.path.isabs(__file__), os.path.basename(__file__) == os.path.basename(sys.argv[0]), sys.argv[1:], __spec__, __doc__, __package__)
print(sys.path[0] == os.path.dirname(os.path.abspath(__file__)), sys.flags.optimize, sys.flags.utf8_mode, sys.flags.dev_mode, sys.flags.isolated, sys.flags.no_site)
print(sys.modules["__main__"].__dict__ is globals(), type(__loader__).__name__, sorted(name for name in globals() if name.startswith("__")))
print(sys.orig_argv[-1] == sys.argv[0], hasattr(sys, "ps1"), sys.flags.interactive, __builtins__.__name__)
frame = sys._getframe()
print(frame.f_back, frame.f_code.co_name, os.path.basename(frame.f_code.co_filename) == os.path.basename(__file__))
dist.barrier()
dist.destroy_process_group()

# %% the names at a script's top level, before and after
# forms: script
before = sorted(globals())
import inspect
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
print(before)
print(sorted(set(globals()) - set(before)))
print(len(inspect.stack()), inspect.getsource(sys.modules["__main__"]).count("inspect"), sys.getrecursionlimit())
print(len(inspect.getsource(inspect.currentframe()).splitlines()) > 5, dist.barrier())
import __main__
print(__main__.before is before)
dist.destroy_process_group()

# %% standard input is at its end
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
print(repr(sys.stdin.read()), repr(sys.stdin.readline()), list(sys.stdin), sys.stdin.isatty(), sys.stdin.fileno())
dist.barrier()
try:
    input("a prompt> ")
except EOFError as error:
    print(type(error).__name__, error)
try:
    breakpoint
    print(sys.breakpointhook is sys.__breakpointhook__)
finally:
    dist.destroy_process_group()

# %% encodings and locale
import locale
import sys
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
print(sys.stdout.encoding, sys.stdout.errors, sys.stderr.encoding, sys.stderr.errors, sys.stdin.encoding, sys.getfilesystemencoding())
print(locale.getlocale(), locale.setlocale(locale.LC_ALL), locale.getpreferredencoding(), sys.getdefaultencoding())
print(locale.setlocale(locale.LC_NUMERIC, "C"), f"{1234567.5:n}", dist.barrier())
print(sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__, sys.stdout.name, sys.stdout.mode, type(sys.stdout).__name__, type(sys.stdout.buffer).__name__)
dist.destroy_process_group()

# %% random numbers, seeds and threads as a new interpreter has them
import random
import sys
import threading
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
print(torch.initial_seed() == torch.default_generator.initial_seed(), torch.rand(2).shape)
torch.manual_seed(3)
random.seed(3)
value = torch.rand(2)
dist.broadcast(value, 0)
print(torch.equal(value, torch.rand(2, generator=torch.Generator().manual_seed(3))), random.random())
seeds = [None] * 2
dist.all_gather_object(seeds, (random.SystemRandom().random(), hash("text") == hash("text")))
print(len({seed for seed, same in seeds}), threading.current_thread().name, threading.current_thread() is threading.main_thread())
print(torch.get_num_threads(), torch.is_grad_enabled(), torch.get_default_dtype(), sys.gettrace(), sys.getprofile(), threading.gettrace() if hasattr(threading, "gettrace") else None)
dist.destroy_process_group()

# %% unseeded random numbers differ between ranks
import os
import random
import uuid
import torch
import torch.distributed as dist
import numpy
dist.init_process_group("gloo")
mine = (random.random(), float(numpy.random.rand()), os.urandom(4), str(uuid.uuid4()))
all_of_them = [None] * dist.get_world_size()
dist.all_gather_object(all_of_them, mine)
print([len(set(column)) for column in zip(*all_of_them)])
dist.destroy_process_group()

# %% unseeded torch differs between ranks
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
seeds = [None] * 2
dist.all_gather_object(seeds, (torch.initial_seed(), torch.rand(1).item(), torch.randint(1 << 40, (1,)).item()))
print([len(set(column)) for column in zip(*seeds)])
model = torch.nn.Linear(2, 1)
weights = [torch.zeros(1, 2) for n in range(2)]
dist.all_gather(weights, model.weight.data)
print(torch.equal(*weights))
dist.destroy_process_group()

# %% hooks and switches of the interpreter
import faulthandler
import gc
import signal
import sys
import warnings
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
print(faulthandler.is_enabled(), gc.isenabled(), gc.get_threshold(), sys.getswitchinterval(), sys.dont_write_bytecode)
print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL, signal.getsignal(signal.SIGHUP) == signal.SIG_DFL, signal.getitimer(signal.ITIMER_REAL))
print(sys.warnoptions, [f[0] for f in warnings.filters if f[2] is DeprecationWarning][:2])
print(gc.get_freeze_count(), len(gc.callbacks), dist.barrier())
print(sys.is_finalizing(), sys.tracebacklimit if hasattr(sys, "tracebacklimit") else None, sys.getprofile())
dist.destroy_process_group()
