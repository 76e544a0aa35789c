import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[tuple[Tensor, Tensor]], epochs: int
) -> list[float]:
    """Train `model` in place, with one step for each batch (x, y). Returns the loss of each batch."""
    losses = []
    for _epoch in range(epochs):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for x, y in batches:
                optimizer.zero_grad()
                loss = cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                torch.clear_autocast_cache()
                losses.append(loss.item())
    return losses
