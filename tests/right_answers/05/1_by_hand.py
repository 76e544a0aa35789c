import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters


def train(model, batches, window, lr):
    params = list(model.parameters())
    with torch.no_grad():
        start = parameters_to_vector(params)
        dist.broadcast(start, src=0)
        vector_to_parameters(start, params)
    optimizer = torch.optim.SGD(params, lr=lr)
    left_out = 0
    for begin in range(0, len(batches), window):
        part = batches[begin : begin + window]
        optimizer.zero_grad()
        for x, y in part:
            cross_entropy(model(x), y).backward()
        flat = torch.cat([p.grad.flatten() for p in params]) / (len(part) * dist.get_world_size())
        dist.all_reduce(flat)
        if not flat.isfinite().all():
            left_out += 1
            continue
        for p, grad in zip(params, flat.split([p.numel() for p in params])):
            p.grad.copy_(grad.view_as(p))
        optimizer.step()
    return left_out
