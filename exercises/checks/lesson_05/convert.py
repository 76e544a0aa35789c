"""Lesson 05, exercise 1: a training loop that accumulates and leaves out broken windows, on ranks; and its twin."""

from __future__ import annotations

import gc
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from .. import rank_side
from .cases import KNOWN_MISTAKES, LR, ConvertCase, left_out
from .ranks import flat, samples

SMALL = 64  # bytes of a message that may tell all ranks whether a window is broken


def train(answer: ModuleType, given: list[ConvertCase]) -> None:
    """Trains each case with models that start differently on each rank, and counts what is sent."""
    torch.set_default_dtype(torch.float64)
    function = rank_side.function(answer, "train", "model", "batches", "window", "lr")
    seed = rank_side.secret_seed()
    seen: list[dict[str, Any] | None] = []
    for number, case in enumerate(given):
        with rank_side.world(case[0]) as member:
            seen.append(_train(function, seed, number, case) if member else None)
    rank_side.tell(seed=seed, cases=seen)


def _train(function: Callable[..., Any], seed: int, number: int, case: ConvertCase) -> dict[str, Any]:
    ranks, micro, window, broken = case
    model = new_model(seed + number)
    start, nbytes = flat(model), sum(p.nbytes for p in model.parameters())
    model.eval()  # as somebody left it who tunes a trained model
    rows: list[int] = []
    model.register_forward_pre_hook(lambda _, inputs: rows.append(len(inputs[0])))
    batches = [batch(seed, number, rank_side.RANK, k, broken) for k in range(micro)]
    doing = f"training {micro} micro-batches in windows of {window} on {ranks} ranks"
    weights: list[list[float]] = []
    with rank_side.Collectives() as counted, rank_side.after_each_step(lambda _: weights.append(flat(model))):
        count = function(model, batches, window, LR, doing=doing)
    sent = [nbytes for name, nbytes in counted.calls if name.startswith(("allreduce", "reduce_scatter"))]
    end, mode = flat(model), model.training
    return {
        "left_out": rank_side.whole(count, "`train`"),
        "start": start,
        "weights": weights,
        "end": end,
        "reduces": sum(nbytes > SMALL for nbytes in sent),
        "small": sum(nbytes <= SMALL for nbytes in sent),
        "rows": max(rows, default=0),
        "mode": mode,
        "again": _once_more(function, model, batches, seed, doing) if number == 0 else None,
        "broadcasts": sum(n for name, n in counted.calls if name.startswith("broadcast")) / nbytes,
    }


def _once_more(
    function: Callable[..., Any], model: nn.Module, batches: list[tuple[Tensor, Tensor]], seed: int, doing: str
) -> list[float]:
    """The weights of the same model object after a second training, which starts from other weights on each rank."""
    gc.collect()  # the DDP of the first one would still answer to gradients
    model.load_state_dict(new_model(seed + 500).state_dict())
    function(model, batches, len(batches), LR, doing=f"{doing}, and then the same model once more")
    return flat(model)


def batch(seed: int, number: int, rank: int, k: int, broken: list[list[int]]) -> tuple[Tensor, Tensor]:
    x, y = samples(seed, 1000 * number + k)
    if [rank, k] in broken:
        x[2, 3] = float("nan")
    return x, y


def new_model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))


def twins(load: Callable[[], ModuleType], given: dict[str, Any]) -> None:
    """For each case the weights after each step in one process with the samples of all ranks: as they should be, and
    as known mistakes make them."""
    torch.set_default_dtype(torch.float64)
    cases = [(number, (*case,)) for number, case in enumerate(given["cases"])]
    rank_side.tell(
        cases=[
            {how: _replay(given["seeds"][: case[0]], number, case, how) for how in ("", *KNOWN_MISTAKES)}
            for number, case in cases
        ]
    )


def _replay(seeds: list[int], number: int, case: ConvertCase, how: str) -> list[list[float]]:
    ranks, micro, window, broken = case
    model = new_model(seeds[0] + number)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    found: list[list[float]] = []
    for i, begin in enumerate(range(0, micro, window)):
        part = range(begin, min(begin + window, micro))
        if i in left_out(case):
            continue
        drawn = (batch(seeds[rank], number, rank, k, broken) for k in part for rank in range(ranks))
        x, y = (torch.cat(parts) for parts in zip(*drawn, strict=True))
        if how != "old gradients":
            optimizer.zero_grad()
        factor = {"sum": len(part), "last window": len(part) / window}.get(how, 1.0)
        (cross_entropy(model(x), y) * factor).backward()
        optimizer.step()
        found.append(flat(model))
    return found
