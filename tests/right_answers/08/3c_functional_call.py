import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy


def train(model, batches, lr):
    optimizer = torch.optim.AdamW(model.parameters(), lr)
    for x, y in batches:
        low = {name: p.bfloat16() for name, p in model.named_parameters()}
        loss = cross_entropy(functional_call(model, low, x.bfloat16()).float(), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
