"""Lesson 09 on the ranks: each task runs the student's functions and reports what it saw."""

from __future__ import annotations

import errno
import gc
import numbers
import os
import resource
import signal
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from .. import rank_side
from .cases import KILLED_AT

WRITE_FLAGS = os.O_WRONLY | os.O_RDWR


# --- 09.1 -------------------------------------------------------------------------------------------------------------


class Disk:
    """Notes what this process does to the files of a folder, in order: open, sync, rename, remove. It can kill the
    process just before one of these."""

    def __init__(self, path: Path):
        self.path, self.events, self.on, self.last = str(path), list[dict[str, Any]](), False, -1
        self.broken = self.refused = False  # a disk that can't write what it's asked to sync, and has said so
        for name in ("fsync", "fdatasync"):
            if hasattr(os, name):
                setattr(os, name, self.noting(getattr(os, name)))
        os.sync = self.noting_all(os.sync)
        sys.addaudithook(self.audit)

    def note(self, what: str, path: str, **more: Any) -> None:
        if self.last == len(self.events):
            os.kill(os.getpid(), signal.SIGKILL)
        self.events.append({"what": what, "path": path, **more})

    def noting(self, sync: Callable[[Any], None]) -> Callable[[Any], None]:
        def called(target: Any) -> None:
            fd = target if isinstance(target, int) else target.fileno()
            if self.broken and stat.S_ISREG(os.fstat(fd).st_mode):
                self.refused = True
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            if self.on:
                self.note("sync", os.path.realpath(f"/proc/self/fd/{fd}"), size=os.fstat(fd).st_size)
            sync(target)

        return called

    def noting_all(self, sync: Callable[[], None]) -> Callable[[], None]:
        """`os.sync` syncs every file and folder; here we only note those that matter."""

        def called() -> None:
            if self.on:
                folder = Path(self.path).parent
                for each in [folder, *folder.iterdir()]:
                    self.note("sync", str(each), size=each.stat().st_size)

        return called

    def audit(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event == "open" and isinstance(args[0], (str, bytes, os.PathLike)):
            mode, flags = args[1], args[2]
            if set(mode) & set("wax+") if isinstance(mode, str) else (flags or 0) & WRITE_FLAGS:
                self.note("open", _real(args[0]))
        elif event == "os.rename":
            self.note("rename", _real(args[0], args[2]), to=_real(args[1], args[3]))
        elif event == "os.link":
            self.note("link", _real(args[0], args[2]), to=_real(args[1], args[3]))
        elif event == "os.remove":
            self.note("remove", _real(args[0], args[1]))


def _real(path: Any, folder: int = -1) -> str:
    """The full path of a file that may be named relative to an open folder (`dir_fd=`)."""
    base = os.path.realpath(f"/proc/self/fd/{folder}") if folder >= 0 else ""
    return os.path.realpath(os.path.join(base, os.fsdecode(path)))


def _state(version: int, numbers: int = 1 << 14) -> dict[str, Any]:
    return {"version": version, "weights": [torch.full((numbers,), float(version)) for _ in range(4)]}


def _version(path: Path) -> int | None:
    """The version of the checkpoint at `path`; None if there's none, or it isn't whole."""
    try:
        found = torch.load(path)
        return int(found["version"]) if all(bool((w == found["version"]).all()) for w in found["weights"]) else None
    except Exception:
        return None


def _limited(
    function: Callable[..., Any], path: Path, limit: int, kill: bool, disk: Disk | None = None, event: int = 0
) -> str:
    """Run the save in a child whose files may not grow past `limit`: there it is killed, or gets an OSError. With a
    `disk` it is killed just before its event of this number instead. Returns how the child ended."""
    child = os.fork()
    if child == 0:
        try:
            if disk:
                disk.events, disk.on, disk.last = [], True, event
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL if kill else signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            function(_state(2), path)
            os._exit(0)
        except BaseException:
            os._exit(3)
    _, status = os.waitpid(child, 0)
    return "killed" if os.WIFSIGNALED(status) else {0: "returned", 3: "raised"}.get(os.WEXITSTATUS(status), "ended")


def _broken(function: Callable[..., Any], path: Path, disk: Disk) -> str:
    """Run the save in a child whose disk says at a sync that it couldn't write the file. Returns how the child ended;
    "swallowed" if it returned although the disk had said so."""
    child = os.fork()
    if child == 0:
        try:
            disk.broken = True
            function(_state(2), path)
            os._exit(4 if disk.refused else 0)
        except BaseException:
            os._exit(3)
    _, status = os.waitpid(child, 0)
    return {0: "returned", 3: "raised", 4: "swallowed"}.get(os.waitstatus_to_exitcode(status), "ended")


def save(load: Callable[[], ModuleType]) -> None:
    folder = (rank_side.folder() / "checkpoints").resolve()
    folder.mkdir(exist_ok=True)
    path = folder / "run.pt"
    disk = Disk(path)
    answer = load()
    function = rank_side.function(answer, "save", "state", "path")
    found = answer.__dict__["save"]
    torch.save(_state(0), path)
    size = path.stat().st_size
    rank_side.tell(size=size)
    disk.on = True
    function(_state(1), path, doing="saving over an older checkpoint")
    disk.on = False
    at = [i for i, e in enumerate(disk.events) if e["what"] == "rename" and e["to"] == disk.path]
    rank_side.tell(
        saved=_version(path),
        beside=sorted(p.name for p in folder.iterdir() if p != path),
        at_path=disk.path,
        folder=str(folder),
    )
    rank_side.tell(events=disk.events, renamed=at, final=path.stat().st_size if path.exists() else 0)
    stopped = []
    for number, event in enumerate(list(disk.events)):
        torch.save(_state(0), path)
        _limited(found, path, 1 << 30, kill=True, disk=disk, event=number)
        names = [Path(event[key]).name for key in ("path", "to") if key in event]
        stopped.append([f"{event['what']} {' to '.join(names)}", _version(path)])
    rank_side.tell(stopped=stopped)
    kills = []
    for share in KILLED_AT:
        torch.save(_state(0), path)
        ended = _limited(found, path, int(share * size), kill=True)
        kills.append({"share": share, "ended": ended, "left": _version(path)})
    rank_side.tell(kills=kills)
    if _version(path) is None:
        torch.save(_state(0), path)
    function(_state(5, 100), path, doing="saving again after a kill, much less than before")
    rank_side.tell(again=_version(path))
    for p in folder.iterdir():
        p.unlink()
    torch.save(_state(0), path)
    full = []
    for share in (0.2, 0.7):
        ended = _limited(found, path, int(share * size), kill=False)
        full.append(
            {"ended": ended, "left": _version(path), "beside": sorted(p.name for p in folder.iterdir() if p != path)}
        )
        torch.save(_state(0), path)
    rank_side.tell(full=full)
    ended = _broken(found, path, disk)
    beside = sorted(p.name for p in folder.iterdir() if p != path)
    rank_side.tell(broken={"ended": ended, "left": _version(path), "beside": beside})
    torch.save(_state(0), path)
    opened = _open_files()
    os.chdir(folder.parent)
    other = Path("second", "last.ckpt")  # relative to the working folder
    other.parent.mkdir()
    function(_state(6), other, doing="saving where nothing lies yet, in another folder")
    rank_side.tell(first=_version(other))
    os.chdir(other.parent)
    for version in (7, 8):
        function(_state(version), Path(other.name), doing="saving in the working folder")
    os.chdir(folder.parent)
    rank_side.tell(last=_version(other), left_open=max(0, _open_files() - opened))


def _open_files() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


# --- 09.3, 09.4: no ranks needed --------------------------------------------------------------------------------------


def choose(answer: ModuleType, given: list[Any]) -> None:
    function = rank_side.function(answer, "choose", "kept_bytes", "input_bytes", "forward_s", "limit_bytes")
    chosen: list[list[int] | None] = []
    for kept, inputs, seconds, limit in given:
        value = function(kept, inputs, seconds, limit, doing=f"choosing among {len(kept)} blocks")
        if isinstance(value, (set, frozenset)):
            value = sorted(value)
        if value is not None and (
            not isinstance(value, (list, tuple))
            or not all(isinstance(i, numbers.Integral) and not isinstance(i, bool) for i in value)
        ):
            rank_side.problem(
                f"`choose` returned {rank_side.shown(value)}; it must return a list of indices, or None.", "type"
            )
        chosen.append(None if value is None else [int(i) for i in value])
    rank_side.tell(chosen=chosen)


def often(answer: ModuleType, given: dict[str, Any]) -> None:
    again = rank_side.function(answer, "done_again", "step", "every")
    every = rank_side.function(answer, "save_every", "step_s", "save_s", "failure_s")
    repeated = [
        rank_side.whole(again(*case, doing=f"asking what a kill at step {case[0]} costs"), "`done_again`")
        for case in given["again"]
    ]
    numbers_ = [
        rank_side.whole(every(*case, doing="asking how often to save"), "`save_every`") for case in given["every"]
    ]
    rank_side.tell(repeated=repeated, numbers=numbers_)
