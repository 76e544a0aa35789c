"""Where ranks stand: each writes the stacks of its threads into its file when it gets `DUMP_SIGNAL`."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path

from ..on_rank import flight_record, rank_process
from .cleanup import send

DUMP_S = 1.0  # we wait for the stacks no longer than this
RECORD_S = 0.3  # at most this long for the records of collectives
STOPPED = "stopped by a signal\n"  # instead of a stack
_THREAD = re.compile(r"^(?=(?:Current thread|Thread) )", re.M)


def handles(pid: int, signal_number: int) -> bool:
    """Whether a process has a handler for a signal; without one, the signal would end it or be ignored. Linux only;
    False elsewhere."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)", text, re.M)
    return caught is not None and bool(int(caught[1], 16) >> (signal_number - 1) & 1)


def is_stopped(pid: int) -> bool:
    """Whether a signal such as SIGSTOP keeps a process from going on. Linux only; False elsewhere."""
    try:
        return re.search(r"^State:\s*T ", Path(f"/proc/{pid}/status").read_text(), re.M) is not None
    except OSError:
        return False


def dump(pids: Mapping[int, int], folder: Path) -> dict[int, str]:
    """Have ranks (rank -> pid) write where they stand, and wait until they have. For a rank that a signal has stopped,
    this says so in its file. Returns what each has added to its file."""
    for rank in [rank for rank, pid in pids.items() if is_stopped(pid)]:
        (folder / f"rank{rank}.stack").write_text(STOPPED)
    pids = {rank: pid for rank, pid in pids.items() if not is_stopped(pid)}
    files = {rank: folder / f"rank{rank}.stack" for rank in pids}
    before = {rank: _size(path) for rank, path in files.items()}
    for pid in pids.values():
        # A rank that has replaced itself by another program doesn't know this signal, and would die of it.
        if handles(pid, rank_process.DUMP_SIGNAL) or not Path("/proc/self/status").exists():
            send(pid, rank_process.DUMP_SIGNAL)
    sizes: dict[int, int] = {}
    until = time.monotonic() + DUMP_S
    while time.monotonic() < until:
        time.sleep(0.05)
        now = {rank: _size(path) for rank, path in files.items()}
        if now == sizes and all(now[rank] > before[rank] for rank in now):
            break
        sizes = now
    return {rank: _from(path, before[rank]) for rank, path in files.items()}


def record(pids: Mapping[int, int], folder: Path, limit_s: float = RECORD_S) -> None:
    """Have ranks (rank -> pid) write which collectives they called and where they wait, and wait for it for at most
    `limit_s`. This runs Python wherever a rank stands, so it's the last thing to ask of one that computes."""
    if (ask := flight_record.ASK_SIGNAL) is None:
        return
    asked = {rank: pid for rank, pid in pids.items() if handles(pid, ask)}
    for pid in asked.values():
        send(pid, ask)
    files = [folder / f"rank{rank}.collectives.json" for rank in asked]
    until = time.monotonic() + limit_s
    while time.monotonic() < until and not all(path.exists() for path in files):
        time.sleep(0.02)


def main_threads(dumps: Mapping[int, str]) -> dict[int, str]:
    """From each dump, the part of the thread that runs the script; ranks that wrote none are left out."""
    found = {}
    for rank, text in dumps.items():
        for thread in _THREAD.split(text):
            if "on_rank/rank_process.py" in thread:
                found[rank] = thread
    return found


def at_exit(stack: str) -> bool:
    """Whether a main thread is busy with what a script left to do at its end: a function that `atexit` calls, or
    `__del__`.

    Waiting for a thread, or for another rank, doesn't count as busy: that may last for ever.
    """
    files = [line for line in stack.splitlines() if line.startswith("  File ")]
    ours = next((i for i, line in enumerate(files) if "on_rank/ending.py" in line), 0)
    return ours > 0 and not any("/threading.py" in line or "/torch/distributed/" in line for line in files[:ours])


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _from(path: Path, offset: int) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read().decode(errors="replace")
    except OSError:
        return ""
