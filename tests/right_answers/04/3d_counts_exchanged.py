import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import SGD
from torch.utils.data import default_collate


def train(model, dataset, epochs):
    shares = (6, 2)
    rank, world_size, per_step = dist.get_rank(), dist.get_world_size(), sum(shares)
    first = sum(shares[:rank])
    ddp = DDP(model)
    optimizer = SGD(ddp.parameters(), lr=0.1)
    for epoch in range(epochs):
        order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(epoch)).tolist()
        for start in range(0, len(dataset), per_step):
            mine = order[start + first : start + first + shares[rank]]
            x, y = default_collate([dataset[i] for i in mine])
            optimizer.zero_grad()
            count = torch.tensor(float(len(y)))
            dist.all_reduce(count)
            loss = cross_entropy(ddp(x), y) * len(y) * world_size / count
            loss.backward()
            optimizer.step()
