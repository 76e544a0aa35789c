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
    window: int,
    dtype: torch.dtype,
) -> list[float]:
    """Train `model` in place, with one step for every `window` micro-batches and one for what is left at the end.

    scaler    switched on for torch.float16, and off (`enabled=False`) for torch.bfloat16
    batches   micro-batches (x, y), all of one size
    dtype     of the products: torch.float16 or torch.bfloat16

    Returns the loss of each micro-batch.
    """
    losses = []
    for start in range(0, len(batches), window):
        part = batches[start : start + window]
        optimizer.zero_grad()
        for x, y in part:
            with torch.autocast("cpu", dtype):
                logits = model(x)
            loss = cross_entropy(logits.float(), y)
            losses.append(loss.detach())
            scaler.scale(loss / len(part)).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.5)
        scaler.step(optimizer)
        scaler.update()
        if norm.isfinite():
            schedule.step()
    return losses
