import copy

import torch
from torch.nn.functional import cross_entropy


def train(model, batches, lr):
    low = copy.deepcopy(model).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    for x, y in batches:
        with torch.no_grad():
            for p, q in zip(low.parameters(), model.parameters()):
                p.copy_(q)
        low.zero_grad()
        cross_entropy(low(x.bfloat16()).float(), y).backward()
        for p, q in zip(low.parameters(), model.parameters()):
            q.grad = p.grad.float()
        optimizer.step()
