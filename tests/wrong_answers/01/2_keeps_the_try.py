# symptom: does not compile
# says: try blocks aren't supported
import torch
from torch import Tensor


def trailing_means(x: Tensor, sizes: list[int], scale: float | None = None) -> tuple[Tensor, int]:
    means: list[Tensor] = []
    short = 0
    for size in sizes:
        try:
            if size > len(x):
                raise ValueError
            window = x[len(x) - size :]
        except ValueError:
            window, short = x, short + 1
        means.append(window.mean())
    result = torch.stack(means)
    return result if scale is None else result * scale, short
