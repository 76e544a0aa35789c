import torch
from torch import Tensor, nn


@torch.no_grad()
def accuracy(model: nn.Module, samples: list[tuple[Tensor, Tensor]]) -> float:
    """The share of samples whose class the model finds. They come one by one: x of shape (1, 8), y of shape (1,)."""
    right, seen = torch.zeros(2, dtype=torch.float64)
    for x, y in samples:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(x)
        right += (logits.argmax(-1) == y).sum()
        seen += len(y)
    return (right / seen).item()
