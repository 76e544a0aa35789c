"""Lesson 07: what is asked of an answer, known to both sides of a check.

A launch draws some cases anew from its seed.
"""

import random

# 07.1: jobs in each case; there are three workers
CALLS = [5, 0, 1, 20, 4]

# 07.2
SHAPE = (2, 3)
WIDTH, LR = 6, 0.5
THREADS, UPDATES = 4, 6  # trainers, and updates of each

# 07.3: for each case, how often others update between a step's read and its update
STALENESS = [[0, 3, 1, 0, 5], [2]]


def staleness_cases(seed: int) -> list[list[int]]:
    draw = random.Random(seed)
    return [*STALENESS, [draw.randint(0, 30) for _ in range(draw.randint(2, 6))]]


# 07.4: additions of each of four processes
ADDITIONS = 25
