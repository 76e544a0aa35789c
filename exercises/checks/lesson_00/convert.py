"""Lesson 00, exercise 3: a converted script on ranks that have no process group yet, as torchrun would start them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch.distributed as dist

from .. import rank_side
from ..rank_side import RANK, RANKS
from . import cases

LOOKED = "course.looked_at_a_picture"


def script(load: Callable[[], ModuleType], given: tuple[str, int]) -> None:
    """Tests a model on this rank, and tells which pictures it looked at, what came back, how many files it wrote, and
    whether it left the group."""
    folder, count = given
    addresses = rank_side.watch_groups()
    rows = cases.pictures(rank_side.draw_seed(), count)
    number = {picture: i for i, (picture, _, _) in enumerate(rows)}
    looked: list[int] = []
    writes = 0

    def predict(picture: float) -> int:
        sys.audit(LOOKED, number[picture])  # a list here would be copied with a copy of this function
        return rows[number[picture]][2]

    def watch(event: str, args: tuple[Any, ...]) -> None:
        nonlocal writes
        if event == LOOKED:
            looked.extend(args)
        if event != "open" or isinstance(args[0], int):
            return
        path, mode, flags = args
        written = set(mode) & set("wax+") if isinstance(mode, str) else (flags or 0) & (os.O_WRONLY | os.O_RDWR)
        if written and os.path.abspath(os.fsdecode(path)).startswith(folder + os.sep):
            writes += 1

    sys.addaudithook(watch)
    if RANKS == cases.ON_TWO_MACHINES:
        second = RANK == RANKS - 1
        on_it = {"LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1} if second else {"LOCAL_WORLD_SIZE": RANKS - 1}
        os.environ.update({name: str(value) for name, value in {**on_it, "GROUP_RANK": int(second)}.items()})
    may_change = ("the random state", "the environment")
    function = rank_side.function(load(), "main", "predict", "pictures", "path", changes=may_change)
    rank_side.meet()
    pictures = [(picture, label) for picture, label, _ in rows]
    result = function(predict, pictures, Path(folder) / cases.FILE, doing=f"testing {count} pictures")
    share = None if result is None else rank_side.number(result, "`main`")
    left = not dist.is_initialized()
    rank_side.tell(looked=looked, share=share, writes=writes, left=left, addresses=addresses)
