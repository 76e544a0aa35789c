"""Processes that a rank spawns, as `torch.multiprocessing.spawn` does. Each sees the modelled GPUs and becomes the rank
that it calls itself. Its clock goes on from where its parent's stood, and a parent that joins it waits on the clock."""

from __future__ import annotations

import itertools
import os
from multiprocessing import popen_spawn_posix, spawn
from pathlib import Path
from typing import Any

from .remarks import OURS
from .state import Gpus

SPAWNED = "COURSE_SPAWNED"  # set where a rank has spawned others


def install(gpus: Gpus) -> None:
    """Let each process that's spawned from here on begin with `begin`."""
    real_line, numbers = spawn.get_command_line, itertools.count()

    def command_line(**kwargs: Any) -> list[str]:
        found = list(real_line(**kwargs))
        os.environ[SPAWNED] = "1"
        at = found.index("-c") + 1
        found[at] = (
            f"import sys; sys.path.append({os.path.dirname(OURS)!r}); from course_utils.emulation import begin;"
            f" begin({next(numbers)}, {gpus.clock.host!r}); {found[at]}"
        )
        return found

    popen: Any = popen_spawn_posix.Popen
    real_poll = popen.poll

    def poll(self: Any, flag: int = os.WNOHANG) -> int | None:
        before, code = self.returncode, real_poll(self, flag)
        if before is None and code is not None and (left := _clock(self.pid)) is not None and left.exists():
            gpus.clock.wait_until(float(left.read_text()))
            left.unlink()
        return code

    spawn.get_command_line, popen.poll = command_line, poll


def leave_clock(gpus: Gpus) -> None:
    """At the end of a spawned process: tell its parent when that was."""
    if (file := _clock(os.getpid())) is not None:
        file.write_text(repr(gpus.clock.host))


def _clock(pid: int) -> Path | None:
    folder = os.environ.get("COURSE_RUN_DIR")
    return Path(folder, f"spawned{pid}.clock") if folder else None


__all__: list[str] = ["SPAWNED", "install", "leave_clock"]
