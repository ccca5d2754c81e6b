# Programs that use stores of their own and the group's.

# %% a TCPStore of each rank's own
from datetime import timedelta
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=20))
print(store.set("a", "one"), store.get("a"), store.set("b", b"\0\xff"), store.get("b"), store.add("n", 5), store.add("n", -2), store.get("n"))
print(store.check(["a", "b"]), store.check(["a", "z"]), store.check([]), store.delete_key("a"), store.delete_key("a"), store.check(["a"]))
print(store.compare_set("c", "", "first"), store.compare_set("c", "wrong", "second"), store.compare_set("c", "first", "third"), store.get("c"))
print(store.append("d", "x"), store.append("d", "y"), store.get("d"), store.multi_set(["e", "f"], ["1", "2"]), store.multi_get(["e", "f"]))
print(store.has_extended_api(), store.wait(["a2", "e"][1:]), store.timeout, store.host, store.port > 0, dist.barrier())
for wrong in (lambda: store.set("k", 5), lambda: store.add("a3", "1"), lambda: store.get(), lambda: store.wait("e"), lambda: store.set(7, "x"), lambda: store.add("d", 1)):
    try:
        print(wrong())
    except Exception as error:
        print(type(error).__name__)
dist.destroy_process_group()

# %% one TCPStore for both ranks, its port told by a collective
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
port = [None]
if rank == 0:
    store = dist.TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
    port = [store.port]
dist.broadcast_object_list(port)
if rank == 1:
    store = dist.TCPStore(host_name="127.0.0.1", port=port[0], world_size=2, is_master=False)
store.set(f"key {rank}", f"value {rank}")
print(store.get(f"key {1 - rank}"), store.wait(["key 0", "key 1"]))
dist.barrier()
print(store.num_keys() >= 2, store.add("count", 1) in (1, 2), dist.barrier(), store.add("count", 0))
dist.barrier()
dist.destroy_process_group()

# %% a FileStore and its file
import os
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
store = dist.FileStore("meeting", 2)
store.set(f"key {rank}", f"value {rank}")
print(store.get(f"key {1 - rank}"), store.path)
dist.barrier()
print(store.num_keys(), dist.barrier())
print(store.check(["key 0", "key 9"]), store.compare_set(f"c {rank}", "", "new"), store.has_extended_api())
print(store.add("both", 1) in (1, 2), dist.barrier(), store.add("both", 0), os.path.exists("meeting"))
dist.barrier()
if rank == 0:
    print(store.delete_key("both"))
dist.barrier()
print(store.check(["both"]))
dist.barrier()
del store
dist.barrier()
if rank == 0 and os.path.exists("meeting"):
    os.remove("meeting")
dist.destroy_process_group()

# %% a HashStore, and prefixes within prefixes
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
base = dist.HashStore()
first, second = dist.PrefixStore("first", base), dist.PrefixStore("second", base)
inner = dist.PrefixStore("inner", first)
first.set("k", "1"), second.set("k", "2"), inner.set("k", "3")
print(first.get("k"), second.get("k"), inner.get("k"), base.get("first/k"), base.get("first/inner/k"), base.check(["k"]))
print(base.num_keys(), inner.num_keys(), first.delete_key("k"), first.check(["k"]), inner.add("n", 7), base.get("first/inner/n"))
print(isinstance(inner, dist.Store), inner.underlying_store is base, type(inner.underlying_store).__name__, type(first).__name__)
print(base.has_extended_api(), inner.has_extended_api(), inner.timeout == base.timeout, dist.barrier())
dist.destroy_process_group()

# %% waits that run into their timeouts
import time
from datetime import timedelta
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
stores = [dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False), dist.HashStore(), dist.FileStore(f"file_{rank}", 1)]
short = timedelta(milliseconds=100)
for store in stores:
    store.set_timeout(short)
    for call in (lambda: store.wait(["never"], short), lambda: store.get("never")):
        begun = time.monotonic()
        try:
            call()
        except Exception as error:
            print(type(store).__name__, type(error).__name__, isinstance(error, RuntimeError), time.monotonic() - begun < 5)
print(dist.barrier())
del store, stores
dist.destroy_process_group()
import os
if os.path.exists(f"file_{rank}"):
    os.remove(f"file_{rank}")

# %% the default group's store
from datetime import timedelta
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
store = dist.distributed_c10d._get_default_store()
print(isinstance(store, dist.Store), store.set(f"mine {rank}", b"from %d" % rank), store.get(f"mine {1 - rank}"), store.wait(["mine 0", "mine 1"], timedelta(seconds=10)))
dist.barrier()
print(store.check(["mine 0", "mine 9"]), store.add("sum", rank + 1) in (1, 2, 3), dist.barrier(), store.add("sum", 0))
print(store.compare_set(f"c{rank}", "", "set"), store.get(f"c{rank}"))
if rank == 0:
    print(store.delete_key("mine 1"))
dist.barrier()
print(store.check(["mine 1"]), store.num_keys() > 3)
own = dist.PrefixStore("own", store)
own.set(str(rank), str(rank))
print(own.get(str(1 - rank)), store.get(f"own/{rank}"), dist.barrier())
dist.destroy_process_group()

# %% the default group's store appends and gets several keys at once
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
store = dist.distributed_c10d._get_default_store()
for call in (lambda: store.append(f"list {rank}", "a"), lambda: store.append(f"list {rank}", "b"), lambda: store.get(f"list {rank}"), lambda: store.multi_set([f"x{rank}", f"y{rank}"], ["1", "2"]), lambda: store.multi_get([f"x{rank}", f"y{1 - rank}"]), lambda: store.has_extended_api()):
    try:
        print(call())
    except Exception as error:
        print(type(error).__name__)
dist.barrier()
dist.destroy_process_group()

# %% a key of the default group's store that never comes
import time
from datetime import timedelta
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
store = dist.distributed_c10d._get_default_store()
before = store.timeout
for call in (lambda: store.wait(["never"], timedelta(milliseconds=150)), lambda: (store.set_timeout(timedelta(milliseconds=150)), store.get("never"))):
    begun = time.monotonic()
    try:
        print(call())
    except Exception as error:
        print(type(error).__name__, isinstance(error, dist.DistError), time.monotonic() - begun < 5)
print(before, store.timeout)
store.set_timeout(before)
print(dist.barrier())
dist.destroy_process_group()

# %% a store in threads
import threading
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
store = dist.HashStore()
got = []
waiters = [threading.Thread(target=lambda n=n: got.append((n, store.get(f"k{n}")))) for n in range(4)]
for thread in waiters:
    thread.start()
dist.barrier()
for n in range(4):
    store.set(f"k{n}", str(n * n))
for thread in waiters:
    thread.join()
print(sorted(got))
adders = [threading.Thread(target=lambda: [store.add("n", 1) for i in range(200)]) for n in range(4)]
for thread in adders:
    thread.start()
value = torch.ones(1)
dist.all_reduce(value)
for thread in adders:
    thread.join()
print(store.add("n", 0), value.item())
dist.destroy_process_group()

# %% a store written in Python
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
class Mine(dist.Store):
    def __init__(self):
        super().__init__()
        self.data = {}
        self.calls = []
    def set(self, key, value):
        self.calls.append("set")
        self.data[key] = value
    def get(self, key):
        self.calls.append("get")
        return self.data[key]
    def add(self, key, amount):
        self.calls.append("add")
        self.data[key] = str(int(self.data.get(key, 0)) + amount)
        return int(self.data[key])
store = Mine()
store.set("a", b"1")
print(store.get("a"), store.add("n", 3), store.add("n", 3), store.calls, isinstance(store, dist.Store))
prefixed = dist.PrefixStore("p", store)
prefixed.set("k", "v")
print(prefixed.get("k"), sorted(store.data), store.calls)
print(dist.barrier())
dist.destroy_process_group()

# %% rendezvous by address, by file and badly
import os
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
store, place, size = next(dist.rendezvous(f"file://{os.getcwd()}/meeting", rank, 2))
store.set(f"k{rank}", "v")
print(store.get(f"k{1 - rank}"), place == rank, size, dist.barrier())
for address in "nonsense://", "tcp://127.0.0.1", 7, "file://":
    try:
        next(dist.rendezvous(address, rank, 2))
        print("made")
    except Exception as error:
        print(type(error).__name__)
del store
dist.barrier()
if rank == 0 and os.path.exists("meeting"):
    os.remove("meeting")
dist.destroy_process_group()

# %% the default group in a PrefixStore of the program's own TCPStore, looked into afterwards
# forms: script, function
import os
import time
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"])
if rank == 0:
    base = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    open("port.new", "w").write(str(base.port))
    os.rename("port.new", "port")
else:
    while not os.path.exists("port"):
        time.sleep(0.01)
    base = dist.TCPStore("127.0.0.1", int(open("port").read()), is_master=False, wait_for_workers=False)
    os.remove("port")
dist.init_process_group("gloo", store=dist.PrefixStore("job", base), rank=rank, world_size=2)
dist.barrier()
first = base.num_keys()
dist.barrier()
group = dist.new_group([0, 1])
dist.barrier()
print(base.num_keys() > first > 0, dist.barrier())
dist.barrier()
dist.destroy_process_group()
