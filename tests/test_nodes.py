"""Ranks on other hosts: two agents in two network namespaces, two gloo ranks on each."""

import json
import os
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import lockstep
import psutil
import pytest
import torch
import torch.distributed as dist
from experiments import namespaces
from lockstep.launch.nodes import remote, tls, transport
from lockstep.launch.nodes.base import levels
from lockstep.launch.nodes.credentials import Credentials

pytestmark = pytest.mark.skipif(bool(namespaces.why_not()), reason=namespaces.why_not())
AHEAD = 100_000  # seconds


class Hosts:
    """Two hosts, and agents on them when somebody needs them."""

    def __init__(self, network: namespaces.Network):
        self.network = network
        self.agents: list[subprocess.Popen[str]] = []
        self.nodes: lockstep.Nodes | None = None

    def up(self) -> lockstep.Nodes:
        if self.nodes is None:
            self.nodes = lockstep.Nodes(2, address=namespaces.HERE)
            self.agents = [host.start(command(self.nodes)) for host in self.network.hosts]
            self.nodes.wait()
        return self.nodes

    def down(self) -> list[int]:
        """Let the agents go; returns how they ended."""
        if self.nodes is None:
            return []
        self.nodes.close()
        self.nodes = None
        return [agent.wait(30) for agent in self.agents]


def command(nodes: lockstep.Nodes) -> list[str]:
    return [sys.executable, "-m", *shlex.split(nodes.command)]


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with namespaces.Network(2, AHEAD) as network:
        hosts = Hosts(network)
        yield hosts
        assert set(hosts.down()) <= {0}


@pytest.fixture
def nodes(hosts: Hosts) -> lockstep.Nodes:
    return hosts.up()


def printed(output: str) -> list[str]:
    """Without what PyTorch says where no name server knows the hosts."""
    return [line for line in output.splitlines() if "hostname of the client socket" not in line]


def agent_process(agent: subprocess.Popen[str]) -> psutil.Process:
    """The agent itself, below what entered the namespaces for it."""
    below = [psutil.Process(agent.pid), *psutil.Process(agent.pid).children(recursive=True)]
    return next(one for one in below if "agent" in one.cmdline() and one.name() != "unshare")


def ranks_below(agent: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(agent.pid).children(recursive=True)


def gone(processes: list[psutil.Process]) -> bool:
    return psutil.wait_procs(processes, timeout=15)[1] == []


def test_results_output_and_record_come_back(nodes):
    def where(x):
        rank = dist.get_rank()
        total = torch.full((3,), float(rank))
        dist.all_reduce(total)
        half = dist.new_group([1, 2])
        if rank in (1, 2):
            dist.broadcast(total, 1, group=half)
        print(f"rank {rank} on the network {os.environ['GLOO_SOCKET_IFNAME']}")
        names = ("LOCAL_RANK", "GROUP_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE", "MASTER_ADDR")
        return total * x, [os.environ[name] for name in names]

    job = lockstep.torchrun(where, torch.tensor(2.0), nproc_per_node=2, on=nodes)
    assert job.nproc == 4 and "4 ranks on 2 nodes · gloo · CPU" in str(job.stamp)
    for rank, (total, said) in enumerate(job.results):
        assert torch.equal(total, torch.full((3,), 12.0))
        assert said == [str(rank % 2), str(rank // 2), "2", "4", f"{namespaces.SUBNET}.2"]
        assert printed(job.output(rank)) == [f"rank {rank} on the network eth0"]
    said = [[str(call) for call in calls] for calls in job.calls]
    all_reduce = "all_reduce #0 of float32[3] on the default group"
    broadcast = "broadcast #0 with root 1 of float32[3] on group"
    assert said[0] == said[3] == [all_reduce]
    assert said[1] == said[2] and said[1][0] == all_reduce and said[1][1].startswith(broadcast)
    assert [str(calls[-1]) for calls in job.setup] == ["new_group([1, 2]) #0"] * 4


def test_hosts_may_have_different_numbers_of_ranks(nodes):
    def where():
        total = torch.ones(1)
        dist.all_reduce(total)
        names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "WORLD_SIZE")
        return total.item(), " ".join(os.environ[name] for name in names)

    job = lockstep.torchrun(where, nproc_per_node="2,1", on=nodes)
    assert job.results == [(3.0, "0 0 2 0 3"), (3.0, "1 1 2 0 3"), (3.0, "2 0 1 1 3")]
    with pytest.raises(lockstep.LaunchError, match="numbers for 3 hosts, but there are 2"):
        lockstep.torchrun(where, nproc_per_node="1,1,1", on=nodes)


def test_clocks_of_the_hosts_are_brought_together(nodes):
    """A call ends on no rank before it has begun on all; the second host's clock is far ahead."""
    job = lockstep.torchrun(dist.barrier, nproc_per_node=2, on=nodes)
    calls = [calls[0] for calls in job.calls]
    apart = max(call.start for call in calls) - min(call.end or 0 for call in calls)
    assert apart < 0.1, calls


def test_the_second_host_has_a_clock_of_its_own(nodes):
    """Else the test above could not fail."""
    times = lockstep.torchrun(time.perf_counter, nproc_per_node=1, on=nodes).results
    assert times[1] - times[0] > AHEAD / 2


def test_large_values_travel_whole(nodes):
    def double(x):
        return x * 2 + dist.get_rank()

    x = torch.arange(3_000_000)
    job = lockstep.torchrun(double, x, nproc_per_node=2, on=nodes)
    for rank, got in enumerate(job.results):
        assert torch.equal(got, x * 2 + rank)


def test_a_flood_of_output_is_held_back_and_not_lost(nodes):
    def flood():
        for line in range(30_000):
            print(f"{line:06} {'x' * 60}")

    job = lockstep.torchrun(flood, nproc_per_node=2, on=nodes, show=False)
    for output in job.outputs:
        lines = printed(output.path.read_text())
        assert len(lines) == 30_000 and lines[-1].startswith("029999")


def test_a_world_keeps_its_ranks_and_one_job_runs_at_a_time(nodes):
    def remember(key, value):
        vars(dist).setdefault("kept", {})[key] = value
        return vars(dist)["kept"], os.getpid()

    with lockstep.World(2, on=nodes) as world:
        first = world.run(remember, "a", 1).results
        second = world.run(remember, "b", 2).results
        assert [pid for _, pid in first] == [pid for _, pid in second]
        assert [kept for kept, _ in second] == [{"a": 1, "b": 2}] * 4
        with pytest.raises(lockstep.LaunchError, match="these nodes are busy"):
            lockstep.torchrun(abs, -1, nproc_per_node=1, on=nodes)
    assert lockstep.torchrun(abs, -1, nproc_per_node=1, on=nodes).results == [1, 1]


def test_agents_are_silent_between_jobs(nodes):
    """Nobody listens then. What is said for half a day fills the link, and that ends it."""
    lockstep.torchrun(abs, -1, nproc_per_node=1, on=nodes)
    assert not any(host.transport.ready(1.5) for host in nodes._hosts)


def test_a_script_makes_its_own_group(nodes, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "x = torch.ones(1); dist.all_reduce(x); print(int(x), sys.argv[1])\n"
        "dist.destroy_process_group()\n"
    )
    job = lockstep.torchrun(script, "--flag", nproc_per_node=2, on=nodes)
    assert [printed(job.output(rank)) for rank in range(4)] == [["4 --flag"]] * 4


def test_the_magic_takes_nodes_by_their_variable(run):
    run(
        "import shlex, subprocess, sys, lockstep\n"
        "nodes = lockstep.Nodes(1)\n"
        "agent = subprocess.Popen([sys.executable, '-m', *shlex.split(nodes.command)])\n"
        "nodes.wait();"
    )
    reply = run("%%torchrun -n 2 --on nodes\nimport os\nos.environ['GROUP_RANK']")
    assert "ranks 0, 1 → │ '0'" in reply.shown, reply.error
    reply = run("%%torchrun -n 1 --nnodes 3 --on nodes\n1")
    assert "--nnodes 3, but nodes has 1" in reply.shown
    run("nodes.close()\nagent.wait()")


# ── Failures ─────────────────────────────────────────────────────────────────────────────────


def test_a_deadlock_across_hosts_is_explained(nodes):
    def wait_for_the_other_host():
        dist.recv(torch.ones(2), (dist.get_rank() + 2) % 4)

    job = lockstep.torchrun(wait_for_the_other_host, nproc_per_node=2, on=nodes, may_fail=True)
    assert job.verdict == (
        "Every waiting rank is in recv (rank 0 from rank 2, rank 1 from rank 3, "
        "rank 2 from rank 0, rank 3 from rank 1) and nobody sends."
    )
    for rank in range(4):
        peer = (rank + 2) % 4
        assert f"rank {rank}: in recv #0 from rank {peer} of float32[2]" in job.report
    assert "dist.recv(torch.ones(2)" in job.report  # the line, from each rank's own stack
    assert job.seconds < 60  # and not when gloo's own patience ends


def test_a_rank_that_skips_a_collective_is_named(nodes):
    def skip():
        if dist.get_rank() != 3:
            dist.all_reduce(torch.ones(1))

    job = lockstep.torchrun(skip, nproc_per_node=2, on=nodes, may_fail=True)
    assert "Ranks 0–2 wait in all_reduce #0" in job.verdict
    assert "for rank 3, which already left without that call" in job.verdict


def test_an_exception_on_the_other_host_comes_with_its_line(nodes):
    def fail():
        if dist.get_rank() == 2:
            raise ValueError("mine")
        dist.barrier()

    with pytest.raises(lockstep.JobFailed, match="rank 2: ValueError: mine") as failed:
        lockstep.torchrun(fail, nproc_per_node=2, on=nodes)
    assert 'raise ValueError("mine")' in str(failed.value)
    assert failed.value.job.failures[0].rank == 2


def test_at_the_time_limit_every_host_tells_where_its_ranks_are(nodes):
    def spin():
        if dist.get_rank() == 3:
            os.kill(os.getpid(), signal.SIGSTOP)
        while True:
            pass

    job = lockstep.torchrun(spin, nproc_per_node=2, on=nodes, may_fail=True, timeout=6)
    assert "The time limit of 6 s has passed." in job.verdict
    found = {failure.rank: failure for failure in job.failures}
    assert [found[rank].frames[-1][2] for rank in range(3)] == ["spin"] * 3
    assert found[3].message == "stopped by a signal (SIGSTOP) or a debugger"


def test_a_rank_that_is_killed_is_named(nodes):
    def die():
        if dist.get_rank() == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()

    job = lockstep.torchrun(die, nproc_per_node=2, on=nodes, may_fail=True)
    assert "rank 3: ended by SIGKILL" in job.report


def test_what_a_host_cannot_have_is_refused_there(nodes, tmp_path, monkeypatch):
    with pytest.raises(lockstep.LaunchError, match="torchrun' starts ranks on this host only"):
        lockstep.torchrun(abs, -1, engine="torchrun", on=nodes)
    with pytest.raises(lockstep.LaunchError, match="no GPU"):
        lockstep.torchrun(abs, -1, backend="nccl", on=nodes)
    with pytest.raises(lockstep.LaunchError, match="150 ranks on each of 2 nodes are more than"):
        lockstep.torchrun(abs, -1, nproc_per_node=150, on=nodes)


# ── An agent that goes ───────────────────────────────────────────────────────────────────────


def test_an_agent_that_is_killed_is_named(hosts):
    def kill(pid):
        if dist.get_rank() == 0:
            os.kill(pid, signal.SIGKILL)
        dist.barrier()
        dist.recv(torch.ones(1))

    nodes = hosts.up()
    victim = agent_process(hosts.agents[1])
    job = lockstep.torchrun(kill, victim.pid, nproc_per_node=2, on=nodes, may_fail=True, timeout=60)
    address = hosts.network.hosts[1].address
    assert f"({address}) is lost: its connection was closed" in job.verdict
    assert job.verdict.endswith("Lost with it: ranks 2, 3.")
    with pytest.raises(lockstep.LaunchError, match=r"is lost.*Create new Nodes"):
        lockstep.torchrun(abs, -1, nproc_per_node=1, on=nodes)
    below = [one for agent in hosts.agents for one in ranks_below(agent)]
    hosts.down()
    assert gone(below)


def test_an_agent_that_cannot_go_on_says_why(hosts):
    """Here it has no room for what it is sent. It must not look as if the notebook had left."""
    nodes = hosts.up()
    agent = hosts.agents[1]
    room = 1 << 20
    with lockstep.World(1, on=nodes) as world:
        world.run(abs, -1)
        agent_process(agent).rlimit(psutil.RLIMIT_FSIZE, (room, room))
        with pytest.raises(lockstep.JobFailed) as failed:
            world.run(torch.sum, torch.arange(room), timeout=60)
    address = hosts.network.hosts[1].address
    assert f"({address}) is lost: it has failed (OSError: [Errno 27]" in failed.value.job.verdict
    below = ranks_below(agent)
    assert agent.wait(30) == 1
    assert "Traceback" in agent.communicate()[0]
    assert gone(below)
    hosts.down()


def test_a_host_that_is_cut_off_is_named(hosts, monkeypatch):
    monkeypatch.setattr(remote, "_SILENCE", 2.0)
    nodes = hosts.up()
    host = hosts.network.hosts[1]

    def go_dark(name):
        if dist.get_rank() == 0:
            subprocess.run(["ip", "-n", name, "link", "set", "eth0", "down"], check=True)
        time.sleep(100)

    job = lockstep.torchrun(
        go_dark, host.name, nproc_per_node=1, on=nodes, may_fail=True, timeout=60
    )
    assert f"({host.address}) is lost: nothing was heard from it for 2 s" in job.verdict
    for agent in hosts.agents:
        agent.kill()
    below = [one for agent in hosts.agents for one in ranks_below(agent)]
    for one in below:
        one.kill()
    hosts.down()
    subprocess.run(["ip", "-n", host.name, "link", "set", "eth0", "up"], check=True)


@pytest.mark.long
def test_an_agent_that_is_cut_off_ends_by_itself(hosts):
    """Else Slurm would keep its job until the time limit; TCP alone tries for many minutes."""
    hosts.up()
    host, agent = hosts.network.hosts[1], hosts.agents[1]
    below = ranks_below(agent)
    subprocess.run(["ip", "-n", host.name, "link", "set", "eth0", "down"], check=True)
    try:
        assert agent.wait(60) == 0
    finally:
        subprocess.run(["ip", "-n", host.name, "link", "set", "eth0", "up"], check=True)
        agent.kill()
        hosts.down()
    assert gone(below)


def test_agents_and_ranks_go_with_the_notebook(hosts, tmp_path):
    hosts.down()
    script = tmp_path / "notebook.py"
    script.write_text(
        textwrap.dedent(f"""
            import time, lockstep
            nodes = lockstep.Nodes(2, address="{namespaces.HERE}")
            print(nodes.command, flush=True)
            nodes.wait()
            def say():
                print("up", flush=True)
                time.sleep(1000)
            lockstep.torchrun(say, nproc_per_node=2, on=nodes)
        """)
    )
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as notebook:
        words = shlex.split(notebook.stdout.readline())
        agents = [host.start([sys.executable, "-m", *words]) for host in hosts.network.hosts]
        up = (line for line in notebook.stdout if line.endswith("│ up\n"))
        assert len([line for _, line in zip(range(4), up, strict=False)]) == 4
        below = [one for agent in agents for one in ranks_below(agent)]
        assert len(below) >= 4 + 2  # ranks and their forkservers
        notebook.kill()
    assert [agent.wait(30) for agent in agents] == [0, 0]
    assert gone(below)
    with lockstep.Nodes(1):
        assert not Path(words[-1]).exists()  # the ticket of one that was killed


# ── Who may dial in ──────────────────────────────────────────────────────────────────────────


def test_only_who_knows_the_key_is_let_in(tmp_path):
    with lockstep.Nodes(1) as nodes:
        path = Path(shlex.split(nodes.command)[-1])
        ticket = Credentials.read(path)
        assert path.stat().st_mode & 0o777 == 0o600
        stranger = transport.Transport(socket.create_connection(ticket.address))
        silent = socket.create_connection(ticket.address)
        silent.close()
        with pytest.raises(lockstep.LaunchError, match=r"0 of 1 agents have come within 0\.3 s"):
            nodes.wait(0.3)
        stranger.close()
        with pytest.raises(lockstep.LaunchError, match="0 of 1 agents are here"):
            lockstep.torchrun(abs, -1, nproc_per_node=1, on=nodes)
    assert not path.exists()


@pytest.mark.parametrize("known", [True, False])
def test_both_ends_prove_that_they_know_the_key(known):
    other = "right" if known else "wrong"
    listener = socket.create_server(("127.0.0.1", 0))
    caller = socket.create_connection(listener.getsockname())
    end, _ = listener.accept()
    code = (
        "import socket, sys; from lockstep.launch.nodes.transport import Transport, prove\n"
        f"end = Transport(socket.socket(fileno={caller.fileno()}))\n"
        "print('ready', flush=True)\n"
        f"print(prove(end, b'{other}', dialled=True))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        pass_fds=[caller.fileno()],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        assert transport.prove(transport.Transport(end), b"right", dialled=False) is known
        assert process.communicate()[0].strip() == str(known)


def greet(nodes: lockstep.Nodes, host: str, **others: str) -> threading.Thread:
    """Dial in as the agent of a host, with other versions of what is named; it does no work."""

    def agent() -> None:
        ticket = Credentials.read(Path(shlex.split(nodes.command)[-1]))
        end = transport.Transport(socket.create_connection(ticket.address))
        assert transport.prove(end, ticket.key, dialled=True)
        hello = {"did": "hello", "host": host, "levels": {**levels(), **others}}
        end.post({**hello, "gpus": 0, "cores": 1, "number": 0})
        try:
            while end.receive(30)[0]["do"] == "clock":
                end.post({"did": "clock", "now": time.perf_counter()})
        except (EOFError, OSError):
            end.close()

    thread = threading.Thread(target=agent)
    thread.start()
    return thread


def test_a_host_that_comes_late_is_waited_for_again_and_one_of_other_versions_named():
    with lockstep.Nodes(2) as nodes:
        agents = [greet(nodes, "early")]
        with pytest.raises(lockstep.LaunchError, match=r"1 of 2 agents \(early\) have come"):
            nodes.wait(0.5)
        agents.append(greet(nodes, "other", torch="1.0.0", lockstep="0.0.1"))
        own = levels()["torch"].replace("+", r"\+")
        other = rf"on other \(127.0.0.1\) was refused.*lockstep 0.0.1, .*torch 1.0.0, here {own}\."
        with pytest.raises(lockstep.LaunchError, match=other):
            nodes.wait(30)
        agents.append(greet(nodes, "late"))
        assert nodes.wait(30).names == ["early", "late"]
    for agent in agents:
        agent.join(30)


class Relay:
    """Somebody between an agent and the notebook, who copies all that goes by."""

    def __init__(self, address: str, to: tuple[str, int]):
        self.seen = bytearray()
        self._to = to
        self._listener = socket.create_server((address, 0))
        self.address = (address, self._listener.getsockname()[1])
        threading.Thread(target=self._pass_on, daemon=True).start()

    def _pass_on(self) -> None:
        ends = [self._listener.accept()[0], socket.create_connection(self._to)]
        with ends[0], ends[1], self._listener, selectors.DefaultSelector() as selector:
            for end, other in (ends, reversed(ends)):
                selector.register(end, selectors.EVENT_READ, other)
            while True:
                for key, _ in selector.select():
                    if not (data := key.fileobj.recv(1 << 16)):
                        return
                    self.seen += data
                    key.data.sendall(data)


@pytest.mark.parametrize("address", ["127.0.0.1", namespaces.HERE], ids=["loopback", "beyond"])
def test_beyond_loopback_nobody_between_can_read(hosts, tmp_path, address):
    def whisper():
        print("a secret")
        return "another " + "secret"

    with lockstep.Nodes(1, address=address) as nodes:
        path = Path(shlex.split(nodes.command)[-1])
        said = json.loads(path.read_text())
        relay = Relay(address, tuple(said["address"]))
        path.write_text(json.dumps({**said, "address": relay.address}))
        with subprocess.Popen(command(nodes), stdout=subprocess.PIPE) as agent:
            nodes.wait()
            assert lockstep.torchrun(whisper, nproc_per_node=1, on=nodes)[0] == "another secret"
            nodes.close()
            assert agent.wait(30) == 0
    assert (b"secret" in relay.seen) == (address == "127.0.0.1")
    assert len(relay.seen) > 1000


def test_an_agent_trusts_the_certificate_of_its_ticket_alone(hosts, tmp_path):
    with lockstep.Nodes(1, address=namespaces.HERE) as nodes:
        path = Path(shlex.split(nodes.command)[-1])
        other = tls.certificate()[1]
        path.write_text(json.dumps({**json.loads(path.read_text()), "certificate": other}))
        agent = subprocess.Popen(command(nodes), stderr=subprocess.PIPE, text=True)
        while agent.poll() is None:  # it may be slow to come
            with pytest.raises(lockstep.LaunchError, match="0 of 1 agents"):
                nodes.wait(1)
        assert "certificate verify failed" in agent.communicate(timeout=30)[1]
        assert agent.returncode == 2


def test_a_ticket_that_others_can_read_is_refused(tmp_path, capsys):
    from lockstep.__main__ import main

    with lockstep.Nodes(1) as nodes:
        path = Path(shlex.split(nodes.command)[-1])
        path.chmod(0o644)
        assert main(["agent", str(path)]) == 2
    assert "others can read the ticket" in capsys.readouterr().err
    (tmp_path / "no").write_text("{}")
    assert main(["agent", str(tmp_path / "no")]) == 2
    assert "is not a ticket" in capsys.readouterr().err
    assert main(["agent", str(tmp_path / "missing")]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_an_address_that_is_not_ours_is_refused():
    with pytest.raises(lockstep.LaunchError, match=r"cannot listen at 192\.0\.2\.1"):
        lockstep.Nodes(1, address="192.0.2.1")
