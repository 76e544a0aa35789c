import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters


class ShardedOptimizer:
    def __init__(self, params, make):
        self.params, self.rank, self.n = list(params), dist.get_rank(), dist.get_world_size()
        vector = parameters_to_vector(self.params).detach()
        self.missing = -len(vector) % self.n
        self.mine = torch.nn.functional.pad(vector, (0, self.missing)).chunk(self.n)[self.rank].clone()
        self.mine = torch.nn.Parameter(self.mine)
        self.inner = make([self.mine])

    @torch.no_grad()
    def step(self):
        gradient = torch.nn.functional.pad(torch.cat([p.grad.reshape(-1) for p in self.params]) / self.n, (0, self.missing))
        self.mine.grad = torch.zeros_like(self.mine)
        dist.reduce_scatter(self.mine.grad, [g.clone() for g in gradient.chunk(self.n)])
        self.inner.step()
        parts = [torch.empty_like(self.mine) for _ in range(self.n)]
        dist.all_gather(parts, self.mine.data)
        vector = torch.cat(parts)
        at = 0
        for p in self.params:
            p.data.copy_(vector[at : at + p.numel()].reshape(p.shape))
            at += p.numel()
