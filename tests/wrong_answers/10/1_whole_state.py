# symptom: whole state
# says: more state than
import torch
import torch.distributed as dist


class ShardedOptimizer:
    def __init__(self, params, make):
        self.params, self.n, self.rank = params, dist.get_world_size(), dist.get_rank()
        self.size = sum(p.numel() for p in params)
        self.part = -(-self.size // self.n)
        self.whole = self.flat([p.detach() for p in params]).requires_grad_()
        self.optimizer = make([self.whole])

    def flat(self, tensors):
        padded = tensors[0].new_zeros(self.part * self.n)
        padded[: self.size] = torch.cat([t.flatten() for t in tensors])
        return padded

    def step(self):
        mine = slice(self.rank * self.part, (self.rank + 1) * self.part)
        self.whole.grad = torch.zeros_like(self.whole)
        part = torch.empty(self.part, dtype=torch.float64)
        dist.reduce_scatter_tensor(part, self.flat([p.grad for p in self.params]))
        self.whole.grad[mine] = part / self.n
        self.optimizer.step()
        with torch.no_grad():
            flat = torch.empty_like(self.whole)
            dist.all_gather_into_tensor(flat, self.whole.detach()[mine].clone())
            self.whole.copy_(flat)
            for p, values in zip(self.params, flat[: self.size].split([p.numel() for p in self.params])):
                p.copy_(values.view_as(p))
