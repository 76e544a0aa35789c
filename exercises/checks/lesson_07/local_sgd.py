"""Lesson 07, exercise 1: a training loop that meets after some steps, on ranks; and its twin in one process."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.optimizer import register_optimizer_step_post_hook

from .. import rank_side
from ..rank_side import RANK
from .cases import CLASSES, FEATURES, LR, MOMENTUM, SAMPLES, SGD_MISTAKES, SgdCase


def new_model(seed: int, rank: int) -> nn.Module:
    """Starts from other weights on every rank."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed + rank)
        return nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, CLASSES)).double()


def new_batches(seed: int, rank: int, steps: int) -> list[tuple[Tensor, Tensor]]:
    drawn = torch.Generator().manual_seed(seed + 50 + rank)
    return [
        (
            torch.randn(SAMPLES, FEATURES, generator=drawn, dtype=torch.float64),
            torch.randint(0, CLASSES, (SAMPLES,), generator=drawn),
        )
        for _ in range(steps)
    ]


def flat(model: nn.Module) -> list[float]:
    values: list[float] = torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()
    return values


@contextmanager
def _moments(model: nn.Module, note: Callable[[str], None]) -> Iterator[None]:
    """Notes each forward of `model` before it begins, and each step of SGD when it's done."""
    handles = [
        model.register_forward_pre_hook(lambda *_: note("forward")),
        register_optimizer_step_post_hook(
            lambda optimizer, *_: note("step") if isinstance(optimizer, torch.optim.SGD) else None
        ),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def train(answer: ModuleType, given: dict[str, Any]) -> None:
    """Trains each case, and tells the weights and what had been sent, before each forward and after each step."""
    function = rank_side.function(answer, "train", "model", "batches", "every", "lr")
    seen: list[dict[str, Any] | None] = []
    for number, case in enumerate(given["cases"]):
        with rank_side.world(case[0]) as member:
            seen.append(_train(function, given["seed"] + 100 * number, case) if member else None)
    rank_side.tell(cases=seen)


def _train(function: Callable[..., Any], seed: int, case: SgdCase) -> dict[str, Any]:
    ranks, steps, every = case
    model = new_model(seed, RANK)
    start = flat(model)
    moments: list[tuple[str, list[float], int]] = []
    with rank_side.Collectives() as counted:

        def note(what: str) -> None:
            moments.append((what, flat(model), sum(nbytes for _, nbytes in counted.calls)))

        with _moments(model, note):
            doing = f"training {steps} steps on {ranks} ranks, with every={every}"
            function(model, new_batches(seed, RANK, steps), every, LR, doing=doing)
            note("end")
    if not dist.is_initialized():
        rank_side.problem(
            "`train` ends the process group. It was there before, and belongs to the caller.", "group ended"
        )
    told: dict[str, Any] = {"start": start}
    for what in ("forward", "step", "end"):
        found = [(weights, sent) for name, weights, sent in moments if name == what]
        told[what] = [weights for weights, _ in found]
        told[f"sent by {what}"] = [sent for _, sent in found]
    return told


# --- the twin ---------------------------------------------------------------------------------------------------------


def twins(load: Callable[[], ModuleType], given: dict[str, Any]) -> None:
    """For each case what comes out in one process, as it should be and as known mistakes make it. It never loads the
    answer."""
    rank_side.tell(
        cases=[
            {how: _replay(given["seed"] + 100 * number, (*case,), how) for how in ("", *SGD_MISTAKES)}
            for number, case in enumerate(given["cases"])
        ]
    )


def _replay(seed: int, case: SgdCase, how: str) -> list[list[list[float]]]:
    """Of each rank the weights before each forward, and those at the end."""
    ranks, steps, every = case
    first = new_model(seed, 0)
    models = [copy.deepcopy(first) for _ in range(ranks)]
    momentum = 0.0 if how == "no momentum" else MOMENTUM
    optimizers = [torch.optim.SGD(model.parameters(), lr=LR, momentum=momentum) for model in models]
    batches = [new_batches(seed, rank, steps) for rank in range(ranks)]
    told: list[list[list[float]]] = [[flat(model)] for model in models]
    for step in range(steps):
        for model, optimizer, own in zip(models, optimizers, batches, strict=True):
            x, y = own[step]
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
        if (step + 1) % every == 0 or step + 1 == steps:
            average([list(model.parameters()) for model in models])
            if how == "averaged":
                average([[s["momentum_buffer"] for s in optimizer.state.values()] for optimizer in optimizers])
            if how == "forgotten":
                for optimizer in optimizers:
                    optimizer.state.clear()
        for rank, model in enumerate(models):
            told[rank].append(flat(model))
    return told


@torch.no_grad()
def average(tensors: list[list[Tensor]]) -> None:
    for same in zip(*tensors, strict=True):
        mean = torch.stack(list(same)).mean(0)
        for tensor in same:
            tensor.copy_(mean)
