"""When to give up on ranks. A clock of seconds can't tell slow from stuck, so this looks at what their processes do.

Stuck means that every rank waits: none has used a processor for a while, and none is about to. A rank that computes
isn't stuck, however many other programs slow it down: what counts for it is processor time.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from glob import glob
from pathlib import Path

IDLE_CORES = 0.05  # used by ranks that only wait, per rank: to look at a file or a clock again and again
LOOK_S = 1.0  # we don't look more often, unless idle ranks are ended within seconds
IMPORTING_S = 60.0  # while a rank that others wait for hasn't begun; the disk that it imports from may be slow
_TICKS = os.sysconf("SC_CLK_TCK")
# Gloo's thread that moves bytes. It turns without end once somebody lets go of an `isend` that nobody has received, so
# it says nothing of whether its rank gets on. Who really moves bytes also copies or adds them, in another thread.
_POLLER = "gloo_tcp_loop"


@dataclass(frozen=True)
class Patience:
    """What ends a launch that takes too long.

    `idle_s` is for how many seconds all ranks may wait at once, `work_s` how many seconds of a processor one rank may
    use, and `total_s` how many seconds may pass at most. With `once_begun` the first two count from when each rank has
    called `begin`. After `deadlock_s` of waiting the ranks are asked whether they wait for each other (`deadlock`).
    """

    idle_s: float = math.inf
    work_s: float = math.inf
    total_s: float = math.inf
    once_begun: bool = False
    deadlock_s: float = math.inf


# Of a launch for which nobody said how long it may take. Threads are many on large machines, so work is not counted. A
# rank that waits in NCCL keeps a core busy, so on GPUs only the total ends a deadlock.
USUAL = Patience(idle_s=120, total_s=600, deadlock_s=5)


def begin() -> None:
    """On a rank: what others wait for begins here. Before, it has only imported."""
    Path(os.environ["COURSE_RUN_DIR"], f"rank{os.environ['RANK']}.begun").touch()


class PatientWatch:
    """Looks at the processes of one launch. `say` is the reason to end it, once there is one."""

    def __init__(self, patience: Patience, folder: Path, now: float):
        self.patience, self.folder = patience, folder
        self.began = self.looked = now
        self.all_begun = not patience.once_begun
        self.every = min(LOOK_S, patience.idle_s / 10, patience.deadlock_s / 5)
        self.idle_s = 0.0
        self.ask_at = patience.deadlock_s  # how long all have waited when they're asked next
        self.used: dict[int, float] = {}  # pid -> seconds of a processor at the last look
        self.before: dict[int, float] = {}  # pid -> the same, when the last rank had begun

    @property
    def due(self) -> float:
        """When the time is over at the latest, on the clock of `now`."""
        return self.began + self.patience.total_s

    def say(self, now: float, ranks: Iterable[int], processes: Iterable[int]) -> str:
        """Why the launch has to end, or "". `ranks` are those that still run, `processes` the pids of all that the
        launch has started."""
        limits, passed = self.patience, now - self.looked
        if now >= self.due:
            return f"did not end within its timeout of {limits.total_s:g} s"
        endless = limits.idle_s == limits.work_s == limits.deadlock_s == math.inf
        if passed < self.every or endless or sys.platform != "linux":
            return ""
        self.looked = now
        pids = list(processes)
        used = {pid: seconds for pid in pids if (seconds := _processor_seconds(pid)) is not None}
        if not self.all_begun and all((self.folder / f"rank{rank}.begun").exists() for rank in ranks):
            self.all_begun, self.before, self.idle_s = True, used, 0.0
        work = max((used[pid] - self.before.get(pid, 0.0) for pid in used), default=0.0)
        if work > limits.work_s and self.all_begun:
            return f"was still running after {limits.work_s:g} s of processor time"
        spent = sum(seconds - self.used.get(pid, 0.0) for pid, seconds in used.items())
        self.used = used
        if spent > IDLE_CORES * max(2, len(pids)) * passed or any(_wants_a_core(pid) for pid in pids):
            self.idle_s = max(0.0, self.idle_s - 2 * passed)  # a single look may hit a rank that looks at a clock
            if self.idle_s == 0.0:
                self.ask_at = limits.deadlock_s
        else:
            self.idle_s += passed
        if self.idle_s > (limits.idle_s if self.all_begun else max(limits.idle_s, IMPORTING_S)):
            return f"had only waited for {self.idle_s:.0f} s: none of its ranks used a processor"
        return ""

    def ask(self) -> bool:
        """Whether it's time to ask ranks that only wait whether they wait for each other. If they don't, the next time
        is after twice as long."""
        if self.idle_s < self.ask_at:
            return False
        self.ask_at *= 2
        return True


def _processor_seconds(pid: int) -> float | None:
    """Of a process, with its threads and the children that it has waited for, but without gloo's poller."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    polled = sum(int(ticks) for name, each in _threads(pid) if name == _POLLER for ticks in each[11:13])
    return (sum(int(ticks) for ticks in fields[11:15]) - polled) / _TICKS


def _wants_a_core(pid: int) -> bool:
    """Whether a thread runs, could run if a core were free, or waits for a disk; gloo's poller aside."""
    return any(each[0] in "RD" for name, each in _threads(pid) if name != _POLLER)


def _threads(pid: int) -> list[tuple[str, list[str]]]:
    """Name of each thread of a process, and what `/proc` says of it from its state on (man 5 proc_pid_stat)."""
    found = []
    for path in glob(f"/proc/{pid}/task/*/stat"):
        with suppress(OSError), open(path) as file:
            name, _, rest = file.read().partition("(")[2].rpartition(")")
            found.append((name, rest.split()))
    return found
