"""Lesson 08: what is asked of an answer, known to both sides of a check."""

from __future__ import annotations

from random import Random

# 08.1: what `numbers` answers; then what an optimizer adds, to weights of a type; on a tie the weight stays
QUESTIONS = ("digits", "large", "small", "few digits", "whole")
FROZEN_CASES: list[tuple[float, str]] = [
    (1e-4, "bfloat16"),
    (3e-3, "bfloat16"),
    (2.0**-10, "bfloat16"),
    (5.0, "bfloat16"),
    (1e-4, "float16"),
    (2.0**-13, "float16"),
    (3.0, "float16"),
    (1e-4, "float32"),
    (2.0**-20, "float32"),
]
NAN = float("nan")

# 08.2: for each step the factor of the gradients; the scaler's settings
INF = float("inf")
SCALER_DEFAULTS = {"scale": 2.0**16, "growth": 2.0, "backoff": 0.5, "interval": 2000}
SCALER_CASES: list[tuple[list[float], dict[str, float]]] = [
    ([1.0, -2.0, 0.5], {"scale": 1024.0, "interval": 100}),
    ([1.0, INF, 1.0, NAN, 2.0, 1.0], {"scale": 1024.0, "interval": 100}),
    ([1.0, 1.0, 1.0, INF, 1.0, 1.0, 1.0, 1.0, 1.0, -1.0, 1.0], {"scale": 256.0, "interval": 3}),
    (
        [1.0, 1.0, INF, INF, 1.0, 1.0, 1.0, 1.0],
        {"scale": 2.0, "interval": 3, "growth": 4.0, "backoff": 0.125},
    ),  # and below 1
    ([1.0, INF, NAN, INF, INF, INF, INF, 1.0], {"scale": 1.0, "interval": 100}),  # far below 1
    ([1.0, 1.5e38], {"scale": 1.0, "interval": 100}),  # all finite, and their sum is not
    ([1.0] * 5 + [NAN, 1.0], {"scale": 2.0**23, "interval": 1}),  # as large as it gets
]

# 08.3: loops to mend
ROWS = 16  # of a micro-batch
MAX_NORM = 0.5
STAIRCASE = (8, 3)  # batches, epochs
CLIPPED = [(6, 0.3, 2.0**12, []), (8, 6.0, 2.0**12, [3])]  # batches, size of x, scale, broken batches
FREEZE_LR, FREEZE_STEPS = 1e-4, 120
STREAMS = [(5, 0.6), (300, 0.5), (1000, 0.3), (2600, 0.9)]  # samples, share that the model gets right
SKIP_CASES = [(10, 2.0**12, 100, [4]), (14, 2.0**23, 2, [9])]  # batches, scale, growth interval, broken batches

# 08.4
DTYPES_TRIED = ("float16", "bfloat16")


# 08.5: (type, micro-batches, window, scale to begin with, size of x, broken micro-batches)
ConvertCase = tuple[str, int, int, float, float, list[int]]
CONVERT_CASES: list[ConvertCase] = [
    ("bfloat16", 9, 3, 1.0, 0.3, []),
    ("bfloat16", 11, 3, 1.0, 5.0, []),
    ("float16", 8, 3, 2.0**12, 0.3, []),
    ("float16", 14, 4, 2.0**12, 5.0, [4]),
    ("float16", 14, 1, 2.0**23, 1.0, [11]),
]


def frozen_cases(rng: Random, n: int = 12) -> list[tuple[float, str]]:
    """The fixed ones, and some that lie well between ties."""
    more = [
        (2.0 ** rng.randint(-12, 0) * rng.uniform(1.1, 1.9), rng.choice(["bfloat16", "float16", "float32"]))
        for _ in range(n)
    ]
    return [*FROZEN_CASES, *more]


def convert_cases(rng: Random) -> list[ConvertCase]:
    """The fixed ones, and one with a broken micro-batch wherever it falls."""
    n, window = rng.randint(9, 13), rng.randint(2, 4)
    return [*CONVERT_CASES, ("float16", n, window, 2.0**11, rng.uniform(0.5, 4.0), [rng.randrange(n)])]


def random_trainings(rng: Random, n: int = 4) -> list[tuple[list[float], dict[str, float]]]:
    """More cases for 08.2."""
    return [
        (
            [rng.choice([1.0, 1.0, 1.0, -2.0, 0.5, INF, -INF, NAN]) for _ in range(12)],
            {
                "scale": 2.0 ** rng.randint(-4, 20),
                "interval": rng.randint(1, 4),
                "growth": rng.choice([2.0, 4.0]),
                "backoff": rng.choice([0.5, 0.25]),
            },
        )
        for _ in range(n)
    ]
