# symptom: norm
# says: the norm before clipping
import torch
from torch import Tensor

LIMIT = 2.0


def clipped(x: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.sin(x) * 3
    y = y * torch.clamp(LIMIT / y.norm(), max=1.0)
    return y, y.norm()
