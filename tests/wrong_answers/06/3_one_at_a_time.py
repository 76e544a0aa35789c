# symptom: not GPipe
# says: turns back before all its forwards
import torch
import torch.distributed as dist


def gpipe_step(stage, inputs, targets, micro_batches, shape, loss_function):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    total = 0.0
    for i in range(micro_batches):
        if rank == 0:
            x = inputs[i]
        else:
            x = torch.empty(shape, dtype=torch.float64)
            dist.recv(x, rank - 1)
            x.requires_grad_()
        output = stage(x)
        if rank == last:
            loss = loss_function(output, targets[i]) / micro_batches
            total += loss.item()
            loss.backward()
        else:
            dist.send(output.detach(), rank + 1)
            gradient = torch.empty(shape, dtype=torch.float64)
            dist.recv(gradient, rank + 1)
            output.backward(gradient)
        if rank > 0:
            dist.send(x.grad, rank - 1)
    return total if rank == last else None
