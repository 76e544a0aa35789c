# symptom: bias
# says: not the log of the class frequencies
import torch
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import SGD
from torch.utils.data import DataLoader, DistributedSampler


def train(model, dataset, epochs):
    classes = torch.tensor([int(dataset.y[i]) for i in range(len(dataset))])
    log_frequency = (torch.bincount(classes) / len(dataset)).log()
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler)
    ddp = DDP(model)
    print(log_frequency)
    optimizer = SGD(ddp.parameters(), lr=0.1)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            cross_entropy(ddp(x), y).backward()
            optimizer.step()
