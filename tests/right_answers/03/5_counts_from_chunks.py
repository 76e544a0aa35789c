import torch
from torch.nn.parallel import DataParallel
from torch.utils.data import DataLoader


def main(model, dataset, epochs, path):
    parallel = DataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    for _ in range(epochs):
        for x, y in DataLoader(dataset, 8):
            losses = parallel(x, y)
            counts = torch.tensor([len(chunk) for chunk in y.chunk(len(parallel.device_ids))])
            optimizer.zero_grad()
            ((losses * counts).sum() / counts.sum()).backward()
            optimizer.step()
    torch.save(parallel.module.state_dict(), path)
