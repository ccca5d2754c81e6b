# Programs that print every kind of thing.

# %% bytes that are not UTF-8
import os
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
print("before", flush=True)
sys.stdout.buffer.write(b"\xff\xfe caf\xe9 \xc3\x28 \xf0\x9f\n")
sys.stdout.buffer.flush()
dist.barrier()
print(sys.stdout.buffer.write(bytes(range(128, 256)) + b"\n"))
sys.stdout.flush()
os.write(1, b"\xe2\x82" + bytes([48 + rank]) + b"\n")
dist.destroy_process_group()

# %% a character of three bytes is written in three pieces
import os
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
for piece in "a€😀ä\n".encode():
    os.write(1, bytes([piece]))
    dist.barrier()
dist.destroy_process_group()

# %% a line of a megabyte
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
print("x" * 1_000_000 + str(rank))
dist.barrier()
print("é" * 300_000, end="|")
sys.stdout.flush()
print(sys.stdout.write("z" * 70_000))
dist.destroy_process_group()

# %% no newline at the end
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
print("a line")
dist.barrier()
print("no newline", dist.get_rank(), end="")
dist.destroy_process_group()

# %% nothing at all
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
dist.destroy_process_group()

# %% only newlines and spaces
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
print()
print("\n\n", end="")
dist.barrier()
print("  \t  ")
print("\r\n\v\f", end="\n\n")
print("", end="")
dist.destroy_process_group()

# %% a progress bar of carriage returns and one of backspaces
import sys
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
for step in range(20):
    print(f"\r{step + 1:3d}/20 [{'#' * step:<20}]", end="", flush=True)
    dist.barrier()
print("\r\x1b[Kdone")
for step in range(5):
    sys.stdout.write(f"{step}\b")
    sys.stdout.flush()
    time.sleep(0.01)
print("\a.")
dist.destroy_process_group()

# %% colours, cursors, titles and links of a terminal
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
print(f"\x1b[1;3{rank + 1}mrank {rank}\x1b[0m \x1b[38;5;208morange\x1b[0m")
print("\x1b]0;a title\x07\x1b]8;;https://example.org\x1b\\link\x1b]8;;\x1b\\")
dist.barrier()
print("\x1b[2J\x1b[H\x1b[3A\x1b[?25lhidden\x1b[?25h\x1b[10Dback")
print("\x1b[31mnever closed")
print("unfinished \x1b[", end="")
dist.destroy_process_group()

# %% characters of every plane
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
print("".join(chr(0x10000 * plane + 0x1F600 % 0x10000) for plane in range(17) if plane != 0 or True).encode("utf8", "replace").decode())
print("ÄÖ ß Ω я א ع 中 \u200b\u200d\u202e \ufeff \ufffd \ufffe \U0010ffff 👩‍👩‍👧 e\u0301")
print("\u2028line separator\u2029\x85next line\x1c\x1d\x1e")
dist.barrier()
try:
    print("\ud800")
except UnicodeEncodeError as error:
    print(type(error).__name__, error.start, error.reason)
dist.destroy_process_group()

# %% NUL bytes and control characters
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
print("a\0b\0\0c")
dist.barrier()
print("".join(chr(n) for n in range(32) if n != 10) + "\x7f")
sys.stdout.buffer.write(b"\0" * 1000)
sys.stdout.buffer.flush()
dist.destroy_process_group()

# %% twenty thousand lines
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
for n in range(20_000):
    print("rank", rank, "line", n)
    if n % 5000 == 0:
        dist.barrier()
dist.destroy_process_group()

# %% five thousand lines, each flushed, and as many writes of one character
import os
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
for n in range(5000):
    print(n, flush=True)
for n in range(5000):
    os.write(1, b"%d" % (n % 10))
dist.barrier()
print(file=sys.stdout)
dist.destroy_process_group()

# %% output from C beside output from Python
import ctypes
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
libc = ctypes.CDLL(None)
rank = dist.get_rank()
print("from Python", flush=True)
libc.puts(b"from C")
libc.printf(b"%d + %d\n", rank, 2)
libc.fflush(None)
dist.barrier()
print("again", flush=True)
libc.puts(b"stays in the buffer of C until exit")
dist.destroy_process_group()

# %% logging to stdout
import logging
import sys
import torch
import torch.distributed as dist
print(logging.getLogger().handlers, logging.getLogger().level, logging.root.manager.disable)
logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
log = logging.getLogger("program")
dist.init_process_group("gloo")
log.info("rank %d", dist.get_rank())
dist.barrier()
log.debug("not seen")
log.warning("unicode é %s", [1, 2])
try:
    1 / 0
except ZeroDivisionError:
    log.error("caught", exc_info=False)
print([type(h).__name__ for h in logging.getLogger().handlers], log.isEnabledFor(logging.DEBUG))
dist.destroy_process_group()
print(logging.getLogger("torch.distributed").getEffectiveLevel())

# %% prints at exit
# forms: script
import atexit
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
atexit.register(print, "first registered, last printed", rank)
atexit.register(lambda: print("initialized at exit:", dist.is_initialized()))
atexit.register(lambda: (dist.barrier(), print("a barrier at exit"), dist.destroy_process_group()))
class Late:
    def __del__(self, write=print):
        write("deleted")
keep = Late()
print("end of the program")

# %% a thread prints after the program's last line
# forms: script
import threading
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
def late():
    threading.main_thread().join()
    time.sleep(0.2)
    print("late", threading.main_thread().is_alive())
threading.Thread(target=late).start()
dist.destroy_process_group()
print("last line")

# %% pretty printed, tabulated and formatted things
import pprint
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
pprint.pprint({"rank": rank, "shape": [torch.Size([2, 3])] * 6, "nested": {"a" * 20: list(range(30))}})
torch.set_printoptions(precision=2, linewidth=60)
value = torch.linspace(0, 1, 12).reshape(3, 4)
dist.all_reduce(value)
print(value, torch.arange(2000), torch.get_default_dtype(), sep="\n")
torch.set_printoptions(profile="default")
print(torch.tensor([1e-10, 1.0]), f"{value[0, 1]:.3f}", "%5s|%-5s|" % (rank, rank))
print(dist.ReduceOp.SUM, repr(dist.Backend.GLOO), dist.get_backend())
dist.destroy_process_group()

# %% objects with representations for notebooks
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
class Rich:
    def _repr_html_(self):
        return "<b>html</b>"
    def _repr_mimebundle_(self, **kwargs):
        return {"text/plain": "bundle"}
    def _ipython_display_(self):
        print("displayed")
    def __repr__(self):
        return "plain"
print(Rich(), [Rich()], f"{Rich()!r}")
dist.barrier()
Rich()
42
dist.get_rank()
dist.destroy_process_group()

# %% display hooks
# forms: script
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
print(sys.displayhook is sys.__displayhook__, sys.excepthook is sys.__excepthook__, sys.unraisablehook is sys.__unraisablehook__)
sys.displayhook("text")
sys.displayhook(None)
import builtins
print(builtins._)
shown = []
sys.displayhook = shown.append
exec(compile("1 + 1\ndist.get_rank()\ndist.barrier()", "<typed>", "single")) if False else [exec(compile(line, "<typed>", "single")) for line in ("1 + 1", "dist.get_world_size()", "dist.barrier()")]
print(shown)
dist.destroy_process_group()

# %% a representation that raises
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
class Shy:
    def __repr__(self):
        raise RuntimeError("no representation")
shy = Shy()
for call in (lambda: print("before", shy), lambda: dist.all_reduce(shy), lambda: dist.broadcast(tensor=shy, src=0), lambda: dist.new_group(shy), lambda: dist.all_reduce(torch.ones(1), op=shy)):
    try:
        call()
    except Exception as error:
        print(type(error).__name__)
total = torch.ones(1)
dist.all_reduce(total)
print(total.item())
dist.destroy_process_group()

# %% stdout is reconfigured
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
print(sys.stdout.line_buffering, sys.stdout.write_through, sys.stdout.newlines)
sys.stdout.reconfigure(errors="backslashreplace", line_buffering=True)
print("\ud83d lone", sys.stdout.errors, sys.stdout.line_buffering)
dist.barrier()
sys.stdout.reconfigure(encoding="latin-1", newline="\r\n")
print("é in latin-1")
sys.stdout.reconfigure(encoding="utf-8", newline="\n", errors="strict", line_buffering=False)
print("é in utf-8", sys.stdout.writable(), sys.stdout.seekable() if False else None)
dist.destroy_process_group()

# %% stdout is detached and wrapped anew
# forms: script
import io
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
print("one", flush=True)
sys.stdout = io.TextIOWrapper(sys.stdout.detach(), encoding="utf-16-le", write_through=True)
print("two")
dist.barrier()
sys.stdout = io.TextIOWrapper(sys.stdout.detach(), encoding="utf-8", newline="\n")
print("three", sys.stdout.encoding)
dist.destroy_process_group()

# %% print is replaced
import builtins
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
original = builtins.print
def on_rank_0(*args, **kwargs):
    if dist.get_rank() == 0:
        original("[0]", *args, **kwargs)
builtins.print = on_rank_0
print("seen once")
dist.barrier()
builtins.print = original
print("seen on every rank", rank)
import warnings
warnings.showwarning = lambda message, category, *rest: print(category.__name__, message)
warnings.warn("a warning", UserWarning)
dist.destroy_process_group()

# %% output is larger than any pipe holds, from all ranks while they wait for each other
# ranks: 3
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(4):
    for line in range(rank * 1500):
        sys.stdout.write(f"{step} {line} {'.' * 60}\n")
    sys.stdout.flush()
    total = torch.tensor([rank])
    dist.all_reduce(total)
print(total.item())
dist.destroy_process_group()
