import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


def train(model: nn.Module, batches: list[tuple[Tensor, Tensor]], lr: float) -> None:
    """Train `model` in place with AdamW, with one step for each batch (x, y)."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    for x, y in batches:
        optimizer.zero_grad()
        with torch.autocast(x.device.type, torch.bfloat16):
            logits = model(x)
        loss = cross_entropy(logits.float(), y)
        loss.backward()
        optimizer.step()
