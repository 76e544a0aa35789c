"""Lesson 04, exercise 5: a converted script on ranks that have no process group yet, as torchrun would start them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch
import torch.distributed as dist

from .. import rank_side
from ..files import Files
from .cases import EPOCHS, FILE
from .ranks import Toy, Trace, points


def script(load: Callable[[], ModuleType], given: str) -> None:
    """Trains on two ranks that start from different weights, and tells what each held after every step, how many files
    it wrote, and whether it left the group."""
    torch.set_default_dtype(torch.float64)  # what remains between two right answers is then rounding of 1e-16
    rank_side.watch_groups()
    path = Path(given) / FILE
    files = Files(path.parent)
    may_change = ("the random state", "the environment")
    function = rank_side.function(load(), "main", "model", "dataset", "epochs", "path", changes=may_change)
    dataset, model = points(), Toy()
    rank_side.meet()
    with rank_side.Collectives() as counted:
        trace = Trace(model, dataset, counted)
        function(model, dataset, EPOCHS, path, doing="training")
        trace.close()
    rank_side.tell(**trace.told(), result=None, writes=files.writes, left=not dist.is_initialized())
