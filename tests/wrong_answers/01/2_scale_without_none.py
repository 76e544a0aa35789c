# symptom: scale
# says: Expected a default value of type float
import torch
from torch import Tensor


def trailing_means(x: Tensor, sizes: list[int], scale: float = None):
    means: list[Tensor] = []
    short = 0
    for size in sizes:
        short += int(size > len(x))
        means.append(x[max(0, len(x) - size) :].mean())
    result = torch.stack(means)
    if scale is not None:
        result = result * scale
    return result, short
