# Buckets as dictionaries, closures for hooks, all_reduce imported by name, the sum divided afterwards.
import torch
from torch import nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.distributed import all_reduce, broadcast, get_world_size


class MyDDP(nn.Module):
    def __init__(self, module, bucket_bytes):
        super().__init__()
        self.module = module
        with torch.no_grad():
            for p in [*module.parameters(), *module.buffers()]:
                broadcast(p, 0)
        self.sent = []
        bucket = {"parameters": [], "nbytes": 0, "ready": set()}
        for p in list(module.parameters())[::-1]:
            if not p.requires_grad:
                continue
            if bucket["nbytes"] >= bucket_bytes:
                bucket = {"parameters": [], "nbytes": 0, "ready": set()}
            bucket["parameters"].append(p)
            bucket["nbytes"] += p.numel() * p.element_size()
            p.register_post_accumulate_grad_hook(self.make_hook(bucket))

    def make_hook(self, bucket):
        def hook(p):
            bucket["ready"].add(id(p))
            if len(bucket["ready"]) == len(bucket["parameters"]):
                bucket["ready"].clear()
                grads = [q.grad for q in bucket["parameters"]]
                flat = _flatten_dense_tensors(grads)
                self.sent.append((all_reduce(flat, async_op=True), flat, grads))

        return hook

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def finish(self):
        while self.sent:
            work, flat, grads = self.sent.pop(0)
            work.wait()
            flat /= get_world_size()
            for grad, piece in zip(grads, _unflatten_dense_tensors(flat, grads), strict=True):
                grad.copy_(piece)
