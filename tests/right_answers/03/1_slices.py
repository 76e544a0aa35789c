import math
from typing import Any

import torch


def visit(value: Any, function: Any) -> Any:
    if isinstance(value, dict):
        return {k: visit(v, function) for k, v in value.items()}
    if isinstance(value, list):
        return [visit(v, function) for v in value]
    if isinstance(value, tuple):
        return tuple(visit(v, function) for v in value)
    return function(value)


def scatter(value: Any, n: int) -> list[Any]:
    lengths = set()
    visit(value, lambda v: lengths.add(v.size(0)) if isinstance(v, torch.Tensor) else None)
    if not lengths:
        return [value for _ in range(n)]
    (rows,) = lengths  # more than one raises ValueError
    step = math.ceil(rows / n)
    return [visit(value, lambda v, a=a: v[a : a + step] if isinstance(v, torch.Tensor) else v) for a in range(0, rows, step)]


def gather(outputs: list[Any]) -> Any:
    first = outputs[0]
    if isinstance(first, dict):
        return {k: gather([o[k] for o in outputs]) for k in first}
    if isinstance(first, list):
        return [gather(list(parts)) for parts in zip(*outputs)]
    if isinstance(first, tuple):
        return tuple(gather(list(parts)) for parts in zip(*outputs))
    return torch.cat([o.reshape(1) if o.ndim == 0 else o for o in outputs])
