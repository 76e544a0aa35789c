"""The commands that start the same ranks from a terminal, with torchrun alone."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace

from ..emulation.clusters import EmulatedCluster
from .placement import Placement
from .rank_environment import FORM_GROUPS_TOGETHER, KEEP_MEMORY, RESTARTS
from .request import Request

PORT = 29500  # where nodes meet if you start them by hand


def standalone_command(request: Request, placement: Placement, max_restarts: int = 0) -> str:
    """The command that starts the ranks of a launch on this machine."""
    changed = {"CUDA_VISIBLE_DEVICES": "", **KEEP_MEMORY, **FORM_GROUPS_TOGETHER} if placement.device == "cpu" else {}
    changed |= RESTARTS if max_restarts else {}
    given = " ".join(f"{name}={value}" for name, value in {**changed, "OMP_NUM_THREADS": placement.threads}.items())
    restarts = f" --max-restarts={max_restarts}" if max_restarts else ""
    return f"{given} torchrun --standalone --nproc-per-node={request.world_size}{restarts} " + shlex.join(
        request.program
    )


def on_gpus_command(request: Request, placement: Placement, cluster: EmulatedCluster) -> str:
    """The command that runs the program of an emulated launch on real GPUs of that kind; on several nodes, the first
    node's."""
    world, on_node = cluster.one_of or request.world_size, max(1, cluster.per_node // placement.gpus_per_rank)
    if world <= on_node:
        return standalone_command(replace(request, world_size=world), placement)
    nodes = -(-world // on_node)
    return torchrun_commands(request.script, nodes, on_node, request.args, module=request.module)[0]


def torchrun_commands(
    script: str | os.PathLike[str],
    nodes: int | Sequence[str] = 2,
    ranks_per_node: int = 1,
    args: Sequence[object] = (),
    max_restarts: int = 0,
    interface: str = "",
    module: str = "",
) -> list[str]:
    """The commands, one for each node, that run a program on all nodes with torchrun alone, without Slurm. Start them
    within a few minutes of each other.

    `nodes` are the nodes' addresses, or how many there are: then replace FIRST-NODE by the address of the first. Files
    and paths must be the same on all. `interface` is the network interface that reaches the other nodes, as in "eth0":
    you need it where a node's own name resolves to 127.x.x.x. Raises ValueError without nodes or ranks.
    """
    hosts = ["FIRST-NODE", *[""] * (nodes - 1)] if isinstance(nodes, int) else list(nodes)
    if not hosts or ranks_per_node < 1:
        raise ValueError("torchrun needs at least one node and one rank on each")
    needed = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface} if interface else {}
    needed |= RESTARTS if max_restarts else {}
    variables = "".join(f"{name}={value} " for name, value in needed.items())
    restarts = f" --max-restarts={max_restarts}" if max_restarts else ""
    return [
        f"{variables}torchrun --nnodes={len(hosts)} --node-rank={i} --nproc-per-node={ranks_per_node}{restarts}"
        f" --master-addr={hosts[0]} --master-port={PORT} "
        + shlex.join([*(["-m", module] if module else [str(script)]), *(str(a) for a in args)])
        for i in range(len(hosts))
    ]
