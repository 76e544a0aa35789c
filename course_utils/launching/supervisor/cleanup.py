"""Find the processes that a launch leaves behind, wherever they went, and end them."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from .shm import SharedMemory, is_manager

PR_SET_CHILD_SUBREAPER = 36
# What libraries start for themselves, and end with whoever started it.
_HELPERS = re.compile(
    r"multiprocessing\.(resource_tracker|forkserver|spawn)|/_inductor/compile_worker|torch_shm_manager"
)
_FORKED = re.compile(
    r"/launching/(server|on_rank/rank_process)\.py\b"
)  # the command line of a rank, and of what it has forked
_LOADER = "pt_data_worker"  # how torch names a worker of a DataLoader


def adopt_orphans() -> None:
    """From now on a descendant whose parent ends becomes a child of this process, so that none can hide. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def send(pid: int, sig: int) -> None:
    """Send a signal to a process that may be gone already."""
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


def left_running(ours: Collection[int]) -> list[tuple[int, str]]:
    """What ranks that have ended had started, and left running: for each such process its rank, or -1 where its
    environment doesn't tell, and its command, which is empty if it's a fork of the rank. Left out are `ours`, what
    these processes started in turn, and what libraries need for themselves.

    Call it when no rank is left: then we have adopted all of them, on Linux.
    """
    found = []
    for pid in descendants():
        with suppress(OSError):
            parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
            if pid in ours or parent != str(os.getpid()):
                continue
            words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").rstrip("\0").split("\0")
            words[0] = os.path.basename(words[0])
            command = words[2] if len(words) > 2 and words[1] == "-c" and words[0].endswith("sh") else " ".join(words)
            if _HELPERS.search(command) or Path(f"/proc/{pid}/comm").read_text().strip() == _LOADER:
                continue
            rank = re.search(r"(?:^|\0)RANK=(\d+)\0", Path(f"/proc/{pid}/environ").read_text(errors="replace"))
            found.append((int(rank[1]) if rank else -1, "" if _FORKED.search(command) else command))
    return sorted(found)


def kill_descendants(groups: Iterable[int], shared: SharedMemory) -> None:
    """End every process that the launch left, even those that left their parents, and reap them.

    `groups` are the ranks' process groups: they're all that we can reach on systems where we can't adopt orphans.
    `shared` notes what these processes made in /dev/shm.
    """
    if sys.platform != "linux":
        for group in groups:
            try:
                os.killpg(group, signal.SIGKILL)
            # the group is empty; macOS raises the second if only zombies are left
            except (ProcessLookupError, PermissionError):
                pass
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return  # we adopt all orphans, so no child means no descendant
        alive = list(descendants())
        users = [pid for pid in alive if not is_manager(pid)]
        shared.look(users)
        for pid in users:
            send(pid, signal.SIGKILL)
        for pid in alive if not users else ():  # their users are gone, so managers learn nothing new
            shared.ask(pid)
            send(pid, signal.SIGKILL)
        time.sleep(0.002)
