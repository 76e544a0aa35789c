"""A real Slurm on this one machine, to learn and to test with: `python -m course_utils.local_slurm up --nodes 2`, and `down`.

Debian's own programs, started from a folder that holds all of their state, without systemd and without cgroups. Where rights allow it each node has
a network and a name of its own (namespaces, a bridge between them), and the link of each can be made slow; otherwise the nodes share this host, each
on a port of its own. It is for one user on one machine: nothing here is a way to run a cluster.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "scontrol", "sbatch", "srun")
INSTALL = "on Debian or Ubuntu, as root: apt-get install --no-install-recommends slurmctld slurmd slurm-client munge iproute2"
CPUS = 4  # that a node claims to have, so that a few jobs run at once; the cores of this machine are shared anyway
MARK = "COURSE_LOCAL_SLURM"  # in the environment of all that is started here
COMMAND_S = 20.0
READY_S = 30.0
_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin", "/usr/local/sbin"])  # where daemons lie, not on everybody's path
_named_before: dict[str, str] = {}  # what SLURM_CONF named, a cluster that this machine belongs to, before ours took its place


class LocalSlurmError(RuntimeError):
    """The local Slurm cannot be started; the message says why and what helps."""


@dataclass
class Cluster:
    """A local Slurm that runs. `conf` is what SLURM_CONF has to name; `notes` say what this machine did not allow."""

    folder: str
    nodes: list[str]
    addresses: list[str]
    bridge: str = ""  # the link between the nodes; empty where they share this host
    rate: str = ""  # what each node may send, in the words of tc; empty for no limit
    pids: dict[str, list[int]] = field(default_factory=dict)  # name of a daemon -> pid and its start time, in clock ticks since boot
    networks: list[int] = field(default_factory=list)  # inode of each node's network namespace
    notes: list[str] = field(default_factory=list)

    @property
    def conf(self) -> str:
        return str(Path(self.folder, "slurm.conf"))

    def running(self) -> bool:
        """Whether all of its daemons run."""
        return bool(self.pids) and all(_start_time(pid) == started for pid, started in self.pids.values())

    def shape(self, rate: str | None) -> None:
        """Let each node send at most `rate`, in the words of tc ("1gbit", "100mbit"); None takes the limit away.

        Raises LocalSlurmError where nodes have no network of their own, or the kernel has no token bucket filter.
        """
        if rate and not re.fullmatch(r"\d+(\.\d+)?[kmg]bit", rate):
            raise LocalSlurmError(f"a rate is a number and its unit, as in 1gbit or 100mbit; got {rate!r}")
        if not self.bridge:
            raise LocalSlurmError("the nodes share this host, so there is no link between them to make slow")
        for node in self.nodes:
            inside = ["nsenter", f"--net=/proc/{self.pids[node][0]}/ns/net", "tc", "qdisc"]
            if rate:
                _run([*inside, "replace", "dev", "eth0", "root", "tbf", "rate", rate, "burst", "256kb", "latency", "100ms"], "this kernel does not shape links")
            elif self.rate:
                _run([*inside, "del", "dev", "eth0", "root"], "the limit could not be taken away")
        self.rate = rate or ""
        self._save()

    def down(self) -> None:
        """End its jobs and daemons, and remove its network and its folder. What remains, if anything, is named in a LocalSlurmError."""
        left = self._kill()
        if self.bridge and Path("/sys/class/net", self.bridge).exists():
            _run(["ip", "link", "del", self.bridge], "the bridge could not be removed")
        if os.environ.get("SLURM_CONF") == self.conf:
            before = _named_before.pop(self.conf, None)
            os.environ.pop("SLURM_CONF") if before is None else os.environ.update(SLURM_CONF=before)
        if left:
            raise LocalSlurmError(f"these processes of the local Slurm do not end: {sorted(left)}")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _kill(self) -> set[int]:
        """End all of it; what was seen once is not lost when its parent ends before it."""
        until = time.monotonic() + 10.0
        sig = signal.SIGTERM
        seen: dict[int, int | None] = {}
        while time.monotonic() < until:
            seen |= {pid: _start_time(pid) for pid in self._processes() - seen.keys()}
            if not (alive := {pid for pid, began in seen.items() if began is not None and _start_time(pid) == began}):
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
        """All that belongs to this cluster: its daemons, which carry its mark, what its jobs run, what lives in its networks, and the descendants of those."""
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

    def _save(self) -> None:
        Path(self.folder, "cluster.json").write_text(json.dumps(asdict(self), indent=1))


def default_folder() -> Path:
    """Beside the temporary files, for a socket lies in it: home folders are often too far away, or on a network."""
    return Path(tempfile.gettempdir(), f"course-slurm-{os.getuid()}")


def find(folder: str | Path | None = None) -> Cluster | None:
    """The cluster of `folder`, running or broken, or None."""
    try:
        return Cluster(**json.loads(Path(folder or default_folder(), "cluster.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None


def up(nodes: int = 2, rate: str | None = None, folder: str | Path | None = None, one_host: bool = False) -> Cluster:
    """Start a Slurm with `nodes` nodes (2 to 8), or find the one that runs already, and name it in this process's SLURM_CONF.

    `rate` limits what each node sends, as in "1gbit"; where that is not allowed a note says so. `one_host` gives the nodes no network of their own.
    Raises LocalSlurmError when programs are missing or a daemon does not start.
    """
    if isinstance(nodes, bool) or not isinstance(nodes, int) or not 2 <= nodes <= 8:
        raise LocalSlurmError(f"a local Slurm has 2 to 8 nodes; got {nodes!r}")
    missing = [name for name in PROGRAMS if shutil.which(name, path=_PATH) is None]
    if missing:
        raise LocalSlurmError(f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not here; {INSTALL}")
    path = Path(folder or default_folder()).absolute()
    if len(str(path)) > 80:
        raise LocalSlurmError(f"{path} is too long a path for a socket; choose a shorter one with --folder")
    old = find(path)
    if old and old.running() and len(old.nodes) == nodes and not (one_host and old.bridge):
        cluster = old
    else:
        if old:
            old.down()
        why = "asked for" if one_host else _why_no_namespaces()
        cluster = _start(path, nodes, why)
    if rate or cluster.rate:
        try:
            cluster.shape(rate)
        except LocalSlurmError as error:
            cluster.notes.append(f"no limit of {rate}: {error}")
    if os.environ.get("SLURM_CONF", cluster.conf) != cluster.conf:
        _named_before[cluster.conf] = os.environ["SLURM_CONF"]
    os.environ["SLURM_CONF"] = cluster.conf
    return cluster


def _start(path: Path, count: int, why_one_host: str) -> Cluster:
    try:
        path.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        if path.stat().st_uid != os.getuid() or any(path.iterdir()):
            raise LocalSlurmError(f"{path} is there already, and holds something else; remove it, or choose another with --folder") from None
    names = [f"n{i}" for i in range(1, count + 1)]
    cluster = Cluster(str(path), names, [])
    try:
        index = _free_index(count)
        if why_one_host:
            cluster.notes += [] if why_one_host == "asked for" else [f"all nodes share this host's name and network: {why_one_host}"]
            cluster.addresses = ["127.0.0.1"] * count
        else:
            cluster.addresses = [f"198.18.{index}.{i}" for i in range(1, count + 1)]  # a range that is kept for tests of networks
            cluster.bridge = f"cslurm{index}"
            _run(["ip", "link", "add", cluster.bridge, "type", "bridge"], "no bridge between the nodes")
            cluster._save()
            _run(["ip", "addr", "add", f"198.18.{index}.254/24", "dev", cluster.bridge], "the bridge has no address")
            _run(["ip", "link", "set", cluster.bridge, "up"], "the bridge does not come up")
        _write_files(cluster, index)
        _start_daemons(cluster)
        _await_nodes(cluster)
    except BaseException:
        cluster._save()
        cluster.down()
        raise
    cluster._save()
    return cluster


def _free_index(count: int) -> int:
    """A number that no other local Slurm of this machine uses, for its ports, its addresses and the name of its bridge."""
    for index in range(100):
        if Path("/sys/class/net", f"cslurm{index}").exists():
            continue
        try:
            for port in range(_port(index), _port(index) + count + 1):
                with socket.socket() as trial:
                    trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    trial.bind(("", port))
        except OSError:
            continue
        return index
    raise LocalSlurmError("a hundred local Slurms run here already")


def _port(index: int) -> int:
    return 17000 + 20 * index


def _why_no_namespaces() -> str:
    """Why nodes cannot have networks and names of their own, or an empty string."""
    if os.getuid() != 0:
        return "networks of their own need root"
    missing = [name for name in ("ip", "unshare", "nsenter") if shutil.which(name, path=_PATH) is None]
    if missing:
        return f"{', '.join(missing)} not found; {INSTALL}"
    trial = f"cslurm{os.getpid()}"[:15]
    try:
        _run(["unshare", "--net", "--uts", "--mount", "sh", "-c", "hostname trial && mount --bind /etc/hosts /etc/hosts"], "no namespaces")
        _run(["ip", "link", "add", trial, "type", "bridge"], "no bridge")
        _run(["ip", "link", "del", trial], "no bridge")
        _run(["ip", "link", "add", trial, "type", "veth", "peer", "name", f"{trial[:14]}p"], "no pair of network devices")
        _run(["ip", "link", "del", trial], "no pair of network devices")
    except LocalSlurmError as error:
        return str(error)
    return ""


def _write_files(cluster: Cluster, index: int) -> None:
    path, me, host = Path(cluster.folder), "root" if os.getuid() == 0 else _user(), socket.gethostname().partition(".")[0]
    for name in ("state", "spool"):
        (path / name).mkdir()
    key = path / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    address = f"198.18.{index}.254" if cluster.bridge else "127.0.0.1"
    names = {"127.0.0.1": "localhost", address: host, **dict(zip(cluster.addresses, cluster.nodes, strict=True))}
    # The second line of each keeps PyTorch, which asks so for the name of whoever has called, from waiting for a name server and from warnings.
    (path / "hosts").write_text("::1 localhost\n" + "".join(f"{a} {name}\n::ffff:{a} {name}.inside\n" for a, name in names.items()))
    lines = [
        "ClusterName=course", f"SlurmctldHost={host}({address})", f"SlurmctldPort={_port(index)}", f"SlurmUser={me}", f"SlurmdUser={me}",
        "AuthType=auth/munge", f"AuthInfo=socket={path}/munge.socket,cred_expire=5",  # otherwise a requeued job waits for two minutes
        f"StateSaveLocation={path}/state", f"SlurmdSpoolDir={path}/spool/%n", f"SlurmctldPidFile={path}/slurmctld.pid", f"SlurmdPidFile={path}/slurmd.%n.pid",
        f"SlurmctldLogFile={path}/slurmctld.log", f"SlurmdLogFile={path}/slurmd.%n.log",
        "ProctrackType=proctrack/linuxproc", "TaskPlugin=task/none", "JobAcctGatherType=jobacct_gather/linux", "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_CPU", "SlurmdParameters=config_overrides", "ReturnToService=2", "MpiDefault=none", "SchedulerParameters=sched_interval=2",
        "KillWait=5", "MinJobAge=300", "InactiveLimit=0", "SwitchType=switch/none", "AccountingStorageType=accounting_storage/none",
    ]  # fmt: skip
    for i, (name, own) in enumerate(zip(cluster.nodes, cluster.addresses, strict=True)):
        where = name if cluster.bridge else host
        lines.append(f"NodeName={name} NodeHostname={where} NodeAddr={own} Port={_port(index) + 1 + i} CPUs={CPUS} State=UNKNOWN")
    lines.append(f"PartitionName=course Nodes={','.join(cluster.nodes)} Default=YES MaxTime=INFINITE State=UP")
    Path(cluster.conf).write_text("\n".join(lines) + "\n")
    version = re.search(r"(\d+)\.(\d+)", _run(["slurmd", "-V"], "slurmd does not answer"))
    can_do_without = version and (int(version[1]), int(version[2])) >= (23, 2)
    # Version 2 of cgroups would want systemd; the plugin for version 1 touches nothing as long as nothing is tracked or limited by it.
    (path / "cgroup.conf").write_text(f"CgroupPlugin={'disabled' if can_do_without else 'cgroup/v1'}\n")


def _user() -> str:
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name


def _start_daemons(cluster: Cluster) -> None:
    path = Path(cluster.folder)
    munge = [f"--socket={path}/munge.socket", f"--key-file={path}/munge.key", f"--pid-file={path}/munged.pid", f"--seed-file={path}/munge.seed"]
    _daemon(cluster, "munged", ["munged", "--foreground", "--force", *munge, f"--log-file={path}/munged.log"])
    _await(lambda: (path / "munge.socket").exists(), cluster, "munged")
    _daemon(cluster, "slurmctld", ["slurmctld", "-D", "-f", cluster.conf])
    for i, node in enumerate(cluster.nodes):
        if not cluster.bridge:
            _daemon(cluster, node, ["slurmd", "-D", "-N", node, "-f", cluster.conf])
            continue
        # The namespaces belong to the processes in them alone: when these have ended nothing is left of a node.
        begin = f"hostname {node} && mount --bind {path}/hosts /etc/hosts && until [ -e {path}/{node}.linked ]; do sleep 0.02; done"
        script = f"{begin} && exec slurmd -D -N {node} -f {cluster.conf}"
        _daemon(cluster, node, ["unshare", "--net", "--uts", "--mount", "sh", "-c", script])
        pid = cluster.pids[node][0]
        own, there = os.stat("/proc/self/ns/net").st_ino, Path(f"/proc/{pid}/ns/net")
        _await(lambda there=there, own=own: there.stat().st_ino != own, cluster, node)
        cluster.networks.append(there.stat().st_ino)
        link, inside = f"{cluster.bridge}-{node}", ["nsenter", f"--net={there}", "ip"]
        _run(["ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(pid)], f"node {node} gets no link")
        _run(["ip", "link", "set", link, "master", cluster.bridge, "up"], f"node {node} is not linked")
        _run([*inside, "addr", "add", f"{cluster.addresses[i]}/24", "dev", "eth0"], f"node {node} gets no address")
        for device in ("lo", "eth0"):
            _run([*inside, "link", "set", device, "up"], f"{device} of node {node} does not come up")
        Path(path, f"{node}.linked").touch()


def _daemon(cluster: Cluster, name: str, command: list[str]) -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "JPY_"))}
    env |= {"PATH": _PATH, "SLURM_CONF": cluster.conf, MARK: cluster.folder}
    with open(Path(cluster.folder, f"{name}.out"), "ab") as out:
        process = subprocess.Popen(command, env=env, cwd="/", stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
    process.returncode = 0  # it outlives us, and is found again by its pid and start time
    cluster.pids[name] = [process.pid, _start_time(process.pid) or 0]
    cluster._save()


def _await(done, cluster: Cluster, name: str) -> None:  # type: ignore[no-untyped-def]
    until = time.monotonic() + READY_S
    while not done():
        if time.monotonic() > until or _start_time(cluster.pids[name][0]) is None:
            raise LocalSlurmError(f"{name} does not start: {_last_words(cluster, name)}")
        time.sleep(0.02)


def _await_nodes(cluster: Cluster) -> None:
    until = time.monotonic() + READY_S
    while time.monotonic() < until:
        for name, (pid, started) in cluster.pids.items():
            if _start_time(pid) != started:
                raise LocalSlurmError(f"{name} has ended: {_last_words(cluster, name)}")
        if list(node_states(cluster).values()) == ["IDLE"] * len(cluster.nodes):
            return
        time.sleep(0.1)
    raise LocalSlurmError(f"the nodes do not come up: {node_states(cluster)}; {_last_words(cluster, 'slurmctld')}")


def _last_words(cluster: Cluster, name: str) -> str:
    words = []
    for path in (f"{name}.out", f"{name}.log", f"slurmd.{name}.log"):
        with suppress(OSError):
            words += Path(cluster.folder, path).read_text(errors="replace").splitlines()
    return " / ".join(words[-3:]) or "it said nothing"


def node_states(cluster: Cluster) -> dict[str, str]:
    """Name of each node -> its state in Slurm's words (IDLE, ALLOCATED, DOWN, ...); empty when Slurm does not answer."""
    command = ["timeout", "5", "scontrol", "--oneliner", "show", "node"]
    answer = subprocess.run(command, env={**os.environ, "PATH": _PATH, "SLURM_CONF": cluster.conf}, capture_output=True, text=True)
    return dict(re.findall(r"^NodeName=(\S+).*? State=(\S+)", answer.stdout, re.M))


def _start_time(pid: int) -> int | None:
    """When a living process began, in clock ticks since boot: with the pid it names one process for good."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _run(command: list[str], otherwise: str) -> str:
    """The output of a command that must succeed; raises LocalSlurmError that begins with the words `otherwise`."""
    try:
        answer = subprocess.run(command, env={**os.environ, "PATH": _PATH}, capture_output=True, text=True, timeout=COMMAND_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LocalSlurmError(f"{otherwise} ({error})") from None
    if answer.returncode:
        raise LocalSlurmError(f"{otherwise} ({' '.join(command[:1])}: {(answer.stderr.strip().splitlines() or ['it said nothing'])[-1]})")
    return answer.stdout
