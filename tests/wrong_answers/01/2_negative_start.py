# symptom: wrong value
# says: means are another than before
import torch
from torch import Tensor


def trailing_means(x: Tensor, sizes: list[int], scale: float | None = None):
    means: list[Tensor] = []
    short = 0
    for size in sizes:
        short += int(size > len(x))
        means.append(x[len(x) - size :].mean())
    result = torch.stack(means)
    if scale is not None:
        result = result * scale
    return result, short
