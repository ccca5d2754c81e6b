"""What torch.compile makes of a function: looked at on a rank, drawn, and recorded."""

import base64
import gc
import os
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from experiments import compile as recorder
from lockstep import simulated, torchrun
from lockstep.base import machine
from lockstep.course import compiled
from lockstep.course.compiled import (
    CannotCompile,
    Compiled,
    Findings,
    found,
    models,
    require,
    variables,
    view,
)
from lockstep.course.compiled.inspection import CompiledKernel, GraphNode

ATTACK = "<script>alert('\"&')</script>"
STAMP = simulated("by hand")
SEEN = Compiled(
    source=("def f(x, w):", "    h = x @ w", f"    return h.relu()  # {ATTACK}"),
    captured=(
        GraphNode("l_x_", "input", 1, (8, 13)),
        GraphNode("h", "matmul", 1, (8, 13)),
        GraphNode("relu", "relu", 2, (11, 19)),
    ),
    joint=(
        GraphNode("primals_1", "input", None),
        GraphNode("mm", "aten.mm.default", 1, (8, 13)),
        GraphNode("relu", "aten.relu.default", 2, (11, 19)),
        GraphNode("le", "aten.le.Scalar", 2, (11, 19)),
        GraphNode("mm_1", "aten.mm.default", 1, (8, 13)),
    ),
    kernels=(
        CompiledKernel(
            "extern_kernels.mm", "forward", "library", ("mm",), "extern_kernels.mm(x, w)"
        ),
        CompiledKernel("cpp_fused_relu_0", "forward", "C++", ("relu",), ATTACK),
        CompiledKernel("cpp_fused_le_0", "backward", "C++", ("relu", "le"), "a < b"),
        CompiledKernel(
            "extern_kernels.mm", "backward", "library", ("mm_1",), "extern_kernels.mm(g, w)"
        ),
    ),
    moved=(96, 128),
)


class Html(HTMLParser):
    """Elements, with their attributes, and the text without styles."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.texts, self.style = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.elements[-1][0] == "style":
            self.style += data
        else:
            self.texts.append(data)


@pytest.fixture
def drawn():
    return view(SEEN, stamp=STAMP)._repr_mimebundle_()


def marked(style, which, at):
    """What is marked when this is chosen, as (list, place)."""
    rules = re.findall(rf"-{which}-{at}:checked\) \.i(\d)-(\d+)(?=[,{{])", style)
    return {(int(kind), int(place)) for kind, place in rules}


def test_choosing_marks_what_belongs_to_it(drawn):
    style = Html(drawn["text/html"]).style
    everything_of_relu = {(0, 2), (1, 1), (2, 1), (2, 2), (3, 1), (3, 2)}
    assert marked(style, 0, 2) == everything_of_relu  # the line
    assert marked(style, 3, 1) == {(3, 1), (2, 1), (1, 1), (0, 2)}  # the forward kernel
    assert marked(style, 2, 2) == {(2, 2), (3, 2), (1, 1), (0, 2)}  # a node of the backward pass
    assert marked(style, 3, 0) == {(3, 0), (2, 0), (1, 0), (0, 1)}
    assert marked(style, 0, 0) == {(0, 0)}


def test_it_is_chosen_by_keyboard_and_without_a_script_or_the_network(drawn):
    page = Html(drawn["text/html"])
    inputs = [attrs for tag, attrs in page.elements if tag == "input"]
    assert {one["type"] for one in inputs} == {"radio"}
    assert len({one["name"] for one in inputs}) == 1  # one group: the arrow keys go through it
    assert len({one["id"] for one in inputs}) == len(inputs) == 3 + 2 + 4 + 4
    assert all(tag != "script" for tag, _ in page.elements)
    assert not any({"src", "href"} & attrs.keys() for _, attrs in page.elements)
    assert "http" not in page.style and "url(" not in page.style


def test_two_views_of_a_notebook_have_names_of_their_own():
    names = [Html(view(SEEN, stamp=STAMP)._repr_mimebundle_()["text/html"]) for _ in range(2)]
    first, second = ({a["id"] for _, a in page.elements if "id" in a} for page in names)
    assert not first & second


def test_text_of_a_function_is_escaped(drawn):
    page = Html(drawn["text/html"])
    assert sum(ATTACK in text for text in page.texts) == 2  # in the source, and in a kernel
    assert "alert" not in str(page.elements)


def test_what_is_seen_without_html(drawn):
    text = drawn["text/plain"]
    assert "relu = aten.relu.default  · line 3, K1, K2" in text
    assert "K2 backward, C++: cpp_fused_le_0 (2 nodes of line 3)" in text
    assert text.endswith(str(STAMP))
    assert base64.b64decode(drawn["image/png"]).startswith(b"\x89PNG")


def test_a_recording_of_it_reads_as_it_was():
    assert Compiled.of(SEEN.plain) == SEEN


# ── Where nothing can be compiled ────────────────────────────────────────────────────────────


def test_what_is_missing_is_said(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(CannotCompile, match=r"needs a C\+\+ compiler"):
        require()


def test_what_is_recorded_stands_in(monkeypatch):
    recording = SimpleNamespace(content={"code": SEEN.plain}, stamp=STAMP)
    monkeypatch.setattr(sys.modules[found.__module__], "recorded", lambda file: recording)
    job = torchrun(_look_without_compiler, nproc_per_node=1, init=False, show=False, may_fail=True)
    assert "needs a C++ compiler" in job.report
    plain, stamp = found(job, "code")
    assert Compiled.of(plain) == SEEN and stamp == STAMP


def _look_without_compiler():
    import os

    os.environ["CXX"] = "no-such-compiler"
    return compiled.look(lambda x: x, 1)


def test_findings_are_read_in_words_and_handed_over_as_they_are():
    one = {"seconds": 1.23e-4, "ways": ["C++", "library"], "bytes": 524288, "more": 1}
    two = {"seconds": 2.0, "compile_seconds": 3.54321}
    named = {
        "seconds": "a step",
        "compile_seconds": "compiling",
        "ways": "kernels",
        "bytes": "moved",
    }
    shown = repr(Findings({"eager": {"dense": one}, "default": {"dense": two}}, **named))
    assert shown.splitlines() == [
        "dense, eager: a step 123 µs · kernels C++, library · moved 524,288",
        "dense, default: a step 2 s · compiling 3.54 s",
    ]
    assert repr(Findings([one, two], compile_seconds="compiling", bytes="bytes")).splitlines() == [
        "bytes 524,288",
        "compiling 3.54 s",
    ]
    job = torchrun(_find, [one, two], nproc_per_node=1, init=False, show=False)
    assert str(job).splitlines()[0] == "rank 0 → │ a step 123 µs"
    assert found(job, "blocks")[0] == [one, two]


def _find(content):
    return Findings(content, seconds="a step")


# ── Its folder ───────────────────────────────────────────────────────────────────────────────

HOLDER = """
import time, lockstep.course.compiled
world = lockstep.course.compiled.compile_session()
print(world._options.env["TORCHINDUCTOR_CACHE_DIR"], flush=True)
input()
"""


def _sweep():
    """A notebook that runs its first job."""
    own = "import lockstep; lockstep.torchrun(print, nproc_per_node=1, init=False, show=False)"
    subprocess.run([sys.executable, "-c", own], check=True)


def test_its_folder_goes_when_its_notebook_was_killed_and_not_before():
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", HOLDER], **pipes) as notebook:
        folder = Path(notebook.stdout.readline().strip())
        os.utime(folder, (0, 0))  # as if it were there for long
        _sweep()
        assert folder.is_dir()
        notebook.kill()
    os.utime(folder, (0, 0))
    _sweep()
    assert not folder.exists()


def test_its_folder_goes_with_the_world():
    world = compiled.compile_session()
    folder = Path(world._options.env["TORCHINDUCTOR_CACHE_DIR"])
    assert folder.is_dir()
    del world
    gc.collect()
    assert not folder.exists()


def _settled():
    from torch._inductor import config, cpu_vec_isa

    require()
    return config.compile_threads, {str(one) for one in cpu_vec_isa.valid_vec_isa_list()}


def test_its_rank_compiles_alone_and_for_one_set_of_instructions():
    (settled,) = compiled.compile_session().run(_settled).results
    threads, sets = settled
    assert threads == 1, "its variables came after Inductor's settings were read"
    assert sets <= {"avx2", "asimd"}, "each more is a compilation before the first one"


def _warned_of_cuda():
    from unittest.mock import patch

    require()
    with patch("torch.cuda.is_available", lambda: False), patch.dict("os.environ", CUDA_HOME="/"):
        from torch.utils import cpp_extension

        return cpp_extension._find_cuda_home()


def test_a_cuda_whose_gpus_are_hidden_is_no_news():
    job = torchrun(_warned_of_cuda, nproc_per_node=1, init=False, show=False)
    assert job[0] == "/", "this PyTorch looks for CUDA in another way"
    assert job.output(0) == ""


# ── On a rank ────────────────────────────────────────────────────────────────────────────────


def _seen():
    import torch

    def f(x, w):
        h = torch.relu(x @ w)
        return (h * 2).sum()

    torch.manual_seed(0)
    return compiled.look(f, torch.randn(8, 4), torch.randn(4, 8, requires_grad=True))


def _measured():
    tiny = models.Sizes(
        (8, 16, 1), (4, 16, 1), (8, 16, 2), (1, 2), (1, 512, 16, 128), dtype="float32"
    )
    return {
        "steps": {name: _stepped(tiny, name) for name in ("dense", "small", "experts")},
        "blocks": models.blocks((1, 2)),
        "fusion": recorder.fusion(32),
        "precision": recorder.precision(64),
        "attention": recorder.attention(tiny),
    }


def _stepped(sizes, name):
    import torch

    model, x = models.made(sizes, name)
    ways: dict[str, Any] = {"eager": partial(model, x), "default": partial(torch.compile(model), x)}
    with torch.no_grad():
        return models.by_turns(ways)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Calls a function in a process of its own, all of them with one cache."""
    cache = variables(tmp_path_factory.mktemp("compiled"))
    return lambda function: torchrun(function, nproc_per_node=1, init=False, env=cache, show=False)[
        0
    ]


@pytest.mark.timeout(600)
def test_each_stage_of_a_function(alone):
    seen = alone(_seen)
    assert seen.source[0] == "def f(x, w):"
    assert [node.does for node in seen.captured if node.does != "input"] == [
        "matmul",
        "relu",
        "mul",
        "sum",
    ]
    forward = {node.name: node.line for node in seen.joint if node.does == "aten.relu.default"}
    assert set(forward.values()) == {1}
    assert [(kernel.phase, kernel.language) for kernel in seen.kernels] == [
        ("forward", "library"),
        ("forward", "C++"),
        ("backward", "C++"),
        ("backward", "library"),
    ]
    assert "relu" in seen.kernels[1].nodes and "mm" in seen.kernels[0].nodes
    assert len(seen.moved) == 2


def _odd():
    """By name: what look() sees of odd functions, or the ValueError by which it refuses them."""
    import torch

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("shift", torch.ones(3))
            self.linear = torch.nn.Linear(3, 3)

        def forward(self, x):
            return self.linear(x) + self.shift

    def two(x):
        return {"twice": x * 2, "both": (x + 1, 7)}

    def nothing(x):
        return x.view(-1)

    def in_place(x):
        x.add_(1)
        return x * 2

    def branch(x):
        return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: -x, (x,))

    def number(x):
        return 3

    trials: dict[str, tuple[Any, torch.Tensor]] = {
        "containers": (two, torch.ones(3, requires_grad=True)),
        "no kernel": (nothing, torch.ones(2, 2)),
        "no numbers": (in_place, torch.ones(0, 4)),
        "int8": (in_place, torch.ones(3, dtype=torch.int8)),
        "module": (Net(), torch.ones(2, 3)),
        "branch": (branch, torch.ones(3)),
        "no graph": (number, torch.ones(3)),
        "no source": (torch.relu, torch.ones(3)),
    }
    found: dict[str, Any] = {}
    for name, (function, x) in trials.items():
        try:
            found[name] = compiled.look(function, x)
        except ValueError as refused:
            found[name] = str(refused)
    return found


@pytest.mark.timeout(600)
def test_odd_functions_are_shown_or_refused_by_name(alone):
    seen = alone(_odd)
    said = {name: one for name, one in seen.items() if isinstance(one, str)}
    assert said.keys() == {"branch", "no graph", "no source"}
    assert "cond has graphs inside" in said["branch"] and "this has 0" in said["no graph"]
    assert "relu" in said["no source"] and "source" in said["no source"]
    shown = {name: one for name, one in seen.items() if name not in said}
    calls = {name: [kernel.phase for kernel in one.kernels] for name, one in shown.items()}
    assert calls["containers"] == ["forward", "backward"]
    assert calls["no kernel"] == calls["no numbers"] == []
    assert calls["int8"] == ["forward"]
    assert "backward" in calls["module"] and shown["module"].source[0].startswith("def forward")
    for one in shown.values():
        bundle = view(one, stamp=STAMP)._repr_mimebundle_()
        assert one.source[0] in bundle["text/plain"] and bundle["image/png"]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_what_is_recorded_of_models_and_of_fusion(alone):
    measured = alone(_measured)
    for ways in measured["steps"].values():
        assert list(ways) == ["eager", "default"]
        for one in ways.values():
            assert 0 < one["lower_quartile"] <= one["seconds"] <= one["upper_quartile"]
    assert [one["blocks"] for one in measured["blocks"]] == [1, 2]
    for one in measured["blocks"]:
        assert one["flat_seconds"] > 0 and one["regional_seconds"] > 0
        assert one["flat_graphs"] == one["regional_graphs"] == 1
        assert one["flat_calls"] == one["blocks"] * one["regional_calls"] == 5 * one["blocks"]
    moved = {name: one["moved"] / one["square_bytes"] for name, one in measured["fusion"].items()}
    assert moved == {"swish": 2, "softmax": 2, "between": 7, "views": 2}
    assert all(0 < one["part"] < 1 for one in measured["precision"].values())
    attention = measured["attention"]
    assert all(one["apart"] < 1e-5 for one in attention.values())
    assert attention["causal, a function"]["needed"] == 10 / 16
    assert attention["window, a function"]["needed"] == 7 / 16
    assert (
        attention["causal, a word"]["operators"]
        and not attention["causal, a function"]["operators"]
    )


def test_rows_come_one_by_one_and_one_that_fails_is_left_out(monkeypatch, capsys):
    def row(sizes, mode, *_):
        if mode == "default":
            raise RuntimeError("no such mode here")
        return {} if mode == "eager" else {"compile_seconds": 2.0}

    def steps(sizes, name, folders):
        return {mode: {"seconds": 1.0} for mode in ("eager", *folders)}

    for name in ("code", "fusion", "precision"):
        monkeypatch.setattr(recorder, name, _name)
    for name in ("attention", "blocks"):
        monkeypatch.setattr(recorder, name, lambda argument: "found")
    monkeypatch.setattr(recorder, "compiled_row", row)
    monkeypatch.setattr(recorder, "steps", steps)
    found = list(recorder.everything(recorder.ON_CPU))
    assert found[0]["code"] == "found" and "fusion" not in found[0]
    assert "no such mode here" in capsys.readouterr().err
    assert list(found[-1]["modes"]) == ["eager", "reduce-overhead", *recorder.TUNED]
    assert found[-1]["modes"]["max-autotune"]["small"] == {
        "cold_seconds": 2.0,
        "warm_seconds": 2.0,
        "seconds": 1.0,
    }
    quick = {"eager": {"seconds": 1.0}, "reduce-overhead": {"seconds": 1.0}}
    assert found[-1]["processes"] == [quick] * recorder.PROCESSES


def _name():
    return "found"


def _experts_by_hand():
    import torch

    torch.manual_seed(0)
    model = models.Experts(8, 4).double()
    x = torch.randn(8, dtype=torch.float64) + torch.randn(16, 8, dtype=torch.float64) / 8
    weights, chosen = model.gate(x).float().softmax(-1).topk(2, dim=-1)
    expected, taken = x.clone(), [0] * 4
    for row in range(16):
        for place in range(2):
            expert = int(chosen[row, place])
            taken[expert] += 1
            if taken[expert] <= 10:  # its capacity: 5 · 16 / (2 · 4)
                hidden = torch.nn.functional.silu(x[row] @ model.up_EDF[expert])
                expected[row] += float(weights[row, place]) * (hidden @ model.down_EFD[expert])
    return bool(torch.allclose(model(x), expected, atol=1e-6)), max(taken)


def test_the_mixture_of_experts_is_one():
    right, most = torchrun(_experts_by_hand, nproc_per_node=1, init=False, show=False)[0]
    assert right and most > 10, "the trial should drop some tokens"


def test_everything_is_written_where_the_machine_says(monkeypatch):
    monkeypatch.setattr(recorder, "everything", lambda sizes: [{"sizes": sizes}])
    (result,) = recorder.run(replace(machine.probe(), gpus=()), 1)
    assert result.file == "compile/cpu.json" and result.content["sizes"] == recorder.ON_CPU


def test_a_function_that_names_operations_of_torch_travels():
    own: dict[str, Any] = {
        "__name__": "__main__",
        "torch": torch,
    }  # as a function of a notebook has it
    exec("def named():\n    return str(torch.ops._c10d_functional.wait_tensor)", own)
    job = torchrun(own["named"], nproc_per_node=1, init=False, show=False)
    assert job[0] == "_c10d_functional.wait_tensor"


@pytest.mark.parametrize(
    "named",
    [
        "torch.ops._c10d_functional",
        "torch.ops._c10d_functional.wait_tensor",
        "torch.ops._c10d_functional.wait_tensor.default",
    ],
)
def test_operations_of_torch_travel_by_any_name_that_a_function_uses(named):
    own: dict[str, Any] = {"__name__": "__main__", "torch": torch}
    exec(f"known = {named}\ndef named():\n    return str(known)", own)
    job = torchrun(own["named"], nproc_per_node=1, init=False, show=False)
    assert job[0] == str(own["known"])


def test_a_backward_that_can_be_differentiated_once_travels():
    """PyTorch's decorator names a module of C++ that cannot be imported, torch._C._functions."""
    own: dict[str, Any] = {"__name__": "__main__", "torch": torch}
    once = "@torch.autograd.function.once_differentiable\n"
    exec(f"{once}def doubled(ctx, grad):\n    return 2 * grad", own)
    job = torchrun(own["doubled"], None, torch.ones(2), nproc_per_node=1, init=False, show=False)
    assert job[0].tolist() == [2, 2]
