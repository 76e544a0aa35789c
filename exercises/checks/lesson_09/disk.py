"""Notes what a program does to the files of a folder."""

from __future__ import annotations

import errno
import os
import signal
import stat
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

WRITE_FLAGS = os.O_WRONLY | os.O_RDWR
NAMELESS = "a file without a name"  # made with O_TMPFILE; it gets its name by os.link


class Disk:
    """Notes what this process does to the files of a folder, in order: open, sync, rename, remove. It kills the process
    just before the first of these whose words aren't in `kill_new`. Nothing is synced in fact: that only takes time.

    `broken` is a disk that can't write what it's asked to sync.
    """

    def __init__(self, folder: Path, say: Callable[..., None], kill_new: Collection[str] | None, broken: bool):
        self.folder, self.say, self.kill_new, self.broken = os.path.realpath(folder), say, kill_new, broken
        self.on = False
        for name in ("fsync", "fdatasync"):
            if hasattr(os, name):
                setattr(os, name, self.sync)
        os.sync = self.sync_all
        sys.addaudithook(self.audit)

    def note(self, what: str, path: str, **more: Any) -> None:
        """`path` and `to` are told by their names in the folder; "" for one that lies elsewhere."""
        words = " to ".join(Path(p).name for p in (path, more.get("to", "")) if p)
        if self.kill_new is not None and f"{what} {words}" not in self.kill_new:
            self.say(at=f"{what} {words}")
            os.kill(os.getpid(), signal.SIGKILL)
        inside = {key: self.name(p) for key, p in {"path": path, "to": more.pop("to", "")}.items()}
        self.say(event={"what": what, **inside, **more})

    def name(self, path: str) -> str:
        """The name of a file in the folder, "." for the folder, and "" for anything else."""
        return os.path.relpath(path, self.folder) if path and self.inside(path) else ""

    def inside(self, path: str) -> bool:
        return path == self.folder or path.startswith(self.folder + os.sep)

    def files(self) -> dict[int, str]:
        """The folder and all that lies in it, by inode."""
        return {os.stat(p).st_ino: str(p) for p in [Path(self.folder), *Path(self.folder).rglob("*")]}

    def sync(self, target: Any) -> None:
        found = os.fstat(target if isinstance(target, int) else target.fileno())
        if self.broken and stat.S_ISREG(found.st_mode):
            self.say(refused=True)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        path = self.files().get(found.st_ino) if self.on else None
        if self.on and stat.S_ISREG(found.st_mode) and found.st_nlink == 0:
            path = _real(f"/proc/self/fd/{target if isinstance(target, int) else target.fileno()}")
        if path and self.inside(path):
            self.note("sync", path, size=found.st_size)

    def sync_all(self) -> None:
        for path in self.files().values() if self.on else ():
            self.note("sync", path, size=os.stat(path).st_size)

    def audit(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event == "open" and isinstance(args[0], (str, bytes, os.PathLike)):
            mode, flags = args[1], args[2]
            writes = set(mode) & set("wax+") if isinstance(mode, str) else (flags or 0) & WRITE_FLAGS
            if writes and self.inside(path := _real(args[0])):
                self.note("open", path)
        elif event in ("os.rename", "os.link"):
            path, to = _real(args[0], args[2]), _real(args[1], args[3])
            if self.inside(path) or self.inside(to):
                source = args[0] if path.endswith(NAMELESS) else path
                size = os.stat(source).st_size if os.path.isfile(source) else 0
                self.note(event.removeprefix("os."), path, to=to, size=size)
        elif event == "os.remove" and self.inside(path := _real(args[0], args[1])):
            self.note("remove", path)


def _real(path: Any, folder: int = -1) -> str:
    """The full path of a file that may be named relative to an open folder (`dir_fd=`)."""
    base = os.path.realpath(f"/proc/self/fd/{folder}") if folder >= 0 else ""
    found = os.path.realpath(os.path.join(base, os.fsdecode(path)))
    folder_of, _, name = found.rpartition(os.sep)  # the system calls it "#1234 (deleted)", another number each time
    return os.path.join(folder_of, NAMELESS) if name.startswith("#") and name.endswith(" (deleted)") else found
