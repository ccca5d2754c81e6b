"""What a rank finds when it begins, and a job that changes all of that."""

# Defines state(), which returns plain values.
PROBE = """\
def state():
    import gc, os, random, re, resource, signal, sys, threading, warnings, locale, tempfile
    import numpy, torch, torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d
    def file(name):
        try:
            return re.sub(r"\\d+", "N", os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            return ""
    own = {"LOCKSTEP_JOB", "MASTER_PORT"}
    handlers = {int(n): str(signal.getsignal(n)) for n in signal.valid_signals()}
    return {
        "environment": {k: v for k, v in os.environ.items() if k not in own},
        "directory": os.getcwd(), "path": list(sys.path), "argv": list(sys.argv),
        "modules": sorted(sys.modules), "main": sorted(sys.modules["__main__"].__dict__),
        "handlers": {n: re.sub("0x[0-9a-f]+", "", h) for n, h in handlers.items()},
        "mask": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))),
        "files": sorted(file(name) for name in os.listdir("/proc/self/fd")),
        "threads": (threading.active_count(), len(os.listdir("/proc/self/task"))),
        "limits": resource.getrlimit(resource.RLIMIT_NOFILE), "nice": os.nice(0),
        "cores": sorted(os.sched_getaffinity(0)), "session": os.getsid(0) == os.getpid(),
        "umask": re.search(r"Umask:.*", open("/proc/self/status").read())[0],
        "tempdir": tempfile.tempdir, "locale": locale.setlocale(locale.LC_ALL),
        "filters": len(warnings.filters), "recursion": sys.getrecursionlimit(),
        # Of each process the seed is another, by chance; 1 is what CHANGES' job has set.
        "seed is 1": torch.initial_seed() == 1,
        "has drawn": not torch.equal(torch.get_rng_state(),
            torch.Generator().manual_seed(torch.initial_seed()).get_state()),
        "dtype": str(torch.get_default_dtype()), "device": str(torch.get_default_device()),
        "torch threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "grad": torch.is_grad_enabled(), "deterministic":
            torch.are_deterministic_algorithms_enabled(),
        "groups": len(c10d._world.pg_map), "counts": dict(c10d._world.pg_group_ranks).__len__(),
        "calls": dist.group.WORLD._get_sequence_number_for_group(),
        "cuda": torch.cuda.is_initialized(),
        "tensors": sum(isinstance(o, torch.Tensor) for o in gc.get_objects()),
    }
"""

# The cell of a job; `dist`, `os` and `sys` are there.
CHANGES = """\
import decimal, random, signal, sys, numpy, torch
os.environ["LEFT"] = "over"
os.chdir("/")
sys.path.append("/left/over")
import wave
sys.modules["left"] = wave
left = open("/dev/zero")
os.dup(left.fileno())
torch.manual_seed(1); random.seed(1); numpy.random.seed(1)
torch.set_default_dtype(torch.float64)
torch.set_grad_enabled(False)
torch.use_deterministic_algorithms(True)
torch.set_num_threads(3)
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
os.umask(0o77)
dist.new_group([0])
torch.manual_seed = None
"""

# Defines cuda_state(), which returns that and what CUDA has; needs PROBE above it.
CUDA = """\
def cuda_state():
    import torch
    found = state()
    stats = torch.cuda.memory_stats()
    return found | {
        "allocator": {k: v for k, v in stats.items() if v},
        # Of each process it is another, by chance; 1 is what CHANGES' job has set.
        "cuda seed is 1": torch.cuda.initial_seed() == 1,
        "current": torch.cuda.current_device(),
        "stream": torch.cuda.current_stream() == torch.cuda.default_stream(),
        "matmul": torch.backends.cuda.matmul.allow_tf32,
    }
"""
