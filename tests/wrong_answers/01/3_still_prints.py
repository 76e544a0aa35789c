# symptom: graph break
# says: one graph, no break
import torch
from torch import Tensor

LIMIT = 2.0


def clipped(x: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.sin(x) * 3
    norm = y.norm()
    print("norm", norm)
    return y * torch.clamp(LIMIT / norm, max=1.0), norm
