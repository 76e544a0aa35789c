# symptom: type
# says: it must return two tensors
import torch
from torch import Tensor

LIMIT = 2.0


def clipped(x: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.sin(x) * 3
    return y * torch.clamp(LIMIT / y.norm(), max=1.0)
