"""Lesson 06: what is asked of an answer, known to both sides of a check."""

from __future__ import annotations

# 06.1: (seconds of each layer, stages)
BALANCE_CASES: list[tuple[list[float], int]] = [
    ([1.0] * 8, 4),
    ([5.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 5.0], 3),  # an embedding and an output layer
    ([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 6.0], 4),  # the last layer alone is the slowest stage, whatever the others do
    ([2.0, 3.0, 3.0, 2.0, 2.0, 3.0, 3.0, 2.0, 4.0], 4),
    ([3.0, 1.0, 1.0, 3.0, 1.0, 1.0, 1.0, 3.0], 3),
    ([0.4, 0.9, 0.1], 3),
    ([0.7, 0.2], 1),
    ([round(0.5 + (17 * i * i + 5 * i) % 23 / 10, 1) for i in range(120)], 16),
]

# 06.2: (stage, start_s, end_s) of each box, and (stages, the largest bubble that is wanted)
SPAN_CASES: list[list[tuple[int, float, float]]] = [
    [(0, 0.0, 1.0), (1, 1.0, 2.0), (1, 2.0, 4.0), (0, 4.0, 6.0)],
    [(1, 11.0, 12.0), (0, 10.0, 11.0), (0, 11.0, 12.0), (1, 12.0, 13.0), (1, 13.0, 15.0), (0, 15.0, 17.0), (1, 15.0, 17.0), (0, 17.0, 19.0)],
    [(0, 5.0, 5.5), (1, 5.5, 6.5), (2, 6.5, 8.0), (3, 8.0, 8.25), (3, 8.25, 8.75), (2, 8.75, 11.75), (1, 11.75, 13.75), (0, 13.75, 14.75)],
    [(0, 3.0, 4.0), (0, 4.0, 9.0)],
]
ENOUGH_CASES: list[tuple[int, float]] = [(2, 0.5), (5, 0.5), (2, 0.15), (4, 0.13), (8, 0.09), (64, 0.06), (1, 0.1), (3, 0.9)]

# 06.3: (ranks, micro-batches)
GPIPE_CASES = [(2, 4), (4, 3)]
ROWS, WIDTH = 3, 6  # of a micro-batch
OVERLAP_S = 2.5  # a rank waits so long for the next one to begin; a right answer waits for a message only

# 06.4: compute_s, devices, gradient_bytes, activation_bytes, micro_batches, bandwidth_Bps; then state_bytes, memory_bytes
PLAN_CASES: list[tuple[tuple[float, int, float, float, int, float], tuple[float, float]]] = [
    ((0.8, 4, 2e9, 4e6, 16, 300e9), (16e9, 80e9)),  # a fast link: data parallel
    ((0.8, 4, 2e9, 4e6, 32, 2e9), (16e9, 80e9)),  # a slow one: pipeline
    ((0.8, 4, 2e9, 4e6, 16, 300e9), (160e9, 80e9)),  # too large for one device
    ((0.8, 4, 2e9, 4e6, 16, 300e9), (400e9, 80e9)),  # and for four
    ((2.0, 8, 28e9, 33e6, 8, 12e9), (80e9, 80e9)),  # it just fits
    ((0.5, 2, 1e8, 64e6, 2, 1e9), (2e9, 8e9)),  # large activations: data parallel
]
