import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy


def train(make_layer, counts, batches, micro_batches, lr):
    rank, p = dist.get_rank(), dist.get_world_size()
    begin = sum(counts[:rank])
    layers = nn.Sequential(*[make_layer(begin + k) for k in range(counts[rank])])
    optimizer = torch.optim.SGD(layers.parameters(), lr=lr, momentum=0.9)
    losses = []
    for tokens, targets in batches:
        optimizer.zero_grad()
        total = one_step(layers, tokens.chunk(micro_batches), targets.chunk(micro_batches), rank, p)
        optimizer.step()
        losses.append(total)
    return layers, losses


def one_step(layers, xs, ys, rank, p):
    m, held, sends, total = len(xs), [], [], 0.0
    width = next(q.shape[-1] for q in layers.parameters()) if rank == 0 else None

    def forward(i):
        nonlocal total
        if rank == 0:
            x = xs[i]
        else:
            shape = torch.empty(3, dtype=torch.int64)
            dist.recv(shape, rank - 1)
            x = torch.empty(shape.tolist(), dtype=torch.float64)
            dist.recv(x, rank - 1)
            x.requires_grad_()
        out = layers(x)
        if rank < p - 1:
            for message in (torch.tensor(out.shape), out.detach()):
                sends.append((dist.isend(message, rank + 1), message))
        else:
            out = cross_entropy(out.flatten(0, 1), ys[i].flatten()) / m
            total += out.item()
        held.append((x, out))

    def backward():
        x, out = held.pop(0)
        gradient = None
        if rank < p - 1:
            gradient = torch.empty_like(out)
            dist.recv(gradient, rank + 1)
        out.backward(gradient)
        if rank:
            sends.append((dist.isend(x.grad, rank - 1), x.grad))

    ahead = min(p - 1 - rank, m)
    for i in range(ahead):
        forward(i)
    for i in range(ahead, m):
        forward(i)
        backward()
    for _ in range(ahead):
        backward()
    for work, _ in sends:
        work.wait()
    return total
