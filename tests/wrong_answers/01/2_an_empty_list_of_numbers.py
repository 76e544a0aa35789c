# symptom: untyped
# says: torch.jit.script does not take it
import torch
from torch import Tensor


def trailing_means(x: Tensor, sizes: list[int], scale: float | None = None):
    means: list[Tensor] = []
    too_long = []
    short = 0
    for size in sizes:
        if size > len(x):
            too_long.append(size)
        means.append(x[max(0, len(x) - size) :].mean())
    result = torch.stack(means)
    if scale is not None:
        result = result * scale
    return result, len(too_long)
