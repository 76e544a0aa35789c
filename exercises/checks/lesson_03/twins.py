"""Lesson 03 without an answer: a DataParallel of four places on the CPU whose copies are counted, and what one device
computes. They run in a launch of their own, so that no answer can look at them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from .. import rank_side
from .cases import BATCH, EPOCHS, FILE
from .convert import Net, points
from .places import split
from .ranks import model_of

# --- 03.2: a DataParallel, one replica after the other ----------------------------------------------------------------


def step_bytes(load: Callable[[], ModuleType], given: list[tuple[str, int, int]]) -> None:
    """The bytes that place 0 sends and receives in a training step of each case, and sizes that known mistakes use."""
    told = []
    for kind, rows, n in given:
        model, make = model_of(kind)
        x = make(rows)
        log: list[tuple[int, int, int]] = []
        if n > 1:
            split(model, n, log, x).sum().backward()
        told.append(
            {
                "truth": [sum(b for i, _, b in log if i == 0), sum(b for _, j, b in log if j == 0)],
                "outputs": model(x).nbytes,
                "inputs": x.nbytes,
                "elements": x.element_size(),
            }
        )
    rank_side.tell(cases=told)


# --- 03.4: the loss of one device -------------------------------------------------------------------------------------


def whole_loss(load: Callable[[], ModuleType], given: list[tuple[dict[str, Any], list[int]]]) -> None:
    """The loss of each whole batch, its gradient, and what known mistakes make of it; with the sizes of its chunks."""
    told = []
    for batch, sizes in given:
        model = nn.Linear(len(batch["x"][0]), len(batch["parameters"])).double()
        parameters = torch.tensor(batch["parameters"], dtype=torch.float64)
        model.load_state_dict({"weight": parameters[:, :-1], "bias": parameters[:, -1]})
        logits, y = model(torch.tensor(batch["x"], dtype=torch.float64)), torch.tensor(batch["y"])
        weight = torch.tensor(batch["weight"], dtype=torch.float64)
        loss = cross_entropy(logits, y, weight)
        loss.backward()
        assert model.weight.grad is not None and model.bias.grad is not None
        gradient = torch.cat([model.weight.grad, model.bias.grad[:, None]], 1)
        with torch.no_grad():
            known = _mistaken(logits, y, weight, sizes)
        told.append({"loss": loss.item(), "gradient": gradient.flatten().tolist(), "known": known})
    rank_side.tell(cases=told)


def _mistaken(logits: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, sizes: list[int]) -> dict[str, list[float]]:
    """The loss by each known mistake, by its symptom."""
    total, plain = cross_entropy(logits, y, weight, reduction="sum").item(), cross_entropy(logits, y).item()
    parts = list(zip(logits.split(sizes), y.split(sizes), strict=True))
    means = [[cross_entropy(*part, w).item() for part in parts] for w in (weight, None)]
    return {
        "weights": [plain, total / int((y != -100).sum())],
        "not divided": [total, plain * int((y != -100).sum())],
        "sum of means": [sum(each) for each in means],
        "mean of means": [sum(each) / len(each) for each in means],
    }


# --- 03.5: the script on one device -----------------------------------------------------------------------------------


def trainings(load: Callable[[], ModuleType], given: dict[str, Any]) -> None:
    """The weights after the script of 03.5 on one device, and with the replicas' losses summed or averaged. And what
    the answer's file holds, by name, or None if it can't be read."""
    torch.set_default_dtype(torch.float64)
    told: dict[str, Any] = {}
    for how in ("right", "sum of means", "mean of means"):
        model, dataset = Net(given["seed"]), points(given["seed"])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(EPOCHS):
            for x, y in DataLoader(dataset, batch_size=BATCH):
                parts = zip(x.chunk(4), y.chunk(4), strict=True)
                losses = torch.stack([model(*part) for part in parts])
                optimizer.zero_grad()
                loss = model(x, y) if how == "right" else losses.sum() if how == "sum of means" else losses.mean()
                loss.backward()
                optimizer.step()
        told[how] = {name: p.flatten().tolist() for name, p in model.state_dict().items()}
    try:
        state = torch.load(Path(given["folder"]) / FILE, map_location="cpu")
        file = {str(name): t.flatten().tolist() for name, t in state.items()}
    except Exception:
        file = None
    rank_side.tell(**told, file=file)
