# symptom: messages
# says: 2 (n - 1)
import torch
import torch.distributed as dist
from torch import Tensor


def ring_all_reduce(tensor: Tensor) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    mine = tensor.clone().view(-1).tensor_split(n)
    total = tensor.view(-1).tensor_split(n)
    for shift in range(1, n):
        came = [torch.empty_like(chunk) for chunk in mine]
        work = [dist.isend(chunk, (rank + shift) % n) for chunk in mine] + [dist.irecv(chunk, (rank - shift) % n) for chunk in came]
        for one in work:
            one.wait()
        for chunk, more in zip(total, came, strict=True):
            chunk += more
