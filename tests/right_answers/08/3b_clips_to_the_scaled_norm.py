import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    batches: list[tuple[Tensor, Tensor]],
) -> list[float]:
    """Train `model` in place, with one step for each batch. Returns the norm of each batch's gradient, before the clip."""
    norms = []
    for x, y in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.5 * scaler.get_scale())
        norms.append(norm.item() / scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()
    return norms
