from typing import Any

import lightning as L
import torch
from torch import Tensor, nn


class Ported(L.LightningModule):
    """Manual optimization: the loop as it was, in `training_step`."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model
        self.automatic_optimization = False

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        optimizer, schedule = self.optimizers(), self.lr_schedulers()
        loss = nn.functional.cross_entropy(self.model(x), y)
        self.manual_backward(loss / 2)
        if batch_idx % 2 == 1:
            self.clip_gradients(optimizer, gradient_clip_val=0.5, gradient_clip_algorithm="norm")
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=4)]


def trainer_settings() -> dict[str, Any]:
    return {}
