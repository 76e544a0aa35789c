# symptom: messages
# says: number of messages is another one
import torch
import torch.distributed as dist


def gpipe_step(stage, inputs, targets, micro_batches, shape, loss_function):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    xs, outputs, total = [], [], 0.0
    for i in range(micro_batches):
        x = inputs[i] if rank == 0 else torch.empty(shape, dtype=torch.float64)
        if rank > 0:
            dist.recv(x, rank - 1)
            x.requires_grad_()
        xs.append(x)
        outputs.append(stage(x))
        if rank < last:
            dist.send(outputs[i].detach(), rank + 1)
    gradients = torch.empty(micro_batches, *shape, dtype=torch.float64)
    if rank < last:
        dist.recv(gradients, rank + 1)
    for i in range(micro_batches):
        if rank == last:
            loss = loss_function(outputs[i], targets[i]) / micro_batches
            total += loss.item()
            loss.backward()
        else:
            outputs[i].backward(gradients[i])
    if rank > 0:
        dist.send(torch.stack([x.grad for x in xs]), rank - 1)
    return total if rank == last else None
