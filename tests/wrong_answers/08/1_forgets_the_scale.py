# symptom: no scale
# says: scale changes nothing
import math

import torch
from torch import Tensor


def underflow(gradients: list[Tensor], scale: float) -> tuple[float, float]:
    """What fp16 makes of the gradients when the loss is multiplied by `scale`: (share that becomes zero, share that becomes infinite).

    gradients  float32 tensors of different sizes, which stay as they are

    Both are shares of all numbers of all tensors together that are not zero in float32, from 0 to 1.
    """
    g = torch.cat([gradient.flatten() for gradient in gradients])
    half = (g[g != 0]).half()
    return (half == 0).float().mean().item(), half.isinf().float().mean().item()


def largest_scale(gradients: list[Tensor]) -> float:
    """The largest power of two with which no gradient becomes infinite in fp16. It may be below 1. At least one gradient is not zero."""
    largest = max(gradient.abs().max().item() for gradient in gradients)
    return 2.0 ** math.floor(math.log2(torch.finfo(torch.float16).max / largest))
