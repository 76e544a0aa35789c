# symptom: no back-off
# says: the scale is not multiplied by 0.25
import torch
from torch import Tensor


class LossScaler:
    """Multiplies the loss, divides the gradients, skips steps with gradients that are not finite, and looks after the scale.

    scale     to begin with; later the scale of the next loss
    growth    the scale is multiplied by it after `interval` good steps in a row; then the next `interval` are counted
    backoff   the scale is multiplied by it after a skipped step
    """

    def __init__(self, scale: float = 2.0**16, growth: float = 2.0, backoff: float = 0.5, interval: int = 2000):
        self.scale, self.growth, self.backoff, self.interval = scale, growth, backoff, interval
        self.good = 0

    def multiply(self, loss: Tensor) -> Tensor:
        """The loss times the scale, for backward."""
        return loss * self.scale

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """After backward: divide the gradients by the scale, let the optimizer step where all are finite, change the scale.

        Parameters that took no part have no gradient. Returns whether the optimizer took a step.
        """
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        finite = all(bool(g.isfinite().all()) for g in gradients)
        if not finite:
            self.scale = max(self.scale * self.backoff, 1.0)
            self.good = 0
            return False
        for g in gradients:
            g /= self.scale
        optimizer.step()
        self.good += 1
        if self.good == self.interval:
            self.scale *= self.growth
            self.good = 0
        return True
