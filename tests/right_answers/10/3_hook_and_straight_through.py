import torch
import torch.distributed as dist
from torch import Tensor, nn


class Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.contiguous().clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g


class SplitMLP(nn.Module):
    def __init__(self, up: nn.Linear, down: nn.Linear):
        super().__init__()
        n, rank = dist.get_world_size(), dist.get_rank()
        h = up.out_features // n
        units = slice(rank * h, rank * h + h)
        self.up, self.down = nn.Linear(up.in_features, h), nn.Linear(h, down.out_features, bias=False)
        self.up.weight = nn.Parameter(up.weight.data[units].clone())
        self.up.bias = nn.Parameter(up.bias.data[units].clone())
        self.down.weight = nn.Parameter(down.weight.data[:, units].clone())
        self.bias = nn.Parameter(down.bias.data.clone())

    def forward(self, x: Tensor) -> Tensor:
        x = x.view_as(x)
        if x.requires_grad:

            def summed(g: Tensor) -> Tensor:
                g = g.clone()
                dist.all_reduce(g)
                return g

            x.register_hook(summed)
        return torch.add(Reduce.apply(self.down(torch.tanh(self.up(x)))), self.bias)
