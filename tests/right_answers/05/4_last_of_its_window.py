from contextlib import nullcontext

from torch.nn.functional import cross_entropy


def train(ddp, batches, optimizer, window):
    for i, (x, y) in enumerate(batches):
        start = i // window * window
        size = min(window, len(batches) - start)
        last = i == start + size - 1
        with nullcontext() if last else ddp.no_sync():
            (cross_entropy(ddp(x), y) / size).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
