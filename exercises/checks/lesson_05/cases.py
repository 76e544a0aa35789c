"""Lesson 05: what an answer is asked, known to both sides of a check. Some cases are drawn anew each time."""

from __future__ import annotations

import random

# 05.4: (ranks, shape, dtype): divisible and not, fewer numbers than ranks, several dimensions, one rank
SumCase = tuple[int, tuple[int, ...], str]
SUM_CASES: list[SumCase] = [
    (2, (8,), "float64"),
    (4, (12,), "float64"),
    (4, (10,), "float64"),
    (8, (1000,), "float64"),
    (2, (20_000,), "float32"),
    (4, (5, 7), "float64"),
    (4, (3,), "float64"),
    (8, (7,), "int64"),
    (1, (5,), "float64"),
    (2, (), "float64"),
]


def sum_cases(draw: random.Random) -> list[SumCase]:
    types = ["int32", "int64", "float32", "float64"]
    draw.shuffle(types)
    return SUM_CASES + [
        (ranks, (draw.randint(1, 60), draw.randint(1, 9)), dtype)
        for ranks, dtype in zip((2, 4, 4, 8), types, strict=True)
    ]


SAMPLES = 6  # of a micro-batch

# 05.1: (ranks, micro-batches, window, broken samples as [rank, micro-batch])
ConvertCase = tuple[int, int, int, list[list[int]]]
CONVERT_CASES: list[ConvertCase] = [
    (2, 8, 4, []),
    (2, 10, 4, []),
    (2, 3, 4, []),
    (2, 10, 4, [[1, 5]]),
    (2, 9, 4, [[0, 8]]),
    (2, 4, 1, [[1, 0], [0, 2]]),
    (3, 7, 3, [[2, 0], [1, 1]]),
]
LR = 0.1
KNOWN_MISTAKES = ("sum", "last window", "old gradients")


def convert_cases(draw: random.Random) -> list[ConvertCase]:
    """The fixed ones, and some with broken samples wherever they fall."""
    more: list[ConvertCase] = []
    for ranks in (2, 3):
        micro, window = draw.randint(6, 9), draw.randint(2, 4)
        more.append((ranks, micro, window, [[draw.randrange(ranks), draw.randrange(micro)]]))
    return [*CONVERT_CASES, *more]


def left_out(case: ConvertCase) -> set[int]:
    """The windows that have a broken sample."""
    _, _, window, broken = case
    return {k // window for _, k in broken}


# 05.2: a hook that sends half the bytes
HOOK_STEPS = 48
HOOK_RANKS = (2, 3)
SHAPES = [
    (40, 30),
    (30,),
    (50, 20),
    (7,),
    (64, 16),
    (30,),
    (50, 20),
]  # of the model's parameters; buckets of some, after the first step
BUCKET_MB = 0.004
