"""The same ranks, started by torchrun: for elastic restarts, and to compare with our own start."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from ..machine.here import Machine
from ..slurm.job_placement import place_job
from ..slurm.site import Site, load_site
from .commands import standalone_command, torchrun_commands
from .local import Cold, start_cold
from .options import LaunchOptions
from .placement import Placement
from .rank_environment import RESTARTS
from .request import Handle, Request

CHILD = Path(__file__).resolve().parent / "on_rank" / "rank_process.py"


class Torchrun(Cold):
    """`torchrun --standalone`, watched like local ranks. A dry run shows the commands for any number of nodes."""

    by_torchrun = True

    def __init__(self, options: LaunchOptions):
        super().__init__(options)
        self.elsewhere = options.dry
        self.site = Site()

    def validate(self) -> None:
        options = self.options
        self._stays_here()
        if options.nodes > 1 and not options.dry:
            raise ValueError(
                "you have to start torchrun on each node yourself: dry=True (--dry) prints the commands, and engine"
                " 'slurm' does it for you"
            )

    def place(self, machine: Machine) -> Placement:
        asked = self.options
        if not asked.dry:
            return super().place(machine)
        self.site = load_site()
        return place_job(self.site, asked.nodes, asked.ranks, asked.gpus_per_rank, asked.device, asked.threads)

    def start(self, request: Request, placement: Placement) -> Handle:
        restarts = self.options.max_restarts
        launcher = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={request.world_size}",
            f"--max-restarts={restarts}",
            str(CHILD),
            *request.program,
        ]
        env = request.env | (RESTARTS if restarts or not request.agent_store else {})
        handle = start_cold(replace(request, launcher=launcher, env=env))
        handle.start = "torchrun"
        return handle

    def dry(self, request: Request, placement: Placement) -> str:
        options, interface = self.options, self.site.interface
        commands = torchrun_commands(
            request.script,
            options.nodes,
            placement.ranks // options.nodes,
            request.args,
            options.max_restarts,
            interface,
            request.module,
        )
        shown = "".join(f"# on node {i}\n{command}\n" for i, command in enumerate(commands))
        if not interface:
            shown += (
                "# If a node's own name resolves to 127.x.x.x, name the network interface that reaches the others:"
                " GLOO_SOCKET_IFNAME=eth0 torchrun ...\n"
            )
        return shown

    def by_hand(self, request: Request, placement: Placement) -> str:
        if self.options.dry:
            return self.dry(request, placement)
        return standalone_command(request, placement, self.options.max_restarts)
