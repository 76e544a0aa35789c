import torch
import torch.distributed as dist
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.algorithms.model_averaging.utils import average_parameters
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.functional import cross_entropy


def train(model, batches, every, lr):
    for p in model.parameters():
        dist.broadcast(p.data, 0)
    local = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    optimizer = PostLocalSGDOptimizer(local, PeriodicModelAverager(period=every, warmup_steps=every - 1))
    for x, y in batches:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    if len(batches) % every:
        average_parameters(model.parameters(), dist.group.WORLD)
