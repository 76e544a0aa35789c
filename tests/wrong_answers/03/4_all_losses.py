# symptom: too much
# says: return too much
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy


def replica_loss(logits: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(logits, y, reduction="none")


def total_loss(gathered: Tensor) -> Tensor:
    return gathered.sum() / (gathered != 0).sum()
