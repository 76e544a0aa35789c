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

# 10.4: params, ranks, activation_bytes, compute_s, bandwidth_Bps, device_bytes
PLAN_CASES: list[tuple[float, int, float, float, float, float]] = [
    (1e9, 8, 10e9, 1.0, 100e9, 80e9),  # all fit: stage 0
    (4e9, 8, 20e9, 1.0, 100e9, 80e9),  # stage 1
    (6e9, 64, 60e9, 0.5, 20e9, 80e9),  # stage 2, and stage 3 would fit as well
    (30e9, 64, 100e9, 2.0, 50e9, 40e9),  # stage 3 and recomputing
    (7.5e9, 64, 70e9, 10.0, 50e9, 80e9),  # stage 3: computing is dear
    (7.5e9, 64, 70e9, 0.5, 5e9, 80e9),  # recomputing: the network is slow
    (30e9, 4, 10e9, 2.0, 50e9, 80e9),  # none
    (1e9, 1, 60e9, 1.0, 50e9, 24e9),  # one rank has nothing to send
    (2e9, 8, 8e9, 1.0, 100e9, 40e9),  # stage 0, which takes all the memory of the device
    (1e9, 512, 10e9, 1.0, 100e9, 80e9),
    (7.5e9, 64, 70e9, 3.0, 14.4e9, 80e9),  # recomputing is a little faster than stage 3
]


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


def random_plans(rng: Random, n: int = 12) -> list[tuple[float, int, float, float, float, float]]:
    """More cases for 10.4."""
    return [
        (
            rng.randint(5, 400) * 1e8,
            rng.choice([1, 2, 4, 8, 12, 64, 256]),
            rng.randint(5, 120) * 1e9,
            rng.randint(2, 80) / 10,
            rng.randint(2, 200) * 1e9,
            rng.choice([24, 40, 80, 141]) * 1e9,
        )
        for _ in range(n)
    ]
