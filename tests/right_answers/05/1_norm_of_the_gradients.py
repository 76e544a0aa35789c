import torch
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP


def train(model, batches, window, lr):
    ddp = DDP(model, static_graph=False, find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    skipped = 0
    while batches:
        part, batches = batches[:window], batches[window:]
        *early, last = part
        with ddp.no_sync():
            for x, y in early:
                (cross_entropy(ddp(x), y) / len(part)).backward()
        x, y = last
        (cross_entropy(ddp(x), y) / len(part)).backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
        if norm.isnan() or norm.isinf():
            skipped += 1
        else:
            optimizer.step()
        optimizer.zero_grad()
    return skipped
