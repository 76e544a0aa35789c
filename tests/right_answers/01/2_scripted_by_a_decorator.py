import torch
from torch import Tensor


@torch.jit.script
def trailing_means(x: Tensor, sizes: list[int], scale: float | None = None) -> tuple[Tensor, int]:
    sums = torch.cat([torch.zeros(1), x.flip(0).cumsum(0)])
    lengths = [min(size, x.size(0)) for size in sizes]
    result = sums[torch.tensor(lengths)] / torch.tensor(lengths)
    short = 0
    for size in sizes:
        short += int(size > x.size(0))
    if scale is not None:
        result = result * scale
    return result, short
