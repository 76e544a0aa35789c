# symptom: types
# says: but instead found type 'list'
import torch
from torch import Tensor


def trailing_means(x, sizes, scale=None):
    means = []
    short = 0
    for size in sizes:
        short += int(size > len(x))
        means.append(x[max(0, len(x) - size) :].mean())
    result = torch.stack(means)
    if scale is not None:
        result = result * scale
    return result, short
