# Programs whose annotations, data classes and pickled classes have to stay what they are.

# %% the types of a data class's fields are types
import dataclasses
import inspect
from dataclasses import dataclass, field
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
@dataclass(frozen=True, order=True)
class Settings:
    steps: int = 3
    rate: float = 0.5
    names: list[str] = field(default_factory=list, compare=False)
    maybe: "int | None" = None
    group: dist.ProcessGroup = field(default=dist.group.WORLD, repr=False, compare=False)
    value: torch.Tensor = field(default_factory=lambda: torch.ones(1), compare=False)
settings = Settings(names=["a"])
dist.all_reduce(settings.value, group=settings.group)
print([(item.name, item.type) for item in dataclasses.fields(Settings)])
print({item.name: getattr(settings, item.name) for item in dataclasses.fields(settings) if item.repr}, settings < Settings(4), dataclasses.replace(settings, steps=9).steps, list(inspect.signature(Settings).parameters))
try:
    settings.steps = 5
except dataclasses.FrozenInstanceError as error:
    print(error, dist.barrier(dist.new_group()), hash(Settings()) == hash(Settings()))
dist.destroy_process_group()

# %% a parser of arguments is made from a data class
import argparse
import dataclasses
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
@dataclasses.dataclass
class Arguments:
    size: int = 4
    scale: float = 2.0
    name: str = "none"
    flag: bool = False
parser = argparse.ArgumentParser(prog="own", exit_on_error=False)
for item in dataclasses.fields(Arguments):
    parser.add_argument(f"--{item.name}", type=item.type, default=item.default, metavar=item.type.__name__)
arguments = Arguments(**vars(parser.parse_args(["--size", "3", "--scale", "1.5"])))
value = torch.full((arguments.size,), arguments.scale)
dist.all_reduce(value, group=dist.new_group())
print(vars(arguments), value.tolist(), parser.format_usage().split())
try:
    parser.parse_args(["--size", "many"])
except argparse.ArgumentError as error:
    print(error, dist.barrier())
dist.destroy_process_group()

# %% type hints of functions and classes, evaluated and as text
import inspect
import typing
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
order = []
def told(kind, word):
    order.append(word)
    dist.barrier()
    return kind
def play(value: told(torch.Tensor, "first"), group: "dist.ProcessGroup" = None, *rest: int, key: told(typing.Literal["a"], "second") = "a") -> told(float, "third"):
    dist.all_reduce(value, group=group)
    return value.item()
class Own(typing.Generic[typing.TypeVar("T")]):
    size: int
    rank: typing.ClassVar[int] = dist.get_rank() * 0
    note: typing.Annotated[str, "note"] = ""
    def method(self, other: "int") -> typing.Optional[str]:
        return None
print(order, play(torch.ones(1), dist.new_group()), play.__annotations__)
print(typing.get_type_hints(play, {"dist": dist}), typing.get_type_hints(Own, include_extras=True), Own.__annotations__)
print(inspect.signature(play), typing.get_type_hints(Own.method), Own[int].__args__)
dist.destroy_process_group()

# %% annotations of the program's own names
# forms: script, cell, world
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
value: torch.Tensor = torch.ones(1)
count: int
text: "not a name" = "text"
dist.all_reduce(value, group=dist.new_group())
print(sorted(__annotations__), __annotations__["count"], __annotations__["text"], "count" in globals())
class Own:
    rank: print("evaluated") = dist.get_rank() * 0
print(Own.__module__, Own.__qualname__, Own.__annotations__, repr(Own), play.__module__ if "play" in globals() else None)
exec("later: float = 1.5")
print(__annotations__["later"], dist.barrier())
dist.destroy_process_group()

# %% a script with its own future import
# forms: script
from __future__ import annotations
import dataclasses
import sys
import typing
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
@dataclasses.dataclass
class Own:
    value: torch.Tensor
    other: Unknown | None = None
def play(own: Own, group: dist.ProcessGroup | None = None) -> NotThere:
    dist.all_reduce(own.value, group=group)
    return own.value.item()
print(play(Own(torch.ones(1))), play.__annotations__, [item.type for item in dataclasses.fields(Own)])
exec("def inner(a: Missing): return dist.barrier()")
print(inner.__annotations__, inner(1), play.__code__.co_flags & annotations.compiler_flag == annotations.compiler_flag)
try:
    typing.get_type_hints(play)
except NameError as error:
    print(error, dist.barrier(dist.new_group()))
dist.destroy_process_group()

# %% classes of the program travel as objects
# forms: script, cell, world
import collections
import dataclasses
import enum
import typing
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
class Pair(typing.NamedTuple):
    first: int
    second: torch.Tensor
class Table(typing.TypedDict):
    name: str
class Colour(enum.Enum):
    RED = 1
    BLUE = 2
@dataclasses.dataclass(slots=True)
class Data:
    pair: Pair
    colour: Colour = Colour.BLUE
class Problem(Exception):
    pass
Old = collections.namedtuple("Old", "a b")
def function():
    return rank
data = Data(Pair(rank, torch.tensor([rank])))
objects = [None, None]
dist.all_gather_object(objects, [data, Table(name="x"), Old(1, rank), Problem("p", rank), function, Data])
for got in objects:
    print(got[0], type(got[0]) is Data, got[0].colour is Colour.BLUE, got[1], got[2], got[3].args, got[4] is function, got[4]() == rank, got[5] is Data)
many = [objects[0] if rank == 0 else None]
dist.broadcast_object_list(many, 0, group=dist.new_group())
scattered = [None]
dist.scatter_object_list(scattered, [Colour.RED, Pair(1, torch.ones(1))] if rank == 0 else None, src=0)
print(many[0][0].pair.first, scattered, [name for name in Pair._fields], Table.__annotations__)
dist.destroy_process_group()

# %% reduced, stated and registered: how the program's classes are pickled
# forms: script, cell, world
import copy
import copyreg
import io
import pickle
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
other = dist.new_group()
class Plain:
    def __init__(self, number):
        self.number = number
class Stated(Plain):
    def __getstate__(self):
        lines.append("got")
        return {"number": self.number + 1}
    def __setstate__(self, state):
        dist.barrier(other)
        lines.append("set")
        self.number = state["number"] * 10
class Reduced(Plain):
    def __reduce_ex__(self, protocol):
        lines.append("reduced")
        return make, (self.number,)
def make(number):
    value = torch.tensor([number])
    dist.all_reduce(value, group=other)
    return Reduced(value.item())
copyreg.pickle(Plain, lambda plain: (Plain, (plain.number + 100,)))
lines, objects = [], [None, None]
for item in Plain(1), Stated(2), Reduced(3):
    dist.all_gather_object(objects, item)
    print([type(got).__name__ for got in objects], [got.number for got in objects], lines)
    lines.clear()
print(copy.deepcopy(Stated(5)).number, copy.copy(Plain(1)).number, lines)
dist.all_gather_object(objects, torch.nn.Linear(1, 1, bias=False).weight.shape)
class Pickler(pickle.Pickler):
    def persistent_id(self, item):
        return "group" if item is other else None
class Unpickler(pickle.Unpickler):
    def persistent_load(self, name):
        return other
file = io.BytesIO()
Pickler(file).dump([other, 5])
file.seek(0)
print(objects, Unpickler(file).load()[0] is other, dist.barrier(other))
del copyreg.dispatch_table[Plain]
dist.destroy_process_group()

# %% functions by cloudpickle, and what cannot be pickled
import pickle
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
try:
    import cloudpickle
except ImportError:
    cloudpickle = None
rank = dist.get_rank()
class Local:
    number = 5
    def get(self):
        return self.number
group, factor = dist.new_group(), rank + 2
for item in (n for n in "ab"), group, dist.barrier(async_op=True):
    try:
        pickle.dumps(item)
        print("pickled")
    except Exception as error:
        print(type(error).__name__)
if cloudpickle:
    objects = [None, None]
    dist.all_gather_object(objects, cloudpickle.dumps((lambda value: value * factor + Local().get(), Local)))
    functions = [cloudpickle.loads(item) for item in objects]
    print([function(10) for function, kind in functions], [kind().get() for function, kind in functions], [kind.__name__ for function, kind in functions])
else:
    print([25, 35], [5, 5], ["Local", "Local"])
dist.barrier(group)
dist.destroy_process_group()

# %% functions that torch.jit compiles from their source
# forms: script, function
import warnings
import torch
import torch.distributed as dist
warnings.simplefilter("ignore")
dist.init_process_group("gloo")
def scaled(value: torch.Tensor, times: int = 2, added: int = 0) -> torch.Tensor:
    total = value
    for n in range(times):
        total = total * 2 + added
    return total
class Module(torch.nn.Module):
    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return value.relu() + 1
compiled, module = torch.jit.script(scaled), torch.jit.script(Module())
value = torch.ones(2)
dist.all_reduce(value, group=dist.new_group())
print(compiled(value, 3).tolist(), module(value).tolist(), str(compiled.schema), compiled.name)
result = torch.jit.trace(lambda value: value + value, torch.ones(1))(value)
dist.all_reduce(result)
print(result.tolist(), type(compiled).__name__, dist.barrier())
dist.destroy_process_group()

# %% dispatch by annotation, matching and enumerations
import enum
import functools
import typing
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
@functools.singledispatch
def send(item):
    return "object", dist.barrier()
@send.register
def of_tensor(item: torch.Tensor):
    dist.all_reduce(item)
    return "tensor", item.item()
@send.register
def of_group(item: dist.ProcessGroup):
    return "group", dist.get_world_size(item), dist.barrier(item)
@send.register
def of_work(item: dist.Work):
    return "work", item.wait()
class Kind(enum.IntFlag):
    A = enum.auto()
    B = dist.get_world_size()
@typing.runtime_checkable
class Waits(typing.Protocol):
    def wait(self): ...
group = dist.new_group()
work = dist.barrier(async_op=True)
print(send(torch.ones(1)), send(group), send(work), send(5), send(True))
for item in torch.ones(1), group, work, Kind.B, {"a": [1, group]}:
    match item:
        case torch.Tensor(shape=shape):
            print("tensor", tuple(shape))
        case dist.ProcessGroup():
            print("group", isinstance(item, Waits), dist.barrier(item))
        case dist.Work():
            print("work", isinstance(item, Waits), item.wait())
        case Kind.B:
            print("kind", int(item), Kind.A | item)
        case {"a": [int(number), dist.ProcessGroup() as found]}:
            print("dict", number, found is group)
print(type(work).__name__, dist.Work.__name__, dist.Work.__module__, [name for name in ("wait", "is_completed", "get_future", "result") if not callable(getattr(work, name))])
dist.destroy_process_group()

# %% signatures, documents and types of torch.distributed's own functions
import inspect
import typing
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
group = dist.new_group()
dist.barrier(group)
functions = dist.all_reduce, dist.broadcast, dist.barrier, dist.new_group, dist.send, dist.all_gather_object, dist.destroy_process_group
for function in functions:
    print(function.__name__, function.__qualname__, function.__module__, type(function).__name__, list(inspect.signature(function).parameters), len(function.__doc__ or "") > 100, hasattr(function, "__wrapped__"))
print(dist.all_reduce is dist.distributed_c10d.all_reduce, dist.new_group is torch.distributed.new_group, inspect.isfunction(dist.barrier), inspect.isbuiltin(dist.barrier))
print(sorted(typing.get_type_hints(dist.new_group)) == sorted(dist.new_group.__annotations__), dist.all_reduce.__defaults__ is None, dist.barrier.__kwdefaults__)
print(type(group).__name__, type(dist.barrier(group, async_op=True)).__name__, type(dist.group.WORLD) is type(group), dist.ProcessGroup.__mro__[1].__name__)
dist.destroy_process_group()
