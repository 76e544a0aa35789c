"""What a cell says of a launch: on what it runs, how far each rank is and where it stands, and how it ended."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from ...failure.errors import where
from ...results.collectives import ranks_in_words
from ...results.run import Run
from ...show.notebook import notebook_kernel
from ...show.units import counted
from ..on_rank.rank_process import LOOK_SIGNAL
from ..request import Handle
from ..supervisor.cleanup import send
from ..supervisor.stacks import handles
from .live import SILENT_S, Known, RankState
from .stream import OutputStream

OWN_PORT = (
    "The script sets MASTER_PORT itself, so its ranks meet at that port. Take that line out before you use torchrun:"
    " there nobody would answer at that port."
)
_PLACE_BYTES = 1 << 16  # more than faulthandler writes of one thread
_PLACE = b"Stack (most recent call first):\n"
_COMMAND, _COMMANDS = 60, 2  # characters of a command that are shown, and how many commands
_advice_given = {""}  # in this notebook


def news(sentence: str) -> str:
    """What to print of a placement's sentence: what more GPUs would change isn't said again in the same notebook."""
    placed, _, advice = sentence.partition(". ")
    what = re.sub(r"\d+ GPUs?", "", advice)  # whatever the number of ranks
    if what in _advice_given and not advice.startswith("Don't"):  # which warns of this very launch
        return placed.removesuffix(".") + "."
    _advice_given.add(what)
    return sentence


class LaunchWatch:
    """What the live view shows of a launch that runs."""

    def __init__(self, handle: Handle, stream: OutputStream, doing: str = "running"):
        self.handle, self.stream, self.doing = handle, stream, doing
        self.places: dict[int, str] = {}  # rank -> where it stands
        self.asked = 0.0

    def known(self, stopping: bool) -> Known:
        now = time.monotonic()
        silent_s = now - self.stream.heard
        ranks = self.stream.ranks(self.places if silent_s >= SILENT_S else {})
        running = [rank.rank for rank in ranks if rank.state == "running"]
        if silent_s >= SILENT_S and not stopping and not self.handle.where:  # only ranks of this machine can be asked
            self.places = {rank: self._place(rank) for rank in running}
            if now >= self.asked + SILENT_S:
                self.asked = now
                for rank in running:
                    _look(self.stream.folder, rank)
        return Known(self._doing(ranks, stopping), ranks, self.stream.part, silent_s, bool(self.handle.where))

    def close(self) -> None:
        """Remove what the ranks wrote for this view alone."""
        for rank in range(len(self.stream.records)):
            (self.stream.folder / f"rank{rank}.place").unlink(missing_ok=True)

    def _place(self, rank: int) -> str:
        """Where a rank stands, by what it last answered."""
        answer = _seen(self.stream.folder, rank)
        words = where(answer, rank).removeprefix(f"rank {rank} ") if answer else ""
        return re.sub("^is: ", "at ", words)

    def _doing(self, ranks: Sequence[RankState], stopping: bool) -> str:
        states = {rank.state for rank in ranks}
        if stopping:
            return "stopping"
        if self.handle.queued:
            return "waiting in Slurm's queue"
        if states == {"starting"}:
            how = "" if self.handle.start == "warm" else f" ({self.handle.start})"
            return f"starting {counted(len(ranks), 'rank')}{how}"
        return self.doing if states & {"starting", "running"} and "failed" not in states else "ranks are ending"


def last_line(run: Run, seconds: float) -> str:
    """The last line of a launch: how many ranks, how long, and in a word how it ended if not well."""
    took = seconds if math.isnan(run.wall_s) else run.wall_s
    words = {"timeout": "out of time", "deadlock": "deadlocked", "interrupted": "stopped", "log limit": "stopped"}.get(
        run.outcome, run.outcome
    )
    emulated = run.provenance.kind == "emulated"
    ranks = f"{run.world_size} {'emulated ' * emulated}rank{'s' * (run.world_size > 1)}"
    of = " of real time" if emulated else ""
    waited = f" (plus {seconds - took:.1f} s until they could start)" if seconds > took + 1 else ""
    return f"{ranks}, {'' if run.ok else f'{words} after '}{took:.{1 if took >= 1 else 2}f} s{of}{waited}"


def left_running(left: Sequence[tuple[int, str]]) -> str:
    """What to say of processes that ranks left running, and that ended with the launch: (rank, command) for each, with
    -1 for a rank that isn't known. Empty if there are none."""
    if not left:
        return ""
    ranks = {rank for rank, _ in left}
    who = ranks_in_words(ranks) if -1 not in ranks else "ranks"
    commands = list(dict.fromkeys(" ".join(command.split()) for _, command in left))
    shown = [f"`{c if len(c) <= _COMMAND else f'{c[:_COMMAND].rstrip()} ...'}`" for c in commands[:_COMMANDS]]
    shown = ["a fork of the script" if c == "``" else c for c in shown]
    shown += [f"{len(commands) - _COMMANDS} more"] * (len(commands) > _COMMANDS)
    es, it, its = ("", "it", "it") if len(left) == 1 else ("es", "they", "them")
    return (
        f"Ended {len(left)} process{es} that {who} had left running: {', '.join(shown)}. Under torchrun {it} would run"
        f" on. Let the script wait for {its} before it ends."
    )


def stop(said: str, run: Run | None = None) -> KeyboardInterrupt:
    """The interrupt to raise: a cell shows the words alone, since whoever stopped it needs no traceback."""
    _end_in_silence()
    error = KeyboardInterrupt(said)
    error.run = run  # type: ignore[attr-defined]
    error._render_traceback_ = lambda: [said[0].upper() + said[1:]]  # type: ignore[attr-defined]
    return error


@cache
def _end_in_silence() -> None:
    """Who shuts a kernel down interrupts its cell first. ipykernel then closes its sockets, and reports on the terminal
    that it can't send the cell's reply, for which nobody waits any more."""
    if (kernel := notebook_kernel()) is not None:
        with suppress(AttributeError):  # another kind of kernel
            kernel.log.addFilter(lambda record: not (record.exc_info and kernel._shutdown_message))


def _look(folder: Path, rank: int) -> None:
    """Have a rank of this machine write where its main thread stands, whatever it's doing; `_seen` reads that. This
    costs the rank microseconds, and runs no Python there. Nothing happens where it can't be done safely."""
    try:
        pid, node = (folder / f"rank{rank}.pid").read_text().split()
    except (OSError, ValueError):  # it hasn't begun
        return
    if LOOK_SIGNAL is not None and node == os.uname().nodename and handles(int(pid), LOOK_SIGNAL):
        with suppress(PermissionError):  # the rank has ended, and somebody else has its number
            send(int(pid), LOOK_SIGNAL)


def _seen(folder: Path, rank: int) -> str:
    """The last answer of a rank that `_look` asked, as `where` reads it; an empty string if there is none."""
    try:
        with open(folder / f"rank{rank}.place", "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _PLACE_BYTES))
            last = file.read().rpartition(_PLACE)[2].decode(errors="replace")
    except OSError:
        return ""
    return f"Current thread (most recent call first):\n{last}" if last else ""
