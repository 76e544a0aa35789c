# symptom: not copied
# says: lies in the memory of what was given
import torch
import torch.distributed as dist
from torch import Tensor, nn


class SplitMLP(nn.Module):
    """`down(tanh(up(x)))`, of which this rank holds some hidden units."""

    def __init__(self, up: nn.Linear, down: nn.Linear):
        """Take this rank's part of an MLP that is the same on all ranks.

        up    width to hidden, with bias; the number of ranks divides hidden
        down  hidden to width, with bias

        Rank r of n takes the r-th of n equal parts of the hidden units, in order. Afterwards
        self.up    is an nn.Linear from width to hidden/n, with bias,
        self.down  is an nn.Linear from hidden/n to width, without bias,
        self.bias  is an nn.Parameter, the whole bias of `down`.
        All are copies: what happens to them leaves `up` and `down` alone.
        """
        super().__init__()
        rank, n = dist.get_rank(), dist.get_world_size()
        self.up = nn.Linear(up.in_features, up.out_features // n, dtype=up.weight.dtype)
        self.down = nn.Linear(down.in_features // n, down.out_features, bias=False, dtype=down.weight.dtype)
        self.bias = nn.Parameter(down.bias.data)
        self.up.weight.data = up.weight.data.chunk(n)[rank]
        self.up.bias.data = up.bias.data.chunk(n)[rank]
        self.down.weight.data = down.weight.data.chunk(n, dim=1)[rank]

    def forward(self, x: Tensor) -> Tensor:
        """The whole output, the same on all ranks, for an x that is the same on all ranks.

        Backward leaves in x.grad the gradient of one device, and in each parameter its part of it. One all-reduce each way.
        """
        hidden = torch.tanh(self.up(SumInBackward.apply(x)))
        return SumInForward.apply(self.down(hidden)) + self.bias


class SumInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


class SumInForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, summand):
        total = summand.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, gradient):
        return gradient
