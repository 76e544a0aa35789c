# symptom: mean of means
# says: in chunks of 3, 3, 3, 1
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy


def replica_loss(logits: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(logits, y)


def total_loss(gathered: Tensor) -> Tensor:
    return gathered.mean()
