# symptom: no graph
# says: left to Python
import torch
from torch import Tensor

LIMIT = 2.0


@torch.compiler.disable
def clipped(x: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.sin(x) * 3
    norm = y.norm().item()
    if norm > LIMIT:
        y = y * (LIMIT / norm)
    return y, torch.tensor(norm)
