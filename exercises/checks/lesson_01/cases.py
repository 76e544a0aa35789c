"""Lesson 01: what both sides of its checks know."""

from __future__ import annotations

import random
from typing import NamedTuple

# 01.1: which version is several times as fast, and the cause in a word or two, which is the name of the symptom
WINNERS = {
    "a": ("script", "dead code"),
    "b": ("equal", "long operations"),
    "c": ("eager", "words"),
    "d": ("script", "same product"),
    "e": ("eager", "integers"),
}
CHOICES = ("script", "eager", "equal")

# 01.2: (numbers in x, its dtype, sizes, scale)
MEANS_CASES: list[tuple[int, str, list[int], float | None]] = [
    (10, "float32", [1, 3, 10], None),
    (10, "float32", [2, 50, 4], 2.5),
    (5, "float32", [7], None),
    (8, "float32", [8, 8, 1, 2], 0.0),
    (1, "float32", [1], -1.0),
    (300, "float32", list(range(1, 40)), 1.0),
    (20, "float64", [3, 30, 7], 0.5),
]


class Means(NamedTuple):
    """What a call of 01.2's function is given."""

    x: list[float]
    dtype: str
    sizes: list[int]
    scale: float | None

    def __str__(self) -> str:
        sizes = self.sizes if len(self.sizes) < 7 else f"{self.sizes[0]}, {self.sizes[1]} to {self.sizes[-1]}"
        return f"{len(self.x)} numbers of {self.dtype}, sizes {sizes}, scale {self.scale}"


def means_cases(seed: int) -> list[Means]:
    """The cases above, and some whose length, sizes and scale are drawn."""
    draw = random.Random(seed)
    drawn = []
    for dtype in ("float32", "float64", "float32"):
        n = draw.randint(11, 60)
        sizes = [draw.randint(1, 2 * n) for _ in range(draw.randint(2, 6))] + [n]
        drawn.append((n, dtype, sizes, draw.choice([None, round(draw.uniform(-3, 3), 2)])))
    return [
        Means([draw.uniform(0, 1) for _ in range(n)], dtype, sizes, scale)
        for n, dtype, sizes, scale in MEANS_CASES + drawn
    ]


# 01.3: factors of the input, small enough to be left alone and large enough to be clipped; the last is all zeros
CLIP_SCALES = (0.05, 0.9, 0.2, 0.5, 0.0)
LIMIT = 2.0


def clip_inputs(seed: int) -> list[tuple[str, list[float]]]:
    """Inputs of one length, which are compiled for; then some of lengths that are drawn, called by Python alone."""
    draw = random.Random(1)
    base = [draw.uniform(-0.3, 0.7) for _ in range(16)]
    named = [(f"input scaled by {scale}", [v * scale for v in base]) for scale in CLIP_SCALES]
    draw = random.Random(seed)
    for n in (1, draw.randint(2, 15), draw.randint(100, 400)):
        for most in (0.6 / n**0.5, 3):
            x = [draw.uniform(most / 2, most) * draw.choice([-1, 1]) for _ in range(n)]
            named.append((f"{n} number{'s' * (n > 1)} from {min(x):.3f} to {max(x):.3f}", x))
    return named


# 01.4: (first call, eager call, compiled call), in whole microseconds
PAID_CASES = [
    (9_000_000, 10_000, 1_000),
    (500_000, 12_800, 600),
    (5_000, 1_000, 500),
    (5_001, 1_000, 500),
    (10_000, 1_000, 900),
    (700_000, 50, 49),
    (300, 1_000, 400),  # also less than a later call
    (1_000, 1_000, 999),
    (1_001, 1_000, 1_000),
    (1_000, 1_000, 1_000),  # the same from the first call on
    (1_000, 1_000, 3_000),
    (2_000_000, 300, 450),
    (800, 1_000, 2_000),
    (9_000_000, 5, 2),
    (100_001, 20_000, 10_000),  # ten thousandths of a call more
    (11_000_001, 3_000_000, 1_000_000),  # half a millionth
]


def paid_cases(seed: int) -> list[tuple[int, int, int]]:
    """The cases above, and some that are drawn: paid back exactly with a call, and a microsecond later."""
    draw = random.Random(seed)
    drawn = []
    for most in (10, 1_000, 100_000):
        saved, compiled, n = draw.randint(2, 500), draw.randint(1, 2_000), draw.randint(most // 5, most)
        first = n * (compiled + saved) - (n - 1) * compiled
        drawn += [(first, compiled + saved, compiled), (first + 1, compiled + saved, compiled)]
    return PAID_CASES + drawn


# 01.5: two epochs whose last batch is smaller, the steps of warm-up, and how often it may be compiled: once for the
# first step, and again when a number or a size turns out to change
BATCH_SIZES = (32, 32, 32, 32, 32, 32, 20) * 2
WARM_UP = 10
MOST_GRAPHS = 3
