"""Lesson 06: what an answer is asked, known to both sides of a check. Some cases are drawn anew each time."""

from __future__ import annotations

import random

# 06.1: (seconds of each layer, stages)
BALANCE_CASES: list[tuple[list[float], int]] = [
    ([1.0] * 8, 4),
    ([5.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 5.0], 3),  # an embedding and an output layer
    ([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 6.0], 4),  # the last layer alone is the slowest stage, wherever you cut the others
    ([2.0, 3.0, 3.0, 2.0, 2.0, 3.0, 3.0, 2.0, 4.0], 4),
    ([3.0, 1.0, 1.0, 3.0, 1.0, 1.0, 1.0, 3.0], 3),
    ([0.4, 0.9, 0.1], 3),
    ([0.7, 0.2], 1),
    ([9.0, 1.0, 1.0], 3),  # a stage without a layer wouldn't make it slower
    ([1.0, 3.0, 1.0, 1.0, 6.0, 1.0], 3),  # the most even division, 4, 2 and 7, has a slower stage than the best
    ([0.01] * 40 + [1.0] * 4, 3),  # many layers on one stage
    ([round(0.5 + (17 * i * i + 5 * i) % 23 / 10, 1) for i in range(120)], 16),
]


def balance_cases(seed: int) -> list[tuple[list[float], int]]:
    """The fixed cases, and some of layers that take from microseconds to minutes."""
    draw = random.Random(seed)
    more: list[tuple[list[float], int]] = [([0.0002, 0.0001, 0.0003, 0.0001, 0.0001, 0.0002], 3)]
    for scale in (2e-5, 1e-3, 40.0):
        n = draw.randint(12, 40)
        layers = [scale * draw.choice([0.2, 1, 1, 3]) * draw.uniform(0.5, 1) for _ in range(n)]
        more.append((layers, draw.randint(3, n // 3)))
    return BALANCE_CASES + more


# 06.2: (ranks, layers of each stage, micro-batches, batches)
ConvertCase = tuple[int, list[int], int, int]
CONVERT_CASES: list[ConvertCase] = [
    (2, [3, 2], 4, 1),
    (2, [1, 4], 4, 3),
    (2, [3, 1], 2, 2),
    (4, [2, 1, 3, 1], 4, 1),
    (4, [1, 2, 1, 2], 6, 3),
]
SAMPLES, LENGTH, VOCABULARY = 2, 4, 5  # samples of a micro-batch, tokens of each
LR, MOMENTUM = 0.1, 0.9


def convert_cases(draw: random.Random) -> list[ConvertCase]:
    """The fixed ones, and some with any cuts."""
    more: list[ConvertCase] = []
    for ranks in (2, 3):
        counts = [draw.randint(1, 3) for _ in range(ranks)]
        more.append((ranks, counts, draw.randint(ranks, 6), draw.randint(2, 3)))
    return [*CONVERT_CASES, *more]


# 06.3: (ranks, micro-batches)
GPIPE_CASES = [(2, 4), (3, 1), (4, 3)]
ROWS, WIDTH = 3, 6  # of a micro-batch
OVERLAP_S = 4.0  # how long rank 0 waits for rank 1 to begin; with a right answer it waits only for a message

# 06.4: (stages, micro-batches, how many may be in flight); a zero bubble has as many as there are stages
ORDER_CASES: list[tuple[int, int, int]] = [
    (2, 2, 2),
    (3, 4, 3),
    (3, 4, 1),
    (3, 4, 2),
    (4, 8, 3),
    (4, 2, 3),
    (1, 3, 2),
    (2, 5, 9),
    (6, 17, 4),
    (8, 32, 8),
]
BUBBLE_CASES: list[tuple[int, int]] = [(2, 2), (2, 3), (3, 4), (3, 7), (4, 8), (1, 3), (4, 2), (8, 24)]


def order_cases(draw: random.Random) -> list[tuple[int, int, int]]:
    return ORDER_CASES + [(draw.randint(3, 12), draw.randint(5, 40), draw.randint(2, 12)) for _ in range(6)]


def bubble_cases(draw: random.Random) -> list[tuple[int, int]]:
    return BUBBLE_CASES + [(draw.randint(3, 12), draw.randint(5, 40)) for _ in range(6)]
