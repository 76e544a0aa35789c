from typing import Any

import torch


def rows_of(value: Any) -> list[int]:
    if isinstance(value, torch.Tensor):
        return [value.shape[0]]
    if isinstance(value, dict):
        value = list(value.values())
    return [r for part in value for r in rows_of(part)] if isinstance(value, (list, tuple)) else []


def scatter(value: Any, n: int) -> list[Any]:
    if len(set(rows_of(value))) > 1:
        raise ValueError("the tensors differ in their number of rows")
    if isinstance(value, torch.Tensor):
        return list(value.chunk(n))
    if value in ([], (), {}):  # zip would give nothing of it
        return n * [value]
    if isinstance(value, dict):
        return [dict(zip(value, parts)) for parts in zip(*(scatter(v, n) for v in value.values()))]
    if isinstance(value, (list, tuple)):
        return [type(value)(parts) for parts in zip(*(scatter(v, n) for v in value))]
    return [value] * n


def gather(outputs: list[Any]) -> Any:
    first = outputs[0]
    if isinstance(first, torch.Tensor):
        return torch.cat(outputs) if first.ndim else torch.stack(outputs)
    if isinstance(first, dict):
        return {k: gather([o[k] for o in outputs]) for k in first}
    return type(first)(map(gather, zip(*outputs, strict=True)))
