"""Lesson 08, exercise 5: runs the converted trainer, and tells what it did in each window, beside a twin in float32."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from .. import rank_side
from .cases import MAX_NORM, ConvertCase
from .loops import Scaler, batches, losses_of, new_model, state_of, told, watched
from .mend import numbers_of


def train(answer: ModuleType, given: list[ConvertCase]) -> None:
    function = rank_side.function(
        answer, "train", "model", "optimizer", "schedule", "scaler", "batches", "window", "dtype"
    )
    cases: list[dict[str, Any]] = []
    for dtype, n, window, scale, size, broken in given:
        model, drawn = new_model(6), batches(rank_side.secret_seed(), n, size, tuple(broken))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5, weight_decay=0.01)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.5, total_iters=n)
        scaler = Scaler("cpu", init_scale=scale, growth_interval=3, enabled=dtype == "float16")
        doing = f"training {n} micro-batches in windows of {window} in {dtype}"
        with watched(model, state_of(schedule, scaler, optimizer)) as seen:
            losses = function(model, optimizer, schedule, scaler, drawn, window, getattr(torch, dtype), doing=doing)
        cases.append(
            {
                "windows": told(seen, drawn, window, MAX_NORM),
                "losses": numbers_of(losses, "losses, one for each micro-batch", n),
                "right": losses_of(seen, drawn),
                "scaled": scaler.scaled,
            }
        )
    rank_side.tell(cases=cases)
