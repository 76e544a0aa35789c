# symptom: small
# says: whose norm is at most LIMIT is changed
import torch
from torch import Tensor

LIMIT = 2.0


def clipped(x: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.sin(x) * 3
    norm = y.norm()
    return y * (LIMIT / (norm + 1e-12)), norm
