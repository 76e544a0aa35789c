# symptom: wrong sum
# says: does not hold the sum
import torch
import torch.distributed as dist
from torch import Tensor


def ring_all_reduce(tensor: Tensor) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = tensor.view(-1).tensor_split(n)
    for phase in range(2):
        for step in range(n - 1):
            out, into = chunks[(rank - step) % n], chunks[(rank - step - 1) % n]
            came = torch.empty_like(into)
            work = [dist.isend(out, (rank + 1) % n), dist.irecv(came, (rank - 1) % n)]
            for one in work:
                one.wait()
            into.copy_(into + came if phase == 0 else came)
