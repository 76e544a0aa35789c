# symptom: hang
# says: never comes
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer


class ShardedOptimizer:
    """An optimizer whose state is divided over the ranks."""

    def __init__(self, params: list[Tensor], make: Callable[[list[Tensor]], Optimizer]):
        """Take over the parameters of a model, which are the same on all ranks.

        params  float64 tensors of any shapes, leaves that require gradients; their number of elements need not divide by the ranks
        make    make([tensor]) gives an ordinary optimizer for one tensor, which it updates by the tensor's .grad

        Calls no collective.
        """
        self.params = params
        rank, n = dist.get_rank(), dist.get_world_size()
        self.size = sum(p.numel() for p in params)
        self.part = -(-self.size // n)  # rounded up
        flat = self.flat([p.detach() for p in params])
        self.shard = flat[rank * self.part : (rank + 1) * self.part].clone().requires_grad_()
        self.optimizer = make([self.shard])

    def step(self) -> None:
        """Update all parameters by the mean over the ranks of their .grad: one reduce-scatter and one all-gather, and no other collective."""
        n = dist.get_world_size()
        mine = torch.empty_like(self.shard)
        dist.reduce_scatter_tensor(mine, self.flat([p.grad for p in self.params]))
        self.shard.grad = mine / n
        self.optimizer.step()
        flat = self.shard.new_empty(n * self.part)
        if dist.get_rank() == 0:
            dist.all_gather_into_tensor(flat, self.shard.detach())
        at = 0
        with torch.no_grad():
            for p in self.params:
                p.copy_(flat[at : at + p.numel()].view_as(p))
                at += p.numel()

    def flat(self, tensors: list[Tensor]) -> Tensor:
        """One after the other, with zeros at the end."""
        padded = tensors[0].new_zeros(self.part * dist.get_world_size())
        padded[: self.size] = torch.cat([t.flatten() for t in tensors])
        return padded
