"""How DistributedSampler deals images, without torch."""

from __future__ import annotations

import math
import random


def permutation(n: int, seed: int) -> list[int]:
    """What `torch.randperm(n)` gives with a CPU generator of that seed, without importing torch: Fisher and Yates with
    numbers of the Mersenne Twister. aten/src/ATen/native/TensorFactories.cpp, `randperm_cpu`."""
    state = [seed & 0xFFFFFFFF]
    for i in range(1, 624):
        state.append((1812433253 * (state[-1] ^ (state[-1] >> 30)) + i) & 0xFFFFFFFF)
    generator = random.Random()
    generator.setstate((3, (*state, 624), None))
    order = list(range(n))
    for i in range(n - 1):
        j = i + generator.getrandbits(32) % (n - i)
        order[i], order[j] = order[j], order[i]
    return order


def dealt(images: int, ranks: int, epoch: int, *, shuffle: bool, drop_last: bool) -> list[list[int]]:
    """The images of each rank, in its order: torch.utils.data.DistributedSampler after `set_epoch(epoch)`."""
    order = permutation(images, epoch) if shuffle else list(range(images))
    each = images // ranks if drop_last else math.ceil(images / ranks)
    whole = (order * math.ceil(ranks * each / images))[: ranks * each]  # cut off, or begun again
    return [whole[rank::ranks] for rank in range(ranks)]
