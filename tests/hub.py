"""A JupyterHub on this machine, with users who have no password, for tests (Linux).

`python tests/hub.py` installs it in an environment of its own beside the one of the course, and its
proxy, which needs Node.js (`make test-hub` does).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.request
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HUB = "jupyterhub==5.4.2"
PROXY = "configurable-http-proxy@5.1.0"
PLACE = Path(__file__).parents[1] / "build" / "hub"
_PATIENCE = 120.0  # seconds for a server to come up
_CONFIGURATION = """
from jupyterhub.spawner import SimpleLocalProcessSpawner
c.JupyterHub.bind_url = "http://127.0.0.1:{ports[0]}"
c.JupyterHub.hub_port = {ports[1]}
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{ports[2]}"
c.ConfigurableHTTPProxy.command = [{proxy!r}]
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
c.JupyterHub.spawner_class = SimpleLocalProcessSpawner
c.SimpleLocalProcessSpawner.home_dir_template = {homes!r} + "/{{username}}"
c.Spawner.cmd = [{python!r}, "-m", "jupyterhub.singleuser"]
c.Spawner.environment = {environment!r}
c.Spawner.default_url = "/api"
c.Spawner.args = ["--allow-root"]
c.Spawner.start_timeout = 120
c.Spawner.http_timeout = 120
c.JupyterHub.services = [{{"name": "test", "api_token": {token!r}}}]
c.JupyterHub.load_roles = [
    {{"name": "test", "scopes": ["admin:users", "admin:servers", "access:servers"],
      "services": ["test"]}}
]
"""


def python() -> Path:
    return PLACE / "bin" / "python"


def proxy() -> Path:
    return PLACE / "node_modules" / ".bin" / "configurable-http-proxy"


def why_not() -> str:
    """Why there is none here; "" where there is."""
    if not python().exists() or not proxy().exists():
        return "there is no JupyterHub here: make test-hub installs it"
    return ""


def install() -> None:
    """Into an environment that sees the course's packages, and changes none of them."""
    if not why_not():
        return
    venv.create(PLACE, with_pip=False, symlinks=True)
    (packages,) = PLACE.glob("lib/python*/site-packages")
    (packages / "course.pth").write_text(os.path.realpath(sysconfig.get_path("purelib")) + "\n")
    pip = [sys.executable, "-m", "pip", "--python", str(python()), "install", "--quiet"]
    subprocess.run([*pip, HUB], check=True)
    npm = shutil.which("npm")
    if npm is None:
        sys.exit("JupyterHub's proxy needs Node.js: install node and npm")
    subprocess.run([npm, "install", "--silent", "--prefix", str(PLACE), PROXY], check=True)


class Hub:
    """Users of the hub, and what may be asked of it."""

    def __init__(self, address: str, token: str, homes: Path):
        self.address, self.token, self.homes = address, token, homes

    def ask(self, way: str, path: str, content: Any = None) -> Any:
        """Of the hub (`/hub/api/…`) or of a user's server (`/user/ada/api/…`)."""
        request = urllib.request.Request(self.address + path, method=way)
        request.add_header("Authorization", f"token {self.token}")
        data = None if content is None else json.dumps(content).encode()
        with urllib.request.urlopen(request, data, timeout=_PATIENCE) as answer:
            said = answer.read()
        return json.loads(said) if said else None

    def start(self, user: str) -> None:
        """A user comes, and has a server, which is waited for."""
        (self.homes / user).mkdir(mode=0o700)
        self.ask("POST", f"/hub/api/users/{user}")
        self.ask("POST", f"/hub/api/users/{user}/server")
        until = time.monotonic() + _PATIENCE
        while not self.ask("GET", f"/hub/api/users/{user}")["servers"].get("", {}).get("ready"):
            if time.monotonic() > until:
                raise TimeoutError(f"{user}'s server does not come up")
            time.sleep(0.2)  # nothing tells of it


@contextmanager
def serving() -> Iterator[Hub]:
    """A hub that runs; with it go all servers and kernels."""
    with tempfile.TemporaryDirectory(prefix="hub-", ignore_cleanup_errors=True) as name:
        folder, token = Path(name), os.urandom(16).hex()
        (folder / "homes").mkdir()
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
        ports = [one.getsockname()[1] for one in sockets]
        for one in sockets:
            one.close()
        said = _CONFIGURATION.format(
            ports=ports,
            proxy=str(proxy()),
            homes=str(folder / "homes"),
            python=str(python()),
            environment={"PYTHONPATH": os.environ["PYTHONPATH"]}
            if "PYTHONPATH" in os.environ
            else {},
            token=token,
        )
        (folder / "jupyterhub_config.py").write_text(said)
        with open(folder / "log", "wb") as log:
            process = subprocess.Popen(
                [python(), "-m", "jupyterhub"],
                cwd=folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        hub = Hub(f"http://127.0.0.1:{ports[0]}", token, folder / "homes")
        try:
            until = time.monotonic() + _PATIENCE
            while True:
                try:
                    hub.ask("GET", "/hub/api/users")
                    break
                except OSError as error:
                    if process.poll() is not None or time.monotonic() > until:
                        log_text = (folder / "log").read_text(errors="replace")
                        raise RuntimeError(f"no hub ({error}):\n{log_text}") from None
                    time.sleep(0.2)
            yield hub
        finally:
            process.send_signal(signal.SIGTERM)  # which ends users' servers, too
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


if __name__ == "__main__":
    install()
