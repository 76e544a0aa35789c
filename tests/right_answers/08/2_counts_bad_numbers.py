import torch
from torch import Tensor


class LossScaler:
    def __init__(self, scale: float = 2.0**16, growth: float = 2.0, backoff: float = 0.5, interval: int = 2000):
        self.scale, self.factors, self.interval = torch.tensor(scale), (growth, backoff), interval
        self.count = 0

    def multiply(self, loss: Tensor) -> Tensor:
        return self.scale * loss

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        bad = torch.zeros(())
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.mul_(1 / self.scale)
                    bad += (~torch.isfinite(p.grad)).sum()
        went = bad.item() == 0
        if went:
            optimizer.step()
        self.count = self.count + 1 if went else 0
        if not went:
            self.scale = self.scale * self.factors[1]
        elif self.count >= self.interval:
            self.scale, self.count = self.scale * self.factors[0], 0
        return went
