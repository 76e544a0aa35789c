# symptom: last window not exchanged
# says: 2 all-reduces for 3 windows
from contextlib import nullcontext

from torch.nn.functional import cross_entropy


def train(ddp, batches, optimizer, window):
    for i, (x, y) in enumerate(batches):
        size = min(window, len(batches) - i // window * window)
        full = (i + 1) % window == 0
        with nullcontext() if full else ddp.no_sync():
            (cross_entropy(ddp(x), y) / size).backward()
        if full or i + 1 == len(batches):
            optimizer.step()
            optimizer.zero_grad()
