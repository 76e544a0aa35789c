"""Lesson 00: what is asked of an answer, known to both sides of a check."""

from typing import NamedTuple

# 00.1: (seconds of each part in each step, steps of warm-up). Each has a trap: a slow start, a step that was disturbed, a part that is slow now and then.
PROFILES = [
    ({"load": [0.004, 0.004, 0.004, 0.004], "forward": [0.02, 0.02, 0.02, 0.02], "backward": [0.04, 0.04, 0.04, 0.04]}, 0),
    (
        {
            "load": [0.9, 0.030, 0.010, 0.012, 0.011, 0.010, 0.012],
            "move": [0.001, 0.001, 0.001, 0.001, 0.001, 0.001, 0.001],
            "forward": [0.050, 0.020, 0.018, 0.019, 0.018, 0.020, 0.019],
            "backward": [0.080, 0.041, 0.040, 0.042, 0.041, 0.040, 0.041],
            "optimizer": [0.003, 0.002, 0.002, 0.002, 0.002, 0.002, 0.002],
        },
        2,
    ),
    ({"load": [0.050, 0.050, 0.060, 0.058, 0.062], "forward": [0.4, 0.021, 0.020, 0.022, 0.021], "backward": [0.6, 0.041, 0.040, 0.039, 0.700]}, 1),
    ({"test": [2.0, 2.1, 1.9], "train": [6.0, 6.2, 5.8]}, 0),
]

# 00.2: (serial_s, split_s, deadline_s, the fewest ranks, None where no number is enough)
DEADLINES = [
    (0.0, 100.0, 100.0, 1),
    (0.0, 100.0, 25.0, 4),
    (10.0, 80.0, 20.0, 8),
    (10.0, 80.0, 19.0, 9),
    (10.0, 80.0, 21.0, 8),
    (10.0, 80.0, 500.0, 1),
    (30.0, 600.0, 30.5, 1200),
    (10.0, 80.0, 10.0, None),
    (10.0, 80.0, 4.0, None),
    (7.0, 0.0, 7.0, 1),
    (7.0, 0.0, 6.0, None),
]

# 00.3: (n1, t1, n2, t2) and the (serial_s, split_s) that they stand for
TWO_RUNS = [
    ((1, 100.0, 2, 60.0), (20.0, 80.0)),
    ((1, 50.0, 8, 50.0 / 8), (0.0, 50.0)),
    ((2, 60.0, 8, 30.0), (20.0, 80.0)),
    ((4, 10.0, 16, 5.5), (4.0, 24.0)),
    ((8, 30.0, 2, 60.0), (20.0, 80.0)),  # the larger number first
    ((1, 12.0, 4, 12.0), (12.0, 0.0)),
    ((1, 100.0, 2, 48.0), (0.0, 100.0)),  # better than n times as fast
    ((2, 30.0, 4, 14.0), (0.0, 60.0)),
    ((1, 10.0, 4, 13.0), (10.0, 0.0)),  # slower on more ranks
]

# 00.4


class Clocked(NamedTuple):
    """Seconds of what is in the device's queue before, of each call of `work`, and how many of these calls are warm-up."""

    before: float
    work: list[float]
    warm_up: int


DEVICES = [Clocked(0.15, [0.1, 0.1, 0.1, 0.04, 0.01, 0.04, 0.5, 0.04], 3), Clocked(0.2, [0.04, 0.04, 0.04], 0)]
