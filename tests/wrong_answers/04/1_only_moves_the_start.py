# symptom: not shuffled
# says: Neighbours stay neighbours
def shard(n_samples: int, rank: int, world_size: int, epoch: int, seed: int = 0, shuffle: bool = True, drop_last: bool = False) -> list[int]:
    order = list(range(n_samples))
    if shuffle:
        start = (7 * epoch + 3 * seed) % n_samples
        order = order[start:] + order[:start]
    length = n_samples // world_size if drop_last else -(-n_samples // world_size)
    order = (order * world_size)[: length * world_size]
    return order[rank::world_size]
