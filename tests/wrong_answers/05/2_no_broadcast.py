# symptom: different start
# says: After wrapping, the ranks hold different
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn


class MyDDP(nn.Module):
    def __init__(self, module: nn.Module, bucket_bytes: int) -> None:
        super().__init__()
        self.module = module
        self.buckets, self.under_way = [[]], []
        for p in reversed([p for p in module.parameters() if p.requires_grad]):
            if sum(q.nbytes for q in self.buckets[-1]) >= bucket_bytes:
                self.buckets.append([])
            self.buckets[-1].append(p)
        self.missing = [len(bucket) for bucket in self.buckets]
        for k, bucket in enumerate(self.buckets):
            for p in bucket:
                p.register_post_accumulate_grad_hook(partial(self.ready, k))

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.module(*inputs)

    def ready(self, k: int, p: Tensor) -> None:
        self.missing[k] -= 1
        if self.missing[k] == 0:
            flat = torch.cat([q.grad.flatten() for q in self.buckets[k]]) / dist.get_world_size()
            self.under_way.append((k, flat, dist.all_reduce(flat, async_op=True)))

    def finish(self) -> None:
        for k, flat, work in self.under_way:
            work.wait()
            for p, piece in zip(self.buckets[k], flat.split([p.numel() for p in self.buckets[k]]), strict=True):
                p.grad.copy_(piece.view_as(p))
        self.under_way = []
        self.missing = [len(bucket) for bucket in self.buckets]
