import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LRScheduler


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: LRScheduler,
    scaler: torch.amp.GradScaler,
    batches: list[tuple[Tensor, Tensor]],
) -> None:
    """Train `model` in place, with at most one step for each batch. `schedule` moves once for each step that was taken."""
    for x, y in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        good = all(p.grad.isfinite().all() for p in model.parameters())
        scaler.step(optimizer)
        scaler.update()
        if good:
            schedule.step()
