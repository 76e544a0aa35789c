from typing import List, Optional, Tuple

import torch
from torch import Tensor


def trailing_means(x: Tensor, sizes: List[int], scale: Optional[float] = None) -> Tuple[Tensor, int]:
    means: List[Tensor] = []
    short = 0
    for size in sizes:
        if size > len(x):
            window = x
            short += 1
        else:
            window = x[len(x) - size :]
        means.append(window.mean())
    result = torch.stack(means)
    if scale is None:
        return result, short
    return result * scale, short
