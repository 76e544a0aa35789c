# symptom: no exchange
# says: Not one gradient is exchanged
from torch.nn.functional import cross_entropy


def train(ddp, batches, optimizer, window):
    for i, (x, y) in enumerate(batches):
        size = min(window, len(batches) - i // window * window)
        with ddp.no_sync():
            (cross_entropy(ddp(x), y) / size).backward()
        if (i + 1) % window == 0 or i + 1 == len(batches):
            optimizer.step()
            optimizer.zero_grad()
