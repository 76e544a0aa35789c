"""Lesson 02, exercise 1, on the rank: runs a converted loop, and notes who loaded which sample, and when."""

from __future__ import annotations

import os
import sys
import time
import warnings
from types import ModuleType
from typing import Any

import torch
import torch.multiprocessing
from torch import Tensor
from torch.utils.data import Dataset, get_worker_info
from torch.utils.data import dataloader as torch_dataloader

from .. import rank_side
from .cases import FED_CASES, FED_EPOCHS, FED_SAMPLES, MOST_STEPS


class Noted(Dataset[tuple[Tensor, int]]):
    """Each image says who made it and when: [index, process, whether that's a worker, time]."""

    def __len__(self) -> int:
        return FED_SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if not 0 <= index < FED_SAMPLES:
            raise IndexError(index)
        note = [index, os.getpid(), get_worker_info() is not None, time.monotonic()]
        return torch.tensor(note, dtype=torch.float64), 1000 + int(index)


class PretendedGpu:
    """Within it `.to(device)` of a GPU copies nothing, and notes whether it would have waited, and for what. Only the
    answer is told that there's a GPU, if `device` is one."""

    def __init__(self, answer: ModuleType, device: torch.device) -> None:
        self.device, self.available = device, device.type == "cuda"
        self._globals, self._available = vars(answer), torch.cuda.is_available
        self.there: dict[int, Tensor] = {}  # what was moved to `device`; kept, so that no other tensor gets its id
        self.blocking = 0
        self._to, self._cuda, self._pin = Tensor.to, Tensor.cuda, Tensor.pin_memory

    def __enter__(self) -> PretendedGpu:
        pretended = self

        def to(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            where = kwargs.get("device", args[0] if args else None)
            if isinstance(where, str | int | torch.device) and torch.device(where).type == "cuda":
                waits = not (kwargs.get("non_blocking") or args[1:] == (True,) or args[2:3] == (True,))
                return pretended.moved(self, where, waits)
            return pretended._to(self, *args, **kwargs)

        def cuda(self: Tensor, device: Any = None, non_blocking: bool = False, **kwargs: Any) -> Tensor:
            return pretended.moved(self, "cuda" if device is None else device, not non_blocking)

        def is_available() -> bool:
            asks = sys._getframe(1).f_globals
            return pretended.available if asks is pretended._globals else pretended._available()

        def pin_memory(self: Tensor, *args: Any) -> Tensor:
            if sys._getframe(1).f_globals is not pretended._globals:
                return pretended._pin(self, *args)
            rank_side.problem("The loop pins its batches itself, and waits for that.", "pinned by hand")

        torch.Tensor.to, torch.Tensor.cuda, torch.Tensor.pin_memory = to, cuda, pin_memory
        torch.cuda.is_available = is_available
        return self

    def __exit__(self, *raised: object) -> None:
        torch.Tensor.to, torch.Tensor.cuda, torch.Tensor.pin_memory = self._to, self._cuda, self._pin
        torch.cuda.is_available = self._available

    def moved(self, tensor: Tensor, where: str | int | torch.device, waits: bool) -> Tensor:
        self.blocking += waits
        copy = tensor.clone()
        if (torch.device(where).index or 0) == (self.device.index or 0):
            self.there[id(copy)] = copy
        return copy


def fed(answer: ModuleType) -> None:
    """Runs the loop for each case, and tells what each step got."""
    torch.multiprocessing.set_start_method("fork", force=True)  # new processes couldn't import the answer
    changes = ("the random state",)
    function = rank_side.function(answer, "main", "dataset", "step", "epochs", "cores", "device", changes=changes)
    pinning: list[bool] = []
    init = torch_dataloader._BaseDataLoaderIter.__init__

    def noted(self: Any, loader: Any) -> None:
        pinning.append(bool(loader.pin_memory))
        init(self, loader)

    torch_dataloader._BaseDataLoaderIter.__init__ = noted
    cases = []
    for cores, kind in FED_CASES:
        pinning.clear()
        steps: list[dict[str, Any]] = []
        device = torch.device(kind)
        gpu = PretendedGpu(answer, device)

        def step(images: Any, labels: Any, steps: Any = steps, gpu: Any = gpu, kind: str = kind) -> None:
            if not (isinstance(images, Tensor) and isinstance(labels, Tensor) and images.shape == (len(labels), 4)):
                rank_side.problem("`step` got something else than a batch of images and one of labels.", "type")
            if len(steps) == MOST_STEPS:
                rank_side.problem(f"`step` was called {MOST_STEPS} times, and there's no end.", "endless")
            there = kind == "cpu" or (id(images) in gpu.there and id(labels) in gpu.there)
            steps.append({"at": time.monotonic(), "notes": images.tolist(), "labels": labels.tolist(), "there": there})

        with warnings.catch_warnings(), gpu:
            warnings.simplefilter("ignore")
            doing = f"training with {cores} cores and a {'GPU' if gpu.available else 'CPU'}"
            function(Noted(), step, FED_EPOCHS, cores, device, doing=doing)
        cases.append({"steps": steps, "pinned": pinning[:], "blocking": gpu.blocking})
    rank_side.tell(cases=cases, loop=os.getpid())
