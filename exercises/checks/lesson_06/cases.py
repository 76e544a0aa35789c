"""Lesson 06: what an answer is asked, known to both sides of a check. Some cases are drawn anew from a launch's
seed."""

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


# 06.2: (stage, start_s, end_s) of each box, and (stages, the largest bubble that is wanted)
SPAN_CASES: list[list[tuple[int, float, float]]] = [
    [(0, 0.0, 1.0), (1, 1.0, 2.0), (1, 2.0, 4.0), (0, 4.0, 6.0)],
    [
        (1, 11.0, 12.0),
        (0, 10.0, 11.0),
        (0, 11.0, 12.0),
        (1, 12.0, 13.0),
        (1, 13.0, 15.0),
        (0, 15.0, 17.0),
        (1, 15.0, 17.0),
        (0, 17.0, 19.0),
    ],
    [
        (0, 5.0, 5.5),
        (1, 5.5, 6.5),
        (2, 6.5, 8.0),
        (3, 8.0, 8.25),
        (3, 8.25, 8.75),
        (2, 8.75, 11.75),
        (1, 11.75, 13.75),
        (0, 13.75, 14.75),
    ],
    [(0, 3.0, 4.0), (0, 4.0, 9.0)],
    [(0, 3.0, 4.0), (1, 2.0, 3.5), (2, 2.5, 6.0), (0, 4.5, 5.0)],  # stage 1 starts first, stage 2 ends last
]
ENOUGH_CASES: list[tuple[int, float]] = [
    (2, 0.5),
    (5, 0.5),
    (2, 0.15),
    (4, 0.13),
    (8, 0.09),
    (64, 0.06),
    (1, 0.1),
    (3, 0.9),
]


def span_cases(seed: int) -> list[list[tuple[int, float, float]]]:
    """The fixed cases, and one in microseconds with gaps of any length."""
    draw = random.Random(seed)
    boxes = []
    for stage in range(3):
        now = 7e-5
        for _ in range(draw.randint(2, 5)):
            start = now + draw.uniform(0, 4e-5)
            now = start + draw.uniform(1e-5, 9e-5)
            boxes.append((stage, start, now))
    draw.shuffle(boxes)
    return [*SPAN_CASES, boxes]


def enough_cases(seed: int) -> list[tuple[int, float]]:
    """The fixed cases, and some that need up to 60,000 micro-batches and lie well away from a limit."""
    draw = random.Random(seed)
    more = []
    for m in (draw.randint(2, 9), draw.randint(10, 99), draw.randint(20_000, 60_000)):
        stages = draw.randint(2, 40)
        more.append((stages, (stages - 1) / (m - 0.5 + stages - 1)))
    return ENOUGH_CASES + more


# 06.3: (ranks, micro-batches)
GPIPE_CASES = [(2, 4), (3, 1), (4, 3)]
ROWS, WIDTH = 3, 6  # of a micro-batch
OVERLAP_S = 4.0  # how long rank 0 waits for rank 1 to begin; with a right answer it waits only for a message

# 06.4: compute_s, devices, gradient_bytes, activation_bytes, micro_batches, bandwidth_Bps; then state_bytes,
# memory_bytes
PLAN_CASES: list[tuple[tuple[float, int, float, float, int, float], tuple[float, float]]] = [
    ((0.8, 4, 2e9, 4e6, 16, 300e9), (16e9, 80e9)),  # a fast link: data parallel
    ((0.8, 4, 2e9, 4e6, 32, 2e9), (16e9, 80e9)),  # a slow one: pipeline
    ((0.8, 4, 2e9, 4e6, 16, 300e9), (160e9, 80e9)),  # too large for one device
    ((0.8, 4, 2e9, 4e6, 16, 300e9), (400e9, 80e9)),  # and for four
    ((2.0, 8, 28e9, 33e6, 8, 12e9), (80e9, 80e9)),  # it just fits
    ((0.5, 2, 1e8, 64e6, 2, 1e9), (2e9, 8e9)),  # large activations: data parallel
    ((0.5, 4, 1e8, 64e6, 4, 64e9), (8e9, 8e9)),  # it just fits, and is faster
    ((0.5, 4, 1e8, 64e6, 4, 64e9), (32e9, 8e9)),  # a quarter just fits
    ((0.75, 1, 1e9, 0.0, 4, 1e9), (2e9, 8e9)),  # one device, and both the same
]

PlanCase = tuple[tuple[float, int, float, float, int, float], tuple[float, float]]


def plan_cases(seed: int) -> list[PlanCase]:
    draw = random.Random(seed)
    more: list[PlanCase] = []
    for devices in (3, 7, 16):
        gradient, activation, rate = draw.uniform(1e8, 2e10), draw.uniform(1e6, 2e8), draw.uniform(1e9, 2e11)
        inputs = (draw.uniform(0.1, 3), devices, gradient, activation, draw.randint(1, 40), rate)
        memory = draw.uniform(8e9, 80e9)
        more.append((inputs, (memory * draw.uniform(0.5, 1.5) * draw.choice([1, devices]), memory)))
    return PLAN_CASES + more
