# Programs that handle descriptors, files and pipes.

# %% how many descriptors and threads there are
import os
import torch
import torch.distributed as dist
def count():
    print("~descriptors", len(os.listdir("/proc/self/fd")))
    print("~threads", len(os.listdir("/proc/self/task")))
count()
dist.init_process_group("gloo")
count()
for n in range(5):
    dist.all_reduce(torch.ones(4))
    dist.barrier()
count()
dist.destroy_process_group()
count()

# %% how many descriptors and threads a hundred groups leave
import os
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
for n in range(100):
    group = dist.new_group([0, 1])
    if n % 25 == 0:
        value = torch.ones(1)
        dist.all_reduce(value, group=group)
        print(n, value.item())
    dist.destroy_process_group(group)
del group
print("~descriptors", len(os.listdir("/proc/self/fd")))
print("~threads", len(os.listdir("/proc/self/task")))
dist.destroy_process_group()
print("~descriptors", len(os.listdir("/proc/self/fd")))
print("~threads", len(os.listdir("/proc/self/task")))

# %% stdout is moved to a file and back by dup2
import os
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
print("to the pipe", flush=True)
kept = os.dup(1)
file = os.open(f"out_{rank}", os.O_CREAT | os.O_WRONLY)
print(os.dup2(file, 1) == 1)
dist.barrier()
os.system("echo from a child")
sys.stdout.flush()
os.dup2(kept, 1)
os.close(file)
os.close(kept)
print("back", repr(open(f"out_{rank}").read()))
dist.destroy_process_group()

# %% stderr becomes stdout
import logging
import os
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
sys.stderr.flush()
os.dup2(1, 2)
print("out", flush=True)
print("err", file=sys.stderr, flush=True)
dist.barrier()
os.write(2, b"written to 2\n")
dist.destroy_process_group()

# %% sys.stdout is closed by the program
# forms: script
import os
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
print("last words", flush=True)
sys.stdout.close()
try:
    print("nobody hears")
except ValueError as error:
    with open(f"note_{dist.get_rank()}", "w") as file:
        print(type(error).__name__, error, sys.stdout.closed, file=file)
value = torch.ones(1)
dist.all_reduce(value)
with open(f"note_{dist.get_rank()}", "a") as file:
    print(value.item(), os.path.exists("/proc/self/fd/1"), file=file)
dist.destroy_process_group()

# %% all three standard streams are closed or None
# forms: script
import os
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
print("before", flush=True)
sys.stdout = sys.stderr = sys.stdin = None
print("goes nowhere")
dist.barrier()
os.write(1, b"by descriptor\n")
for descriptor in 0, 1, 2:
    os.close(descriptor)
value = torch.ones(1)
dist.all_reduce(value)
group = dist.new_group([0])
with open(f"note_{rank}", "w") as file:
    print(value.item(), dist.get_rank(group), file=file)
dist.destroy_process_group()
os._exit(0)

# %% descriptor 1 is closed below sys.stdout
# forms: script
import os
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
print("before", flush=True)
kept = os.dup(1)
os.close(1)
dist.barrier()
try:
    print("fails", flush=True)
except OSError as error:
    os.dup2(kept, 1)
    print(type(error).__name__, error.errno, flush=True)
dist.barrier()
dist.destroy_process_group()

# %% everything from descriptor 3 on is closed before the group is made
# forms: script, function
import os
import torch
import torch.distributed as dist
os.closerange(3, 1000)
print("closed", len(os.listdir("/proc/self/fd")))
dist.init_process_group("gloo")
value = torch.ones(2)
dist.all_reduce(value)
print(value.tolist(), dist.barrier())
dist.destroy_process_group()

# %% two hundred files are open while groups work
import os
import torch
import torch.distributed as dist
files = [open("/dev/null") for n in range(200)]
dist.init_process_group("gloo")
groups = [dist.new_group() for n in range(5)]
value = torch.ones(1)
for group in groups:
    dist.all_reduce(value, group=group)
print(value.item(), len({file.fileno() for file in files}), all(os.fstat(file.fileno()) for file in files))
print("~descriptors", len(os.listdir("/proc/self/fd")))
for file in files:
    file.close()
print("~descriptors", len(os.listdir("/proc/self/fd")))
dist.destroy_process_group()

# %% pipes, select and selectors
import os
import select
import selectors
import threading
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
reader, writer = os.pipe()
print(select.select([reader], [writer], [], 0) == ([], [writer], []), os.get_inheritable(reader), os.get_blocking(reader))
threading.Timer(0.05, lambda: (dist.barrier(), os.write(writer, b"after a barrier"))).start()
print(select.select([reader], [], [], 20)[0] == [reader], os.read(reader, 100))
with selectors.DefaultSelector() as selector:
    selector.register(writer, selectors.EVENT_WRITE, "w")
    print([key.data for key, events in selector.select(1)])
os.close(writer)
print(os.read(reader, 1))
os.close(reader)
try:
    os.write(writer, b"")
except OSError as error:
    print(error.errno)
dist.barrier()
dist.destroy_process_group()

# %% sys.stdout is a StringIO for a while
import contextlib
import io
import os
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
original = sys.stdout
sys.stdout = io.StringIO()
print("kept", dist.barrier())
os.write(1, b"straight\n")
text = sys.stdout.getvalue()
sys.stdout = original
print(repr(text), sys.stdout is sys.__stdout__)
with contextlib.redirect_stdout(io.StringIO()) as buffer, contextlib.redirect_stderr(buffer):
    print("redirected", rank)
    print("error", file=sys.stderr)
    dist.all_reduce(torch.ones(1))
print(buffer.getvalue().split(), sys.stdout is original)
with open(f"f_{rank}", "w") as file, contextlib.redirect_stdout(file):
    print("into a file", dist.get_world_size())
print(open(f"f_{rank}").read(), end="")
dist.destroy_process_group()

# %% what the standard streams say of themselves
import io
import os
import stat
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
for stream in sys.stdin, sys.stdout, sys.stderr:
    print(stream.fileno(), stream.isatty(), os.isatty(stream.fileno()), stream.name, stream.mode, stream.closed, stream.readable(), stream.writable())
print(isinstance(sys.stdout, io.TextIOWrapper), type(sys.stdout.buffer).__name__, sys.stdout.write_through, sys.stdout.line_buffering)
print(sys.__stdin__.fileno(), sys.__stdout__.fileno(), sys.__stderr__.fileno(), os.device_encoding(1), os.get_blocking(1), os.get_inheritable(1))
print(stat.S_ISCHR(os.fstat(1).st_mode), dist.barrier())
try:
    print(os.get_terminal_size())
except OSError as error:
    print(type(error).__name__, error.errno)
dist.destroy_process_group()

# %% a class that tees stdout
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
class Tee:
    def __init__(self, stream):
        self.stream, self.lines = stream, 0
    def write(self, text):
        self.lines += text.count("\n")
        return self.stream.write(text.upper())
    def __getattr__(self, name):
        return getattr(self.stream, name)
original = sys.stdout
sys.stdout = Tee(original)
print("one"), dist.barrier(), print("two", flush=True)
count = torch.tensor([sys.stdout.lines])
dist.all_reduce(count)
print(count.item(), sys.stdout.isatty(), sys.stdout.fileno())
sys.stdout = original
dist.destroy_process_group()

# %% sockets between the ranks
import socket
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
ports = [None, None]
with socket.create_server(("127.0.0.1", 0)) as server:
    dist.all_gather_object(ports, server.getsockname()[1])
    if rank == 0:
        with socket.create_connection(("127.0.0.1", ports[1]), timeout=10) as peer:
            peer.sendall(b"from rank 0")
            peer.shutdown(socket.SHUT_WR)
            print(peer.recv(100))
    else:
        with server.accept()[0] as peer:
            text = peer.makefile("rb").read()
            peer.sendall(text.upper())
            print(text)
    dist.barrier()
left, right = socket.socketpair()
left.send(b"x")
print(right.recv(9), socket.getdefaulttimeout(), left.getblocking())
dist.destroy_process_group()

# %% a descriptor is passed from rank to rank
import os
import socket
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
name = f"\0lockstep-programs-{os.getpid()}"
names = [name]
dist.broadcast_object_list(names, 0)
if rank == 0:
    server = socket.socket(socket.AF_UNIX)
    server.bind(names[0])
    server.listen()
dist.barrier()
if rank == 0:
    peer = server.accept()[0]
    reader, writer = os.pipe()
    socket.send_fds(peer, [b"pipe"], [writer])
    os.close(writer)
    print(os.read(reader, 100))
else:
    peer = socket.socket(socket.AF_UNIX)
    peer.connect(names[0])
    text, received, flags, address = socket.recv_fds(peer, 10, 1)
    print(text, len(received), os.write(received[0], b"over the pipe of rank 0"))
dist.barrier()
dist.destroy_process_group()

# %% memfd and mmap
import mmap
import os
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
memory = os.memfd_create("block")
os.ftruncate(memory, 4096)
with mmap.mmap(memory, 4096) as block:
    block[:4] = bytes([rank + 1] * 4)
    value = torch.frombuffer(block, dtype=torch.uint8, count=4)
    dist.all_reduce(value)
    print(value.tolist(), block[:5])
    del value
print(os.pread(memory, 5, 0), os.fstat(memory).st_size)
os.close(memory)
if rank == 0:
    open("shared", "wb").write(bytes(8))
dist.barrier()
shared = torch.from_file("shared", shared=True, size=2, dtype=torch.int32)
shared[rank] = rank + 5
dist.barrier()
print(shared.tolist())
dist.destroy_process_group()

# %% file locks between ranks, and a file that both append to
import fcntl
import os
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
file = open("lock", "w")
if rank == 0:
    fcntl.flock(file, fcntl.LOCK_EX)
dist.barrier()
try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print("locked")
except BlockingIOError as error:
    print(type(error).__name__)
dist.barrier()
fcntl.flock(file, fcntl.LOCK_UN)
for turn in range(4):
    if turn % 2 == rank:
        with open("log", "a") as log:
            print("turn", turn, "of rank", rank, file=log)
    dist.barrier()
print(open("log").read(), end="")
dist.destroy_process_group()

# %% a pseudo terminal and a terminal's size
import os
import pty
import shutil
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
leader, follower = pty.openpty()
print(os.isatty(follower), os.isatty(0), os.isatty(1), os.isatty(2))
os.write(follower, b"through a terminal\n")
print(os.read(leader, 100), dist.barrier())
os.environ.pop("COLUMNS", None)
os.environ.pop("LINES", None)
print(shutil.get_terminal_size((77, 33)))
try:
    os.open("/dev/tty", os.O_RDWR)
except OSError as error:
    print("no terminal")
os.close(leader)
os.close(follower)
dist.destroy_process_group()
