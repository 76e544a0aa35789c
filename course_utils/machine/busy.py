"""How busy other programs kept this machine while a launch ran: what makes a measurement wrong without a word."""

from __future__ import annotations

import os
import statistics
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

STAT = Path("/proc/stat")
recent: deque[tuple[float, float]] = deque(maxlen=8)  # of this process's last launches: cores of others, and free ones
LEAST_S = 0.5  # the kernel counts in hundredths of a second, and a short peak says little


@dataclass(frozen=True)
class BusyTimes:
    """Core seconds since the machine started, and since this process did. `busy` counts all programs, `stolen` what
    other virtual machines took, `own` this process and its descendants that have ended."""

    at: float
    busy: float
    idle: float
    own: float


def look() -> BusyTimes | None:
    """The machine's work up to now; None where the system doesn't say (only Linux does, and not in every sandbox)."""
    try:
        fields = [int(word) for word in STAT.read_text().split("\n", 1)[0].split()[1:9]]
        user, nice, system, idle, iowait, irq, softirq, stolen = fields
    except (OSError, ValueError):
        return None
    ticks = os.sysconf("SC_CLK_TCK")
    mine = os.times()
    return BusyTimes(
        time.monotonic(),
        (user + nice + system + irq + softirq + stolen) / ticks,
        (idle + iowait) / ticks,
        mine.user + mine.system + mine.children_user + mine.children_system,
    )


def others(before: BusyTimes | None, after: BusyTimes | None) -> tuple[float, float] | None:
    """How many cores other programs kept busy between two looks, and how many had nothing to do, on average. None if
    there's nothing to tell from."""
    if before is None or after is None or after.at - before.at < LEAST_S:
        return None
    passed = after.at - before.at
    theirs = after.busy - before.busy - (after.own - before.own)
    free = after.idle - before.idle
    if theirs + free <= 0:  # numbers that don't move
        return None
    return max(0.0, theirs) / passed, max(0.0, free) / passed


def matter(other_cores: float, free_cores: float, cores: int) -> bool:
    """Whether other programs were in the way of a launch on `cores` cores: they took a fifth of them or more, and
    hardly any was free."""
    return other_cores >= 0.2 * cores and free_cores <= 0.15 * cores


def disturbed(known: Iterable[Sequence[float]], cores: int) -> str:
    """What other programs did during launches on `cores` cores, as the beginning of a sentence. Empty if they weren't
    in the way. `known` has what `others` found of each; without any, nothing is known, and nothing is said."""
    found = list(known)
    if not found:
        return ""
    other_cores, free_cores = (statistics.median(column) for column in zip(*found, strict=True))
    if not matter(other_cores, free_cores, cores):
        return ""
    return f"Other programs used {min(other_cores, cores):.1f} of {cores} cores meanwhile"


def meanwhile(cores: int) -> str:
    """What else this machine did during the last launches, as a sentence; empty if there's nothing to tell from."""
    if not recent:
        return ""
    found = disturbed(recent, cores)
    if not found:
        return "No other program was in the way."
    return f"{found}, which can turn a result round: close them, then run the measurement again."
