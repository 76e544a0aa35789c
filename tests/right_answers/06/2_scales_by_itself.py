from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B


def share(m, logits, targets):
    return F.cross_entropy(logits.reshape(-1, logits.size(-1)), targets.reshape(-1)) / m


def train(make_layer, counts, batches, micro_batches, lr):
    rank, world = dist.get_rank(), dist.get_world_size()
    mine = [i for i, stage in enumerate(s for s, n in enumerate(counts) for _ in range(n)) if stage == rank]
    model = nn.Sequential(*map(make_layer, mine))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    pipe = Schedule1F1B(
        PipelineStage(model, rank, world, torch.device("cpu")),
        micro_batches,
        loss_fn=partial(share, micro_batches),
        scale_grads=False,
    )
    losses, shares = [], []
    for tokens, targets in batches:
        optimizer.zero_grad(set_to_none=False)
        inputs = (tokens,) if rank == 0 else ()
        pipe.step(*inputs, target=targets if rank == world - 1 else None, losses=shares)
        optimizer.step()
        losses.append(sum(loss.item() for loss in shares) if rank == world - 1 else float("inf"))
    return model, losses if rank == world - 1 else []
