# symptom: last window divided
# says: the partial window was divided by 4
from contextlib import nullcontext

from torch.nn.functional import cross_entropy


def train(ddp, batches, optimizer, window):
    for i, (x, y) in enumerate(batches):
        last = (i + 1) % window == 0 or i + 1 == len(batches)
        with nullcontext() if last else ddp.no_sync():
            (cross_entropy(ddp(x), y) / window).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
