import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.functional import cross_entropy


def loss_fn(output, target):
    return cross_entropy(output.transpose(1, 2), target)


def train(make_layer, counts, batches, micro_batches, lr):
    rank = dist.get_rank()
    ends = torch.tensor(counts).cumsum(0).tolist()
    model = nn.Sequential()
    for i in range(ends[rank] - counts[rank], ends[rank]):
        model.append(make_layer(i))
    schedule = Schedule1F1B(PipelineStage(model, rank, len(counts), "cpu"), n_microbatches=micro_batches, loss_fn=loss_fn)
    sgd = torch.optim.SGD(model.parameters(), lr, 0.9)
    history = []
    for tokens, targets in batches:
        parts = []
        # what a stage has no use for, it leaves alone
        schedule.step(tokens, target=targets, losses=parts)
        sgd.step()
        sgd.zero_grad()
        history.append(sum(float(loss) for loss in parts) / micro_batches)
    return model, history
