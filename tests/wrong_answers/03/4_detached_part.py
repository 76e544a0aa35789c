# symptom: gradient
# says: its gradient is not
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy


def replica_loss(logits: Tensor, y: Tensor) -> Tensor:
    total = cross_entropy(logits, y, reduction="sum")
    return torch.stack([total, (y != -100).sum().to(total.dtype)])[None]


def total_loss(gathered: Tensor) -> Tensor:
    total, count = gathered.sum(0)
    return (total / count).detach() + total - total.detach()
