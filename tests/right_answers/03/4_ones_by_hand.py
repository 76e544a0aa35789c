import torch
from torch import Tensor


def replica_loss(logits: Tensor, y: Tensor) -> Tensor:
    counts = y != -100
    chosen = logits.log_softmax(1)[counts, y[counts]]
    return torch.cat([-chosen.sum().reshape(1), counts.sum().reshape(1).to(logits.dtype)]).reshape(1, 2)


def total_loss(gathered: Tensor) -> Tensor:
    return gathered[:, 0].sum() / gathered[:, 1].sum()
