"""With `--host measured`: what the host computes between two operators of a GPU takes time, as it did on this machine.

Counted are seconds of a processor in the main thread, so other programs don't add to them, and only stretches longer
than `SHORT_S`: the ordinary Python around an operator is modelled already, and the emulation's own is about as long.
"""

from __future__ import annotations

import functools
import time
from typing import Any

import torch

from .host_clocks import HostClocks
from .operators import Operators
from .polls import in_main_thread
from .state import Gpus

SHORT_S = 1e-3
_worked = time.thread_time  # the real one


class HostWork:
    """How long this process has computed since the emulation last did something."""

    def __init__(self, gpus: Gpus):
        self.clock, self.since, self.inside = gpus.clock, _worked(), False

    def around(self, owner: Any, *names: str) -> None:
        """Let these methods count what the host did before, and nothing of what they do themselves."""
        for name in names:
            setattr(owner, name, self._around(getattr(owner, name)))

    def _around(self, real: Any) -> Any:
        @functools.wraps(real)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.inside or not in_main_thread():
                return real(*args, **kwargs)
            if (worked := _worked() - self.since) > SHORT_S:
                self.clock.host += worked
            self.inside = True
            try:
                return real(*args, **kwargs)
            finally:
                self.inside, self.since = False, _worked()

        return call


def install(gpus: Gpus, clocks: HostClocks) -> None:
    """Count the host's work wherever the emulation, or the program, looks at the clock."""
    work = HostWork(gpus)
    work.around(Operators, "_on_a_gpu")
    work.around(gpus.clock, "mark", "sleep", "wait_until", "wait_for", "synchronize")
    work.around(clocks, "now")
    if torch.distributed.is_available():
        from .group import EmulatedGroup

        work.around(EmulatedGroup, "_collective", "_message", "barrier")
