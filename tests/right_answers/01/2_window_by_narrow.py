import torch
from torch import Tensor


def trailing_means(x: Tensor, sizes: list[int], scale: float | None = None) -> tuple[Tensor, int]:
    result = torch.zeros(len(sizes), dtype=x.dtype)
    short = 0
    for i, size in enumerate(sizes):
        if size > x.numel():
            short += 1
            size = x.numel()
        result[i] = x.narrow(0, x.numel() - size, size).sum() / size
    if scale is not None:
        result *= scale
    return result, short
