"""What an answer writes, on a rank: how many files, and what becomes of an older one. For exercises that save."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

DELAY_S = 0.3  # slows the writer down, so that a rank that doesn't wait for it shows
WRITE_FLAGS = os.O_WRONLY | os.O_RDWR


class Files:
    """Watches what this rank writes. Can slow a write down, break it off in the middle, or make its tensors come from
    another device."""

    def __init__(self, folder: Path) -> None:
        self.watched = {str(folder.resolve()), os.path.abspath(tempfile.gettempdir())}
        self.writes = 0
        self.target = ""  # a good file, which must stay until another takes its place
        self.lost: str | None = None  # what happened to it
        self.saved = False  # whether `torch.save` was called
        self.slow = self.broken = self.from_gpu = self._quiet = False
        self._save = torch.save
        torch.save = self.save  # before the student's file is loaded, which may import `save` by name
        os.rename, os.replace = self._same_disk(os.rename), self._same_disk(os.replace)
        sys.addaudithook(self._audit)
        torch.serialization.register_package(0, lambda _: "cuda:7" if self.from_gpu else None, lambda *_: None)

    def _same_disk(self, original: Callable[..., None]) -> Callable[..., None]:
        """A rename works within one file system. Here every folder outside the target's is on another."""

        def rename(src: Any, dst: Any, **options: Any) -> None:
            to = os.path.dirname(os.path.abspath(os.fsdecode(dst)))
            if to in self.watched and not options and not os.path.abspath(os.fsdecode(src)).startswith(to + os.sep):
                raise OSError(18, "Invalid cross-device link", os.fsdecode(src), None, os.fsdecode(dst))
            original(src, dst, **options)

        return rename

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if self.target and event in ("os.remove", "os.rename") and self._is_target(args[0]):
            self.lost = "removed" if event == "os.remove" else "moved away"
        if event != "open" or self._quiet or isinstance(args[0], int):
            return
        path, mode, flags = args
        writes = set(mode) & set("wax+") if isinstance(mode, str) else (flags or 0) & WRITE_FLAGS
        if writes and self.target and self._is_target(path):
            self.lost = "opened for writing, which empties it"
        if writes and os.path.dirname(os.path.abspath(os.fsdecode(path))) in self.watched:
            self.writes += 1

    def _is_target(self, path: Any) -> bool:
        return not isinstance(path, int) and os.path.realpath(os.fsdecode(path)) == os.path.realpath(self.target)

    def save(self, obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        is_file = hasattr(f, "write")
        self.saved = True
        if self.target and not is_file and self._is_target(f):
            self.lost = "written over"
        self._quiet = True
        try:
            if self.broken or self.slow:
                (
                    f.write(b"half of a checkpoint")
                    if is_file and self.broken
                    else None
                    if is_file
                    else Path(f).write_bytes(b"half of a checkpoint")
                )
            if self.broken and not is_file:  # what torch's own writer says of a full disk
                raise RuntimeError("[enforce fail at inline_container.cc:671] . unexpected pos 704 vs 598")
            if self.broken:
                raise OSError(28, "No space left on device")
            time.sleep(DELAY_S if self.slow else 0)
            self._save(obj, f, *args, **kwargs)
        finally:
            self._quiet = False
        self.writes += not is_file
