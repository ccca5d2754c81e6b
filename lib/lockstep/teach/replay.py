"""Have each cell of a published notebook show what was recorded, and run nothing, in a kernel.

`%load_ext lockstep.teach.replay`, with LOCKSTEP_REPLAY naming the notebook. For a class whose
cluster is down: `lockstep demo NN --recorded`. Every output is stamped as recorded.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any

_LIVE = re.compile(r"^live +·", re.MULTILINE)
STAMP = "recorded · the published solution; nothing ran here"


class Replay:
    """A published notebook whose cells are replaced by what they showed; others run."""

    def __init__(self, notebook: dict[str, Any]):
        self._outputs = {
            "".join(cell["source"]).strip(): cell["outputs"]
            for cell in notebook["cells"]
            if cell["cell_type"] == "code"
        }
        self._sources = list(self._outputs)

    def transform(self, lines: list[str]) -> list[str]:
        """Return the code that IPython runs in the place of a cell's."""
        source = "".join(lines).strip()
        if source not in self._outputs:
            return lines
        return [
            f"__import__({__name__!r}, fromlist=['show']).show({self._sources.index(source)})\n"
        ]

    def show(self, number: int) -> None:
        from IPython.display import display

        outputs = self._outputs[self._sources[number]]
        for output in outputs:
            if "data" in output:
                data = {kind: "".join(text) for kind, text in output["data"].items()}
                data["text/plain"] = _stamped(data.get("text/plain", ""))
                display(data, raw=True)
            else:
                print(_stamped("".join(output.get("text", output.get("traceback", "")))), end="")
        print(STAMP if outputs else f"{STAMP} (this cell showed nothing)")


def _stamped(text: str) -> str:
    """Call recorded what was live when it was published."""
    return _LIVE.sub("recorded ·", text)


_replays: list[Replay] = []


def show(number: int) -> None:
    _replays[-1].show(number)


def load_ipython_extension(shell: Any) -> None:
    with open(os.environ["LOCKSTEP_REPLAY"], encoding="utf-8") as file:
        replay = Replay(json.load(file))
    _replays.append(replay)
    shell.input_transformers_cleanup.insert(0, replay.transform)
