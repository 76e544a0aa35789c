import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters


class ShardedOptimizer:
    """The parameters become views of a new vector in each step."""

    def __init__(self, params, make):
        self.params, self.n = params, dist.get_world_size()
        vector = parameters_to_vector(params).detach()
        self.zeros = vector.new_zeros(-len(vector) % self.n)
        self.size = len(vector)
        self.mine = torch.cat([vector, self.zeros]).chunk(self.n)[dist.get_rank()].clone().requires_grad_()
        self.inner = make([self.mine])

    def step(self):
        gradients = torch.cat([*(p.grad.flatten() for p in self.params), self.zeros]) / self.n
        self.mine.grad = torch.empty_like(self.mine)
        dist.reduce_scatter_tensor(self.mine.grad, gradients)
        self.inner.step()
        vector = gradients.new_empty(len(gradients))
        dist.all_gather_into_tensor(vector, self.mine.detach())
        vector_to_parameters(vector[: self.size], self.params)
