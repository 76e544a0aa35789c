# `no_sync` only sets this flag; the forward pass reads it.
from torch.nn.functional import cross_entropy


def train(ddp, batches, optimizer, window):
    losses = 0.0
    for i, (x, y) in enumerate(batches, 1):
        last = i % window == 0 or i == len(batches)
        in_window = window if i <= len(batches) - len(batches) % window else len(batches) % window
        ddp.require_backward_grad_sync = last
        losses = cross_entropy(ddp(x), y) / in_window
        losses.backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
