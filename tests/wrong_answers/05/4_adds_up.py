# symptom: sum
# says: their mean is not taken
from contextlib import nullcontext

from torch.nn.functional import cross_entropy


def train(ddp, batches, optimizer, window):
    for i, (x, y) in enumerate(batches):
        last = (i + 1) % window == 0 or i + 1 == len(batches)
        with nullcontext() if last else ddp.no_sync():
            cross_entropy(ddp(x), y).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
