# symptom: out of range
# says: does not exist
import torch


def shard(n_samples: int, rank: int, world_size: int, epoch: int, seed: int = 0, shuffle: bool = True, drop_last: bool = False) -> list[int]:
    length = n_samples // world_size if drop_last else -(-n_samples // world_size)
    generator = torch.Generator().manual_seed(seed + epoch)
    size = length * world_size
    order = torch.randperm(size, generator=generator).tolist() if shuffle else list(range(size))
    return order[rank::world_size]
