import random


def shard(n_samples: int, rank: int, world_size: int, epoch: int, seed: int = 0, shuffle: bool = True, drop_last: bool = False) -> list[int]:
    order = list(range(n_samples))
    if shuffle:
        random.Random(f"{seed}/{epoch}").shuffle(order)
    length = n_samples // world_size if drop_last else (n_samples + world_size - 1) // world_size
    dealt = [order[i % n_samples] for i in range(length * world_size)]
    return dealt[rank * length : (rank + 1) * length]
