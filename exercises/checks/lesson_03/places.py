"""A DataParallel of several places on the CPU, one replica after the other, whose copies are counted."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Move(torch.autograd.Function):
    """A tensor goes from one place to another, and its gradient goes back; `log` gets (from, to, bytes)."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, log: list[tuple[int, int, int]], start: int, end: int) -> Tensor:
        ctx.log, ctx.back = log, (end, start)
        return _sent(tensor, log, start, end)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return _sent(gradients[0], ctx.log, *ctx.back), None, None, None


def _sent(tensor: Tensor, log: list[tuple[int, int, int]], start: int, end: int) -> Tensor:
    if start == end:
        return tensor.view_as(tensor)
    log.append((start, end, tensor.nbytes))
    return tensor.clone()


def replicas_of(module: nn.Module, n: int, log: list[tuple[int, int, int]]) -> list[nn.Module]:
    made = []
    for k in range(n):
        weights: dict[Any, Any] = {p: Move.apply(p, log, 0, k) for p in module.parameters()}
        buffers = {b: _sent(b, log, 0, k) for b in module.buffers()}
        twins = {m: object.__new__(type(m)) for m in module.modules()}
        for m, twin in twins.items():
            twin.__dict__.update(m.__dict__)
            twin.__dict__["_parameters"] = {}
            twin.__dict__["_buffers"] = {name: None if b is None else buffers[b] for name, b in m._buffers.items()}
            twin.__dict__["_modules"] = {
                name: None if child is None else twins[child] for name, child in m._modules.items()
            }
            twin.__dict__.update({name: None if p is None else weights[p] for name, p in m._parameters.items()})
        made.append(twins[module])
    return made


def split(module: nn.Module, n: int, log: list[tuple[int, int, int]], *args: Tensor, doing: str = "") -> Tensor:
    """The module on n places: scattered, replicated, applied, gathered. Scalars are gathered as a vector."""
    inputs = list(zip(*([Move.apply(c, log, 0, k) for k, c in enumerate(a.chunk(n))] for a in args), strict=True))
    outputs = [replica(*part) for replica, part in zip(replicas_of(module, len(inputs), log), inputs, strict=True)]
    moved: list[Any] = [Move.apply(y, log, k, 0) for k, y in enumerate(outputs)]
    return torch.cat(moved) if moved[0].ndim else torch.stack(moved)
