"""What torch's own `replicate` makes of a model with a tied matrix, a number and a list, on tensors without data."""

import torch
from torch import nn
from torch.nn.parallel import comm, replicate

from course_utils.rank import report


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(16, 4), nn.Linear(4, 16, bias=False)
        self.head.weight = self.embedding.weight
        self.calls, self.seen = 0, []

    def forward(self):
        self.calls += 1
        self.seen.append(1)


def copies(tensors, devices, buffer_size=10485760):
    """In place of what torch calls in C++: GPU 0 keeps its own."""
    return [list(tensors)] + [[torch.empty_like(t) for t in tensors] for _ in devices[1:]]


def main():
    comm.broadcast_coalesced = copies
    with torch.device("meta"):
        model = Model()
        replica = replicate(model, [0, 1])[1]
    replica()
    weight = replica.head.weight
    report(tied=weight is replica.embedding.weight, leaf=weight.is_leaf, listed=len(list(replica.parameters())))
    report(calls=model.calls, seen=len(model.seen))


if __name__ == "__main__":
    main()
