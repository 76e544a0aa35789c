# symptom: last window lost
# says: The last 2 micro-batches never lead to a step
from contextlib import nullcontext

from torch.nn.functional import cross_entropy


def train(ddp, batches, optimizer, window):
    for i, (x, y) in enumerate(batches):
        last = (i + 1) % window == 0
        with nullcontext() if last else ddp.no_sync():
            (cross_entropy(ddp(x), y) / window).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
