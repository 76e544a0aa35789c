def seen_by(rank: int, world_size: int, n_images: int) -> list[int]:
    """The indices that this rank evaluates, in order, under `DistributedSampler(shuffle=False, drop_last=False)`.

    n_images is at least 1, and may be smaller than world_size. All ranks get equally many; where they do not divide, the
    list of all indices is continued from its beginning, as often as it takes.
    """
    each = -(-n_images // world_size)
    return [i % n_images for i in range(rank, each * world_size, world_size)]


def accuracy(correct: list[list[bool]], n_images: int) -> float:
    """The share of the n_images that were classified correctly, each counted once.

    correct[rank][k]  whether the k-th image that the rank saw was classified correctly
    """
    found = {}
    for rank, answers in enumerate(correct):
        for index, answer in zip(seen_by(rank, len(correct), n_images), answers, strict=True):
            found[index] = answer
    return sum(found.values()) / n_images
