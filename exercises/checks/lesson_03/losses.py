"""Lesson 03, exercise 4, on the ranks: the replicas in one launch, each with its own chunks, and `total_loss` in
another, with nothing but the numbers that they returned."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from .. import rank_side

Chunk = tuple[list[list[float]], list[int]]  # x and labels


def replicas(load: Any, given: dict[str, Any]) -> None:
    """Calls `replica_loss` on this rank's chunks of every batch, and tells what it returned."""
    mine = rank_side.take(given["dealt"])
    replica_loss = rank_side.function(load(), "replica_loss", "logits", "y", "weight")
    rank_side.tell(results=[[_result(replica_loss, batch, chunk) for chunk in chunks] for batch, chunks in mine])


def _result(replica_loss: Any, batch: dict[str, Any], chunk: Chunk) -> dict[str, Any]:
    parameters, result = _called(replica_loss, batch, chunk)
    numbers = list(result.detach().double().flatten().tolist())
    told = {"numbers": numbers, "shape": list(result.shape), "dtype": str(result.dtype).removeprefix("torch.")}
    if not result.requires_grad:
        return told
    # Of many numbers the judge needs no gradients: they are too many.
    each = [_gradient(number, parameters) for number in result.flatten()] if len(numbers) <= 4 else []
    return told | {"gradients": each}


def _called(replica_loss: Any, batch: dict[str, Any], chunk: Chunk) -> tuple[Tensor, Tensor]:
    """The parameters [classes, width + 1], and what the function returns for their logits."""
    x, y = torch.tensor(chunk[0], dtype=torch.float64), torch.tensor(chunk[1])
    parameters = torch.tensor(batch["parameters"], dtype=torch.float64, requires_grad=True)
    logits = x @ parameters[:, :-1].T + parameters[:, -1]
    weight = torch.tensor(batch["weight"], dtype=torch.float64)
    result = replica_loss(logits, y, weight, doing=f"`replica_loss` on a chunk of {len(y)} samples")
    if not isinstance(result, Tensor):
        rank_side.problem(f"`replica_loss` returned a {type(result).__name__}; a replica hands back a tensor.", "type")
    return parameters, result


def _gradient(number: Tensor, at: Tensor) -> list[float]:
    (found,) = torch.autograd.grad(number, at, retain_graph=True, allow_unused=True)
    return (torch.zeros_like(at) if found is None else found).flatten().tolist()


def totals(answer: ModuleType, given: dict[str, Any]) -> None:
    """Calls `total_loss` on what the replicas of each batch returned elsewhere. Here they have run on other batches, of
    the same sizes: what the answer has kept of those is of no use."""
    replica_loss = rank_side.function(answer, "replica_loss", "logits", "y", "weight")
    total_loss = rank_side.function(answer, "total_loss", "gathered")
    for batch, chunks in given["others"]:
        for chunk in chunks:
            _called(replica_loss, batch, chunk)
    rank_side.tell(totals=[_total(total_loss, results) for results in given["results"]])


def _total(total_loss: Any, results: list[dict[str, Any]]) -> dict[str, Any]:
    parts = []
    for result in results:
        part = torch.tensor(result["numbers"], dtype=getattr(torch, result["dtype"])).reshape(result["shape"])
        parts.append(part.requires_grad_("gradients" in result))
    doing = f"`total_loss` of what {len(parts)} replicas returned"
    try:
        gathered = torch.cat(parts) if parts[0].ndim else torch.stack(parts)
    except RuntimeError as error:
        rank_side.problem(f"What the replicas returned cannot be gathered: {error}.", "type")
    loss = total_loss(gathered, doing=doing)
    if not isinstance(loss, Tensor) or loss.ndim:
        got = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        rank_side.problem(
            f"`total_loss` returned {got}; it must return a tensor with one number and no dimensions.", "type"
        )
    told = {"loss": loss.item(), "dtype": str(loss.dtype).removeprefix("torch."), "gradient": loss.requires_grad}
    leaves = [part for part in parts if part.requires_grad]
    return told | {"of_parts": [_gradient(loss, part) for part in leaves] if loss.requires_grad else []}
