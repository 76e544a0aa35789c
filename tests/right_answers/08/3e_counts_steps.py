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
    taken = []
    handle = optimizer.register_step_post_hook(lambda *_: taken.append(1))
    for x, y in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if taken:
            schedule.step()
            taken.clear()
    handle.remove()
