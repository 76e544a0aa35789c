# symptom: graph break
# says: It becomes 2 graphs
import torch
from torch import Tensor

LIMIT = 2.0


def clipped(x: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.sin(x) * 3
    norm = y.norm()
    if norm > LIMIT:
        y = y * (LIMIT / norm)
    return y, norm
