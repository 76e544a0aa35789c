# symptom: hang
# says: rank 0 had left your function
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import SGD
from torch.utils.data import DataLoader, DistributedSampler


def train(model, dataset, test_set, epochs):
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler)
    ddp = DDP(model)
    optimizer = SGD(ddp.parameters(), lr=0.1)
    x_test, y_test = test_set.tensors
    accuracies = []
    for epoch in range(epochs + dist.get_rank()):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            cross_entropy(ddp(x), y).backward()
            optimizer.step()
        if dist.get_rank() == 0:
            with torch.no_grad():
                accuracies.append((model(x_test).argmax(1) == y_test).double().mean().item())
    return accuracies
