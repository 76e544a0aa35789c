"""Lesson 01: what both sides of its checks know."""

from __future__ import annotations

# 01.1: who is faster by a factor of several, and the cause in a word, which is the name of the symptom
WINNERS = {
    "a": ("script", "dead code"),
    "b": ("equal", "long operations"),
    "c": ("eager", "words"),
    "d": ("script", "same product"),
    "e": ("eager", "integers"),
}
CHOICES = ("script", "eager", "equal")

# 01.2: (numbers in x, sizes, scale)
MEANS_CASES: list[tuple[int, list[int], float | None]] = [
    (10, [1, 3, 10], None),
    (10, [2, 50, 4], 2.5),
    (5, [7], None),
    (8, [8, 8, 1, 2], 0.0),
    (1, [1], -1.0),
    (300, list(range(1, 40)), 1.0),
]

# 01.3: factors of the input, small enough to be left alone and large enough to be clipped; the last is all zeros
CLIP_SCALES = (0.05, 0.9, 0.2, 0.5, 0.0)

# 01.4: (first call, eager call, compiled call), in whole microseconds
PAID_CASES = [
    (9_000_000, 10_000, 1_000),
    (500_000, 12_800, 600),
    (5_000, 1_000, 500),
    (5_001, 1_000, 500),
    (10_000, 1_000, 900),
    (700_000, 50, 49),
    (900, 1_000, 400),
    (1_000, 1_000, 999),
    (1_001, 1_000, 1_000),
    (2_000_000, 300, 450),
    (800, 1_000, 2_000),
]
