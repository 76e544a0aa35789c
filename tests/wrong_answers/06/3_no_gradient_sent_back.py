# symptom: no gradient
# says: has no gradient after the step
import torch
import torch.distributed as dist


def gpipe_step(stage, inputs, targets, micro_batches, shape, loss_function):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    total = 0.0
    for i in range(micro_batches):
        x = inputs[i] if rank == 0 else torch.empty(shape, dtype=torch.float64)
        if rank > 0:
            dist.recv(x, rank - 1)
        output = stage(x)
        if rank < last:
            dist.send(output.detach(), rank + 1)
        else:
            loss = loss_function(output, targets[i]) / micro_batches
            total += loss.item()
            loss.backward()
    return total if rank == last else None
