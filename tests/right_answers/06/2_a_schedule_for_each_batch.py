import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.functional import cross_entropy, log_softmax


def nll(logits, targets):
    chosen = log_softmax(logits, dim=-1).gather(-1, targets.unsqueeze(-1))
    return -chosen.mean()


def train(make_layer, counts, batches, micro_batches, lr):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    is_first, is_last = rank == 0, rank == world_size - 1
    layer_ids = list(range(sum(counts)))
    start = 0
    for r in range(rank):
        start += counts[r]
    model = nn.Sequential(*(make_layer(i) for i in layer_ids[start : start + counts[rank]]))
    opt = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    losses = []
    for tokens, targets in batches:
        for p in model.parameters():
            p.grad = None
        stage = PipelineStage(model, rank, world_size, torch.device("cpu"))
        schedule = Schedule1F1B(stage, micro_batches, loss_fn=nll)
        if is_first:
            schedule.step(tokens)
        else:
            output = schedule.step(target=targets)
        opt.step()
        if is_last:
            with torch.no_grad():  # of the logits of the whole batch, which `step` hands out
                losses.append(cross_entropy(output.flatten(0, 1), targets.flatten()).item())
    return model, losses
