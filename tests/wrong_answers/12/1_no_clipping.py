# symptom: clipping
# says: is not clipped
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn


class Ported(L.LightningModule):
    """The loop above. `model` is what it trains; the module adds no parameters of its own."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """The loss of a batch of this rank."""
        x, y = batch
        return nn.functional.cross_entropy(self.model(x), y)

    def configure_optimizers(self) -> Any:
        """The optimizer and the schedule, stepped whenever the optimizer is."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=4)
        # "interval": without it the trainer steps the schedule once an epoch
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def trainer_settings() -> dict[str, Any]:
    """Arguments of `L.Trainer` that the loop needs, beside those for devices, length and output."""
    return {"accumulate_grad_batches": 2}
