# symptom: shape
# says: [3, 1]
import torch
from torch import Tensor


def pad_collate(samples: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor, Tensor]:
    longest = min(len(tokens) for tokens, _ in samples)
    tokens = torch.zeros(len(samples), longest, dtype=torch.int64)
    real = torch.zeros(len(samples), longest, dtype=torch.bool)
    for i, (sample, _) in enumerate(samples):
        tokens[i, : len(sample)] = sample[:longest]
        real[i, : len(sample)] = True
    labels = torch.tensor([label for _, label in samples])
    return tokens, real, labels
