# Programs whose names, modules and namespaces are odd.

# %% odd keys among the globals
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
class Key(str):
    def __eq__(self, other):
        raise TypeError("keys are not compared")
    __hash__ = str.__hash__
odd = {5: "five", "\udc80\ud800": "surrogates", "": "empty", ("a",): 1, None: 2, "two words": 3, Key("odd key"): 4}
globals().update(odd)
value = torch.ones(1)
group = dist.new_group()
dist.all_reduce(value, group=group)
dist.barrier(dist.new_group())
print(value.item(), [globals()[key] for key in (5, "", ("a",), None)], ascii(globals()["\udc80\ud800"]))
for key in [*odd]:
    globals().pop(key)
print(5 in globals(), dist.barrier())
dist.destroy_process_group()

# %% code is executed in mappings of the program's own
import collections
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
class Space(dict):
    def __missing__(self, key):
        lines.append(("missing", key))
        raise KeyError(key)
class Mapping(collections.UserDict):
    def __getitem__(self, key):
        lines.append(("get", key))
        return super().__getitem__(key)
    def __setitem__(self, key, value):
        lines.append(("set", key))
        super().__setitem__(key, value)
    def keys(self):
        lines.append("keys")
        return super().keys()
    def items(self):
        lines.append("items")
        return super().items()
lines = []
source = "group = dist.new_group()\nvalue = torch.ones(1)\ndist.all_reduce(value, group=group)\nwork = dist.barrier(async_op=True)\nresult = work.wait(), value.item()"
for space in Space(), Mapping(), collections.ChainMap({}, {"unused": 1}), collections.OrderedDict():
    outer = {"dist": dist, "torch": torch}
    exec(source, outer, space)
    print(type(space).__name__, space["result"], sorted(outer), len(lines), lines[:20])
    lines.clear()
dist.destroy_process_group()

# %% names made by exec in a function, and a snapshot of its names
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
def function():
    exec("y = 41")
    dist.barrier(dist.new_group())
    return eval("y") if sys.version_info < (3, 13) else 41
def snapshot():
    first, third = 1, [3]
    names = locals()
    first, second = 2, 2
    names["extra"] = names["later"] = 5
    group = dist.new_group()
    value = torch.ones(1)
    dist.all_reduce(value, group=group)
    dist.barrier()
    later = 6
    del third
    return sorted(set(names) - {"dist", "torch", "sys"}), names["first"], names["later"], later, value.item()
def shown():
    value, group = torch.ones(1), dist.new_group()
    dist.all_reduce(value, group=group)
    return sorted(set(locals()) - {"dist", "torch"})
def generator():
    names = locals()
    hidden = 1
    for step in range(2):
        dist.barrier(dist.new_group())
        yield sorted(set(names) - {"dist"}), hidden
print(function(), snapshot(), shown(), list(generator()))
dist.destroy_process_group()

# %% the body of a class, its decorators and defaults communicate
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
def reduced(number):
    value = torch.tensor([number])
    dist.all_reduce(value, group=dist.new_group())
    return value.item()
class Namespace(dict):
    def __setitem__(self, key, value):
        names.append(key)
        super().__setitem__(key, value)
class Meta(type):
    @classmethod
    def __prepare__(cls, name, bases):
        dist.barrier()
        return Namespace()
names = []
class Body(metaclass=Meta):
    group = dist.new_group()
    value = torch.ones(2)
    work = dist.all_reduce(value, group=group, async_op=True)
    done = work.wait()
    numbers = [reduced(n) for n in range(3)]
    def method(self, number=reduced(5), *, key=reduced(6)):
        return number, key
    del work, group
    class Inner:
        barrier = dist.barrier(dist.new_group())
print(sorted(names), Body().method(), Body.numbers, Body.done, sorted(name for name in vars(Body) if not name.startswith("_")), Body.Inner.barrier)
dist.destroy_process_group()

# %% the names of builtins are used for other things
# forms: script, cell, world
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
list = dict = tuple = set = len = isinstance = type = open = id = str = int = repr = getattr = hasattr = setattr = callable = vars = range = sorted = any = all = min = max = sum = zip = map = "taken"
Exception = BaseException = KeyError = super = object = property = iter = next = enumerate = sys = os = time = threading = json = 5
value = torch.ones(1)
group = dist.new_group()
dist.all_reduce(value, group=group)
work = dist.broadcast(value, 0, async_op=True)
print(work.wait(), dist.barrier(dist.new_group()), value.item(), list, object, sys)
objects = [None, None]
dist.all_gather_object(objects, {"list": list})
print(objects)
del list, dict, tuple, set, len, isinstance, type, open, id, str, int, repr, getattr, hasattr, setattr, callable, vars, range, sorted, any, all, min, max, sum, zip, map
del Exception, BaseException, KeyError, super, object, property, iter, next, enumerate, sys, os, time, threading, json
print(len(objects), sorted(objects[0]))
dist.destroy_process_group()

# %% strange things in sys.modules
import sys
import types
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
class Raising(types.ModuleType):
    def __getattribute__(self, name):
        raise RuntimeError("looked at " + name)
class Lazy(types.ModuleType):
    def __getattr__(self, name):
        looked.append(name)
        raise AttributeError(name)
looked = []
odd = {"odd_namespace": types.SimpleNamespace(__file__=5, __name__=None), "odd_raising": Raising("odd_raising"), "odd_none": None, "odd_number": 7, "odd_lazy": Lazy("odd_lazy"), "odd_list": [], "odd_class": Lazy, "odd\udc80": types.ModuleType("odd\udc80")}
sys.modules.update(odd)
value, group = torch.ones(1), dist.new_group()
dist.all_reduce(value, group=group)
work = dist.all_reduce(value, async_op=True)
print(work.wait(), dist.barrier(dist.new_group()), value.item())
objects = [None, None]
dist.all_gather_object(objects, "x")
print(objects, looked, all(sys.modules[name] is odd[name] for name in odd))
for name in odd:
    del sys.modules[name]
dist.destroy_process_group()

# %% modules are deleted from sys.modules and imported anew
import json
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
names = "json", "traceback", "inspect", "linecache", "contextlib", "functools", "weakref", "queue", "socket", "struct", "atexit", "time", "threading", "collections"
kept = {name: sys.modules.pop(name, None) for name in names}
value = torch.ones(1)
try:
    for n in range(3):
        dist.all_reduce(value)
        dist.all_reduce(value, async_op=True).wait()
        dist.barrier()
    back = [name for name in names if name in sys.modules]
finally:
    sys.modules.update({name: module for name, module in kept.items() if module})
print(value.item(), back, sys.modules["json"] is json)
del sys.modules["json"]
import json as again
print(again is json, again.loads("[1]"), dist.barrier(dist.new_group()), again.JSONDecodeError is json.JSONDecodeError)
sys.modules["json"] = json
dist.destroy_process_group()

# %% __main__ is looked at, written to and replaced for a while
# forms: script
import sys
import types
import __main__
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
__main__.added = 5
print(added, __main__.__dict__ is globals(), __name__, sys.modules["__main__"] is __main__)
other = types.ModuleType("__main__")
sys.modules["__main__"] = other
value = torch.ones(1)
dist.all_reduce(value, group=dist.new_group())
dist.barrier()
print(value.item(), sorted(vars(other)) == sorted(vars(types.ModuleType("x"))))
del sys.modules["__main__"]
dist.all_reduce(value)
print(dist.barrier(dist.new_group()), "__main__" in sys.modules)
sys.modules["__main__"] = __main__
__name__ = "another"
__file__ = None
dist.barrier(dist.new_group())
print(__main__.__name__, __main__.__file__, value.item())
dist.destroy_process_group()

# %% names are deleted, all of them
# forms: script, cell, world
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
value, group = torch.ones(1), dist.new_group()
def play(dist=dist, value=value):
    dist.all_reduce(value)
    dist.barrier(dist.new_group())
    return value.item()
kept = play, print, dist
del torch, dist, value, group, play
print(kept[0](), "dist" in globals())
try:
    dist.barrier()
except NameError as error:
    print(error)
for name in [name for name in globals() if name not in ("kept", "__builtins__", "name")]:
    if not name.startswith("__"):
        del globals()[name]
kept[1](kept[0](), kept[2].barrier())
kept[2].destroy_process_group()
del kept
print("end")

# %% a module made by the program communicates, reloads and disappears
import importlib
import os
import sys
import types
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
name = f"own_module_{dist.get_rank()}"
with open(name + ".py", "w") as file:
    file.write("import torch.distributed as dist\ngroup = dist.new_group()\ncount = globals().get('count', 0) + 1\ndist.barrier(group)\ndef __getattr__(name):\n    dist.barrier()\n    return name.upper()\n")
sys.path.insert(0, os.getcwd())
written, sys.dont_write_bytecode = sys.dont_write_bytecode, True
try:
    module = importlib.import_module(name)
    print(module.count, module.colour, os.path.basename(module.__file__) == name + ".py")
    os.remove(name + ".py")
    print(importlib.util.find_spec(name) is module.__spec__, dist.barrier(dist.new_group()))
    del sys.modules[name]
    print(module.shape, dist.get_world_size(module.group))
finally:
    sys.path.remove(os.getcwd())
    sys.dont_write_bytecode = written
made = types.ModuleType("made")
exec("import torch.distributed as dist\ndef play():\n    group = dist.new_group()\n    dist.barrier(group)\n    return __name__", made.__dict__)
print(made.play(), "made" in sys.modules)
dist.destroy_process_group()

# %% groups are kept in odd places and called by odd names
import types
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
class Holder:
    __slots__ = ("group", "__weakref__")
holder, space, nested = Holder(), types.SimpleNamespace(), {"a": [{"b": None}]}
holder.group = space.group = nested["a"][0]["b"] = dist.new_group()
globals_of = {"ünïcödé": dist.new_group()}
ünïcödé = dist.new_group()
_ = __ = dist.new_group()
tuple_of_groups = tuple(dist.new_group() for n in range(3))
def function(groups, *, π=dist.new_group()):
    function.group = dist.new_group()
    value = torch.ones(1)
    for group in (*groups, π, function.group, _, __, ünïcödé, holder.group, globals_of["ünïcödé"], dist.group.WORLD, None):
        dist.all_reduce(value, group=group)
    return value.item()
print(function(tuple_of_groups), len({id(group) for group in tuple_of_groups}), [dist.get_rank(group) == dist.get_rank() for group in (_, ünïcödé)])
print(sorted(name for name in vars(space)), holder.group is nested["a"][0]["b"], dist.barrier(_), "_" in dir())
dist.destroy_process_group()
