from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP


def train(model, batches, window, lr):
    ddp = DDP(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=lr)
    left_out, broken = 0, torch.zeros(())
    for i, (x, y) in enumerate(batches):
        last = i % window == window - 1 or i == len(batches) - 1
        size = min(window, len(batches) - i // window * window)
        with nullcontext() if last else ddp.no_sync():
            loss = cross_entropy(ddp(x), y)
            (loss / size).backward()
        broken += not loss.isfinite()
        if last:
            dist.all_reduce(broken)
            if broken:
                left_out += 1
            else:
                optimizer.step()
            optimizer.zero_grad()
            broken.zero_()
    return left_out
