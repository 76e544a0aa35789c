# symptom: not the mean
# says: both ranks agree, and are off
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import SGD
from torch.utils.data import default_collate


def train(model, dataset, epochs):
    shares = (6, 2)
    rank, per_step = dist.get_rank(), sum(shares)
    first = sum(shares[:rank])
    ddp = DDP(model)
    optimizer = SGD(ddp.parameters(), lr=0.1)
    for epoch in range(epochs):
        order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(epoch)).tolist()
        for start in range(0, len(dataset), per_step):
            mine = order[start + first : start + first + shares[rank]]
            x, y = default_collate([dataset[i] for i in mine])
            optimizer.zero_grad()
            loss = cross_entropy(ddp(x), y, reduction="sum") / per_step
            loss.backward()
            optimizer.step()
