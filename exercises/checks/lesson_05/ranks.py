"""Lesson 05 on the ranks: each task runs the student's code, and tells what it computed, sent and waited for."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from .. import rank_side
from .cases import SAMPLES, SumCase

EDGE = 16  # numbers on each side of a tensor that aren't the answer's business


def samples(seed: int, number: int) -> tuple[Tensor, Tensor]:
    """A micro-batch of the rank whose seed this is."""
    random = torch.Generator().manual_seed(seed + number)
    return torch.randn(SAMPLES, 8, generator=random), torch.randint(0, 3, (SAMPLES,), generator=random)


def flat(model: nn.Module) -> list[float]:
    values: list[float] = torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()
    return values


# --- 05.4: a sum in few messages --------------------------------------------------------------------------------------


def few_messages(answer: ModuleType, given: list[SumCase]) -> None:
    """Gives each rank numbers that it draws by itself, counts messages, and tells what the tensors held before and
    after."""
    function = rank_side.function(answer, "all_reduce", "tensor", changes=("tensor",))
    seen: list[dict[str, Any] | None] = [None] * len(given)
    for size in sorted({ranks for ranks, _, _ in given}):
        with rank_side.world(size) as member:
            for i, (ranks, shape, dtype) in enumerate(given):
                if member and ranks == size:
                    seen[i] = _sum_case(function, ranks, tuple(shape), getattr(torch, dtype))
    rank_side.tell(cases=seen)


def _sum_case(function: Callable[..., Any], ranks: int, shape: tuple[int, ...], dtype: torch.dtype) -> dict[str, Any]:
    mine, memory = _inside(_numbers(shape, dtype))
    before = _told(mine)
    edges = memory[:EDGE].tolist() + memory[-EDGE:].tolist()
    with rank_side.Collectives() as counted:
        doing = f"adding up a tensor of shape {shape} on {ranks} rank{'s' * (ranks > 1)}"
        function(mine, doing=doing)
    sent = [nbytes for name, nbytes in counted.calls if name == "send"]
    after = _told(memory[EDGE:-EDGE].view(shape))  # where it lay, whatever the object shows now
    again = mine.clone()
    function(again, doing=f"{doing}, for the second time")
    return {
        "before": before,
        "after": after,
        "beside": memory[:EDGE].tolist() + memory[-EDGE:].tolist() == edges,
        "again": _told(again),
        "sent": len(sent),
        "numbers": sum(sent) // mine.element_size(),
        "others": sorted({name for name, _ in counted.calls} - {"send", "recv", "recv_any_source"}),
    }


def _inside(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """The same numbers as a part of a larger tensor, and that."""
    memory = torch.cat([tensor.new_full((EDGE,), 7), tensor.flatten(), tensor.new_full((EDGE,), 7)])
    return memory[EDGE:-EDGE].view(tensor.shape), memory


def _numbers(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Numbers that a shorter type can't hold; whole ones in float32, so that their sum isn't rounded."""
    random = torch.Generator().manual_seed(rank_side.secret_seed())
    if dtype == torch.float64:
        return torch.randn(shape, generator=random, dtype=dtype) * 1000
    most = {torch.int64: 2**60, torch.int32: 2**28}.get(dtype, 1000)
    return torch.randint(-most, most, shape, generator=random).to(dtype)


def _told(tensor: Tensor) -> dict[str, Any]:
    return {
        "values": tensor.flatten().tolist(),
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype).removeprefix("torch."),
    }
