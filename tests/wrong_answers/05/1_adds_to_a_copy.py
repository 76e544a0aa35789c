# symptom: unchanged
# says: the tensor is what it was before
import torch
import torch.distributed as dist
from torch import Tensor


def ring_all_reduce(tensor: Tensor) -> Tensor:
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = list(tensor.clone().view(-1).tensor_split(n))
    for step in range(2 * (n - 1)):
        out, k = chunks[(rank - step) % n], (rank - step - 1) % n
        came = torch.empty_like(chunks[k])
        work = [dist.isend(out, (rank + 1) % n), dist.irecv(came, (rank - 1) % n)]
        for one in work:
            one.wait()
        chunks[k] = chunks[k] + came if step < n - 1 else came
    return torch.cat(chunks).view_as(tensor)
