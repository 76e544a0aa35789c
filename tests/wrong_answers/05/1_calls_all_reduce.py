# symptom: library
# says: The answer calls allreduce
import torch.distributed as dist
from torch import Tensor


def ring_all_reduce(tensor: Tensor) -> None:
    dist.all_reduce(tensor)
