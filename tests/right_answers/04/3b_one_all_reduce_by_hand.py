import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.optim import SGD
from torch.utils.data import DataLoader, DistributedSampler


def train(model, dataset, epochs):
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler)
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.data, src=0)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = SGD(parameters, lr=0.1)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            flat = torch.cat([p.grad.flatten() for p in parameters]) / dist.get_world_size()
            dist.all_reduce(flat)
            for p, grad in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
                p.grad.copy_(grad.view_as(p))
            optimizer.step()
