# symptom: long messages
# says: no message longer than
import torch
import torch.distributed as dist
from torch import Tensor


def ring_all_reduce(tensor: Tensor) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        for other in range(1, n):
            came = torch.empty_like(tensor)
            dist.recv(came, other)
            tensor += came
        for other in range(1, n):
            dist.send(tensor, other)
    else:
        dist.send(tensor, 0)
        dist.recv(tensor, 0)
