# symptom: labels
# says: in their order
import torch
from torch import Tensor


def pad_collate(samples: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor, Tensor]:
    samples = sorted(samples, key=lambda sample: -len(sample[0]))
    longest = max(len(tokens) for tokens, _ in samples)
    tokens = torch.zeros(len(samples), longest, dtype=torch.int64)
    real = torch.zeros(len(samples), longest, dtype=torch.bool)
    for i, (sample, _) in enumerate(samples):
        tokens[i, : len(sample)] = sample
        real[i, : len(sample)] = True
    labels = torch.tensor([label for _, label in samples])
    return tokens, real, labels
