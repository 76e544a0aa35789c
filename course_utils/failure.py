"""What went wrong in a launch, in words: which rank was first, and where the others stood."""

from __future__ import annotations

import linecache
import os
import re
import sysconfig
from functools import cache
from pathlib import Path

from .results import RankResult
from .run import Run

_CALL = re.compile(r'^  File "(?P<file>.+)", line \d+(, in .+)?$')  # of a traceback
_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+|\?\?\?) in (?P<function>.+)$')  # of faulthandler
# A process that dies by one of these dies by itself; a SIGABRT or SIGTERM may come from a launcher that ends the others.
_OWN_DEATH = ("SIGKILL", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE")
_HINTS = {"SIGKILL": ". When nobody sent it, the system did, because memory ran out", "SIGBUS": ". That happens when shared memory, /dev/shm, is full"}
# What a rank says when another one's end cut its connections. It may say so before that end itself is seen, or has been told.
_ECHO = re.compile(r"connection (was )?(likely )?(closed|reset|refused)|broken pipe|pair closure|remote process exited|(send|recv)Bytes", re.I)
_ECHO_S = 0.5


class CourseError(Exception):
    """An error that tells everything in its message; Jupyter shows that, without the course's own frames."""

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


class LaunchError(CourseError, ValueError):
    """A launch was asked for that cannot be started; nothing was."""


class RankError(CourseError, RuntimeError):
    """A launch failed. `rank` failed first (None when time ran out), for `cause`; `stacks` says where every other rank
    stood (rank -> sentence); `traceback` is that rank's; `run` holds all records and logs until then."""

    def __init__(self, run: Run, rank: int | None, cause: str, traceback: str, stacks: dict[int, str]):
        self.run, self.rank, self.cause, self.traceback, self.stacks = run, rank, cause, traceback, stacks
        super().__init__(_message(run, rank, cause, traceback, stacks))


def explain(run: Run, times: dict[int, float], timeout: float) -> RankError:
    """The error for a launch that did not end well. `times` says when the end of a rank was seen (rank -> seconds since the epoch)."""
    stacks = {r.rank: where(r.stack, r.rank) for r in run.ranks if r.stack}
    if run.outcome == "timeout":
        return RankError(run, None, f"the launch did not end within its timeout of {timeout:g} s", "", stacks)
    if run.outcome == "log limit":
        return RankError(run, None, "a rank printed more than 512 MB, and the launch was stopped", "", stacks)
    if run.job and run.outcome in ("cancelled", "lost"):
        what = {"cancelled": "was cancelled", "lost": "is not known to Slurm any more, and has left no exit code"}[run.outcome]
        return RankError(run, None, f"job {run.job['id']} {what}", _tail(Path(run.path, "launcher.log")), stacks)
    failed = [r for r in run.ranks if not r.ok and (r.error or r.exitcode is not None)]
    if not failed and run.job:
        words = " ".join(run.job[name] for name in ("state", "reason") if run.job[name])
        return RankError(run, None, f"job {run.job['id']} on {run.job['nodes'] or 'no node'} ended: {words}", _tail(Path(run.path, "launcher.log")), stacks)
    if not failed:
        return RankError(run, None, "the launch ended before its ranks did", _tail(Path(run.path, "launcher.log")), stacks)

    def when(r: RankResult) -> float:
        """When this rank began to fail, as nearly as can be told."""
        if r.error:
            return r.error["time"] + (_ECHO_S if _ECHO.search(r.error["message"]) else 0.0)
        if r.rank in times:
            return times[r.rank]
        # A launcher of its own tells no time. A rank that could not speak is then taken to be the first, unless it was stopped.
        return float("inf") if r.signal and r.signal not in _OWN_DEATH else 0.0

    first = min(failed, key=when)
    stacks.pop(first.rank, None)
    if first.error:
        message = first.error["message"].strip()
        return RankError(run, first.rank, f"{first.error['type']}: {message}" if message else first.error["type"], first.error["traceback"], stacks)
    if first.signal:
        wrote_its_end = first.signal in ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE")
        return RankError(run, first.rank, f"killed by {first.signal}{_HINTS.get(first.signal, '')}", _tail(Path(first.log)) if wrote_its_end else "", stacks)
    return RankError(run, first.rank, f"ended with exit code {first.exitcode}", "", stacks)


def _tail(path: Path, lines: int = 20) -> str:
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""


def _message(run: Run, rank: int | None, cause: str, traceback: str, stacks: dict[int, str]) -> str:
    on = {r.rank: f" on {r.node}" if r.node else "" for r in run.ranks}
    parts = [f"rank {rank}{on.get(rank, '')} failed first: {cause}" if rank is not None else cause]
    if traceback:
        parts.append("\n" + fold(traceback).rstrip() + "\n")
    if stacks:
        parts.append("Where each rank stood:" if rank is None else "Where the others stood:")
        parts += [f"  {sentence}" for _, sentence in sorted(stacks.items())]
    echoes = [r for r in run.ranks if r.rank != rank and r.error]
    if echoes:
        parts.append("Afterwards, most likely because of it:")
        for r in echoes:
            assert r.error is not None
            first_line = (r.error["message"].strip().splitlines() or [""])[0][:160]
            parts.append(f"  rank {r.rank}{on[r.rank]}: {r.error['type']}: {first_line} (whole traceback: {r.log})")
    if rank is None and run.outcome == "timeout":
        parts.append("A rank that waits in a collective waits for a rank that does not call it. --timeout S gives the launch more time.")
    return "\n".join(parts)


@cache
def _library_roots() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    roots = {paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"], str(Path(__file__).resolve().parent)}
    return tuple(root + os.sep for root in roots)


def _is_students(file: str) -> bool:
    return not file.startswith(("<", *_library_roots()))


def fold(traceback: str) -> str:
    """A traceback with the frames of libraries folded to a line each, unless there are no others. The lines of your own code stay."""
    pieces: list[list[str]] = []
    for line in traceback.splitlines():  # a frame is its `File` line and the deeper lines below it; any other line stands for itself
        if _CALL.match(line) or not pieces or not line.startswith("    "):
            pieces.append([line])
        else:
            pieces[-1].append(line)
    places = [m["file"] if (m := _CALL.match(piece[0])) else None for piece in pieces]
    if not any(place and _is_students(place) for place in places):
        return traceback
    shown: list[str] = []
    folded = 0
    for piece, place in [*zip(pieces, places, strict=True), ([], None)]:
        if place and not _is_students(place):
            folded += 1
            continue
        if folded:
            shown.append(f"  ... {folded} frame{'s' * (folded > 1)} of libraries ...")
            folded = 0
        shown += piece
    return "\n".join(shown)


def where(dump: str, rank: int) -> str:
    """A sentence from a faulthandler dump: `rank 0 waits in all_reduce: "dist.all_reduce(t)", line 12`."""
    threads: list[list[tuple[str, int, str]]] = []
    frames: list[tuple[str, int, str]] = []
    for text in dump.splitlines():
        if text.startswith(("Thread ", "Current thread ")):
            frames = []
            threads.append(frames)
        elif match := _FRAME.match(text):
            frames.append((match["file"], int(match["line"]) if match["line"].isdigit() else 0, match["function"]))
    main = next((t for t in threads if any(f.endswith("engines/child.py") for f, _, _ in t)), threads[0] if threads else [])
    if any(function == "_linger" for _, _, function in main):
        return f"rank {rank} had finished its script"
    at = next((i for i, (file, _, _) in enumerate(main) if _is_students(file)), None)
    if at is None:
        return f"rank {rank} was starting or ending: no line of your script was being run"
    file, line, _ = main[at]
    source = linecache.getline(file, line).strip()
    named = [(path, f) for path, _, f in main[:at] if f != "wrapper" and not f.startswith("<")]
    inside = [("DDP's " if "/nn/parallel/" in path else "") + f for path, f in named if "/torch/distributed/" in path or "/torch/nn/parallel/" in path]
    does = f"waits in {inside[-1]}" if inside else "is in backward (under DDP it waits there for the others' gradients)" if "backward(" in source else "is"
    return f"rank {rank} {does}: `{source}`, line {line} of {Path(file).name}"
