# symptom: graph break
# says: line 12 of the cell
import torch
from torch import Tensor

LIMIT = 2.0


def clipped(x: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.sin(x) * 3
    norm = y.norm().item()
    y = y * min(1.0, LIMIT / max(norm, 1e-12))
    return y, torch.tensor(norm)
