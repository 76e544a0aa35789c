# symptom: forwards
# says: forwards on every rank
import torch
import torch.distributed as dist


def gpipe_step(stage, inputs, targets, micro_batches, shape, loss_function):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    whole = (micro_batches * shape[0], *shape[1:])
    if rank == 0:
        x = torch.cat(inputs)
    else:
        x = torch.empty(whole, dtype=torch.float64)
        dist.recv(x, rank - 1)
        x.requires_grad_()
    output = stage(x)
    if rank == last:
        loss = loss_function(output, torch.cat(targets))
        loss.backward()
    else:
        dist.send(output.detach(), rank + 1)
        gradient = torch.empty(whole, dtype=torch.float64)
        dist.recv(gradient, rank + 1)
        output.backward(gradient)
    if rank > 0:
        dist.send(x.grad, rank - 1)
    return loss.item() if rank == last else None
