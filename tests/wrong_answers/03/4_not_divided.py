# symptom: not divided
# says: as many times too large as there are samples
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy


def replica_loss(logits: Tensor, y: Tensor) -> Tensor:
    total = cross_entropy(logits, y, reduction="sum")
    return torch.stack([total, (y != -100).sum().to(total.dtype)])[None]


def total_loss(gathered: Tensor) -> Tensor:
    total, count = gathered.sum(0)
    return total
