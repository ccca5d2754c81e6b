"""Which names of the notebook a cell needs."""

from __future__ import annotations

import pytest
from lockstep.launch.cell import Cell


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("y = x + 1\nprint(y, z)", {"x", "z"}),
        ("x = x + 1", {"x"}),
        ("x += 1", {"x"}),
        ("x: int = y", {"y"}),
        ("import a.b, c as d\na, d, c", {"c"}),
        ("if a:\n    x = 1\nx", {"a", "x"}),
        ("if a:\n    x += 1", {"a", "x"}),
        ("for i in r:\n    y = i\ny", {"r", "i", "y"}),
        ("with a as b:\n    y = b\n    y\n    if c:\n        z = 1\ny, z", {"a", "c", "z"}),
        ("def f(x=y):\n    global g\n    return f(x) + h\nf, g", {"y", "h", "g"}),
        ("@f\ndef f(): pass", {"f"}),
        ("class A(B):\n    x = x\n    def m(self): return A, y", {"B", "x", "y"}),
        ("[x for x in y if x]", {"y"}),
        ("{k: [v for v in k] for k in y}\nlambda z: z + k", {"y", "k"}),
        ("(x := 1)\nx", set()),
        ("x\nawait y()", {"x"}),  # which no rank will run
        ("match a:\n    case B(c): c", {"a", "B", "c"}),
    ],
)
def test_what_a_cell_reads_before_it_binds_it(source, names):
    assert Cell(source, "cell-1").names() == names
