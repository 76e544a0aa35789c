# symptom: token 0
# says: False where the token is 0
import torch
from torch import Tensor


def pad_collate(samples: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor, Tensor]:
    longest = max(len(tokens) for tokens, _ in samples)
    tokens = torch.zeros(len(samples), longest, dtype=torch.int64)
    real = torch.zeros(len(samples), longest, dtype=torch.bool)
    for i, (sample, _) in enumerate(samples):
        tokens[i, : len(sample)] = sample
    real = tokens != 0
    labels = torch.tensor([label for _, label in samples])
    return tokens, real, labels
