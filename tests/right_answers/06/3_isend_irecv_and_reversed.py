import torch
import torch.distributed as dist


def gpipe_step(stage, inputs, targets, micro_batches, shape, loss_function):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    sending = []
    if rank > 0:  # all receives are posted at once
        xs = [torch.empty(shape, dtype=torch.float64) for _ in range(micro_batches)]
        coming = [dist.irecv(x, rank - 1) for x in xs]
    else:
        xs = inputs
    outputs = []
    for i in range(micro_batches):
        if rank > 0:
            coming[i].wait()
            xs[i].requires_grad_()
        outputs.append(stage(xs[i]))
        if rank < last:
            sending.append(dist.isend(outputs[i].detach(), rank + 1))
    loss = 0.0
    for i in reversed(range(micro_batches)):  # the last micro-batch first, as in the paper
        if rank == last:
            mine = loss_function(outputs[i], targets[i]) / micro_batches
            loss += mine.item()
            mine.backward()
        else:
            gradient = torch.empty(shape, dtype=torch.float64)
            dist.recv(gradient, rank + 1)
            torch.autograd.backward(outputs[i], gradient)
        if rank > 0:
            sending.append(dist.isend(xs[i].grad, rank - 1))
    for work in sending:
        work.wait()
    return loss if rank == last else None
