# symptom: hang
# says: rank 0 had left your function
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import SGD
from torch.utils.data import DataLoader, Subset


def train(model, dataset, epochs):
    rank = dist.get_rank()
    mine = Subset(dataset, range(18) if rank == 0 else range(18, 40))
    loader = DataLoader(mine, batch_size=4, shuffle=True)
    ddp = DDP(model)
    optimizer = SGD(ddp.parameters(), lr=0.1)
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            cross_entropy(ddp(x), y).backward()
            optimizer.step()
