"""End a launch: ask its ranks by SIGTERM, wait while they handle it, and kill those that are left."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from pathlib import Path

from ..request import Request
from .cleanup import descendants, send
from .shm import SharedMemory
from .stacks import at_exit, dump, handles, main_threads, record

FAIL_GRACE_S = 0.5  # after a failure: time for the other ranks to report theirs
EXIT_GRACE_S = 1.0  # after an exception ended a script: time for its process to end by itself
TERM_GRACE_S = 0.4  # from SIGTERM to SIGKILL, for a rank that doesn't handle SIGTERM
NOTICE_S = 3.0  # for a rank that does, to begin: Python calls a handler only once a call into C++ has returned
# for the handler and what follows from it, as long as torchrun gives; and for what a failed rank does at its exit
HANDLER_S = 30.0


class Termination:
    """The end of one launch. It begins for one cause, and the supervisor's loop then takes it step by step.

    `running` (pid -> rank, -1 for torchrun) and `status` (rank -> wait status, and when we saw it) belong to the
    supervisor, which goes on changing them. `shared` notes what stopped processes have made.
    """

    def __init__(
        self,
        request: Request,
        running: Mapping[int, int],
        status: Mapping[int, tuple[int, float]],
        shared: SharedMemory,
    ):
        self.request, self.running, self.status, self.shared = request, running, status, shared
        self.folder = Path(request.folder)
        self.cause = ""  # why we end it: failed, timeout, deadlock, interrupted, abandoned, log limit, not started
        self.step = "not yet"  # not yet, waiting, terminating, killing
        self.due = float("inf")  # when the next step is
        self.since = 0.0  # when it began to end
        self.asked_at = 0.0  # when the ranks got SIGTERM
        self.stood: dict[int, str] = {}  # rank -> where it stood then, for ranks that handle it and may take their time
        self.noticed = False  # whether we have checked which of them began to

    def begin(self, cause: str, grace_s: float = 0.0) -> None:
        """Begin to end the launch. Only the first cause counts."""
        if self.step == "not yet":
            self.cause, self.step, self.since = cause, "waiting", time.monotonic()
            self.due = self.since + grace_s

    def hurry(self) -> None:
        """If the end has begun, wait no longer for anybody."""
        if self.step in ("waiting", "terminating"):
            self.due = self.asked_at = self.since = 0.0

    def advance(self, now: float) -> None:
        """Take the next step, if it's due."""
        if now < self.due or not self.running:
            return
        if self.step == "waiting" and not self._finishing(now):
            self._terminate()
        elif self.step == "terminating" and not self._patient(now):
            self.step, self.due = "killing", float("inf")
            for pid in self.running:
                send(pid, signal.SIGKILL)

    def _terminate(self) -> None:
        """Send SIGTERM to all ranks, as torchrun does. Before that they write where they stand, if anybody will want to
        know."""
        ranks = self.rank_pids()
        handling = {rank for rank, pid in ranks.items() if handles(pid, signal.SIGTERM)}
        if self.cause in ("failed", "timeout", "deadlock", "interrupted") or handling:
            stacks = main_threads(dump(ranks, self.folder))
            self.stood = {rank: stacks.get(rank, "") for rank in handling}
        if self.cause in ("failed", "timeout", "deadlock"):
            record(ranks, self.folder)
        elif self.cause == "interrupted":  # a rank with a handler may still want to save what it has
            record({rank: pid for rank, pid in ranks.items() if rank not in handling}, self.folder)
        self.shared.look(descendants())
        self.step, self.asked_at = "terminating", time.monotonic()
        self.due = self.asked_at + TERM_GRACE_S
        for pid in self.running:
            send(pid, signal.SIGTERM)

    def _finishing(self, now: float) -> bool:
        """Whether a rank whose script failed is still busy in its exit handlers, as Python allows, while no process has
        ended with an error yet."""
        self.due = now + 0.5
        if self.cause != "failed" or any(status for status, _ in self.status.values()) or now > self.since + HANDLER_S:
            return False
        failed = {
            rank: pid for rank, pid in self.rank_pids().items() if (self.folder / f"rank{rank}.error.json").exists()
        }
        return any(at_exit(stack) for stack in main_threads(dump(failed, self.folder)).values())

    def _patient(self, now: float) -> bool:
        """Whether a rank is busy in its handler for SIGTERM, or may still begin: saving a checkpoint takes a while.
        Kills the ranks that aren't."""
        self.due = now + 0.1
        if now > self.asked_at + (NOTICE_S if self.cause == "abandoned" else HANDLER_S):
            return False
        ranks = self.rank_pids()
        if not self.noticed and now > self.asked_at + NOTICE_S and self.stood:
            self.noticed = True
            stacks = main_threads(dump({rank: pid for rank, pid in ranks.items() if rank in self.stood}, self.folder))
            # A rank that still stands there hasn't noticed: it's in a call into C++, for example a collective.
            self.stood = {rank: place for rank, place in self.stood.items() if stacks.get(rank) not in (None, place)}
        for rank in ranks.keys() - self.stood.keys():
            send(ranks[rank], signal.SIGKILL)
        return bool(ranks.keys() & self.stood.keys())

    def rank_pids(self) -> dict[int, int]:
        """rank -> pid of the ranks that still run, even if torchrun started them."""
        if not self.request.launcher:
            return {rank: pid for pid, rank in self.running.items()}
        pids = {}
        for rank in range(self.request.world_size):
            try:
                pid = int((self.folder / f"rank{rank}.pid").read_text().split()[0])
            except (OSError, ValueError, IndexError):
                continue
            if pid in set(descendants()):
                pids[rank] = pid
        return pids
