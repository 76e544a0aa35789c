"""Lesson 10: what is asked of an answer, known to both sides of a check."""

from __future__ import annotations

from random import Random
from typing import Any

# 10.1: ranks, and the shapes of the parameters: 23 elements, which neither 2 nor 3 divides
OPTIMIZER_RANKS = (2, 3)
SHAPES: list[tuple[int, ...]] = [(3, 4), (4,), (), (2, 3)]
STEPS = 3
LEARNING_RATE, DECAY = 0.05, 0.1

# 10.2: (rows, saved on, loaded on)
RESHARD_CASES: list[tuple[int, int, int]] = [
    (8, 2, 4), (8, 4, 2), (10, 4, 2), (10, 2, 4), (5, 4, 3), (97, 8, 16), (97, 16, 3), (1, 1, 4), (6, 3, 3), (7, 1, 2),
    (10, 4, 4), (64, 16, 1),
]  # fmt: skip

# 10.3
SPLIT_RANKS = (2, 3)
WIDTH, HIDDEN, ROWS = 4, 12, 5

# 10.4: (ranks, blocks, width)
ConvertCase = tuple[int, int, int]
SCALES = (0.2, 3.0, 0.6, 2.0, 0.1)  # of the samples in each step: some gradients are clipped, and some aren't
CONVERT_LR, MAX_NORM = 0.01, 1.5  # as the program has them that's handed out

# 10.5: (blocks, reshard); that of the text comes first
FilmCase = tuple[int, bool]
FILMS: list[FilmCase] = [(3, True), (3, False), (2, True), (2, False), (1, True), (1, False), (12, True), (12, False)]


def optimizer_cases(rng: Random) -> list[dict[str, Any]]:
    """The parameters above for each number of ranks; then two optimizers that take turns. One of them has so few
    parameters that a rank may own nothing but zeros."""
    cases = [
        {"ranks": ranks, "models": [{"shapes": [list(shape) for shape in SHAPES], "seed": 3, "kind": "AdamW"}]}
        for ranks in OPTIMIZER_RANKS
    ]
    small: dict[str, Any] = {"shapes": [[rng.randint(1, 4)]], "seed": rng.randrange(10**6), "kind": "SGD"}
    shapes = [[rng.randint(1, 5) for _ in range(rng.randint(0, 3))] for _ in range(rng.randint(2, 5))]
    other = {"shapes": shapes, "seed": rng.randrange(10**6), "kind": "AdamW"}
    return [*cases, {"ranks": max(OPTIMIZER_RANKS), "models": [small, other]}]


def split_cases(rng: Random) -> list[dict[str, Any]]:
    """The MLP above on each number of ranks, and another one in float32."""
    sizes = {"width": WIDTH, "hidden": HIDDEN, "rows": ROWS, "seed": 5, "dtype": "float64"}
    other = {
        "width": rng.randint(2, 9),
        "hidden": 3 * rng.randint(2, 5),
        "rows": rng.randint(1, 7),
        "seed": rng.randrange(10**6),
        "dtype": "float32",
    }
    return [*({"ranks": ranks} | sizes for ranks in SPLIT_RANKS), {"ranks": 3} | other]


def random_reshards(rng: Random, n: int = 8) -> list[tuple[int, int, int]]:
    """More cases for 10.2."""
    return [(rng.randint(1, 150), rng.randint(1, 16), rng.randint(1, 16)) for _ in range(n)]


def convert_cases(rng: Random) -> list[ConvertCase]:
    """On 2 ranks, which divide the rows, and on 3, which don't: there one rank has nothing of the last bias."""
    return [(2, rng.randint(3, 4), rng.choice([10, 12, 14])), (3, rng.randint(3, 4), rng.choice([10, 11, 13, 14]))]


def film_cases(rng: Random) -> list[FilmCase]:
    """The fixed ones, and some more with each value of `reshard`."""
    return FILMS + [(rng.randint(4, 30), reshard) for _ in range(3) for reshard in (True, False)]
