import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy


def train(model, batches, every, lr):
    for value in model.state_dict().values():
        dist.broadcast(value, src=0)
    agreed = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    since = 0

    def meet():
        for name, p in model.named_parameters():
            way = [torch.empty_like(p) for _ in range(dist.get_world_size())]
            dist.all_gather(way, p.detach() - agreed[name])
            agreed[name] += torch.stack(way).mean(0)
            with torch.no_grad():
                p.copy_(agreed[name])

    for x, y in batches:
        loss = cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        since += 1
        if since == every:
            meet()
            since = 0
    if since:
        meet()
