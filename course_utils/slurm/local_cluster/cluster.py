"""A local Slurm that was started: how to find it, slow its links, see its nodes, and end it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

FREEZER = Path("/sys/fs/cgroup/freezer")  # where proctrack/cgroup keeps the processes of a step, in cgroups version 1
MARK = "COURSE_LOCAL_SLURM"  # in the environment of everything that we start here
COMMAND_S = 20.0
# daemons lie in folders that aren't on everybody's path
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin", "/usr/local/sbin"])
# our slurm.conf -> what SLURM_CONF named before: a cluster that this machine belongs to
named_before: dict[str, str] = {}


class LocalSlurmError(RuntimeError):
    """The local Slurm can't be started or changed; the message says why and what helps."""


@dataclass
class SlurmCluster:
    """A running local Slurm. SLURM_CONF must name `conf`; `notes` say what this machine didn't allow."""

    folder: str
    nodes: list[str]
    addresses: list[str]
    bridge: str = ""  # the link between the nodes; empty where they share this host
    rate: str = ""  # how much each node may send, as tc writes it; empty for no limit
    # name of a daemon -> pid and its start time, in clock ticks since boot
    pids: dict[str, list[int]] = field(default_factory=dict)
    networks: list[int] = field(default_factory=list)  # inode of each node's network namespace
    proctrack: str = "linuxproc"  # how Slurm finds the processes of a job step, and so whom a signal reaches
    notes: list[str] = field(default_factory=list)

    @property
    def conf(self) -> str:
        return str(Path(self.folder, "slurm.conf"))

    def running(self) -> bool:
        """Whether all of its daemons run."""
        return bool(self.pids) and all(start_time(pid) == started for pid, started in self.pids.values())

    def shape(self, rate: str | None) -> None:
        """Let each node send at most `rate`, as tc writes it ("1gbit", "100mbit"); None lifts the limit.

        Raises LocalSlurmError if nodes have no network of their own, or the kernel has no token bucket filter.
        """
        if rate and not re.fullmatch(r"\d+(\.\d+)?[kmg]bit", rate):
            raise LocalSlurmError(f"a rate is a number and its unit, as in 1gbit or 100mbit; got {rate!r}")
        if not self.bridge:
            raise LocalSlurmError("the nodes share this host, so there is no link between them to slow down")
        for node in self.nodes:
            inside = f"nsenter --net=/proc/{self.pids[node][0]}/ns/net tc qdisc"
            if rate:
                bucket = f"tbf rate {rate} burst 256kb latency 100ms"
                run(f"{inside} replace dev eth0 root {bucket}", "this kernel does not shape links")
            elif self.rate:
                run(f"{inside} del dev eth0 root", "couldn't lift the limit")
        self.rate = rate or ""
        self.save()

    def down(self) -> None:
        """End its jobs and daemons, and remove its network and its folder. If anything remains, a LocalSlurmError names
        it."""
        left = self._kill()
        # The kernel may keep a node's network, and with it the node's end of the link, for minutes after its last
        # process, for instance for a closing connection.
        for link in [*(f"{self.bridge}-{node}" for node in self.nodes), self.bridge] if self.bridge else []:
            device = Path("/sys/class/net", link)
            try:
                if device.exists():
                    run(f"ip link del {link}", f"couldn't remove the network device {link}")
            except LocalSlurmError:
                if device.exists():  # and has not just gone by itself
                    raise
        if self.proctrack == "cgroup":
            for path in [p for name in self.nodes for p in sorted(FREEZER.glob(f"slurm_{name}/**/"), reverse=True)]:
                with suppress(OSError):  # another Slurm with nodes of these names uses it
                    path.rmdir()
        if os.environ.get("SLURM_CONF") == self.conf:
            before = named_before.pop(self.conf, None)
            os.environ.pop("SLURM_CONF") if before is None else os.environ.update(SLURM_CONF=before)
        if left:
            raise LocalSlurmError(f"these processes of the local Slurm do not end: {sorted(left)}")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _kill(self) -> set[int]:
        """End all of its processes; returns those that live on. We remember each one that we saw, so none gets lost if
        its parent ends first. Its daemons we know already: one that has just begun may not show its mark yet."""
        until = time.monotonic() + 10.0
        sig = signal.SIGTERM
        seen: dict[int, int | None] = {pid: began for pid, began in self.pids.values() if pid != os.getpid()}
        while time.monotonic() < until:
            seen |= {pid: start_time(pid) for pid in self._processes() - seen.keys()}
            if not (alive := {pid for pid, began in seen.items() if began is not None and start_time(pid) == began}):
                break
            for pid in alive:
                with suppress(ProcessLookupError):
                    os.kill(pid, sig)
            sig = signal.SIGKILL
            time.sleep(0.2)
        for pid, _ in self.pids.values():
            with suppress(ChildProcessError):  # of another process, unless this one started it
                os.waitpid(pid, os.WNOHANG)
        return alive

    def _processes(self) -> set[int]:
        """All processes of this cluster: its daemons, which carry its mark, those of its jobs, those in its networks,
        and the descendants of all these."""
        found: set[int] = set()
        children: dict[int, list[int]] = {}
        mark, conf = f"{MARK}={self.folder}\0".encode(), f"SLURM_CONF={self.conf}\0".encode()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with suppress(OSError):
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                if state in "ZX":
                    continue
                children.setdefault(int(parent), []).append(int(entry.name))
                environ = (entry / "environ").read_bytes()
                of_a_job = conf in environ and b"\0SLURM_JOB_ID=" in environ
                if mark in environ or of_a_job or (entry / "ns" / "net").stat().st_ino in self.networks:
                    found.add(int(entry.name))
        todo = list(found)
        while todo:
            new = set(children.get(todo.pop(), ())) - found
            found |= new
            todo += new
        return found - {os.getpid()}

    def save(self) -> None:
        """Save what we know about it in its folder, where `find` looks."""
        Path(self.folder, "cluster.json").write_text(json.dumps(asdict(self), indent=1))


def default_folder() -> Path:
    """A folder among the temporary files, because it holds a socket: the paths of home folders are often too long, or
    on a network."""
    return Path(tempfile.gettempdir(), f"course-slurm-{os.getuid()}")


def find(folder: str | Path | None = None) -> SlurmCluster | None:
    """The cluster of `folder`, running or broken, or None."""
    try:
        return SlurmCluster(**json.loads(Path(folder or default_folder(), "cluster.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None


def node_states(cluster: SlurmCluster) -> dict[str, str]:
    """Name of each node -> its state in Slurm's words (IDLE, ALLOCATED, DOWN, ...); empty if Slurm doesn't
    answer."""
    command = "timeout 5 scontrol --oneliner show node".split()
    env = {**os.environ, "PATH": PATH, "SLURM_CONF": cluster.conf}
    answer = subprocess.run(command, env=env, capture_output=True, text=True)
    return dict(re.findall(r"^NodeName=(\S+).*? State=(\S+)", answer.stdout, re.M))


def start_time(pid: int) -> int | None:
    """When a living process began, in clock ticks since boot: with the pid it names one process for good."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def run(command: str, otherwise: str) -> str:
    """The output of a command that must succeed; raises LocalSlurmError that begins with the words `otherwise`."""
    words, env = shlex.split(command), {**os.environ, "PATH": PATH}
    try:
        answer = subprocess.run(words, env=env, capture_output=True, text=True, timeout=COMMAND_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LocalSlurmError(f"{otherwise} ({error})") from None
    if answer.returncode:
        said = answer.stderr.strip().splitlines() or ["it said nothing"]
        raise LocalSlurmError(f"{otherwise} ({words[0]}: {said[-1]})")
    return answer.stdout
