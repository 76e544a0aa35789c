"""Lesson 05: the same trainings in one process. A launch of its own, so that an answer can't look up what should come
out."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from .. import rank_side
from .cases import DDP_STEPS, KNOWN_MISTAKES, LR
from .ranks import flat, samples, state, tanh_model, toy


def ddp(load: Callable[[], ModuleType], given: list[list[int]]) -> None:
    """For each list of the ranks' seeds: rank 0's model at the start, and the weights after each step with the samples
    of all ranks, with the mean gradient and with their sum."""
    torch.set_default_dtype(torch.float64)
    rank_side.tell(
        cases=[
            {
                "start": state(toy(seeds[0])),
                "nbytes": [p.nbytes for p in toy(seeds[0]).parameters() if p.requires_grad],
                "mean": _steps(seeds, LR),
                "sum": _steps(seeds, LR * len(seeds)),
            }
            for seeds in given
        ]
    )


def _steps(seeds: list[int], lr: float) -> list[list[float]]:
    model = toy(seeds[0])
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=lr)
    found = []
    for step in range(DDP_STEPS):
        x, y = (torch.cat(parts) for parts in zip(*(samples(seed, step) for seed in seeds), strict=True))
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
        found.append(flat(model))
    return found


def accumulate(load: Callable[[], ModuleType], given: dict[str, Any]) -> None:
    """The weights after each step of both trainings, for each case; as they should be, and as known mistakes make
    them."""
    torch.set_default_dtype(torch.float64)
    rank_side.tell(
        cases=[
            {how: _replay(given["seeds"], micro, window, how) for how in ("", *KNOWN_MISTAKES)}
            for micro, window in given["cases"]
        ]
    )


def _replay(seeds: list[int], micro: int, window: int, how: str) -> list[list[list[float]]]:
    model = tanh_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    found: list[list[list[float]]] = []
    for again in range(2):
        found.append([])
        for begin in range(0, micro, window):
            part = range(begin, min(begin + window, micro))
            drawn = (samples(seed, 100 * again + k) for k in part for seed in seeds)
            x, y = (torch.cat(parts) for parts in zip(*drawn, strict=True))
            if how != "old gradients" and not (how == "left over" and begin == 0):
                optimizer.zero_grad()
            factor = {"sum": len(part), "last window": len(part) / window}.get(how, 1.0)
            (cross_entropy(model(x), y) * factor).backward()
            optimizer.step()
            found[-1].append(flat(model))
    return found
