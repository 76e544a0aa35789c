# symptom: no overlap
# says: nothing is done at the same time
import torch
import torch.distributed as dist


def gpipe_step(stage, inputs, targets, micro_batches, shape, loss_function):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    xs = inputs or [torch.empty(shape, dtype=torch.float64) for _ in range(micro_batches)]
    if rank > 0:
        for x in xs:
            dist.recv(x, rank - 1)
            x.requires_grad_()
    outputs, sending, total = [], [], 0.0
    for x in xs:
        outputs.append(stage(x))
        if rank < last:
            sending.append(dist.isend(outputs[-1].detach(), rank + 1))
    for i in range(micro_batches):
        if rank == last:
            loss = loss_function(outputs[i], targets[i]) / micro_batches
            total += loss.item()
            loss.backward()
        else:
            gradient = torch.empty(shape, dtype=torch.float64)
            dist.recv(gradient, rank + 1)
            outputs[i].backward(gradient)
        if rank > 0:
            sending.append(dist.isend(xs[i].grad, rank - 1))
    for work in sending:
        work.wait()
    return total if rank == last else None
