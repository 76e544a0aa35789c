import os

import torch
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def main(model, dataset, epochs, path):
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    init_process_group("gloo", rank=rank, world_size=world_size)
    torch.manual_seed(rank)
    sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank, seed=3)
    loader = DataLoader(dataset, 8 // world_size, sampler=sampler)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(epochs):
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            loss = cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            torch.save(model.module.state_dict(), path)
    destroy_process_group()
