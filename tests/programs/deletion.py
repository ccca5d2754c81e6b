# Programs that notice when objects die, and whose objects do not like to be looked at.

# %% what is deleted after a new group was used dies at once
import sys
import weakref
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
class Thing:
    pass
def function():
    thing, other = Thing(), Thing()
    first, second = weakref.ref(thing), weakref.ref(other)
    group = dist.new_group()
    dist.barrier(group)
    del thing
    other = None
    return first(), second(), dist.barrier(dist.new_group()), first(), second()
def generator():
    thing = Thing()
    reference = weakref.ref(thing)
    dist.barrier(dist.new_group())
    yield reference() is thing
    del thing
    yield reference()
def closure():
    thing = Thing()
    reference = weakref.ref(thing)
    def inner():
        nonlocal thing
        dist.barrier(dist.new_group())
        before = reference() is thing
        thing = None
        return before, reference()
    return inner()
class Body:
    thing = Thing()
    reference = weakref.ref(thing)
    dist.barrier(dist.new_group())
    del thing
    print("class", reference())
space = {"dist": dist, "Thing": Thing, "weakref": weakref}
exec("thing = Thing(); reference = weakref.ref(thing); dist.barrier(dist.new_group()); del thing", space)
print(function(), list(generator()), closure(), space["reference"]())
print((lambda thing: (dist.barrier(dist.new_group()), weakref.ref(thing))[1])(Thing())(), [weakref.ref(thing) for thing in [Thing()] if not dist.barrier(dist.new_group())][0]() is None)
dist.destroy_process_group()

# %% references to tensors, groups and lists before and after calls
import sys
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
value, group, both = torch.ones(3), dist.new_group(), [torch.zeros(3), torch.zeros(3)]
objects, thing = [None, None], ["thing"]
def counts():
    time.sleep(0.02)
    return [sys.getrefcount(item) for item in (value, group, both, both[0], objects, dist.group.WORLD)]
def changed(word):
    print(word, [after - before for after, before in zip(counts(), start)])
dist.all_reduce(value, group=group)
start = counts()
dist.all_reduce(value, group=group)
changed("all_reduce")
work = dist.all_gather(both, value, group, async_op=True)
work.wait()
changed("all_gather")
future = work.get_future()
future.wait()
del work, future
changed("deleted")
dist.all_gather_object(objects, 5, group)
dist.broadcast_object_list(objects, 0)
changed("objects")
try:
    dist.all_reduce(value, "no operation", group)
except Exception as error:
    print(type(error).__name__)
changed("error")
for n in range(200):
    dist.barrier(group)
changed("barriers")
dist.destroy_process_group()

# %% tensors of asynchronous calls are freed as soon as nobody has them
import time
import weakref
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
class Noisy(torch.Tensor):
    def __del__(self):
        lines.append("gone")
lines = []
def gone(reference):
    time.sleep(0.05)
    return reference()
value = torch.ones(1000)
reference = weakref.ref(value)
work = dist.all_reduce(value, async_op=True)
work.wait()
del work
del value
print(gone(reference))
dist.all_reduce(torch.ones(10).as_subclass(Noisy))
time.sleep(0.05)
print(lines)
value = torch.ones(5).as_subclass(Noisy)
works = [dist.broadcast(value, 0, async_op=True) for n in range(3)]
[work.wait() for work in works]
references = [weakref.ref(work) for work in works]
del works
print(len(lines), [gone(item) for item in references])
del value
time.sleep(0.05)
print(lines)
dist.destroy_process_group()

# %% storage is shared, resized and freed between calls
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
value = torch.ones(1000)
storage = value.untyped_storage()
start = storage._use_count() if hasattr(storage, "_use_count") else 0
for n in range(5):
    dist.all_reduce(value)
dist.all_reduce(value[10:20], async_op=True).wait()
time.sleep(0.05)
print((storage._use_count() if hasattr(storage, "_use_count") else 0) - start, value._version, value[:12].tolist()[8:])
storage.resize_(0)
print(storage.nbytes(), dist.barrier())
storage.resize_(4000)
value.fill_(2)
pointer = value.data_ptr()
dist.all_reduce(value)
print(value.data_ptr() == pointer, value.sum().item(), value._version, torch.is_inference(value))
dist.destroy_process_group()

# %% dead proxies among the names while new groups are used
import weakref
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
class Thing:
    def __call__(self):
        return 5
thing = Thing()
alive, dead, function = weakref.proxy(thing), weakref.proxy(Thing()), weakref.proxy(Thing())
def local():
    proxy, group = weakref.proxy(Thing()), dist.new_group()
    value = torch.ones(1)
    dist.all_reduce(value, group=group)
    dist.barrier()
    try:
        proxy.colour
    except ReferenceError as error:
        return value.item(), str(error)
mine = dist.new_group()
for n in range(3):
    group = dist.new_group()
    value = torch.ones(1)
    print(dist.all_reduce(value, group=group), dist.barrier(mine), value.item(), local(), alive())
del thing
print(dist.barrier(dist.new_group()))
dist.destroy_process_group()

# %% objects that tell of whoever looks at them
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
class Loud:
    def __getattribute__(self, name):
        print("looked at", name)
        return object.__getattribute__(self, name)
    def __eq__(self, other):
        print("compared")
        return True
    def __bool__(self):
        print("asked for truth")
        return True
    def __len__(self):
        print("measured")
        return 1
    def __hash__(self):
        print("hashed")
        return 1
    def __repr__(self):
        print("shown")
        return "Loud"
    def __iter__(self):
        print("iterated")
        return iter(())
class Meta(type):
    def __instancecheck__(cls, item):
        print("checked")
        return True
    def __subclasscheck__(cls, other):
        print("subclass checked")
        return True
    def __getattribute__(cls, name):
        if not name.startswith("__"):
            print("class looked at", name)
        return type.__getattribute__(cls, name)
class LoudClass(metaclass=Meta):
    pass
loud, cls, made = Loud(), LoudClass, LoudClass()
group = dist.new_group()
def local(loud, made, *rest, key=loud):
    inner = dist.new_group()
    value = torch.ones(1)
    print("before", dist.all_reduce(value, group=inner), dist.barrier(inner), "after", value.item())
    return inner
local(loud, made, loud, cls)
print(dist.barrier(group), dist.get_world_size(group), "end")
dist.destroy_process_group()

# %% objects that raise when they are looked at
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
class Angry:
    def fail(self, *arguments):
        raise self_error("do not touch")
    __getattribute__ = __eq__ = __ne__ = __hash__ = __bool__ = __len__ = __repr__ = __str__ = __iter__ = __contains__ = __format__ = __dir__ = __call__ = __getitem__ = fail
class Property:
    @property
    def __class__(self):
        raise self_error("no class")
    @property
    def __dict__(self):
        raise self_error("no dict")
    @property
    def __module__(self):
        raise self_error("no module")
def self_error(text):
    return KeyboardInterrupt(text)
class Liar:
    __class__ = dist.ProcessGroup
class Slots:
    __slots__ = ()
angry, attributes, liar, slots, types = Angry(), Property(), Liar(), Slots(), [Angry, Property, Liar]
def local(angry, *, attributes=attributes):
    lie, group = Liar(), dist.new_group()
    value = torch.ones(2)
    dist.all_reduce(value, group=group)
    return value.tolist(), isinstance(lie, dist.ProcessGroup), dist.barrier()
print(local(angry), local(attributes))
group = dist.new_group()
works = [dist.all_reduce(torch.ones(1), group=group, async_op=True), dist.barrier(group, async_op=True)]
print([work.wait() for work in works], dist.new_group([0]) is not None)
try:
    angry == 1
except KeyboardInterrupt as error:
    print(error)
dist.destroy_process_group()

# %% a finalizer that raises, and a thing that rises from the dead
import gc
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
lines, risen = [], []
sys.unraisablehook, before = (lambda unraisable: lines.append((unraisable.exc_type.__name__, str(unraisable.exc_value), unraisable.object.__qualname__.split(".")[-2:]))), sys.unraisablehook
class Thing:
    def __init__(self, kind):
        self.kind, self.work = kind, dist.barrier(async_op=True)
    def __del__(self):
        self.work.wait()
        if self.kind == "rise":
            risen.append(self)
            self.kind = "risen"
        else:
            dist.all_reduce(self.kind)
def use(kind):
    thing = Thing(kind)
    group = dist.new_group()
    dist.barrier(group)
for kind in "no tensor", "rise", torch.ones(1), None:
    use(kind)
print(len(lines), len(risen), risen[0].kind, [line[::2] for line in lines])
risen.clear()
circle = Thing(torch.ones(1))
circle.me = circle
dist.barrier(dist.new_group())
del circle
gc.collect()
sys.unraisablehook = before
print(len(lines), gc.garbage, lines[-1][1][:33], dist.barrier())
dist.destroy_process_group()

# %% what dies in which order at the end
# forms: script
import atexit
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
class Last:
    def __init__(self, name, other=None):
        self.name, self.other, self.print, self.sys = name, other, print, sys
    def __del__(self):
        self.print(self.name, "dies", self.sys.is_finalizing() if self.sys else None, name_of_all, self.other)
name_of_all = "all"
value = Last("second")
_underscore = Last("first")
_group = dist.new_group()
dist.barrier(_group)
work = dist.all_reduce(torch.ones(1), async_op=True)
last = Last("third", 3)
holder = [Last("in a list")]
holder.append(holder)
atexit.register(print, "exit")
del value
value = Last("again")
def default(item=Last("default")):
    return item
work.wait()
dist.destroy_process_group()

# %% a thing on a module keeps the program's names alive
# forms: script
import atexit
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
class Last:
    def __init__(self, name, other=None):
        self.name, self.other, self.print, self.sys = name, other, print, sys
    def __del__(self):
        self.print(self.name, "dies", self.sys.is_finalizing() if self.sys else None, name_of_all, self.other)
name_of_all = "all"
value = Last("second")
_underscore = Last("first")
_group = dist.new_group()
dist.barrier(_group)
work = dist.all_reduce(torch.ones(1), async_op=True)
last = Last("third", 3)
holder = [Last("in a list")]
holder.append(holder)
atexit.register(print, "exit")
del value
value = Last("again")
def default(item=Last("default")):
    return item
work.wait()
torch.mine = Last("on a module")
dist.destroy_process_group()

# %% finalizers, their order and a temporary folder at exit
# forms: script, function
import atexit
import os
import tempfile
import weakref
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
class Thing:
    pass
things = [Thing() for n in range(4)]
atexit.things = things
atexit.register(print, "registered first")
finalizers = [weakref.finalize(thing, print, "finalizer", n, rank) for n, thing in enumerate(things)]
finalizers[1].atexit = False
atexit.register(lambda: print("registered last", [item.alive for item in finalizers], os.path.isdir(folder.name)))
folder = tempfile.TemporaryDirectory(dir=".")
with open(os.path.join(folder.name, "file"), "w") as file:
    file.write("text")
group = dist.new_group()
value = torch.ones(1)
weakref.finalize(torch.distributed, lambda: print("finalizer of a module", value.item(), os.path.isdir(folder.name)))
dist.all_reduce(value, group=group)
print(finalizers[2].detach()[1] is print, finalizers[0](), [item.alive for item in finalizers])
dist.destroy_process_group()

# %% groups in weak collections
import gc
import time
import weakref
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
by_group, groups, by_name = weakref.WeakKeyDictionary(), weakref.WeakSet(), weakref.WeakValueDictionary()
def make(n):
    group = dist.new_group()
    by_group[group], by_name[n] = n, group
    groups.add(group)
    value = torch.ones(1)
    dist.all_reduce(value, group=group)
    work = dist.barrier(group, async_op=True)
    works.add(work)
    work.wait()
    return value.item()
works = weakref.WeakSet()
print([make(n) for n in range(3)], sorted(by_group.values()), len(groups), sorted(by_name))
time.sleep(0.05)
gc.collect()
print(len(works))
dist.destroy_process_group(by_name[1])
gc.collect()
print(sorted(by_group.values()), len(groups), sorted(by_name))
dist.destroy_process_group()
gc.collect()
print(sorted(by_group.values()), len(groups), sorted(by_name))

# %% who refers to a thing before and after a group is used
import gc
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
class Thing:
    pass
def count():
    return sum(type(item) is Thing for item in gc.get_objects())
def local():
    thing = Thing()
    holder = [thing]
    before = len(gc.get_referrers(thing))
    group = dist.new_group()
    dist.barrier(group)
    work = dist.all_reduce(torch.ones(1), group=group, async_op=True)
    work.wait()
    objects = [None, None]
    dist.all_gather_object(objects, holder[0].__class__.__name__, group)
    return before - len(gc.get_referrers(thing)), gc.get_referrers(holder), count(), objects
gc.disable()
print(local(), count())
circle = Thing()
circle.circle, circle.work = circle, dist.barrier(async_op=True)
circle.work.wait()
circle.group = dist.new_group()
dist.barrier(circle.group)
del circle
print(count(), gc.isenabled(), gc.get_freeze_count())
gc.collect()
print(count(), gc.garbage, gc.get_debug())
gc.enable()
dist.destroy_process_group()

# %% exceptions of calls do not keep what they saw alive
import sys
import weakref
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
class Thing:
    pass
def fail(thing, call):
    group = dist.new_group()
    dist.barrier(group)
    call(group)
def attempt(call):
    thing = Thing()
    reference = weakref.ref(thing)
    try:
        fail(thing, call)
    except Exception as error:
        kind = type(error).__name__
        alive = reference() is thing
    del thing
    return kind, alive, reference()
calls = [lambda group: dist.all_reduce("text", group=group), lambda group: dist.broadcast(torch.ones(1), 7, group), lambda group: dist.all_gather([], torch.ones(1), group), lambda group: 1 / 0]
for call in calls:
    print(attempt(call), sys.exc_info())
dist.destroy_process_group()
