# symptom: steps
# says: The training has 8 optimizer steps
from torch.nn.functional import cross_entropy


def train(ddp, batches, optimizer, window):
    for x, y in batches:
        optimizer.zero_grad()
        (cross_entropy(ddp(x), y) / window).backward()
        optimizer.step()
