# symptom: different start
# says: Before the first step the ranks hold different weights
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.optim import SGD
from torch.utils.data import DataLoader, DistributedSampler


def train(model, dataset, epochs):
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler)
    optimizer = SGD(model.parameters(), lr=0.1)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            for p in model.parameters():
                if p.grad is not None:
                    p.grad /= dist.get_world_size()
                    dist.all_reduce(p.grad)
            optimizer.step()
