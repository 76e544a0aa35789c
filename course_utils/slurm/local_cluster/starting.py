"""Starting a local Slurm: its configuration, its network, its daemons."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from ...show.units import is_whole
from .cluster import (
    FREEZER,
    MARK,
    PATH,
    LocalSlurmError,
    SlurmCluster,
    default_folder,
    find,
    named_before,
    node_states,
    run,
    start_time,
)

PROGRAMS = ("munged", "slurmctld", "slurmd", "scontrol", "sbatch", "srun")
INSTALL = (
    "on Debian or Ubuntu, as root: apt-get install --no-install-recommends slurmctld slurmd slurm-client munge iproute2"
)
PROCTRACK = ("linuxproc", "pgid", "cgroup")
CPUS = 4  # what each node claims to have, so that a few jobs run at once; nodes share this machine's cores anyway
READY_S = 30.0


def up(
    nodes: int = 2,
    rate: str | None = None,
    folder: str | Path | None = None,
    one_host: bool = False,
    proctrack: str = "linuxproc",
) -> SlurmCluster:
    """Start a Slurm with `nodes` nodes (2 to 8), or find the one that runs already, and set this process's SLURM_CONF
    to it.

    `rate` limits what each node sends, as in "1gbit"; if that isn't allowed, a note says so. `one_host` gives the nodes
    no network of their own. `proctrack` is Slurm's plugin that finds the processes of a step: a signal to a step
    reaches the whole tree with "linuxproc", the process group of each task with "pgid", and the task alone with
    "cgroup", which clusters use and which needs a writable freezer hierarchy of cgroup v1. Raises LocalSlurmError if
    programs are missing or a daemon doesn't start.
    """
    if proctrack not in PROCTRACK:
        raise LocalSlurmError(f"proctrack is one of {', '.join(PROCTRACK)}; got {proctrack!r}")
    if proctrack == "cgroup" and not (os.getuid() == 0 and os.access(FREEZER, os.W_OK)):
        raise LocalSlurmError(f"proctrack/cgroup needs root and a writable {FREEZER}")
    if not is_whole(nodes) or not 2 <= nodes <= 8:
        raise LocalSlurmError(f"a local Slurm has 2 to 8 nodes; got {nodes!r}")
    missing = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    if missing:
        raise LocalSlurmError(f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing; {INSTALL}")
    path = Path(folder or default_folder()).absolute()
    if len(str(path)) > 80:
        raise LocalSlurmError(f"{path} is too long a path for a socket; choose a shorter one with --folder")
    old = find(path)
    same = old and (len(old.nodes), old.proctrack) == (nodes, proctrack) and not (one_host and old.bridge)
    if old and same and old.running():
        cluster = old
    else:
        if old:
            old.down()
        why = "asked for" if one_host else _why_no_namespaces()
        cluster = _start(path, nodes, why, proctrack)
    if rate or cluster.rate:
        try:
            cluster.shape(rate)
        except LocalSlurmError as error:
            cluster.notes.append(f"couldn't limit links to {rate}: {error}")
    if os.environ.get("SLURM_CONF", cluster.conf) != cluster.conf:
        named_before[cluster.conf] = os.environ["SLURM_CONF"]
    os.environ["SLURM_CONF"] = cluster.conf
    return cluster


def _start(path: Path, count: int, why_one_host: str, proctrack: str) -> SlurmCluster:
    try:
        path.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        if path.stat().st_uid != os.getuid() or any(path.iterdir()):
            raise LocalSlurmError(
                f"{path} already exists and holds something else; remove it, or choose another with --folder"
            ) from None
    names = [f"n{i}" for i in range(1, count + 1)]
    cluster = SlurmCluster(str(path), names, [], proctrack=proctrack)
    try:
        index = _free_index(count)
        if why_one_host:
            if why_one_host != "asked for":
                cluster.notes.append(f"all nodes share this host's name and network: {why_one_host}")
            cluster.addresses = ["127.0.0.1"] * count
        else:
            # a range that is reserved for tests of networks
            cluster.addresses = [f"198.18.{index}.{i}" for i in range(1, count + 1)]
            cluster.bridge = f"cslurm{index}"
            run(f"ip link add {cluster.bridge} type bridge", "no bridge between the nodes")
            cluster.save()
            run(f"ip addr add 198.18.{index}.254/24 dev {cluster.bridge}", "the bridge has no address")
            run(f"ip link set {cluster.bridge} up", "the bridge does not come up")
        _write_files(cluster, index)
        _start_daemons(cluster)
        _await_nodes(cluster)
    except BaseException:
        cluster.save()
        cluster.down()
        raise
    cluster.save()
    return cluster


def _free_index(count: int) -> int:
    """A number that no other local Slurm of this machine uses, for its ports, its addresses and the name of its
    bridge."""
    devices = set(os.listdir("/sys/class/net"))
    for index in range(100):
        if devices & {f"cslurm{index}", *(f"cslurm{index}-n{i}" for i in range(1, count + 1))}:
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
    """Why nodes can't have networks and names of their own, or an empty string if they can."""
    if os.getuid() != 0:
        return "networks of their own need root"
    missing = [name for name in ("ip", "unshare", "nsenter") if shutil.which(name, path=PATH) is None]
    if missing:
        return f"{', '.join(missing)} not found; {INSTALL}"
    trial = f"cslurm{os.getpid()}"[:15]
    try:
        run("unshare --net --uts --mount sh -c 'hostname trial && mount --bind /etc/hosts /etc/hosts'", "no namespaces")
        run(f"ip link add {trial} type bridge", "no bridge")
        run(f"ip link del {trial}", "no bridge")
        run(f"ip link add {trial} type veth peer name {trial[:14]}p", "no pair of network devices")
        run(f"ip link del {trial}", "no pair of network devices")
    except LocalSlurmError as error:
        return str(error)
    return ""


def _write_files(cluster: SlurmCluster, index: int) -> None:
    import pwd  # not on every system, and only needed here

    path, host = Path(cluster.folder), socket.gethostname().partition(".")[0]
    me = "root" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name
    for name in ("state", "spool"):
        (path / name).mkdir()
    key = path / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    address = f"198.18.{index}.254" if cluster.bridge else "127.0.0.1"
    names = {"127.0.0.1": "localhost", address: host, **dict(zip(cluster.addresses, cluster.nodes, strict=True))}
    # PyTorch looks up the name of whoever connects, by the form of the address in the second line of each. Without it,
    # PyTorch waits for a name server, and warns.
    (path / "hosts").write_text(
        "::1 localhost\n" + "".join(f"{a} {name}\n::ffff:{a} {name}.inside\n" for a, name in names.items())
    )
    lines = [
        "ClusterName=course",
        f"SlurmctldHost={host}({address})",
        f"SlurmctldPort={_port(index)}",
        f"SlurmUser={me}",
        f"SlurmdUser={me}",
        # cred_expire: otherwise a requeued job waits for two minutes
        "AuthType=auth/munge",
        f"AuthInfo=socket={path}/munge.socket,cred_expire=5",
        f"StateSaveLocation={path}/state",
        f"SlurmdSpoolDir={path}/spool/%n",
        f"SlurmctldPidFile={path}/slurmctld.pid",
        f"SlurmdPidFile={path}/slurmd.%n.pid",
        f"SlurmctldLogFile={path}/slurmctld.log",
        f"SlurmdLogFile={path}/slurmd.%n.log",
        f"ProctrackType=proctrack/{cluster.proctrack}",
        "TaskPlugin=task/none",
        "JobAcctGatherType=jobacct_gather/linux",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_CPU",
        "SlurmdParameters=config_overrides",
        "ReturnToService=2",
        "MpiDefault=none",
        "SchedulerParameters=sched_interval=2",
        "KillWait=5",
        "MinJobAge=300",
        "InactiveLimit=0",
        "SwitchType=switch/none",
        "AccountingStorageType=accounting_storage/none",
    ]
    for i, (name, own) in enumerate(zip(cluster.nodes, cluster.addresses, strict=True)):
        where = name if cluster.bridge else host
        lines.append(
            f"NodeName={name} NodeHostname={where} NodeAddr={own} Port={_port(index) + 1 + i} CPUs={CPUS} State=UNKNOWN"
        )
    lines.append(f"PartitionName=course Nodes={','.join(cluster.nodes)} Default=YES MaxTime=INFINITE State=UP")
    Path(cluster.conf).write_text("\n".join(lines) + "\n")
    version = re.search(r"(\d+)\.(\d+)", run("slurmd -V", "slurmd does not answer"))
    can_do_without = version and (int(version[1]), int(version[2])) >= (23, 2)
    # Version 2 of cgroups would want systemd; the plugin for version 1 touches nothing unless it tracks or limits
    # something.
    (path / "cgroup.conf").write_text(f"CgroupPlugin={'disabled' if can_do_without else 'cgroup/v1'}\n")


def _start_daemons(cluster: SlurmCluster) -> None:
    path = Path(cluster.folder)
    munge = [
        f"--socket={path}/munge.socket",
        f"--key-file={path}/munge.key",
        f"--pid-file={path}/munged.pid",
        f"--seed-file={path}/munge.seed",
    ]
    _daemon(cluster, "munged", ["munged", "--foreground", "--force", *munge, f"--log-file={path}/munged.log"])
    _await(lambda: (path / "munge.socket").exists(), cluster, "munged")
    _daemon(cluster, "slurmctld", ["slurmctld", "-D", "-f", cluster.conf])
    for i, node in enumerate(cluster.nodes):
        if not cluster.bridge:
            _daemon(cluster, node, ["slurmd", "-D", "-N", node, "-f", cluster.conf])
            continue
        # Only the processes in them hold the namespaces: when these have ended, nothing is left of a node.
        begin = (
            f"hostname {node} && mount --bind {path}/hosts /etc/hosts && until [ -e {path}/{node}.linked ]; do sleep"
            " 0.02; done"
        )
        script = f"{begin} && exec slurmd -D -N {node} -f {cluster.conf}"
        _daemon(cluster, node, ["unshare", "--net", "--uts", "--mount", "sh", "-c", script])
        pid = cluster.pids[node][0]
        own, there = os.stat("/proc/self/ns/net").st_ino, Path(f"/proc/{pid}/ns/net")
        _await(lambda there=there, own=own: there.stat().st_ino != own, cluster, node)
        cluster.networks.append(there.stat().st_ino)
        link, inside = f"{cluster.bridge}-{node}", f"nsenter --net={there} ip"
        run(f"ip link add {link} type veth peer name eth0 netns {pid}", f"node {node} gets no link")
        run(f"ip link set {link} master {cluster.bridge} up", f"node {node} is not linked")
        run(f"{inside} addr add {cluster.addresses[i]}/24 dev eth0", f"node {node} gets no address")
        for device in ("lo", "eth0"):
            run(f"{inside} link set {device} up", f"{device} of node {node} does not come up")
        Path(path, f"{node}.linked").touch()


def _daemon(cluster: SlurmCluster, name: str, command: list[str]) -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "JPY_"))}
    env |= {"PATH": PATH, "SLURM_CONF": cluster.conf, MARK: cluster.folder}
    with open(Path(cluster.folder, f"{name}.out"), "ab") as out:
        process = subprocess.Popen(
            command, env=env, cwd="/", stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
    process.returncode = 0  # it outlives us; we find it again by its pid and start time
    cluster.pids[name] = [process.pid, start_time(process.pid) or 0]
    cluster.save()


def _await(done, cluster: SlurmCluster, name: str) -> None:  # type: ignore[no-untyped-def]
    until = time.monotonic() + READY_S
    while not done():
        if time.monotonic() > until or start_time(cluster.pids[name][0]) is None:
            raise LocalSlurmError(f"{name} does not start: {_last_words(cluster, name)}")
        time.sleep(0.02)


def _await_nodes(cluster: SlurmCluster) -> None:
    until = time.monotonic() + READY_S
    while time.monotonic() < until:
        for name, (pid, started) in cluster.pids.items():
            if start_time(pid) != started:
                raise LocalSlurmError(f"{name} has ended: {_last_words(cluster, name)}")
        if list(node_states(cluster).values()) == ["IDLE"] * len(cluster.nodes):
            return
        time.sleep(0.1)
    raise LocalSlurmError(f"the nodes do not come up: {node_states(cluster)}; {_last_words(cluster, 'slurmctld')}")


def _last_words(cluster: SlurmCluster, name: str) -> str:
    words = []
    for path in (f"{name}.out", f"{name}.log", f"slurmd.{name}.log"):
        with suppress(OSError):
            words += Path(cluster.folder, path).read_text(errors="replace").splitlines()
    return " / ".join(words[-3:]) or "it said nothing"
