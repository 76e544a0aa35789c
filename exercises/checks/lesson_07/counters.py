"""Lesson 07 on the ranks, exercise 4: a counter in shared memory, alone, interrupted, and with other processes."""

from __future__ import annotations

import fcntl
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from .. import rank_side
from ..rank_side import RANK, RANKS
from .cases import ADDITIONS

STUCK_S = 4.0  # waiting for a lock that nobody gives back
IN_PLACE = ("__iadd__", "__isub__", "__imul__", "__itruediv__")


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.as_subclass(Tensor)
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(v) for v in value)
    return {k: _plain(v) for k, v in value.items()} if isinstance(value, dict) else value


def _counter(name: str) -> Tensor:
    """A number in memory that all ranks share."""
    path = rank_side.folder() / name
    if RANK == 0:
        path.write_bytes(bytes(8))
    rank_side.meet()
    return torch.from_file(str(path), shared=True, size=1, dtype=torch.int64)


class Interrupted(Tensor):
    """A counter to which another process seems to add 1000 after each write."""

    writes = 0

    @staticmethod
    def __new__(cls, value: Tensor) -> Tensor:
        return value.as_subclass(cls)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, target = getattr(func, "__name__", ""), args[0] if args else None
        result = func(*_plain(args), **_plain(kwargs or {}))
        changes = name in ("__setitem__", *IN_PLACE) or (name.endswith("_") and not name.endswith("__"))
        if changes and isinstance(target, Interrupted):
            cls.writes += 1
            target.as_subclass(Tensor).add_(1000)
            return target
        views = name in ("detach", "view", "__get__", "__getitem__") and isinstance(result, Tensor)
        return result.as_subclass(cls) if views else result


def racing(answer: ModuleType) -> None:
    function = rank_side.function(answer, "racing_add", "counter", "times", changes=("counter",))
    alone = torch.zeros(1, dtype=torch.int64)
    function(alone, ADDITIONS, doing="adding alone")
    shared = Interrupted(torch.zeros(1, dtype=torch.int64))
    function(shared, ADDITIONS, doing="adding, and another process after each of the writes")
    counter = _counter("counter")
    function(counter, ADDITIONS, doing=f"adding with {RANKS - 1} other processes")
    rank_side.meet()
    interrupted = int(shared.as_subclass(Tensor)) if Interrupted.writes else None
    rank_side.tell(alone=int(alone), together=int(counter), interrupted=interrupted)


class Watched(Tensor):
    """A counter that is slow between reading and writing, so that an addition without a lock is sure to get lost."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        args, kwargs = _plain(args), _plain(kwargs or {})
        if name in ("__iadd__", "add_", "__isub__", "sub_"):
            result = (torch.add if "add" in name else torch.sub)(*args, **kwargs)
            time.sleep(0.0005)
            return args[0].copy_(result).as_subclass(cls)
        result = func(*args, **kwargs)
        if name in ("item", "__getitem__", "clone", "__int__", "__add__", "add", "tolist", "detach", "__radd__"):
            time.sleep(0.0005)
        return (
            result.as_subclass(cls) if name in ("detach", "view", "__get__") and isinstance(result, Tensor) else result
        )


class Lock:
    """A lock that processes share through a file. It counts how often this process took it."""

    def __init__(self, path: Path, counter: Tensor):
        self.file, self.taken, self.held = open(path, "a"), 0, False
        self.counter, self.before, self.most = counter, 0, 0  # the most that was added while it was held once

    def acquire(self, *_: Any, **__: Any) -> bool:
        if self.held:
            rank_side.problem(
                "A process takes the lock while it has it: it never gave it back, and would wait for itself.",
                "deadlock",
            )
        until = time.monotonic() + STUCK_S
        while True:
            try:
                fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if time.monotonic() > until:
                    rank_side.problem(
                        f"A process waited {STUCK_S:.0f} s for the lock: another one took it, and never gave it back.",
                        "deadlock",
                    )
                time.sleep(0.0002)
            else:
                self.taken += 1
                self.held = True
                self.before = int(self.counter)
                return True

    def release(self) -> None:
        if self.held:
            self.most = max(self.most, int(self.counter) - self.before)
        self.held = False
        fcntl.flock(self.file, fcntl.LOCK_UN)
        time.sleep(0.0005)  # lets one that waits have it

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def mended(answer: ModuleType) -> None:
    function = rank_side.function(answer, "safe_add", "counter", "lock", "times", changes=("counter",))
    alone = []
    for times in (0, 5):
        own = torch.zeros(1, dtype=torch.int64)
        own_lock = Lock(rank_side.folder() / f"lock{RANK}", own)
        function(own, own_lock, times, doing=f"adding {times} times, alone")
        own_lock.release()
        alone.append(int(own))
    counter = _counter("counter")
    lock = Lock(rank_side.folder() / "lock", counter)
    rank_side.meet()
    function(counter.as_subclass(Watched), lock, ADDITIONS, doing=f"adding with {RANKS - 1} other processes")
    lock.release()
    rank_side.meet()
    rank_side.tell(alone=alone, together=int(counter), taken=lock.taken, most=lock.most)
