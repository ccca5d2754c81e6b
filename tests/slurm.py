"""A Slurm of two nodes on this machine, of Debian's packages (Linux, root), for tests.

Its GPUs are fake, or this machine's own, which are dealt out to the nodes.

`python tests/slurm.py` installs what lacks, and runs a job on both nodes (`make test-slurm` does).
With SLURM=no in the environment its tests are left out.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ports import free_ports

PACKAGES = ("slurm-wlm", "slurm-client", "munge")
NODES = ("n1", "n2")
_NULL = os.makedev(1, 3)  # as /dev/null
_PATIENCE = 30.0  # seconds for a daemon to come up, and for a job to be gone

# Two nodes of this host, told apart by their ports; so are the jobs of several such clusters, since
# control groups are named by them. Of two jobs that do not fit at once, one in the partition
# "urgent" drives out one in "main". "tiny" has one node, for a minute; "down" has none.
_CONFIGURATION = """
ClusterName=lockstep
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmctldPort={ports[0]}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
FirstJobId={ports[0]}000
StateSaveLocation={folder}/state
SlurmdPidFile={folder}/%n.pid
SlurmdLogFile={folder}/%n.log
SlurmdSpoolDir={folder}/spool-%n
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/{tasks}
TaskProlog={folder}/before_task
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU={memory_of_cpu}
MpiDefault=none
ReturnToService=2
SchedulerParameters=sched_interval=1,bf_interval=1
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
EnforcePartLimits=NO
SlurmdTimeout=10
MessageTimeout=5
MinJobAge=60
InactiveLimit=0
KillWait=2
GresTypes=gpu
NodeName=DEFAULT CPUs=4 RealMemory={memory}
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} {gpus[0]}
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} {gpus[1]}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=9 PreemptMode=OFF
PartitionName=tiny Nodes=n1 MaxTime=1 State=UP PriorityTier=1
PartitionName=down Nodes=ALL State=DOWN PriorityTier=1
"""

# Memory that is not the job's own is refused by the kernel, which ends a process of it; and so are
# GPUs that are not the job's.
_CGROUPS = """
CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
ConstrainRAMSpace={memory}
ConstrainDevices={devices}
ConstrainCores=no
"""


def real_gpus() -> list[Path]:
    """The device files of this machine's NVIDIA GPUs."""
    return sorted(Path("/dev").glob("nvidia[0-9]*"), key=lambda path: int(path.name[6:]))


def why_not() -> str:
    """Why this machine cannot have one; "" where it can."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "a Slurm of one's own needs Linux and root"
    lacking = [name for name in ("slurmctld", "slurmd", "munged") if shutil.which(name) is None]
    if lacking:
        return f"there is no {lacking[0]} here: make test-slurm installs {', '.join(PACKAGES)}"
    return ""


def why_no_limits() -> str:
    """Why such a Slurm cannot see to it that a job keeps to its memory; "" where it can."""
    if not os.access("/sys/fs/cgroup/memory/memory.limit_in_bytes", os.W_OK):
        return "there are no control groups of version 1, in which one may limit memory"
    return ""


def why_no_fences() -> str:
    """The same of the GPUs that Slurm gave to it."""
    if not os.access("/sys/fs/cgroup/devices/devices.deny", os.W_OK):
        return "there are no control groups of version 1, in which one may deny devices"
    return ""


def install() -> None:
    """Debian's packages, where one lacks. Raises LookupError where they cannot be had."""
    if not why_not().startswith("there is no"):
        return
    if shutil.which("apt-get") is None:
        raise LookupError(f"there is no apt-get here: install {', '.join(PACKAGES)} yourself")
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    get = ("apt-get", "install", "-y", "-qq", "--no-install-recommends", *PACKAGES)
    for command in (("apt-get", "update", "-qq"), get):
        done = subprocess.run(command, env=quiet, stdout=subprocess.DEVNULL, check=False)
        if done.returncode:
            raise LookupError(f"{' '.join(command)}: failed")
    if shutil.which("systemctl"):  # tests have a munged of their own, which ends with them
        _call("systemctl", "disable", "--now", "munge.service", check=False)


def try_it() -> None:
    """A job on both nodes. Raises LookupError, with what daemons said, where it does not run."""
    cluster = Cluster()
    try:
        with cluster:
            command = ("srun", "--nodes=2", "--ntasks=2", "printenv", "SLURMD_NODENAME")
            done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        if sorted(done.stdout.split()) != sorted(NODES):
            raise LookupError(f"a job on two nodes does not run here: {done.stderr}{done.stdout}")
    except (OSError, subprocess.SubprocessError, TimeoutError) as error:
        logs = "".join(log.read_text()[-1000:] for log in cluster.folder.glob("*.log"))
        with contextlib.suppress(OSError, subprocess.SubprocessError, TimeoutError, KeyError):
            cluster.__exit__()
        raise LookupError(f"a Slurm does not come up here: {error!r}\n{logs}") from None


class Cluster:
    """Controller and two nodes. Use as a context manager; SLURM_CONF names it meanwhile.

    gpus: device files to deal out, to the first node one more where they are odd. Without any, each
    node has two fake ones, of which Slurm knows only that there are such devices.
    """

    def __init__(self, gpus: Sequence[Path] = ()) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="lockstep-slurm-"))
        self.folder.chmod(0o755)  # munged asks for that, of all that is above its socket
        (self.folder / "munge").mkdir(mode=0o755)
        shutil.chown(self.folder / "munge", "munge", "munge")
        (self.folder / "state").mkdir()
        host = socket.gethostname().split(".")[0]
        self._configuration = self.folder / "slurm.conf"
        limits, fences = not why_no_limits(), bool(gpus) and not why_no_fences()
        half = (len(gpus) + 1) // 2
        fake = [self.folder / "gpu0", self.folder / "gpu1"]
        self.gpus = {"n1": gpus[:half], "n2": gpus[half:]} if gpus else dict.fromkeys(NODES, fake)
        of_nodes = self.gpus.values()
        self._configuration.write_text(
            _CONFIGURATION.format(
                host=host,
                folder=self.folder,
                ports=free_ports(3),
                tasks="cgroup" if limits or fences else "none",
                memory=64_000 if gpus else 4_000,
                memory_of_cpu=8_000 if gpus else 500,  # CUDA takes gigabytes
                gpus=[f"Gres=gpu:{len(own)}" if own else "" for own in of_nodes],
            )
        )
        yes_no = {True: "yes", False: "no"}
        (self.folder / "cgroup.conf").write_text(
            _CGROUPS.format(memory=yes_no[limits], devices=yes_no[fences])
        )
        (self.folder / "gres.conf").write_text(
            "".join(
                f"NodeName={name} Name=gpu File={device} AutoDetect=off\n"
                for name, own in self.gpus.items()
                for device in own
            )
        )
        # NCCL has ranks of one host open each other's GPUs, which they may not here. Each node with
        # a name of its own is another host to NCCL: it goes over the network then.
        prolog = self.folder / "before_task"
        prolog.write_text('#!/bin/sh\necho "export NCCL_HOSTID=$SLURMD_NODENAME"\n')
        prolog.chmod(0o755)
        for device in () if gpus else fake:
            os.mknod(device, 0o666 | stat.S_IFCHR, _NULL)
        # Slurm numbers a job's GPUs among those that it can open, where others are denied.
        self._hidden = {
            name: [one for one in gpus if one not in own] if fences or not own else []
            for name, own in self.gpus.items()
        }

    def __enter__(self) -> Cluster:
        os.environ["SLURM_CONF"] = str(self._configuration)
        munge = self.folder / "munge"
        files = {"socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = [f"--{option}={munge / name}" for option, name in files.items()]
        _call("runuser", "-u", "munge", "--", "munged", *options)
        self.start_controller(afresh=True)
        for node in NODES:
            self.start_node(node)
        wait(lambda: said("sinfo", "-h", "-p", "main", "-o", "%T").split() == ["idle"])
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel_all()
        for node in NODES:
            self.kill_node(node)
        self.stop_controller()
        _end(self.folder / "munge" / "pid")
        del os.environ["SLURM_CONF"]
        shutil.rmtree(self.folder, ignore_errors=True)
        for root in Path("/sys/fs/cgroup").glob("*/slurm_n[12]"):
            for group, *_rest in os.walk(root, topdown=False):  # the innermost first
                with contextlib.suppress(OSError):  # others are in it
                    os.rmdir(group)

    @contextlib.contextmanager
    def limited(self, line: str) -> Iterator[None]:
        """With one more line in its configuration."""
        before = self._configuration.read_text()
        for text in (before + line + "\n", before):
            self.stop_controller()
            self._configuration.write_text(text)
            self.start_controller()
            if text != before:
                try:
                    yield
                finally:
                    self.cancel_all()

    def start_controller(self, *, afresh: bool = False) -> None:
        _call("slurmctld", *(["-c"] if afresh else []), "-f", str(self._configuration))
        wait(lambda: "UP" in said("scontrol", "ping"))

    def stop_controller(self) -> None:
        _end(self.folder / "slurmctld.pid")

    def start_node(self, name: str) -> None:
        (self.folder / f"spool-{name}").mkdir(exist_ok=True)
        command = ["slurmd", "-N", name, "-f", str(self._configuration)]
        if hidden := self._hidden[name]:  # nobody opens them there, as if on another host
            hide = [
                f"mount --bind {gpu} {gpu}; mount -o remount,bind,nodev {gpu}" for gpu in hidden
            ]
            command = ["unshare", "--mount", "sh", "-ec", f"{'; '.join(hide)}; {' '.join(command)}"]
        _call(*command)

    def kill_node(self, name: str) -> None:
        """As a host that loses its power: its daemon and all that Slurm runs there."""
        _end(self.folder / f"{name}.pid", signal.SIGKILL)
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                environment = (process / "environ").read_bytes().split(b"\0")
                ours = f"SLURMD_NODENAME={name}", f"SLURM_CONF={self._configuration}"
                if all(one.encode() in environment for one in ours):
                    os.kill(int(process.name), signal.SIGKILL)

    def revive_node(self, name: str) -> None:
        self.start_node(name)
        _call("scontrol", "update", f"nodename={name}", "state=resume", check=False)
        wait(lambda: "idle" in said("sinfo", "-h", "-n", name, "-p", "main", "-o", "%T"))

    def jobs(self) -> list[str]:
        """Those in the queue, by number."""
        return said("squeue", "-h", "-o", "%A").split()

    def cancel_all(self) -> None:
        _call("scancel", "--user", str(os.geteuid()), check=False)
        wait(lambda: not self.jobs())


def wait(condition: Callable[[], bool], patience: float = _PATIENCE) -> None:
    """Until something is so. Raises TimeoutError."""
    until = time.monotonic() + patience
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError
        time.sleep(0.05)  # nothing tells of it


def said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _call(*command: str, check: bool = True) -> None:
    # Daemons keep what they inherit: a pipe would never end.
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=check)


def _end(file: Path, number: int = signal.SIGTERM) -> None:
    """End the daemon whose number is in a file, and wait until it is gone."""
    with contextlib.suppress(OSError, ValueError):
        pid = int(file.read_text())
        process = os.pidfd_open(pid)
        try:
            os.kill(pid, number)
            if not select.select([process], [], [], 10)[0]:
                os.kill(pid, signal.SIGKILL)
        finally:
            os.close(process)


if __name__ == "__main__":
    try:
        install()
        if reason := why_not():
            sys.exit(reason)
        try_it()
    except LookupError as error:
        sys.exit(str(error))
