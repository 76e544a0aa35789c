"""Lesson 12: what its checks ask, shared by the tasks on the ranks and by the judges."""

from __future__ import annotations

from random import Random

# 12.1: batches of each rank (enough that the schedule comes to its end), images in one of them, learning rates of the
# optimizer steps.
PORT_RANKS, PORT_BATCHES, PORT_IMAGES = 2, (12, 14, 16), 4
PORT_ACCUMULATE, PORT_CLIP, PORT_LR, PORT_START, PORT_ITERS = 2, 0.5, 1e-2, 0.1, 4

# 12.2: (images, ranks)
SAMPLER_CASES = [(10, 4), (8, 2), (7, 2), (1, 4), (3, 8), (1000, 8), (5, 1), (1025, 1024)]

# 12.3: (global batch, nodes, devices, fits)
LIGHTNING_CASES = [
    (256, 1, 2, 256),
    (256, 2, 4, 32),
    (256, 2, 4, 20),
    (96, 1, 2, 20),
    (12, 1, 1, 5),
    (7, 1, 1, 3),
    (64, 8, 8, 64),
]
LIGHTNING_ERRORS = [(100, 1, 8, 64), (4, 2, 4, 64)]
# (global batch, workers, replicas of each)
TENSORFLOW_CASES = [(128, 1, 2), (128, 2, 4), (60, 3, 1), (32, 1, 1)]
TENSORFLOW_ERRORS = [(100, 2, 4)]

# 12.4: (images of each replica, global batch)
LOSS_CASES = [((8, 8), 16), ((8, 4), 16), ((3, 3), 6), ((8,), 8), ((2, 4, 3), 9), ((5, 0), 16)]
REPLICAS = 3  # the most of them
PENALTY = 0.01


def seen_by(rank: int, ranks: int, images: int) -> list[int]:
    """What `DistributedSampler(shuffle=False)` gives to a rank."""
    return [i % images for i in range(rank, -(-images // ranks) * ranks, ranks)]


def answers(n: int) -> list[bool]:
    """Whether each of n images is classified correctly. The first ones, which are repeated, are right more often than
    the rest."""
    return [i < 3 or i % 3 == 0 for i in range(n)]


def random_sets(rng: Random, n: int = 8) -> list[tuple[int, int]]:
    """More cases for 12.2."""
    return [(rng.randint(1, 90), rng.randint(1, 12)) for _ in range(n)]


def random_batches(rng: Random, n: int = 16) -> dict[str, list[tuple[int, ...]]]:
    """More cases for 12.3, which divide, or don't."""
    found: dict[str, list[tuple[int, ...]]] = {
        "lightning": [],
        "lightning_errors": [],
        "tensorflow": [],
        "tensorflow_errors": [],
    }
    for _ in range(n):
        nodes, devices, share = rng.randint(1, 6), rng.randint(1, 8), rng.randint(1, 240)
        ranks = nodes * devices
        found["lightning"].append((ranks * share, nodes, devices, rng.randint(1, 100)))
        found["tensorflow"].append((ranks * share, nodes, devices))
        if ranks > 1:
            odd = ranks * share + rng.randint(1, ranks - 1)
            found["lightning_errors"].append((odd, nodes, devices, rng.randint(1, 100)))
            found["tensorflow_errors"].append((odd, nodes, devices))
    return found
