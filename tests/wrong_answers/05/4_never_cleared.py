# symptom: old gradients
# says: the gradients of earlier windows take part again
from contextlib import nullcontext

from torch.nn.functional import cross_entropy


def train(ddp, batches, optimizer, window):
    for i, (x, y) in enumerate(batches):
        size = min(window, len(batches) - i // window * window)
        last = (i + 1) % window == 0 or i + 1 == len(batches)
        with nullcontext() if last else ddp.no_sync():
            (cross_entropy(ddp(x), y) / size).backward()
        if last:
            optimizer.step()
