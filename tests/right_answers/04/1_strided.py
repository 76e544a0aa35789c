import torch


def shard(n_samples: int, rank: int, world_size: int, epoch: int, seed: int = 0, shuffle: bool = True, drop_last: bool = False) -> list[int]:
    generator = torch.Generator().manual_seed(seed + epoch)
    order = torch.randperm(n_samples, generator=generator).tolist() if shuffle else list(range(n_samples))
    length = n_samples // world_size if drop_last else -(-n_samples // world_size)
    order = (order * world_size)[: length * world_size]
    return order[rank::world_size]
