# symptom: wrong value
# says: y of norm 2.0000
import torch
from torch import Tensor

LIMIT = 2.0


def clipped(x: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.sin(x) * 3
    return y.clamp(-LIMIT / 4, LIMIT / 4), y.norm()
