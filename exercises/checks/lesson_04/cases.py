"""Lesson 04: what a check asks of an answer. Judge and ranks both import it; each check draws some cases anew."""

from __future__ import annotations

import random

ShardCase = tuple[int, int, bool, bool]

# 04.1: (samples, ranks, shuffle, drop_last): divisible and not, fewer samples than ranks, one rank
SHARD_CASES: list[ShardCase] = [
    (12, 3, False, False),
    (10, 4, False, False),
    (3, 4, False, False),
    (5, 4, False, False),
    (10, 4, False, True),
    (12, 2, True, False),
    (1000, 4, True, False),
    (21, 4, True, False),
    (1, 3, True, False),
    (23, 4, True, True),
    (3, 4, True, True),
    (60, 1, True, False),
]
# (epoch, seed); the first is asked again at the end
SHARD_CALLS = [(0, 0), (1, 0), (2, 0), (8, 0), (100, 0), (0, 7), (0, 5), (0, 10_007), (0, 0)]


def shard_cases(seed: int) -> list[ShardCase]:
    """The fixed cases, and for each number of ranks some with a drawn number of samples."""
    draw = random.Random(seed)
    return SHARD_CASES + [
        (draw.choice([draw.randint(1, 12), draw.randint(1, 300)]), ranks, shuffle, draw.random() < 0.5)
        for ranks in (2, 3, 4)
        for shuffle in (False, True)
    ]


# 04.2: (samples, ranks, batch size); the last has a rank that holds nothing but padding
ACCURACY_CASES = [(24, 4, 6), (21, 4, 4), (40, 3, 5), (101, 2, 4), (97, 4, 3), (1, 2, 4)]


def accuracy_cases(draw: random.Random) -> list[tuple[int, int, int]]:
    """The fixed cases, and one for each of two numbers of ranks."""
    return ACCURACY_CASES + [(draw.randint(2100, 4000), ranks, draw.randint(7, 70)) for ranks in (2, 3)]


def test_set(draw: random.Random, n: int) -> tuple[list[int], list[int]]:
    """Predictions and labels. The first samples, which pad, are mostly right, the last mostly wrong."""
    labels = [draw.randrange(10) for _ in range(n)]
    right = [i == 0 or draw.random() < 0.95 - 0.75 * i / n for i in range(n)]
    return [y if ok else (y + 1) % 10 for y, ok in zip(labels, right, strict=True)], labels


# 04.3: 8 samples a step, shared by two ranks
N_TRAIN = 40
PER_STEP = 8
EPOCHS = 3
LR = 0.1
SHARES = (6, 2)  # in 04.3d

FILE = "trained.pt"  # of 04.5
