import math


def seen_by(rank: int, world_size: int, n_images: int) -> list[int]:
    total = math.ceil(n_images / world_size) * world_size
    indices = list(range(n_images))
    while len(indices) < total:
        indices += indices[: total - len(indices)]
    return indices[rank:total:world_size]


def accuracy(correct: list[list[bool]], n_images: int) -> float:
    right = [False] * n_images
    for k in range(len(correct[0])):
        for rank in range(len(correct)):
            right[seen_by(rank, len(correct), n_images)[k]] = correct[rank][k]
    return right.count(True) / n_images
