"""The file that is handed to Slurm, a cluster's settings that go into it, and the commands that do without Slurm."""

from __future__ import annotations

import math
import os
import re
import shlex
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ..folders import course_home
from ..machine import Placement
from . import KEEP_MEMORY, RESTARTS, Request
from .torchrun import CHILD

MARGIN_S = 120  # from the start of a job to the start of its ranks, at most: imports from a busy shared file system are slow
SIGNAL_S = 60  # before the end of its time a job is told to save its state
PORT = 29500


@dataclass(frozen=True)
class Site:
    """What one cluster wants to be told. Every value may stay away; data/slurm/gpus.toml explains each, and there are examples beside it."""

    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    reservation: str = ""
    gpus_per_node: int = 0
    gpu_option: str = "--gpus-per-node={gpus}"
    cpus_per_rank: int = 1
    memory: str = ""
    interface: str = ""
    modules: list[str] = field(default_factory=list)
    setup: list[str] = field(default_factory=list)
    sbatch: list[str] = field(default_factory=list)
    srun: list[str] = field(default_factory=list)
    container: str = ""
    python: str = ""
    env: dict[str, str] = field(default_factory=dict)


def site_file() -> Path | None:
    """The file with this cluster's settings: what COURSE_SLURM names, else slurm.toml in the course's home, else ~/.config/course/slurm.toml."""
    if named := os.environ.get("COURSE_SLURM"):
        return Path(named).expanduser()
    return next((path for path in (course_home() / "slurm.toml", Path("~/.config/course/slurm.toml").expanduser()) if path.is_file()), None)


def load_site() -> Site:
    """This cluster's settings; all empty without a file. Raises ValueError for a file that cannot be read or names something unknown."""
    path = site_file()
    if path is None:
        return Site()
    try:
        raw = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"the settings of the cluster in {path} cannot be read ({error})") from None
    known: dict[str, Any] = {f.name: getattr(Site(), f.name) for f in fields(Site)}
    for name, value in raw.items():
        if name not in known:
            raise ValueError(f"{path} sets {name!r}, which is not known; known are {', '.join(known)}")
        wanted, inside = type(known[name]), list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else [str(value)]
        lines = all(isinstance(v, str) and "\n" not in v for v in inside)
        if type(value) is not wanted or not lines or (wanted is int and value < 0):
            raise ValueError(f"{path}: {name} must be like {known[name] or _LIKE[wanted]}; got {value!r}")
    return Site(**raw)


_LIKE = {str: '"text in one line"', int: "4", list: '["a list", "of text"]', dict: 'a table such as env = { NAME = "value" }'}


def place_job(site: Site, nodes: int, ranks: int | str, gpus_per_rank: int | str, device: str, threads: int | None) -> Placement:
    """The devices of a job's ranks: GPUs when the settings say that nodes have enough of them, otherwise cores.

    `ranks` is the number on all nodes together; "auto": one for each GPU, otherwise one for each node, and 2 on a single one.
    Raises ValueError when they do not share out evenly over the nodes, or for a value that makes no sense.
    """
    if device not in ("auto", "cuda", "cpu"):
        raise ValueError(f"device must be auto, cuda or cpu on several nodes; got {device!r}")
    for name, value, word in (("ranks", ranks, "auto"), ("gpus_per_rank", gpus_per_rank, "all"), ("threads", 1 if threads is None else threads, None)):
        if value != word and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ValueError(f"{name} must be a whole number from 1 on{f', or {word!r}' if word else ''}; got {value!r}")
    gpus = 0 if device == "cpu" else site.gpus_per_node
    own = 1 if gpus_per_rank == "all" else int(gpus_per_rank)
    if ranks == "auto":
        ranks = nodes * (1 if gpus_per_rank == "all" else gpus // own) or max(2, nodes)
    world = int(ranks)
    if world % nodes:
        raise ValueError(f"{world} ranks do not share out evenly over {nodes} nodes; ranks counts all of them, so give a multiple of {nodes}")
    each = world // nodes
    own = max(1, gpus // each) if gpus_per_rank == "all" else own
    per_thread = threads or site.cpus_per_rank or 1
    words = f"{world} rank{'s' * (world > 1)} on {nodes} node{'s' * (nodes > 1)}, {each} on each"
    env = {"COURSE_GPUS_PER_RANK": str(own), "OMP_NUM_THREADS": str(per_thread)}
    if each * own <= gpus:
        sentence = f"{words}, with {own} GPU{'s' * (own > 1)} a rank, backend nccl."
        return Placement(world, "cuda", "nccl", own, per_thread, "gpu", sentence, env | {"COURSE_DEVICE": "cuda", "COURSE_SIZE": "gpu"})
    sentence = f"{words}, on CPU{'s' * (world > 1)}, backend gloo, {per_thread} core{'s' * (per_thread > 1)} a rank."
    if device != "cpu":
        has = f"gpus_per_node = {gpus}" if gpus else "no gpus_per_node"
        sentence += f" The settings of the cluster have {has}; with {each * own} each rank would have its own, over nccl."
    return Placement(world, "cpu", "gloo", own, per_thread, "cpu", sentence, env | {"COURSE_DEVICE": "cpu", "COURSE_SIZE": "cpu"})


def job_file(request: Request, placement: Placement, site: Site, nodes: int, given: Mapping[str, str | None]) -> str:
    """The text of an ordinary batch file that runs torchrun on each node. `given` are the variables that the caller of the launch asked for."""
    each = placement.ranks // nodes
    cores = each * max(placement.threads, site.cpus_per_rank)
    gpus = each * placement.gpus_per_rank if placement.device == "cuda" else 0
    minutes = math.ceil((request.timeout + MARGIN_S) / 60)
    options = [
        ("--job-name=" + re.sub(r"[^\w.-]", "_", Path(request.script).stem), ""),
        (f"--nodes={nodes}", "machines"),
        ("--ntasks-per-node=1", "one task on each: torchrun, which starts the ranks there"),
        (f"--cpus-per-task={cores}", f"cores of a node, for {each} rank{'s' * (each > 1)} on it"),
        *([(site.gpu_option.replace("{gpus}", str(gpus)), "GPUs of a node")] if gpus else []),
        *([(f"--mem={site.memory}", "memory of a node")] if site.memory else []),
        (f"--time={minutes}", f"minutes: {request.timeout:g} s for the ranks, and time to start"),
        (f"--signal=USR1@{SIGNAL_S}", f"{SIGNAL_S} s before that time is over, a chance to save a checkpoint"),
        ("--requeue", "allow the job to be queued again, below or by Slurm when a node fails"),
        ("--open-mode=append", "and then go on writing the same log"),
        (f"--output={_for_slurm(request.folder)}/launcher.log", ""),
        *[(f"--{name}={getattr(site, name)}", "") for name in ("partition", "account", "qos", "constraint", "reservation") if getattr(site, name)],
        *[(option, "") for option in site.sbatch],
    ]
    width = max(len(option) for option, why in options if why)
    lines = ["#!/bin/bash", "# An ordinary job of Slurm: `sbatch` with the path of this file submits it by hand, and each line can be read on its own."]
    lines += [f"#SBATCH {option.ljust(width) + '  # ' + why if why else option}" for option, why in options]
    lines += ["", f"export COURSE_RUN_DIR={shlex.quote(request.folder)}  # ranks leave their logs and records here, where all nodes can write"]
    lines += ['export REQUEUE_FILE="$COURSE_RUN_DIR/requeue"  # a script that has saved its state makes this file to be started again']
    lines += [f"export COURSE_PACKAGE_PATH={shlex.quote(request.package_path)}  # where the script finds course_utils"]
    interface = {name: site.interface for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME") if site.interface}
    usual = {**(KEEP_MEMORY if placement.device == "cpu" else {}), **(RESTARTS if request.max_restarts else {})}
    for name, value in {"COURSE_TIMEOUT_S": f"{request.timeout:g}", **placement.env, **usual, **interface, **site.env, **given}.items():
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise ValueError(f"{name!r} is no name that a shell can give to a variable")
        lines.append(f"unset {name}" if value is None else f"export {name}={shlex.quote(str(value))}")
    lines += [
        "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK  # since Slurm 22.05 srun does not take this from sbatch by itself",
        "",
        *([f"module load {' '.join(map(shlex.quote, site.modules))}"] if site.modules else []),
        *site.setup,
        f"cd {shlex.quote(request.cwd)} || exit",
        'rm -f "$COURSE_RUN_DIR"/rank*.pid "$REQUEUE_FILE"',
        "first=$(hostname)                         # this script runs on the first node of the job",
        "port=$((10000 + SLURM_JOB_ID % 20000))    # differs from job to job, and lies below the ports that systems hand out by themselves",
        "",
        "# srun starts the command once on each node. When one node fails, all are ended. torchrun would die of the signal USR1, so it is ignored,",
        "# and so are ranks that do not handle it; the words after `bash -c '...'` are the command that takes its place.",
        "srun --kill-on-bad-exit=1 --output=" + shlex.quote(f"{_for_slurm(request.folder)}/node%n.log") + "".join(f" {option}" for option in site.srun) + " \\",
        '    bash -c \'trap "" USR1; exec "$@"\' torchrun \\',
        f"    {site.container + ' ' if site.container else ''}{shlex.quote(site.python or sys.executable)} -m torch.distributed.run \\",
        f'    --nnodes="$SLURM_NNODES" --nproc-per-node={each} --max-restarts={request.max_restarts} \\',
        '    --rdzv-backend=c10d --rdzv-endpoint="$first:$port" --rdzv-id="$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}" \\',
        f"    {shlex.quote(str(CHILD))} \\",
        "    " + shlex.join([request.script, *request.args]),
        "code=$?",
        "",
        'if [ -e "$REQUEUE_FILE" ]; then           # exit codes do not tell: torchrun and srun replace them',
        '    scontrol requeue "$SLURM_JOB_ID"',
        "    exit",
        "fi",
        'echo "$code" > "$COURSE_RUN_DIR/exitcode"  # for whoever asks later, when Slurm has forgotten the job',
        'exit "$code"',
    ]
    return "\n".join(lines) + "\n"


def _for_slurm(path: str) -> str:
    """A path as Slurm's options take it, where % begins a pattern and a space would end it."""
    if any(c in path for c in " %\\\"'#"):
        raise ValueError(f"Slurm cannot write its logs to {path}: give the course a folder without spaces, quotes, # and %, by COURSE_HOME")
    return path


def torchrun_commands(
    script: str | os.PathLike[str],
    nodes: int | Sequence[str] = 2,
    ranks_per_node: int = 1,
    args: Sequence[object] = (),
    max_restarts: int = 0,
    interface: str = "",
) -> list[str]:
    """The command for each node to run one program on all of them with torchrun alone, without Slurm: start them within a few minutes of each other.

    `nodes` are their addresses, or only how many: then put the address of the first in place of FIRST-NODE. Files and paths must be the same on all.
    `interface` is the one that reaches the other nodes, as in "eth0": needed where a node's own name stands for 127.x.x.x. Raises ValueError for no node.
    """
    hosts = ["FIRST-NODE", *[""] * (nodes - 1)] if isinstance(nodes, int) else list(nodes)
    if not hosts or ranks_per_node < 1:
        raise ValueError("torchrun needs at least one node and one rank on each")
    needed = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface} if interface else {}
    needed |= RESTARTS if max_restarts else {}
    variables = "".join(f"{name}={value} " for name, value in needed.items())
    restarts = f" --max-restarts={max_restarts}" if max_restarts else ""
    return [
        f"{variables}torchrun --nnodes={len(hosts)} --node-rank={i} --nproc-per-node={ranks_per_node}{restarts} --master-addr={hosts[0]} --master-port={PORT} "
        + shlex.join([str(script), *(str(a) for a in args)])
        for i in range(len(hosts))
    ]
