# symptom: too many
# says: the result is right, and nothing is saved
from contextlib import nullcontext

from torch.nn.functional import cross_entropy


def train(ddp, batches, optimizer, window):
    for i, (x, y) in enumerate(batches):
        size = min(window, len(batches) - i // window * window)
        last = (i + 1) % window == 0 or i + 1 == len(batches)
        loss = cross_entropy(ddp(x), y) / size
        with nullcontext() if last else ddp.no_sync():
            loss.backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
