# symptom: raised TypeError
# says: stopped in your code
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn


def gpipe_step(
    stage: nn.Module,
    inputs: list[Tensor] | None,
    targets: list[Tensor] | None,
    micro_batches: int,
    shape: tuple[int, ...],
    loss_function: Callable[[Tensor, Tensor], Tensor],
) -> float | None:
    """One step of GPipe on this rank. Afterwards the parameters of `stage` hold the gradient of the mean loss over the whole batch.

    stage          the layers of this rank; takes and gives float64 tensors of `shape`. Its gradients are None before the step
    inputs         on rank 0 the micro-batches, a list of `micro_batches` tensors of `shape`; None on the others
    targets        on the last rank the targets, likewise; None on the others
    loss_function  loss_function(output, target) is the mean over one micro-batch; all micro-batches are equally large

    Each rank first runs all its forwards, in the order of the micro-batches, then all its backwards. For each micro-batch
    one message goes to the next rank and one comes back from it. Returns the mean loss on the last rank, None on the others.
    """
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    received, outputs = [], []
    total = 0.0
    for i in range(micro_batches):
        if rank == 0:
            x = inputs[i]
        else:
            x = torch.empty(shape, dtype=torch.float64)
            dist.recv(x, src=rank - 1)
        output = stage(x)
        if rank == last:
            output = loss_function(output, targets[i]) / micro_batches
            total += output.item()
        else:
            dist.send(output.detach(), dst=rank + 1)  # at once, so that the next rank can begin
        received.append(x)
        outputs.append(output)
    for i in range(micro_batches):
        if rank == last:
            outputs[i].backward()
        else:
            gradient = torch.empty(shape, dtype=torch.float64)
            dist.recv(gradient, src=rank + 1)
            outputs[i].backward(gradient)
        if rank > 0:
            dist.send(received[i].grad, dst=rank - 1)
    return total if rank == last else None
