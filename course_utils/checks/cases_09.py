"""Lesson 09: what is asked of an answer, known to both sides of a check."""

from __future__ import annotations

# 09.1: how much of the new file a process writes before it is killed, as shares
KILLED_AT = [0.0, 0.1, 0.5, 0.9, 0.999]

# 09.2: two ranks, samples of the data set, batch size, epochs, and where the run is interrupted
RANKS, SAMPLES, BATCH, EPOCHS = 2, 44, 4, 3
INTERRUPTED = (1, 3)  # in the second epoch, after 3 of 6 batches, of which the last is smaller

# 09.3: kept_bytes, input_bytes, forward_s, limit_bytes
CHOOSE_CASES: list[tuple[list[int], list[int], list[float], int]] = [
    ([90, 60, 30, 20], [10, 8, 6, 4], [5.0, 2.0, 1.0, 1.0], 180),
    ([70], [7], [1.0], 70),
    ([40, 40, 40, 40], [5, 5, 5, 5], [1.0, 1.0, 1.0, 1.0], 160),  # fits as it is
    ([40, 40, 40, 40], [5, 5, 5, 5], [1.0, 1.0, 1.0, 1.0], 130),  # the block that stands in backward counts: two, not one
    ([50, 50, 50], [30, 5, 5], [1.0, 2.0, 2.0], 120),  # the first frees little
    ([50, 50, 50], [5, 5, 5], [1.0, 1.0, 1.0], 60),  # nothing fits
    ([64, 48, 40, 32, 24, 20, 16, 12], [8, 6, 5, 4, 3, 2, 2, 1], [3.0, 1.2, 2.5, 0.9, 1.4, 0.5, 0.8, 0.7], 200),
    ([60, 45, 44, 10], [6, 4, 4, 1], [2.0, 1.3, 1.3, 0.4], 148),
    ([31, 17, 53, 29, 41, 13, 37, 23, 47, 19, 43, 11], [3, 2, 6, 3, 4, 1, 5, 2, 5, 2, 4, 1], [1.9, 0.7, 2.1, 1.1, 2.6, 0.6, 1.2, 1.3, 1.7, 0.5, 2.2, 0.4], 250),
]

# 09.4: (step, every), and (step_s, save_s, failure_s)
AGAIN_CASES: list[tuple[int, int]] = [(21, 5), (25, 5), (4, 5), (0, 5), (29, 10), (7, 1)]
EVERY_CASES: list[tuple[float, float, float]] = [
    (0.5, 10.0, 3600.0),
    (2.0, 60.0, 11_135.0),
    (53.0, 5.0, 600.0),  # between two whole numbers the nearer one is not always the better
    (100.0, 1.0, 600.0),  # less than a step: 1
    (0.2, 0.05, 86_400.0),
    (26.0, 5.0, 600.0),
]
