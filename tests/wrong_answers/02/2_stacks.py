# symptom: raised RuntimeError
# says: equal size
import torch
from torch import Tensor


def pad_collate(samples: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor, Tensor]:
    tokens = torch.stack([sample for sample, _ in samples])
    return tokens, torch.ones_like(tokens, dtype=torch.bool), torch.tensor([label for _, label in samples])
