"""What a launch leaves behind, and removing it: processes, wherever they went, and shared memory."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
# Names that torch, NCCL, OpenMP and multiprocessing give to their files in /dev/shm; nobody else's file is ever touched. Some hold the maker's pid.
SHM_NAMES = re.compile(r"(?:torch_|__KMP_REGISTERED_LIB_)(?P<pid>\d+)_|psm_|nccl-")


def adopt_orphans() -> None:
    """From now on a descendant whose parent ends becomes a child of this process, so that none can hide. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def send(pid: int, sig: int) -> None:
    """A signal to a process that may be gone already."""
    try:
        os.kill(pid, sig)
    except ProcessLookupError:
        pass


def descendants() -> Iterator[int]:
    """Pids of all living descendants, from /proc; none are seen on other systems."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc") if sys.platform == "linux" else ():
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as file:
                    state, parent = file.read().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if state not in "ZX":
                children.setdefault(int(parent), []).append(int(entry))
    todo = [os.getpid()]
    while todo:
        for pid in children.get(todo.pop(), ()):
            yield pid
            todo.append(pid)


def kill_descendants(groups: Iterable[int]) -> None:
    """End every process that the launch left, those that left their parents included, and reap them.

    `groups` are the process groups of the ranks: all that can be reached where orphans do not come to us.
    """
    if sys.platform != "linux":
        for group in groups:
            try:
                os.killpg(group, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):  # the group is empty; macOS says the second when only zombies are left
                pass
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return  # orphans would have come to us, so no child means no descendant
        for pid in descendants():
            send(pid, signal.SIGKILL)
        time.sleep(0.002)


def shm_files() -> set[str]:
    """Names of the shared memory that ranks may have made."""
    try:
        return {name for name in os.listdir("/dev/shm") if SHM_NAMES.match(name)}
    except OSError:
        return set()


def remove_semaphores(prefix: str) -> None:
    """Remove the semaphores whose names begin with `prefix`, which the ranks of one launch alone give to theirs.

    No look at what is mapped would tell whose another semaphore is: the C library makes it under another name, and one that was just made
    is mapped by nobody while a spawned worker is still on its way to it.
    """
    for path in Path("/dev/shm").glob(f"sem.{prefix}*"):
        path.unlink(missing_ok=True)


def remove_shm(names: set[str], since: float) -> None:
    """Remove the shared memory in `names` that came after `since` (seconds since the epoch), is ours, and is mapped by no living process."""
    if not names:
        return
    mapped = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                mapped.append(Path(f"/proc/{entry}/maps").read_text())
            except OSError:
                continue
    in_use = "\n".join(mapped)
    for name in names:
        path = Path("/dev/shm", name)
        known = SHM_NAMES.match(name)
        if known and known["pid"] and os.path.exists(f"/proc/{known['pid']}"):
            continue  # such a file may be on its way to another process, and mapped by nobody meanwhile
        try:
            info = path.stat()
            if info.st_uid == os.getuid() and info.st_mtime >= since - 1 and f"/dev/shm/{name}" not in in_use:
                path.unlink()
        except OSError:
            continue
