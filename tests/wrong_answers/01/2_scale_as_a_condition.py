# symptom: zero
# says: Optional[float] to bool
import torch
from torch import Tensor


def trailing_means(x: Tensor, sizes: list[int], scale: float | None = None) -> tuple[Tensor, int]:
    means: list[Tensor] = []
    short = 0
    for size in sizes:
        if size > len(x):
            short += 1
        means.append(x[max(0, len(x) - size) :].mean())
    result = torch.stack(means)
    if scale:
        result = result * scale
    return result, short
