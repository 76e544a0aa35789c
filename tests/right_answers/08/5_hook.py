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
            with torch.autocast(x.device.type, dtype=dtype):
                loss = cross_entropy(model(x), y)
            losses.append(loss.item())
            scaler.scale(loss / len(part)).backward()
        scaler.unscale_(optimizer)  # the clip has to see the true gradients
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.5)
        went = []
        handle = optimizer.register_step_post_hook(lambda *_: went.append(True))
        scaler.step(optimizer)
        handle.remove()
        scaler.update()
        if went:
            schedule.step()
    return losses
