"""DDP's gradient of a mean loss on each rank, and of a sum on each rank, against one process with the whole batch."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP

from course_utils.rank import report


def gradient(model, loss):
    model.zero_grad()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def main():
    dist.init_process_group()
    rank, n = dist.get_rank(), dist.get_world_size()
    for size in (12, 10):
        torch.manual_seed(0)
        model = nn.Linear(20, 5).double()
        x, y = torch.randn(size, 20, dtype=torch.float64), torch.randint(5, (size,))
        ddp = DDP(model)
        for how in ("mean", "sum"):
            right = gradient(model, cross_entropy(model(x), y, reduction=how))
            got = gradient(model, cross_entropy(ddp(x.chunk(n)[rank]), y.chunk(n)[rank], reduction=how))
            factor = got @ right / (right @ right)  # how long it is in the direction of the right one
            off = (got - factor * right).norm() / right.norm()  # and what points elsewhere
            report(how=how, samples=size, factor=factor.item(), off=off.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
