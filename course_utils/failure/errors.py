"""What went wrong in a launch, in words: which rank was first, and where the others stood."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..emulation.not_emulated import really
from ..results.collectives import Records, disagreement, left_alone, ranks_in_words, read_records
from ..results.rank_result import RankResult
from ..results.run import Run
from . import deadlocks
from .advice import hint
from .frames import STARTED, cell_of, died, fold, last_own, of_program, where

# A process killed by one of these counts as failing by itself; a SIGABRT or SIGTERM may come from a launcher that is
# ending the other ranks.
_OWN_DEATH = ("SIGKILL", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE")
_HINTS = {
    "SIGKILL": ". If nobody sent it, the system did, because memory ran out",
    "SIGBUS": ". That happens when shared memory, /dev/shm, is full",
}
# What a rank says when another rank's end cut its connections. We may hear this before we hear of that end.
_ECHO = re.compile(
    r"connection (was )?(likely )?(closed|reset|refused)|broken pipe|pair closure|remote process"
    r" exited|(send|recv)Bytes",
    re.I,
)
_ECHO_S = 0.5
_PARTS = ("type", "message", "traceback")  # of an error
_LONG = 220  # of a headline below which the whole message comes again
_TAIL_BYTES = 1 << 16


class CourseError(Exception):
    """An error whose message says it all: Jupyter shows the message alone, without the course's own frames."""

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


class LaunchError(CourseError, ValueError):
    """This launch can't start; nothing has been started."""


class RankError(CourseError, RuntimeError):
    """A launch failed. `rank` failed first (None if time ran out), `cause` says why, and `traceback` is its traceback.
    `stacks` says where every other rank stood (rank -> sentence), `disagreement` in a sentence where the ranks'
    collectives differ ("" if they don't). `run` holds all records and logs up to then."""

    def __init__(
        self, run: Run, rank: int | None, cause: str, traceback: str, stacks: dict[int, str], disagreement: str = ""
    ):
        self.run, self.rank, self.cause, self.traceback, self.stacks = run, rank, cause, traceback, stacks
        self.disagreement = disagreement
        super().__init__(_message(run, rank, cause, traceback, stacks, disagreement))

    @property
    def headline(self) -> str:
        """What the message begins with: where the ranks' collectives disagree, if they do; which rank failed first, and
        its exception in full, or that time ran out."""
        first = _headline(self.run, self.rank, self.cause)
        return f"{self.disagreement}\n{first}" if self.disagreement else first


def explain(run: Run, times: dict[int, float], too_long: str) -> RankError:
    """The error for a launch that failed. `times` says when we saw a rank end (rank -> seconds since the epoch),
    `too_long` how it took too long, if it did."""
    stacks = {r.rank: where(r.stack, r.rank) for r in run.ranks if r.stack}
    hung = run.outcome in ("timeout", "deadlock")
    stacks |= {r.rank: f"rank {r.rank} had finished its script" for r in run.ranks if r.ok and hung}
    left = records_of(run)
    stacks |= {r: said.replace(f"rank {r} is:", f"rank {r} waits:") for r, said in stacks.items() if r in left.standing}
    calls, finished = left.calls, _finished(run, left)
    if hung:
        cause = f"the launch {too_long}" if run.outcome == "timeout" else f"the launch was ended, because {too_long}"
        return RankError(run, None, cause, "", stacks, deadlocks.why(left, finished, run.world_size))
    if run.outcome == "log limit":
        cause = "a rank printed more than 512 MB, and the launch was stopped; the first 512 MB are kept"
        return RankError(run, None, cause, "", stacks)
    if run.job and run.outcome in ("cancelled", "lost"):
        what = {"cancelled": "was cancelled", "lost": "is not known to Slurm any more, and left no exit code"}[
            run.outcome
        ]
        return RankError(run, None, f"job {run.job['id']} {what}", _tail(Path(run.path, "launcher.log")), stacks)
    failed = [r for r in run.ranks if not r.ok and (r.error or r.exitcode is not None)]
    if not failed and run.job:
        words = " ".join(run.job[name] for name in ("state", "reason") if run.job[name])
        return RankError(
            run,
            None,
            f"job {run.job['id']} on {run.job['nodes'] or 'no node'} ended: {words}",
            _tail(Path(run.path, "launcher.log")),
            stacks,
        )
    if not failed:
        return RankError(
            run, None, "the launch ended before its ranks did", _tail(Path(run.path, "launcher.log")), stacks
        )

    def when(r: RankResult) -> float:
        """When this rank began to fail, as far as we know."""
        if r.error:
            return r.error["time"] + (_ECHO_S if _ECHO.search(r.error["message"]) else 0.0)
        if r.rank in times:
            return times[r.rank]
        # torchrun doesn't report times. Then a rank that died without an error counts as first, unless it was stopped.
        return float("inf") if r.signal and r.signal not in _OWN_DEATH else 0.0

    first = min(failed, key=when)
    stacks.pop(first.rank, None)
    # A rank that waits in vain hears that its connection is closed. One with an error of its own didn't wait.
    cut_off = first.signal == "SIGABRT" or bool(first.error and _ECHO.search(first.error["message"]))
    differ = disagreement(calls, finished if cut_off else ())
    if cut_off and not differ:
        differ = left_alone(calls, first.rank, [rank for rank in finished if rank not in calls])
        gone = [rank for rank in finished if rank != first.rank]
        if not differ and first.error and gone and (at := last_own(first.error["traceback"])):
            verb = "has" if len(gone) == 1 else "have"
            differ = f"Rank {first.rank} was waiting for another rank ({at}), and {ranks_in_words(gone)} {verb} ended."
    if first.error:
        message = first.error["message"].strip()
        last = _tail(Path(first.log), 1) if first.error["type"] == "SystemExit" else ""
        if re.match(r"\S+: error: ", last):  # argparse says it there, and ends the program with a number
            message = f"{message} ({last})"
        return RankError(
            run,
            first.rank,
            f"{first.error['type']}: {message}" if message else first.error["type"],
            first.error["traceback"],
            stacks,
            differ,
        )
    if first.signal:
        wrote_its_end = first.signal in ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE")
        return RankError(
            run,
            first.rank,
            f"killed by {first.signal}{_HINTS.get(first.signal, '')}",
            "\n".join(filter(None, [_tail(Path(first.log)), died(first.stack or "", run.script)]))
            if wrote_its_end
            else "",
            stacks,
            differ,
        )
    return RankError(run, first.rank, f"ended with exit code {first.exitcode}", "", stacks)


def _tail(path: Path, lines: int = 20) -> str:
    """The last lines of a log, which may be very long."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""


def stopped(run: Run) -> str:
    """What to say of a launch that the reader has stopped."""
    after = f" after {run.wall_s:.0f} s" if run.wall_s >= 1 else ""
    places = [where(r.stack, r.rank) for r in run.ranks if r.stack and not r.ok]
    lines = [f"stopped{after}; what the ranks printed and reported until then is in {run.path}"]
    left = records_of(run)
    if any("waits in" in place for place in places) or left.standing:
        why = deadlocks.why(left, _finished(run, left), run.world_size)
        lines += [*([why] if why else []), "Where each rank stood:", *(f"  {place}" for place in places)]
    return "\n".join(lines)


@contextmanager
def stops_in_a_line() -> Iterator[None]:
    """Whoever stops a cell knows why it ended and needs no traceback. IPython even fails to print some: an interrupt
    can hit a frame between two lines, which has no line number (CPython 3.11)."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        said = str(stopped) or "stopped"
        shown = [said[0].upper() + said[1:]]
        stopped._render_traceback_ = lambda: shown  # type: ignore[attr-defined]
        raise


def records_of(run: Run) -> Records:
    """What the ranks of a launch called last, where they wait, and which have ended."""
    return read_records(Path(run.path), run.world_size, of_program(run.script))


def _finished(run: Run, left: Records) -> list[int]:
    """The ranks whose script ended. Of ranks that torchrun stops it says nothing, nor of those that had finished."""
    return [r.rank for r in run.ranks if r.ok or (r.exitcode is None and not r.error and r.rank in left.ended)]


def _headline(run: Run, rank: int | None, cause: str) -> str:
    node = next((r.node for r in run.ranks if r.rank == rank), "")
    if rank is None:
        return cause
    if len(run.ranks) > 1 and not _others(run, rank):
        return f"all {len(run.ranks)} ranks failed: {cause}"
    return f"rank {rank}{f' on {node}' if node else ''} failed first: {cause}"


def _others(run: Run, rank: int | None) -> list[RankResult]:
    """The ranks that did not fail exactly as `rank` did."""
    one = next((r.error for r in run.ranks if r.rank == rank), None)

    def alike(text: str) -> str:
        return re.sub(r"0x[0-9a-f]+|\brank \d+", "", text)  # in which the same error differs from rank to rank

    return [
        r
        for r in run.ranks
        if not (one and r.error) or any(alike(r.error[part]) != alike(one[part]) for part in _PARTS)
    ]


def _begin(headline: str) -> str:
    """What one line has room for; the whole of it comes below, or in the log."""
    line = headline.splitlines()[0]
    return f"{line[:_LONG].rstrip()} ..." if len(line) > _LONG or line != headline else headline


def _source(script: str) -> str:
    try:
        return Path(script).read_text()
    except (OSError, ValueError):
        return ""


def _message(
    run: Run, rank: int | None, cause: str, traceback: str, stacks: dict[int, str], disagreement: str
) -> str:  # fmt: skip
    folded = ""
    first = next((r.error for r in run.ranks if r.rank == rank), None)
    if disagreement and rank is not None:
        # What gloo or NCCL says of it explains nothing, and is long.
        parts = [disagreement, f"\nBecause of that {_begin(_headline(run, rank, cause))}"]
    else:
        headline = _headline(run, rank, cause)
        parts = [disagreement, headline[0].upper() + headline[1:] + "."] if disagreement else [headline]
        if first and cause.endswith(first["message"].strip()):
            parts = [_begin(headline)]
        if run.provenance.kind == "emulated" and (sentence := really(cause)):
            parts.insert(0, sentence)
        elif first and (help_ := hint(first["type"], cause, _source(run.script), traceback)):
            parts.append(help_)
        if traceback:
            folded = fold(traceback, run.script).rstrip()
            parts.append(f"\n{folded}\n")
    if stacks:
        parts.append("Where each rank stood:" if rank is None else "Where the others stood:")
        parts += [f"  {sentence}" for _, sentence in sorted(stacks.items())]
    on = {r.rank: f" on {r.node}" if r.node else "" for r in run.ranks}
    echoes = [r for r in _others(run, rank) if r.rank != rank and r.error]
    if echoes:
        parts.append("Afterwards, most likely because of it:")
        for r in echoes:
            assert r.error is not None
            first_line = (r.error["message"].strip().splitlines() or [""])[0][:160]
            parts.append(f"  rank {r.rank}{on[r.rank]}: {r.error['type']}: {first_line} (whole traceback: {r.log})")
    if disagreement and rank is not None or " library frame" in folded:
        log = next(r.log for r in run.ranks if r.rank == rank)
        parts.append(f"The whole traceback: {log if first else Path(log).with_suffix('.stack')}")
    if rank is None and run.outcome == "timeout":
        said = " ".join(stacks.values())
        if STARTED in said:
            parts.append("Each rank already is a process: instead of mp.spawn, call the function itself on every rank.")
        parts.append("--timeout S gives the launch more time.")
    if cell_of(run.script):
        parts.append(f"The cell is kept as {run.script}")
    return "\n".join(parts)
