# symptom: long messages
# says: A message carries 8 of 8 numbers
import torch
import torch.distributed as dist
from torch import Tensor


def ring_all_reduce(tensor: Tensor) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    passing = tensor.clone()
    for _ in range(n - 1):
        came = torch.empty_like(passing)
        work = [dist.isend(passing, (rank + 1) % n), dist.irecv(came, (rank - 1) % n)]
        for one in work:
            one.wait()
        tensor += came
        passing = came
