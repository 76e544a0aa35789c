# symptom: sum of means
# says: as many times too large as there are replicas
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy


def replica_loss(logits: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(logits, y)


def total_loss(gathered: Tensor) -> Tensor:
    return gathered.sum()
