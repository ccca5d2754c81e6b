"""A JupyterHub on this machine, with learners who have no password, for tests (Linux).

`python tests/hub.py` installs it below `build/`, in an environment of its own that sees the
course's (`make test-hub` does), as `hub.lock` has it: its proxy is the one in Python, which comes
with the same hashes as the rest, and needs neither Node.js nor root. With HUB=no in the environment
its tests are left out.

Where root starts it, each learner is a user of the system, who has no account but a number.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.error
import urllib.request
import uuid
import venv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import websocket
from ports import free_ports

ROOT = Path(__file__).parents[1]
LOCK = Path(__file__).parent / "hub.lock"
PLACE = ROOT / "build" / "hub"
_STAMP = PLACE / "complete.txt"  # written last
PATIENCE = 300.0  # seconds for what takes a few where the machine is free
_FIRST_NUMBER = 61001  # of the learners as users of the system: nobody has these
_MARK = "LOCKSTEP_TESTED_BY"

_CONFIGURATION = """
import json, os
from jupyterhub.spawner import SimpleLocalProcessSpawner

known = json.loads(os.environ["HUB_KNOWS"])

class Spawner(SimpleLocalProcessSpawner):
    async def start(self):
        self.port = known["learners"][self.user.name]  # as `free_ports` says: a lasting one
        return await super().start()

    def make_preexec_fn(self, name):
        home, number, cores = self.home_dir, known["numbers"].get(name), known["cores"].get(name)
        def enter():
            if cores:
                os.sched_setaffinity(0, cores)
            if number:
                os.setgroups([])
                os.setgid(number)
                os.setuid(number)
            os.chdir(home)
        return enter

c.JupyterHub.bind_url = f"http://127.0.0.1:{known['ports'][0]}"
c.JupyterHub.hub_port = known["ports"][1]
c.JupyterHub.concurrent_spawn_limit = 0
c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{known['ports'][2]}"
c.ConfigurableHTTPProxy.command = [known["proxy"]]
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
c.JupyterHub.spawner_class = Spawner
c.SimpleLocalProcessSpawner.home_dir_template = known["homes"] + "/{username}"
c.Spawner.cmd = [known["python"], "-m", "jupyterhub.singleuser"]
c.Spawner.environment = known["environment"]
c.Spawner.default_url = "/api"
c.Spawner.args = ["--allow-root"]
c.Spawner.start_timeout = c.Spawner.http_timeout = known["patience"]
c.JupyterHub.services = [{"name": "test", "api_token": known["token"]}]
c.JupyterHub.load_roles = [
    {"name": "test", "scopes": ["admin:users", "admin:servers", "access:servers"],
      "services": ["test"]}
]
"""


# ── Installing ───────────────────────────────────────────────────────────────────────────────────


def why_not() -> str:
    """Why there is none here; "" where there is."""
    if not sys.platform.startswith("linux"):
        return "a JupyterHub for tests needs Linux"
    if not _STAMP.exists() or _STAMP.read_text() != _wanted():
        return "there is no JupyterHub here: make test-hub installs it"
    return ""


def why_no_walls() -> str:
    """Why learners are not users of the system, kept apart by it; "" where they are."""
    return "" if os.geteuid() == 0 else "only root can let each learner be a user of the system"


def install() -> None:
    """Into an environment that sees the course's packages. Raises LookupError where it cannot."""
    if not why_not().startswith("there is no"):
        return
    shutil.rmtree(PLACE, ignore_errors=True)
    venv.create(PLACE, with_pip=False, symlinks=True)
    (packages,) = PLACE.glob("lib/python*/site-packages")
    (packages / "course.pth").write_text(_course() + "\n")
    pip = [sys.executable, "-m", "pip", "--python", str(_python()), "install", "--quiet"]
    # What both locks have is there already, in the same version.
    locked = ["--no-deps", "--only-binary", ":all:", "--require-hashes", "-r", str(LOCK)]
    for command in ([*pip, *locked], [str(_python()), "-m", "jupyterhub", "--version"]):
        done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
        if done.returncode:
            raise LookupError(f"no JupyterHub can be installed here: {' '.join(command)}: failed")
    _STAMP.write_text(_wanted())


def _python() -> Path:
    return PLACE / "bin" / "python"


def _course() -> str:
    """Where the packages of this Python are, which are the course's."""
    return os.path.realpath(sysconfig.get_path("purelib"))


def _wanted() -> str:
    said = "\n".join([sys.version, _course(), str(PLACE)])
    return hashlib.sha256(said.encode() + LOCK.read_bytes()).hexdigest()


# ── Serving ──────────────────────────────────────────────────────────────────────────────────────


class Hub:
    """What may be asked of a hub."""

    def __init__(self, address: str, token: str, mark: str, folder: Path, numbers: dict[str, int]):
        self.address, self.token, self.folder, self.numbers = address, token, folder, numbers
        self._mark = mark
        self.homes, self.temporary = folder / "homes", folder / "tmp"

    def ask(self, way: str, path: str, content: Any = None) -> Any:
        """Of the hub (`/hub/api/…`) or of a learner's server (`/user/ada/api/…`)."""
        data = None if content is None else json.dumps(content).encode()
        with self._open(path, way, data) as answer:
            said = answer.read()
        return json.loads(said) if said else None

    def come(self, names: Iterable[str]) -> list[Learner]:
        """Learners who come at the same time; each has a server and a kernel soon."""
        names = list(names)
        with ThreadPoolExecutor(len(names)) as pool:
            return list(pool.map(lambda name: Learner(self, name), names))

    def start(self, name: str) -> None:
        """A learner's server, which is waited for. Raises RuntimeError, with the hub's words."""
        home = self.homes / name
        home.mkdir(mode=0o700)
        if name in self.numbers:
            os.chown(home, self.numbers[name], self.numbers[name])
        self.ask("POST", f"/hub/api/users/{name}")
        self.ask("POST", f"/hub/api/users/{name}/server")
        said: dict[str, Any] = {}
        with self._open(f"/hub/api/users/{name}/server/progress") as progress:
            for line in progress:  # one when it comes up, and then it ends
                if line.startswith(b"data:"):
                    said = json.loads(line.removeprefix(b"data:"))
        if not said.get("ready"):
            raise RuntimeError(f"{name} has no server: {said}\n{self.said()}")

    def stop(self, name: str) -> None:
        self.ask("DELETE", f"/hub/api/users/{name}/server")

    @contextlib.contextmanager
    def culling(self, idle: int) -> Iterator[None]:
        """With the service that stops servers where nothing was done for so many seconds."""
        command = [str(_python()), "-m", "jupyterhub_idle_culler", f"--timeout={idle}"]
        command += ["--cull-every=1", f"--url={self.address}/hub/api"]
        with open(self.folder / "log", "ab") as log:
            environment = {**os.environ, "JUPYTERHUB_API_TOKEN": self.token}
            culler = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            yield
        finally:
            culler.kill()
            culler.wait()

    def processes(self, name: str = "") -> list[psutil.Process]:
        """All that came of a learner's server, whoever their parents are now; of all, without."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):  # somebody else's, a zombie, or gone
                environment = process.environ()
                own = name in ("", environment.get("JUPYTERHUB_USER"))
                if own and environment.get(_MARK) == self._mark:
                    found.append(process)
        return found

    def said(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def _open(self, path: str, way: str = "GET", data: bytes | None = None) -> Any:
        request = urllib.request.Request(self.address + path, data, method=way)
        request.add_header("Authorization", f"token {self.token}")
        try:
            return urllib.request.urlopen(request, timeout=PATIENCE)
        except urllib.error.HTTPError as error:
            error.add_note(f"{way} {path}: {error.read().decode(errors='replace')}\n{self.said()}")
            raise


@dataclass
class Reply:
    """What a learner sees under a cell."""

    text: str = ""  # prints, and what was displayed, as text
    error: str = ""  # "" for none
    seconds: float = 0.0


class Learner:
    """A user of the hub with a kernel. All servers of a class start at the same time."""

    def __init__(self, hub: Hub, name: str):
        self.hub, self.name = hub, name
        self.home = hub.homes / name
        self._asked = ""  # the number of the cell that runs
        self._reply = Reply()  # its
        hub.start(name)
        self.open()

    def open(self) -> None:
        """A new kernel, in which cells run from now on."""
        path, self._asked = f"/user/{self.name}/api/kernels", ""
        self.kernel = self.hub.ask("POST", path, {"name": "python3"})["id"]
        self._channels = websocket.create_connection(
            f"{self.hub.address.replace('http', 'ws', 1)}{path}/{self.kernel}/channels",
            header=[f"Authorization: token {self.hub.token}"],
            timeout=PATIENCE,
        )

    def run(self, code: str) -> Reply:
        """A cell, to its end."""
        self.begin(code)
        return self.finish()

    def begin(self, code: str) -> None:
        if self._asked:
            raise RuntimeError(f"{self.name}'s cell before has not ended: {self._reply}")
        self._reply = Reply()
        self._asked = uuid.uuid4().hex
        self._began = time.perf_counter()
        header = {"msg_id": self._asked, "msg_type": "execute_request"}
        header |= {"session": self.name, "username": self.name}
        content = {"code": code, "silent": False, "allow_stdin": False, "stop_on_error": False}
        message = {"header": header, "parent_header": {}, "metadata": {}, "content": content}
        self._channels.send(json.dumps(message | {"channel": "shell", "buffers": []}))

    def finish(self) -> Reply:
        return self.wait_for(None)

    def wait_for(self, word: str | None) -> Reply:
        """Until that is seen under the cell, or the cell ends. Raises where the kernel has gone."""
        while word is None or word not in self._reply.text:
            said = self._channels.recv()
            message = json.loads(said) if isinstance(said, str) and said else {"parent_header": {}}
            if message["parent_header"].get("msg_id") != self._asked:
                continue
            content = message["content"]
            if message["msg_type"] == "stream":
                self._reply.text += content["text"]
            elif message["msg_type"] in ("display_data", "update_display_data", "execute_result"):
                self._reply.text += content["data"].get("text/plain", "") + "\n"
            elif message["msg_type"] == "error":
                self._reply.error = f"{content['ename']}: {content['evalue']}"
            elif content.get("execution_state") == "idle":
                self._asked = ""
                break
        self._reply.seconds = time.perf_counter() - self._began
        return self._reply

    def interrupt(self) -> None:
        """As ■ does."""
        self.hub.ask("POST", f"/user/{self.name}/api/kernels/{self.kernel}/interrupt")

    def processes(self) -> list[psutil.Process]:
        return self.hub.processes(self.name)


@contextlib.contextmanager
def serving(
    names: Sequence[str], cores: Mapping[str, Sequence[int]] | None = None
) -> Iterator[Hub]:
    """A hub for learners of these names, some with some cores only; with it they all go."""
    # Not TMPDIR: a Unix socket's path has room for about 100 characters, and all must get there.
    with tempfile.TemporaryDirectory(
        prefix="hub-", dir="/tmp", ignore_cleanup_errors=True
    ) as place:
        folder, token, mark = Path(place), os.urandom(16).hex(), uuid.uuid4().hex
        folder.chmod(0o755)
        (folder / "homes").mkdir()
        (folder / "tmp").mkdir()
        (folder / "tmp").chmod(0o1777)
        (folder / "hub").mkdir(mode=0o700)
        (folder / "hub" / "jupyterhub_config.py").write_text(_CONFIGURATION)
        ports = free_ports(3)
        walls = not why_no_walls()
        numbers = {name: _FIRST_NUMBER + at for at, name in enumerate(names)} if walls else {}
        known = {
            "ports": ports,
            "learners": dict(zip(names, free_ports(len(names)), strict=True)),
            "token": token,
            "python": str(_python()),
            "proxy": str(PLACE / "bin" / "configurable-http-proxy"),
            "homes": str(folder / "homes"),
            "numbers": numbers,
            "cores": cores or {},
            "patience": PATIENCE,
            "environment": {
                "PYTHONPATH": str(ROOT / "lib"),
                "TMPDIR": str(folder / "tmp"),
                _MARK: mark,
            },
        }
        # Should this process be killed, it ends, and its learners with it.
        command = ["setpriv", "--pdeathsig", "TERM", str(_python()), "-m", "jupyterhub"]
        with open(folder / "log", "wb") as log:
            process = subprocess.Popen(
                [*(_opened(folder) if walls else []), *command],
                cwd=folder / "hub",
                env={**os.environ, "HUB_KNOWS": json.dumps(known)},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        hub = Hub(f"http://127.0.0.1:{ports[0]}", token, mark, folder, numbers)
        try:
            _wait(hub, process)
            yield hub
        finally:
            process.send_signal(signal.SIGTERM)  # which ends users' servers, too
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for left in hub.processes():
                left.kill()


def _wait(hub: Hub, process: subprocess.Popen) -> None:
    until = time.monotonic() + PATIENCE
    while True:
        try:
            hub.ask("GET", "/hub/api/users")
            return
        except OSError as error:
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"no hub ({error}):\n{hub.said()}") from None
            time.sleep(0.1)  # nothing tells of it


def _opened(folder: Path) -> list[str]:
    """What to run a command with, so that no closed folder keeps learners from Python.

    A Python in root's home is none for others. Where a folder above what they need lets nobody in,
    the command sees another in its place, with nothing but that in it.
    """
    hold, cover, show = [], {}, []
    needed = (Path(sys.base_prefix), Path(_course()), ROOT)
    for number, path in enumerate(path.resolve() for path in needed):
        closed = [one for one in reversed(path.parents) if not one.stat().st_mode & 0o001]
        if closed:
            held = folder / "hub" / f"held-{number}"
            hold.append(f"mkdir '{held}'; mount --bind '{path}' '{held}'")
            cover[closed[0]] = f"mount -t tmpfs -o mode=755 none '{closed[0]}'"
            show.append(f"mkdir -p '{path}'; mount --move '{held}' '{path}'")
    script = "\n".join(["set -e", *hold, *cover.values(), *show, 'exec "$@"'])
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh"]


if __name__ == "__main__":
    try:
        install()
        if reason := why_not():
            sys.exit(reason)
    except LookupError as error:
        sys.exit(str(error))
