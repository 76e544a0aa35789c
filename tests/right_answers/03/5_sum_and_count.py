import torch
from torch import nn
from torch.optim import SGD
from torch.utils.data import DataLoader


class SumAndCount(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.inner = model

    def forward(self, batch):
        x, y = batch
        n = torch.tensor(float(len(y)))
        return {"total": self.inner(x, y=y) * n, "count": n}


def main(model, dataset, epochs, path):
    parallel = nn.DataParallel(SumAndCount(model))
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(epochs):
        for batch in DataLoader(dataset, batch_size=8):
            out = parallel(batch)
            optimizer.zero_grad()
            (out["total"].sum() / out["count"].sum()).backward()
            optimizer.step()
    torch.save(parallel.module.inner.state_dict(), path)
