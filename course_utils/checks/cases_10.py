"""Lesson 10: what is asked of an answer, known to both sides of a check."""

from __future__ import annotations

# 10.1: ranks, and the shapes of the parameters: 23 elements, which neither 2 nor 3 divides
OPTIMIZER_RANKS = (2, 3)
SHAPES: list[tuple[int, ...]] = [(3, 4), (4,), (), (2, 3)]
STEPS = 3
LEARNING_RATE, DECAY = 0.05, 0.1

# 10.2: (rows, saved on, loaded on)
RESHARD_CASES: list[tuple[int, int, int]] = [
    (8, 2, 4), (8, 4, 2), (10, 4, 2), (10, 2, 4), (5, 4, 3), (97, 8, 16), (97, 16, 3), (1, 1, 4), (6, 3, 3), (7, 1, 2),
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
    (2e9, 8, 8e9, 1.0, 100e9, 40e9),  # stage 0, which takes all that the device has
]
