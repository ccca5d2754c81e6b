"""Inspect what each stage of torch.compile makes of one function: graphs, and kernels in the end.

This runs where torch is, on a rank. The graphs are taken where the stages hand them on: by a
backend around Inductor's, and by the passes that Inductor's configuration lets others add.
Inductor's own tracking of provenance says which graph nodes a kernel computes.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any
from unittest.mock import patch

from .compile_session import require

_FRAME = re.compile(r'File "(?P<file>.*)", line (?P<line>\d+), in ')
_DEFINED = re.compile(
    r"^(?P<name>\w+) = async_compile\.(?P<language>\w+)\(.*?'''(?P<code>.*?)'''", re.S | re.M
)
_CALLED = re.compile(r"^ +(?P<name>(?:extern_kernels\.)?\w+(?:\.run)?)\(", re.M)
_LIBRARY = "extern_kernels."
_LANGUAGES = {"cpp_pybinding": "C++", "cpp": "C++", "triton": "Triton"}


@dataclass(frozen=True)
class GraphNode:
    """A node of a graph. line: of the function's source, from 0; None where nothing says it.

    part: the columns of that line which it stems from. does: "aten.add.Tensor", "placeholder".
    """

    name: str
    does: str
    line: int | None
    part: tuple[int, int] | None = None


@dataclass(frozen=True)
class CompiledKernel:
    """A call of generated code or, if language is "library", of a kernel that was there before.

    phase: "forward" or "backward". nodes: names of the joint graph's nodes that it computes; one
    that is computed anew in the backward pass is in two kernels.
    """

    name: str
    phase: str
    language: str
    nodes: tuple[str, ...]
    code: str


@dataclass(frozen=True, repr=False)
class Compiled:
    """A function through all stages. captured: Dynamo's graph. joint: AOTAutograd's; of a function
    without gradients, its forward graph. kernels: in the order of their calls. moved: bytes that,
    says Inductor, all kernels read and write, of the forward pass and, where there is one, of the
    backward pass."""

    source: tuple[str, ...]
    captured: tuple[GraphNode, ...]
    joint: tuple[GraphNode, ...]
    kernels: tuple[CompiledKernel, ...]
    moved: tuple[int, ...]

    def __repr__(self) -> str:
        parts = [
            f"{len(self.source)} line{'' if len(self.source) == 1 else 's'}",
            f"{len(self.captured)} nodes captured",
            f"{len(self.joint)} in the joint graph",
            f"{len(self.kernels)} call{'' if len(self.kernels) == 1 else 's'} of kernels",
        ]
        return f"<Compiled: {', '.join(parts)}>"

    @property
    def plain(self) -> dict[str, Any]:
        """The dict that stands for it in a recording."""
        return asdict(self)

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Compiled:
        """Rebuild it from the dict that stands in a recording."""

        def nodes(found: Any) -> tuple[GraphNode, ...]:
            return tuple(
                GraphNode(**one | {"part": one["part"] and tuple(one["part"])}) for one in found
            )

        kernels = tuple(
            CompiledKernel(**one | {"nodes": tuple(one["nodes"])}) for one in plain["kernels"]
        )
        source = tuple(plain["source"])
        graphs = nodes(plain["captured"]), nodes(plain["joint"])
        return cls(source, *graphs, kernels, tuple(plain.get("moved", ())))


def look(function: Callable[..., Any], *args: Any) -> Compiled:
    """Compile a function anew, run it and, where its results want gradients, its backward pass.

    function: of tensors, or a module; returns tensors, in any of Python's containers. Dynamo must
    capture it in one graph. args: its arguments. The code is generated anew; what a C++ compiler
    made of the same code is taken. Raises ValueError where there is no Python source, where it
    makes no graph, or several, or one with graphs inside (torch.cond), and CannotCompile where
    nothing can be generated.
    """
    import torch
    from torch._functorch import config as functorch
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx
    from torch.utils._pytree import tree_leaves

    require()
    written_by_hand = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        lines, first = inspect.getsourcelines(written_by_hand)
    except (TypeError, OSError):
        raise ValueError(f"look() shows Python source, and {function!r} has none") from None
    file = inspect.getsourcefile(written_by_hand)
    captured: list[Any] = []
    joint: list[list[GraphNode]] = []
    written: list[_Written] = []
    inside: list[str] = []  # what has graphs of its own

    def read(graph: Any) -> list[GraphNode]:
        return [_node(node, file, first, len(lines)) for node in graph.nodes if node.op != "output"]

    def backend(module: Any, inputs: Any) -> Any:
        for node in module.graph.nodes:
            if isinstance(node.target, torch._ops.HigherOrderOperator):
                inside.append(_does(node))
        captured.append(read(module.graph))
        return compile_fx(module, inputs)

    def take_joint(graph: Any) -> None:
        joint.append(read(graph))

    def take_forward(graph: Any) -> None:
        if not joint:  # of a function without gradients there is none
            take_joint(graph)

    settings = {
        "joint_custom_pre_pass": take_joint,
        "post_grad_custom_post_pass": take_forward,
        "trace.provenance_tracking_level": 1,
        "fx_graph_cache": False,
    }
    torch.compiler.reset()
    no_cache = functorch.patch(enable_autograd_cache=False)
    with config.patch(settings), no_cache, _modules(written):
        compiled = torch.compile(function, backend=backend, fullgraph=True)
        result = compiled(*args)
        leaves = [one for one in tree_leaves(result) if isinstance(one, torch.Tensor)]
        wanted = [one for one in leaves if one.requires_grad]
        if wanted and captured:
            torch.autograd.backward(wanted, [torch.ones_like(one) for one in wanted])
    torch.compiler.reset()
    if inside:
        raise ValueError(f"look() is for one graph, and {inside[0]} has graphs inside")
    if len(captured) != 1:
        raise ValueError(f"look() is for a function of one graph, and this has {len(captured)}")
    kernels = [
        kernel
        for number, one in enumerate(written)
        for kernel in _kernels(one.code, one.nodes, "backward" if number else "forward")
    ]
    source = tuple(textwrap.dedent("".join(lines)).rstrip().splitlines())
    moved = tuple(one.moved for one in written)
    return Compiled(source, tuple(captured[0]), tuple(joint[0]), tuple(kernels), moved)


@dataclass(frozen=True)
class _Written:
    """A module that Inductor wrote, the nodes of its kernels by their names, and bytes moved."""

    code: str
    nodes: dict[str, list[str]]
    moved: int


@contextlib.contextmanager
def _modules(written: list[_Written]) -> Iterator[None]:
    """Take down each module that Inductor writes."""
    from torch._inductor import debug
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V

    def save(code: str) -> None:
        nodes = getattr(debug, "_inductor_triton_kernel_to_post_grad_node_info", {})
        moved = sum(node.get_read_write_buffers_sizes() for node in V.graph.scheduler.nodes)
        copy = {name: list(held) for name, held in nodes.items()}
        written.append(_Written(code, copy, int(moved)))

    with patch.object(GraphLowering, "save_output_code", save):
        yield


def _node(node: Any, file: str | None, first: int, count: int) -> GraphNode:
    line, part = _place(node.meta.get("stack_trace") or "", file, first, count)
    return GraphNode(node.name, _does(node), line, part)


def _does(node: Any) -> str:
    if node.op == "placeholder":
        return "input"
    target = str(getattr(node.target, "__name__", node.target))
    return str(node.target) if "aten." in str(node.target) else target


def _place(
    trace: str, file: str | None, first: int, count: int
) -> tuple[int | None, tuple[int, int] | None]:
    """Return the innermost line of the function in a stack trace, and the columns marked below."""
    lines = trace.splitlines()
    place: tuple[int | None, tuple[int, int] | None] = None, None
    for at, text in enumerate(lines):
        frame = _FRAME.search(text)
        if not frame or frame["file"] != file:
            continue
        line = int(frame["line"]) - first
        if not 0 <= line < count:
            continue
        marks = lines[at + 2] if at + 2 < len(lines) else ""
        marked = re.fullmatch(r" {4}( *)([~^]+)\s*", marks)
        place = line, (len(marked[1]), len(marked[1]) + len(marked[2])) if marked else None
    return place


def _kernels(code: str, nodes: dict[str, list[str]], phase: str) -> Iterator[CompiledKernel]:
    defined = {one["name"]: (one["language"], one["code"]) for one in _DEFINED.finditer(code)}
    body = code[code.index("def call(") :]
    body = body[: body.index("return (")] if "return (" in body else body
    by_name: dict[str, list[list[str]]] = {}
    for handle, computed in nodes.items():  # "extern_kernels.mm:1": the first call of all
        by_name.setdefault(handle.rpartition(":")[0], []).append(computed)
    for call in _CALLED.finditer(body):
        name = call["name"].removesuffix(".run")
        if name not in defined and not name.startswith(_LIBRARY):
            continue
        held = by_name.get(name, [])
        mine = held.pop(0) if len(held) > 1 else held[0] if held else []
        language, text = defined.get(name, ("library", _line(body, call.start())))
        yield CompiledKernel(
            name, phase, _LANGUAGES.get(language, language), tuple(mine), text.strip()
        )


def _line(text: str, at: int) -> str:
    return text[at : text.find("\n", at)]
