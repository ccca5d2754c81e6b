"""Three learners on a real JupyterHub, who run lab 00 at the same time. `make test-hub`."""

from __future__ import annotations

import asyncio
import json
import uuid

import hub
import pytest
from lockstep.material import SOLUTIONS
from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

pytestmark = [
    pytest.mark.hub,
    pytest.mark.timeout(400),
    pytest.mark.skipif(bool(hub.why_not()), reason=hub.why_not()),
]

USERS = ("ada", "bob", "eve")
MINE = """\
%%torchrun --nproc-per-node 4 --backend gloo --into mine
import torch.distributed as dist
everybody = [None] * 4
dist.all_gather_object(everybody, {user!r})
everybody"""
TOLD = """\
import json, os, psutil
own = psutil.Process()
family = [own, *own.children(recursive=True)]
print(json.dumps({
    "said": mine.results,
    "home": os.path.expanduser("~"),
    "folder": os.getcwd(),
    "processes": [one.pid for one in family],
    "ports": [
        each.laddr.port
        for one in family
        for each in one.net_connections()
        if each.status == "LISTEN"
    ],
}))"""


async def execute(served: hub.Hub, user: str, cells: list[str]) -> list[tuple[str, str]]:
    """What each cell printed, and its error ("" for none), in a kernel of the user's own."""
    kernel = await asyncio.to_thread(
        served.ask, "POST", f"/user/{user}/api/kernels", {"name": "python3"}
    )
    address = served.address.replace("http", "ws", 1)
    request = HTTPRequest(
        f"{address}/user/{user}/api/kernels/{kernel['id']}/channels",
        headers={"Authorization": f"token {served.token}"},
    )
    connection = await websocket_connect(request, max_message_size=1 << 28)
    found = []
    for code in cells:
        number = uuid.uuid4().hex
        header = {
            "msg_id": number,
            "msg_type": "execute_request",
            "session": user,
            "username": user,
        }
        content = {"code": code, "silent": False, "allow_stdin": False, "stop_on_error": False}
        message = {"header": header, "parent_header": {}, "metadata": {}, "content": content}
        await connection.write_message(json.dumps(message | {"channel": "shell", "buffers": []}))
        printed, error = "", ""
        while True:
            heard = await connection.read_message()
            assert heard is not None, f"{user}'s kernel has gone in {code!r}"
            said = json.loads(heard) if isinstance(heard, str) else {"parent_header": {}}
            if said["parent_header"].get("msg_id") != number:
                continue
            content = said["content"]
            if said["msg_type"] == "stream":
                printed += content["text"]
            elif said["msg_type"] == "error":
                error = f"{content['ename']}: {content['evalue']}"
            elif said["msg_type"] == "status" and content["execution_state"] == "idle":
                break
        found.append((printed, error))
    connection.close()
    return found


def test_learners_of_a_hub_are_alone_with_their_ranks():
    (solution,) = SOLUTIONS.glob("00_*.ipynb")
    notebook = json.loads(solution.read_text())
    lab = ["".join(one["source"]) for one in notebook["cells"] if one["cell_type"] == "code"]

    async def all_at_once(served: hub.Hub) -> list[list[tuple[str, str]]]:
        cells = {user: [*lab, MINE.format(user=user), TOLD] for user in USERS}
        return await asyncio.gather(*(execute(served, user, cells[user]) for user in USERS))

    with hub.serving() as served:
        for user in USERS:
            served.start(user)
        said = asyncio.run(all_at_once(served))
        told = [json.loads(cells[-1][0]) for cells in said]
        homes = {one.name: one.stat().st_mode & 0o077 for one in served.homes.iterdir()}
    assert [[error for _, error in cells if error] for cells in said] == [[], [], []]
    assert [one["said"] for one in told] == [[[user] * 4] * 4 for user in USERS]
    assert homes == dict.fromkeys(USERS, 0)
    assert [one["folder"] == one["home"] for one in told] == [True] * 3
    for what in ("home", "processes", "ports"):
        each = [one[what] if isinstance(one[what], list) else [one[what]] for one in told]
        together = [value for values in each for value in values]
        assert len(together) == len(set(together)), what
