# symptom: no gradient
# says: has no gradient
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy


def replica_loss(logits: Tensor, y: Tensor) -> Tensor:
    total = cross_entropy(logits, y, reduction="sum")
    return torch.tensor([[total.item(), (y != -100).sum().item()]], dtype=logits.dtype)


def total_loss(gathered: Tensor) -> Tensor:
    total, count = gathered.sum(0)
    return total / count
