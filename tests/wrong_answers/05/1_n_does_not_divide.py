# symptom: raised ValueError
# says: divide
import torch
import torch.distributed as dist
from torch import Tensor


def ring_all_reduce(tensor: Tensor) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    if tensor.numel() % n:
        raise ValueError("the number of ranks must divide the number of elements")
    chunks = tensor.view(n, -1)
    for step in range(2 * (n - 1)):
        out, into = chunks[(rank - step) % n], chunks[(rank - step - 1) % n]
        came = torch.empty_like(into)
        work = [dist.isend(out, (rank + 1) % n), dist.irecv(came, (rank - 1) % n)]
        for one in work:
            one.wait()
        into.copy_(into + came if step < n - 1 else came)
