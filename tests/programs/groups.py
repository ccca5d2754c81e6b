# Programs that make, use and destroy groups.

# %% ranks of a group given as everything that can be
import torch
import torch.distributed as dist
import numpy
dist.init_process_group("gloo")
errors = []  # they hold groups that another rank still connects to
for name, ranks in [
    ("list", [0, 1]), ("tuple", (0, 1)), ("range", range(2)), ("set", {0, 1}), ("keys", {1: "b", 0: "a"}.keys()), ("generator", (n for n in range(2))),
    ("numpy", numpy.arange(2)), ("numpy list", list(numpy.arange(2))), ("tensor", torch.arange(2)), ("tensors", list(torch.arange(2))), ("map", map(int, "01")),
    ("reversed", [1, 0]), ("bools", [False, True]), ("floats", [0.0, 1.0]), ("text", "01"), ("number", 2), ("twice", [0, 0, 1]), ("beyond", [0, 7]), ("negative", [-1, 0]), ("empty", []), ("none", None),
]:
    try:
        group = dist.new_group(ranks)
        answer = dist.get_process_group_ranks(group) if group != dist.GroupMember.NON_GROUP_MEMBER else "not a member"
        value = torch.ones(1)
        if answer != "not a member":
            dist.all_reduce(value, group=group)
        print(name, answer, value.item())
    except Exception as error:
        errors.append(error)
        print(name, type(error).__name__)
dist.destroy_process_group()

# %% groups of one, and calls by those who are not members
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
groups = [dist.new_group([n]) for n in range(2)]
mine, other = groups[rank], groups[1 - rank]
print(other == dist.GroupMember.NON_GROUP_MEMBER, type(other).__name__, mine.size(), mine.rank(), dist.get_world_size(mine), dist.get_rank(other), dist.get_world_size(other))
value = torch.tensor([rank + 1])
print(dist.all_reduce(value, group=mine), dist.barrier(mine), value.item())
for name, call in [
    ("all_reduce", lambda: dist.all_reduce(value, group=other)), ("async", lambda: dist.all_reduce(value, group=other, async_op=True)),
    ("broadcast", lambda: dist.broadcast(value, rank, group=other)), ("barrier", lambda: dist.barrier(group=other)), ("ranks", lambda: dist.get_process_group_ranks(other)),
    ("all_gather", lambda: dist.all_gather([value], value, group=other)), ("group_rank", lambda: dist.get_group_rank(other, rank)), ("global_rank", lambda: dist.get_global_rank(mine, 0)),
    ("object", lambda: dist.broadcast_object_list([1], rank, group=other)), ("backend", lambda: dist.get_backend(other)), ("destroy", lambda: dist.destroy_process_group(other)),
]:
    try:
        print(name, call())
    except Exception as error:
        print(name, type(error).__name__)
dist.barrier()  # a rank that leaves at once breaks connections that another still makes
dist.destroy_process_group()

# %% overlapping groups
# ranks: 3
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
pairs = {(a, b): dist.new_group([a, b]) for a, b in [(0, 1), (1, 2), (0, 2)]}
for pair, group in pairs.items():
    value = torch.tensor([10 ** rank])
    if rank in pair:
        dist.all_reduce(value, group=group)
        print(pair, value.item(), dist.get_rank(group), dist.get_group_rank(group, rank), dist.get_global_rank(group, 1), group.name())
works = [dist.all_reduce(torch.ones(1), group=group, async_op=True) for pair, group in reversed(pairs.items()) if rank in pair]
print([work.wait() for work in works])
dist.destroy_process_group()

# %% ranks of a group that are not sorted
# ranks: 3
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
group = dist.new_group([2, 0])
if rank != 1:
    print(dist.get_process_group_ranks(group), dist.get_rank(group), dist.get_group_rank(group, rank))
    value = torch.tensor([rank])
    dist.broadcast(value, src=2, group=group)
    gathered = [torch.zeros(1, dtype=torch.int64) for n in range(2)]
    dist.all_gather(gathered, torch.tensor([rank]), group=group)
    print(value.item(), torch.cat(gathered).tolist())
    dist.broadcast(value, group_src=1, group=group)
print(dist.get_rank(group), dist.barrier())
dist.destroy_process_group()

# %% forty groups are made and destroyed
import gc
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
names = []
for n in range(40):
    group = dist.new_group([0, 1] if n % 3 else [n % 2])
    value = torch.ones(1)
    if group is not dist.GroupMember.NON_GROUP_MEMBER:
        dist.all_reduce(value, group=group)
        names.append(group.group_name)
        dist.destroy_process_group(group)
print(len(names), len(set(names)), value.item())
del group
gc.collect()
print(dist.barrier(), len(dist.distributed_c10d._world.pg_map), dist.distributed_c10d._world.group_count)
dist.destroy_process_group()

# %% a destroyed subgroup is used
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
group = dist.new_group([0, 1])
value = torch.ones(1)
dist.all_reduce(value, group=group)
print(dist.destroy_process_group(group))
for call in (lambda: dist.all_reduce(value, group=group), lambda: dist.get_rank(group), lambda: dist.barrier(group), lambda: dist.get_process_group_ranks(group), lambda: dist.destroy_process_group(group), lambda: dist.get_backend(group)):
    try:
        print(call())
    except Exception as error:
        print(type(error).__name__)
dist.all_reduce(value)
print(value.item() >= 4, dist.is_initialized())
dist.destroy_process_group()

# %% calls after destroy
# forms: script, function, cell
import torch
import torch.distributed as dist
calls = [dist.get_rank, dist.get_world_size, dist.barrier, dist.new_group, dist.get_backend, lambda: dist.all_reduce(torch.ones(1)), lambda: dist.send(torch.ones(1), 0), lambda: dist.broadcast_object_list([1]), dist.destroy_process_group]
def attempt():
    for call in calls:
        try:
            print(call())
        except Exception as error:
            print(type(error).__name__, str(error)[:60])
    print(dist.is_initialized(), dist.is_available(), dist.is_gloo_available(), dist.group.WORLD, dist.GroupMember.WORLD)
print("after")
dist.init_process_group("gloo")
print(type(dist.group.WORLD).__name__, dist.group.WORLD is dist.GroupMember.WORLD, dist.get_rank() >= 0)
dist.barrier()
dist.destroy_process_group()
attempt()

# %% calls before the group is made
# forms: script, function
import torch
import torch.distributed as dist
for call in [dist.get_rank, dist.get_world_size, dist.barrier, dist.new_group, dist.get_backend, lambda: dist.all_reduce(torch.ones(1)), lambda: dist.get_rank(None), dist.destroy_process_group, lambda: dist.batch_isend_irecv([])]:
    try:
        print(call())
    except Exception as error:
        print(type(error).__name__, error)
print(dist.is_initialized(), dist.group.WORLD)
dist.init_process_group("gloo")
print(dist.is_initialized(), dist.group.WORLD.size())
dist.barrier()
dist.destroy_process_group()

# %% the default group is made twice
# forms: script, function
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
for call in (lambda: dist.init_process_group("gloo"), lambda: dist.init_process_group(), lambda: dist.init_process_group("nonsense")):
    try:
        call()
    except Exception as error:
        print(type(error).__name__, error)
value = torch.ones(1)
dist.all_reduce(value)
print(value.item())
dist.destroy_process_group()

# %% odd arguments of init_process_group
# forms: script, function
from datetime import timedelta
import os
import torch
import torch.distributed as dist
rank = int(os.environ["RANK"])
for arguments in [
    dict(backend="nonsense"), dict(backend="gloo", timeout=5), dict(backend="gloo", store=dist.HashStore(), rank=0), dict(backend="gloo", store=dist.HashStore(), init_method="env://", rank=0, world_size=1),
    dict(backend="gloo", world_size=0, rank=0, store=dist.HashStore()), dict(backend="gloo", init_method="nonsense://"), dict(backend=7), dict(backend="gloo", device_id=3),
]:
    try:
        dist.init_process_group(**arguments)
        print("made")
        dist.destroy_process_group()
    except Exception as error:
        print(sorted(arguments), type(error).__name__)
    print(dist.is_initialized())
dist.init_process_group(backend="cpu:gloo", timeout=timedelta(seconds=33), group_name="")
value = torch.ones(1)
dist.all_reduce(value)
print(value.item(), dist.get_backend(), dist.get_backend_config())
dist.destroy_process_group()

# %% three default groups after each other, the second in a FileStore, the third alone
# forms: script, function
import os
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
value = torch.tensor([rank + 1])
dist.all_reduce(value)
dist.barrier()
dist.destroy_process_group()
dist.init_process_group("gloo", store=dist.FileStore(f"{os.getcwd()}-meeting", 2), rank=1 - rank, world_size=2)
dist.broadcast(value, 0)
group = dist.new_group([1])
print(value.item(), dist.get_rank(), group == dist.GroupMember.NON_GROUP_MEMBER)
dist.barrier()
dist.destroy_process_group()
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(value)
print(value.item(), dist.get_rank(), dist.get_world_size(), dist.get_process_group_ranks(None))
dist.destroy_process_group()

# %% only some ranks make a group, with local synchronization
# ranks: 3
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
if rank:
    group = dist.new_group([1, 2], use_local_synchronization=True)
    value = torch.tensor([rank])
    dist.all_reduce(value, group=group)
    print(value.item(), dist.get_process_group_ranks(group))
else:
    print(dist.new_group([1, 2], use_local_synchronization=True) == dist.GroupMember.NON_GROUP_MEMBER)
print(dist.barrier())
dist.destroy_process_group()

# %% subgroups by size and by enumeration
# ranks: 4
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
group, groups = dist.new_subgroups(2)
print(dist.get_process_group_ranks(group), len(groups), [g == dist.GroupMember.NON_GROUP_MEMBER for g in groups])
other, others = dist.new_subgroups_by_enumeration([[0, 3], [1, 2]])
value = torch.tensor([10 ** rank])
dist.all_reduce(value, group=other)
print(value.item(), dist.get_process_group_ranks(other), dist.get_rank(other))
for arguments in [dict(group_size=3), dict(group_size=9)]:
    try:
        dist.new_subgroups(**arguments)
    except Exception as error:
        print(type(error).__name__, error)
try:
    dist.new_subgroups_by_enumeration([[0, 1], [1, 2]])
except Exception as error:
    print(type(error).__name__, error)
dist.barrier()  # a rank that left now would break the connection that rank 1 still makes
dist.destroy_process_group()

# %% descriptions, names, timeouts and tags of groups
from datetime import timedelta
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
group = dist.new_group([0, 1], timeout=timedelta(seconds=12), group_desc="a description")
print(group.group_desc, dist.group.WORLD.group_desc, group.group_name, dist.group.WORLD.group_name, group.name(), dist.group.WORLD.name())
print(dist.new_group(group_desc="").group_desc, dist.new_group(backend="gloo", pg_options=None).group_desc)
for arguments in [dict(timeout=5), dict(backend="nonsense"), dict(colour="red")]:
    try:
        print(dist.new_group(**arguments))
    except Exception as error:
        print(sorted(arguments), type(error).__name__)
print(dist.distributed_c10d._get_process_group_name(group), dist.get_pg_count(), dist.distributed_c10d._resolve_process_group(group.group_name) is group)
print(type(group).__name__, group == dist.group.WORLD, group is group, hash(group) == hash(group), isinstance(group, dist.ProcessGroup))
dist.barrier()
dist.destroy_process_group()

# %% split_group
# ranks: 4
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
for arguments in [dict(split_ranks=[[0, 1], [2, 3]]), dict(split_ranks=[[0, 1, 2, 3]], group_desc="all"), dict(split_ranks=[])]:
    try:
        group = dist.split_group(**arguments)
        value = torch.tensor([10 ** rank])
        dist.all_reduce(value, group=group)
        print(dist.get_process_group_ranks(group), value.item())
    except Exception as error:
        print(sorted(arguments), type(error).__name__)
print(dist.barrier())
dist.destroy_process_group()

# %% groups of groups, objects kept after their destruction
import gc
import weakref
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
world = dist.group.WORLD
inner = dist.new_group([0, 1])
kept = weakref.ref(inner)
print(kept() is inner, dist.get_rank(group=world), dist.get_rank(dist.group.WORLD), dist.get_world_size(None))
print([f(inner) for f in (dist.get_backend, dist.get_process_group_ranks, dist.get_world_size)])
dist.barrier(inner)
dist.destroy_process_group()
print(world.size(), inner.size(), world.rank() == inner.rank(), dist.is_initialized(), dist.group.WORLD)
del inner
gc.collect()
print(kept() is None)

# %% destroy is called by one rank earlier than by the other
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
value = torch.ones(1)
dist.all_reduce(value)
if rank == 1:
    time.sleep(0.3)
print(value.item(), dist.destroy_process_group(), dist.is_initialized())
try:
    dist.destroy_process_group()
except Exception as error:
    print(type(error).__name__)

# %% the group is never destroyed
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
group = dist.new_group([1, 0])
value = torch.ones(1)
dist.all_reduce(value, group=group)
work = dist.all_reduce(value, async_op=True)
work.wait()
print(value.item())
time.sleep(0.3)  # gloo's threads let go of the last tensors: at the end of Python that may abort

# %% abort, shutdown and other methods of the group itself
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
group = dist.group.WORLD
value = torch.tensor([rank + 1.0])
print(group.allreduce(value).wait(), value.item(), group.broadcast(value, 1).wait(), value.item(), group.barrier().wait())
outputs = [torch.zeros(1), torch.zeros(1)]
print(group.allgather(outputs, value).wait(), [o.item() for o in outputs])
if rank == 0:
    print(group.send([value * 5], 1, 7).wait())
else:
    print(group.recv([value], 0, 7).wait(), value.item())
print(group._get_backend_name(), group._has_hooks() if hasattr(group, "_has_hooks") else None, sorted(str(d) for d in group._device_types))
print(type(group._get_backend(torch.device("cpu"))).__name__, group.size(), group.rank() == rank)
del group
dist.destroy_process_group()

# %% a class of process groups of the program's own
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
class Own(dist.ProcessGroup):
    def __init__(self):
        super().__init__(0, 1)
    def broadcast(self, tensors, options):
        print("broadcast", [t.tolist() for t in tensors], options.rootRank)
        return Done()
class Done(dist.Work):
    def wait(self, timeout=None):
        print("waited")
        return True
own, x = Own(), torch.full((2,), float(rank))
print(own.broadcast([x], dist.BroadcastOptions()).wait())
for call in [lambda: own.allreduce([x], dist.AllreduceOptions()), lambda: own.allreduce(x), lambda: own.barrier(opts=dist.BarrierOptions()), lambda: Done().is_completed(), lambda: Done().synchronize(), lambda: own.send([x], 0, 0)]:
    try:
        print(type(call()).__name__)
    except Exception as error:
        print(type(error).__name__, str(error).splitlines()[0][:80])
for wrong in [((5,), {}), (([x],), {"opts": 5}), ((), {}), (([5], dist.AllreduceOptions()), {})]:
    try:
        dist.group.WORLD.allreduce(*wrong[0], **wrong[1])
    except Exception as error:
        print(type(error).__name__)
print(dist.ProcessGroup.allreduce.__name__, callable(dist.ProcessGroup.allreduce))
dist.all_reduce(x)
print(x.tolist())
dist.destroy_process_group()
