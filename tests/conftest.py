from collections.abc import Callable, Iterator

import pytest
from kernel import Kernel, Reply


@pytest.fixture(scope="session")
def kernel() -> Iterator[Kernel]:
    kernel = Kernel()
    yield kernel
    kernel.close()


@pytest.fixture
def run(kernel: Kernel) -> Iterator[Callable[[str], Reply]]:
    """Runs cells; after them nothing may be left, and the next cell must work."""

    kernel.remember()

    def execute(code: str) -> Reply:
        reply = kernel.execute(code)
        print(f"{reply.seconds:.2f} s", code, reply.shown, reply.error, sep="\n")  # for pytest -rP
        return reply

    yield execute
    assert kernel.leftovers() == []
    after = kernel.execute("%%torchrun -n 2\n'next'")
    assert "ranks 0, 1 → │ 'next'" in after.shown, after.error
