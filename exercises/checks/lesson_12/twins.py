"""Lesson 12, exercise 1: the loop on one device. A launch of its own, so that an answer can't look up what comes
out."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import nn

from .. import rank_side
from .cases import PORT_ACCUMULATE, PORT_CLIP, PORT_IMAGES, PORT_ITERS, PORT_LR, PORT_RANKS, PORT_START
from .ranks import flat, port_data


def port(load: Callable[[], ModuleType], given: list[int]) -> None:
    """The loss of the first batch, the learning rates, and the weights after the loop, also without clipping."""
    model, x, y = port_data(*given)
    n = PORT_RANKS * PORT_IMAGES
    loss = nn.functional.cross_entropy(model(x[:n]), y[:n]).item()
    (clipped, rates), (free, _) = (_loop(*port_data(*given), clip) for clip in ("norm", "none"))
    rank_side.tell(loss=loss, rates=rates, norm=flat(clipped), none=flat(free))


def _loop(model: Any, x: Any, y: Any, clip: str) -> tuple[Any, list[float]]:
    """The loop of the exercise, on one device with the batches of all ranks; returns the model and the learning
    rates."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=PORT_LR)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=PORT_START, total_iters=PORT_ITERS)
    rates = []
    n = PORT_RANKS * PORT_IMAGES
    for i in range(len(x) // n):
        loss = nn.functional.cross_entropy(model(x[i * n : (i + 1) * n]), y[i * n : (i + 1) * n])
        (loss / PORT_ACCUMULATE).backward()
        if i % PORT_ACCUMULATE == PORT_ACCUMULATE - 1:
            if clip == "norm":
                nn.utils.clip_grad_norm_(model.parameters(), PORT_CLIP)
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    return model, rates
