# symptom: fixed shards
# says: same samples in every epoch
import torch


def shard(n_samples: int, rank: int, world_size: int, epoch: int, seed: int = 0, shuffle: bool = True, drop_last: bool = False) -> list[int]:
    order = list(range(n_samples))
    length = n_samples // world_size if drop_last else -(-n_samples // world_size)
    order = (order * world_size)[: length * world_size]

    mine = order[rank::world_size]
    if shuffle:
        generator = torch.Generator().manual_seed(seed + epoch)
        mine = [mine[i] for i in torch.randperm(length, generator=generator)]
    return mine
