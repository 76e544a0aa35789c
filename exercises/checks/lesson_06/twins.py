"""Lesson 06: the same model on one device. A launch of its own, so that an answer can't look up what comes out."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn.functional import mse_loss

from .. import rank_side
from .ranks import gradients, layers_of, rows_of


def gpipe(load: Callable[[], ModuleType], given: list[tuple[list[int], int]]) -> None:
    """For each case, the ranks' seeds and the number of micro-batches: the loss, and the gradients of each rank's
    layers, as they should be and as known mistakes make them."""
    rank_side.tell(cases=[_case(seeds, m) for seeds, m in given])


def _case(seeds: list[int], m: int) -> dict[str, Any]:
    x, y = torch.stack(rows_of(seeds[0], m)), torch.stack(rows_of(seeds[-1], m))

    def trained(part: slice, factor: float = 1.0) -> tuple[float, list[Any]]:
        layers = [layers_of(seed) for seed in seeds]
        loss = mse_loss(nn.Sequential(*layers)(x[part].flatten(0, 1)), y[part].flatten(0, 1))
        (factor * loss).backward()
        return loss.item(), [gradients(stage) for stage in layers]

    every, last = slice(None), slice(m - 1, None)
    loss, whole = trained(every)
    return {
        "loss": loss,
        "whole": whole,
        "sum": trained(every, m)[1],
        "last": trained(last)[1],
        "last of m": trained(last, 1 / m)[1],
    }
