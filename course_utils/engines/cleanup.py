"""Find the processes that a launch leaves behind, wherever they went, and end them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator

from .shm import SharedMemory, is_manager

PR_SET_CHILD_SUBREAPER = 36


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
