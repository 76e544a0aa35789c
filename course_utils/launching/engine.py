"""What starts the ranks of a launch. With each engine, ranks run the same script in the same environment, and leave the
same files (ARCHITECTURE.md lists them)."""

from __future__ import annotations

from collections.abc import Mapping

from ..machine.here import Machine
from .options import LaunchOptions
from .placement import Placement
from .program import Environment
from .request import Handle, Request


class Engine:
    """One way to start ranks. The launcher calls these methods in this order; for a dry run it calls `dry` instead of
    `start`."""

    elsewhere = False  # ranks run on other machines, where this one's devices, folders and networks mean nothing
    by_torchrun = False  # a torchrun starts the ranks, and says how they ended

    def __init__(self, options: LaunchOptions):
        self.options = options

    def validate(self) -> None:
        """Raises ValueError for options that this engine can't serve."""

    def place(self, machine: Machine) -> Placement:
        """Choose the ranks' devices and threads. Raises ValueError for numbers that make no sense there."""
        raise NotImplementedError

    def prepare(self, env: Mapping[str, str], changes: Environment, folder: str, seconds: float) -> str:
        """Get ready to start, waiting up to `seconds`. Returns what it still waits for, in words, and is then called
        again; an empty string when it's ready. `env` is the ranks' environment, and `changes` says what the program in
        `folder` does to it."""
        return ""

    def start(self, request: Request, placement: Placement) -> Handle:
        """Start the ranks. Raises OSError, or ValueError with a message that says what to do."""
        raise NotImplementedError

    def dry(self, request: Request, placement: Placement) -> str:
        """What would be started, as text for the student. Raises ValueError."""
        raise NotImplementedError

    def by_hand(self, request: Request, placement: Placement) -> str:
        """The command that repeats this launch from a terminal."""
        raise NotImplementedError

    def _stays_here(self) -> None:
        """Refuse to leave ranks behind that nobody watches."""
        if self.options.detach:
            raise ValueError(f"only a Slurm job can run on by itself; engine {self.options.engine!r} can't detach")
