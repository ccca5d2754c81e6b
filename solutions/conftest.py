"""nbval executes each solution and compares the text outputs of the cells tagged
`nbval-check-output` with the stored ones.
"""

from collections import deque
from pathlib import Path
from typing import Any

import pytest
from nbval.plugin import IPyNbFile


class Solution(IPyNbFile):
    """A solution. Its other cells need not show the same again, but must not raise."""

    def __init__(self, **from_parent: Any):
        super().__init__(**from_parent)
        self.compare_outputs = False  # as with --nbval-lax
        self._messages: deque[dict[str, Any]] = deque()

    def setup(self) -> None:
        super().setup()
        self._receive = self.kernel.get_message
        self.kernel.get_message = self._get_message

    def _get_message(self, stream: str, timeout: float | None = None) -> Any:
        """The kernel's next message; what a cell displays comes as it was when the cell ended.

        nbval takes no notice of updates: of a cell that draws while it runs, it would compare
        the first picture. Of displays only the text is stored, so only the text is compared.
        Raises queue.Empty where no message came for `timeout` seconds.
        """
        if stream != "iopub":
            return self._receive(stream, timeout)
        displays: dict[str, dict[str, Any]] = {}
        while not self._messages or self._messages[-1]["content"].get("execution_state") != "idle":
            message = self._receive(stream, timeout)
            content = message["content"]
            if "data" in content:
                data = content["data"]
                content["data"] = {kind: data[kind] for kind in ("text/plain",) if kind in data}
            name = content.get("transient", {}).get("display_id")
            if message["msg_type"] == "update_display_data":
                displays.get(name, {}).update(data=content["data"])
                continue
            if name is not None:
                displays[name] = content
            self._messages.append(message)
        return self._messages.popleft()


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> Solution | None:
    if file_path.suffix != ".ipynb":
        return None
    return Solution.from_parent(parent, path=file_path)
