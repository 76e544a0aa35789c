# symptom: too many
# says: 8 all-reduces for 2 windows
from torch.nn.functional import cross_entropy


def train(ddp, batches, optimizer, window):
    for i, (x, y) in enumerate(batches):
        size = min(window, len(batches) - i // window * window)
        (cross_entropy(ddp(x), y) / size).backward()
        if (i + 1) % window == 0 or i + 1 == len(batches):
            optimizer.step()
            optimizer.zero_grad()
