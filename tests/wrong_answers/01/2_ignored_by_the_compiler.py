# symptom: python
# says: calls back into Python
import torch
from torch import Tensor


@torch.jit.ignore
def means_in_python(x: Tensor, sizes: list[int]) -> list[float]:
    return [float(x[max(0, len(x) - size) :].mean()) for size in sizes]


def trailing_means(x: Tensor, sizes: list[int], scale: float | None = None) -> tuple[Tensor, int]:
    result = torch.tensor(means_in_python(x, sizes))
    short = 0
    for size in sizes:
        short += int(size > len(x))
    if scale is not None:
        result = result * scale
    return result, short
