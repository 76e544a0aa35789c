"""Lesson 10: what one process computes. A launch of its own, so that an answer can't look up what comes out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from .. import rank_side
from .cases import STEPS
from .ranks import gradients_of, listed, mlp, ordinary, start_of, train

# --- 10.1 -------------------------------------------------------------------------------------------------------------


def optimizer(load: Callable[[], ModuleType], given: list[dict[str, Any]]) -> None:
    """The parameters after each step of one process: as they should be, and as known mistakes make them. Each model
    also has the seeds of the ranks' gradients."""
    rank_side.tell(cases=[[_steps(model) for model in case["models"]] for case in given])


def _steps(model: dict[str, Any]) -> dict[str, Any]:
    flat = torch.cat([t.flatten() for t in start_of(model)])
    ranks = len(model["seeds"])
    gradients = torch.stack([gradients_of(seed, len(flat)) for seed in model["seeds"]], 1)
    part = -(-len(flat) // ranks)

    def after(of_step: Callable[[int], Tensor], forget: bool = False) -> list[list[float]]:
        whole, found = flat.clone().requires_grad_(), []
        one = ordinary(model["kind"], [whole])
        for step in range(STEPS):
            one = ordinary(model["kind"], [whole]) if forget else one
            whole.grad = of_step(step)
            one.step()
            found.append(whole.tolist())
        return found

    def of_rank(rank: int, step: int) -> Tensor:
        return gradients[step, rank]

    def of_owners(step: int) -> Tensor:
        """Each slice by the gradients of the rank that owns it."""
        return torch.cat([gradients[step, r, part * r : part * (r + 1)] for r in range(ranks)])

    return {
        "right": after(lambda s: gradients[s].mean(0)),
        "sum": after(lambda s: gradients[s].sum(0)),
        "alone": [after(partial(of_rank, r)) for r in range(ranks)],
        "owners": after(of_owners),
        "forgets": after(lambda s: gradients[s].mean(0), forget=True),
        "start": [flat.tolist()] * STEPS,
    }


# --- 10.3 -------------------------------------------------------------------------------------------------------------


def split(load: Callable[[], ModuleType], given: list[dict[str, Any]]) -> None:
    """What one device computes, and the part of it that each rank should have. Each case also has the seeds of the
    ranks' training."""
    cases = []
    for case in given:
        ranks = case["ranks"]
        up, down, x, weight = mlp(case)
        found: list[list[dict[str, Any]]] = [[] for _ in range(ranks)]
        slices = [{n: t.tolist() for n, t in _parts(up, down, ranks, rank, False).items()} for rank in range(ranks)]
        for i, each in enumerate(x):
            if i == 2:
                for rank, seed in enumerate(case["seeds"]):
                    train(list(_parts(up, down, ranks, rank, False).values())[:3], seed)
            each = each.clone().requires_grad_()
            for p in (up.weight, up.bias, down.weight, down.bias):
                p.grad = None
            output = down(torch.tanh(up(each)))
            (output * weight[i]).sum().backward()
            for rank in range(ranks):
                found[rank].append(
                    {"the output": output.tolist(), "the gradient of x": listed(each.grad)}
                    | {f"the gradient of {n}": t.tolist() for n, t in _parts(up, down, ranks, rank, True).items()}
                )
        cases.append({"found": found, "slices": slices, "bias": down.bias.tolist()})
    rank_side.tell(cases=cases)


def _parts(up: nn.Linear, down: nn.Linear, ranks: int, rank: int, grad: bool) -> dict[str, Tensor]:
    """The parameters that a rank should have, or their gradients."""
    u, b, d, whole = ((p.grad if grad else p).detach() for p in (up.weight, up.bias, down.weight, down.bias))
    return {
        "up.weight": u.chunk(ranks)[rank],
        "up.bias": b.chunk(ranks)[rank],
        "down.weight": d.chunk(ranks, 1)[rank],
        "bias": whole,
    }
