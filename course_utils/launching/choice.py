"""What an engine must be able to do, and which one serves a launch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ..machine.here import Machine
from ..slurm.engine import Slurm
from .engine import Handle, Request
from .local import Cold, Local
from .options import LaunchOptions
from .placement import Placement
from .sources import Environment
from .torchrun import Torchrun


class Engine(Protocol):
    """One way to start the ranks of a launch. The launcher calls these methods in this order; for a dry run it calls
    `dry` instead of `start`."""

    elsewhere: bool  # ranks run on other machines, where this one's devices, folders and networks mean nothing
    by_torchrun: bool  # a torchrun starts the ranks, and says how they ended

    def validate(self) -> None:
        """Raises ValueError for options that this engine can't serve."""

    def place(self, machine: Machine) -> Placement:
        """Choose the ranks' devices and threads. Raises ValueError for numbers that make no sense there."""

    def prepare(self, env: Mapping[str, str], changes: Environment, folder: str, seconds: float) -> str:
        """Get ready to start, waiting up to `seconds`. Returns what it still waits for, in words, and is then called
        again; an empty string when it's ready. `env` is the ranks' environment, and `changes` says what the program in
        `folder` does to it."""

    def start(self, request: Request, placement: Placement) -> Handle:
        """Start the ranks. Raises OSError, or ValueError with a message that says what to do."""

    def dry(self, request: Request, placement: Placement) -> str:
        """What would be started, as text for the student. Raises ValueError."""

    def by_hand(self, request: Request, placement: Placement) -> str:
        """The command that repeats this launch from a terminal."""


_NAMED: dict[str, type[Local | Cold | Torchrun | Slurm]] = {
    "auto": Local,
    "local": Local,
    "cold": Cold,
    "torchrun": Torchrun,
    "slurm": Slurm,
}


def engine_for(options: LaunchOptions) -> Engine:
    """The engine that serves a launch with these options. Raises ValueError for options that it can't serve."""
    # Only torchrun restarts ranks. A dry run has to name its engine.
    restarts = options.engine == "auto" and options.max_restarts > 0 and not options.dry
    engine = (Torchrun if restarts else _NAMED[options.engine])(options)
    engine.validate()
    return engine
