# symptom: samples missed
# says: seen by no rank
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import SGD
from torch.utils.data import DataLoader


def train(model, dataset, epochs):
    loader = DataLoader(dataset, batch_size=4, shuffle=True)
    ddp = DDP(model)
    optimizer = SGD(ddp.parameters(), lr=0.1)
    for _ in range(epochs):
        for step, (x, y) in enumerate(loader):
            if step == 5:
                break
            optimizer.zero_grad()
            cross_entropy(ddp(x), y).backward()
            optimizer.step()
