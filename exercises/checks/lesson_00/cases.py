"""Lesson 00: what is asked of an answer, known to both sides of a check. Some cases are drawn anew in each check."""

import random
from typing import NamedTuple

# 00.1: (seconds of each part in each step, steps of warm-up). Each has a trap: a slow start, a step that was disturbed,
# a part that is slow now and then.
PROFILES = [
    (
        {
            "load": [0.004, 0.004, 0.004, 0.004],
            "forward": [0.02, 0.02, 0.02, 0.02],
            "backward": [0.04, 0.04, 0.04, 0.04],
        },
        0,
    ),
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
    (
        {
            "load": [0.050, 0.050, 0.060, 0.058, 0.062],
            "forward": [0.4, 0.021, 0.020, 0.022, 0.021],
            "backward": [0.6, 0.041, 0.040, 0.039, 0.700],
        },
        1,
    ),
    ({"test": [2.0, 2.1, 1.9], "train": [6.0, 6.2, 5.8]}, 0),
]


def profiles(seed: int) -> list[tuple[dict[str, list[float]], int]]:
    """The profiles above, and five that are drawn at random, each with a slow warm-up and one disturbed step."""
    draw = random.Random(seed)
    drawn = []
    for _ in range(5):
        names = draw.sample(["load", "move", "forward", "backward", "optimizer", "test", "train"], draw.randint(2, 6))
        warm_up, steps = draw.randint(0, 3), draw.randint(3, 8)
        typical = {name: draw.uniform(0.01, 0.1) for name in names}
        times = {name: [s * draw.uniform(0.8, 1.2) for _ in range(warm_up + steps)] for name, s in typical.items()}
        for step in range(warm_up):
            times[names[0]][step] += draw.uniform(0.5, 1)
        times[draw.choice(names)][-1] += draw.uniform(0.5, 1)
        drawn.append((times, warm_up))
    return PROFILES + drawn


# 00.2: (serial_s, split_s, deadline_s)
DEADLINES = [
    (0.0, 100.0, 100.0),
    (0.0, 100.0, 25.0),
    (10.0, 80.0, 20.0),
    (10.0, 80.0, 19.0),
    (10.0, 80.0, 21.0),
    (10.0, 80.0, 500.0),
    (30.0, 600.0, 30.5),
    (10.0, 80.0, 10.0),
    (10.0, 80.0, 4.0),
    (7.0, 0.0, 7.0),
    (7.0, 0.0, 6.0),
    (7.0, 0.0, 20.0),  # nothing to split
    (0.0, 0.0, 5.0),
    (0.0, 80.04, 10.0),  # a little more than 8 ranks can do
    (0.0, 80.0004, 10.0),
    (1.0, 250_000.0, 2.0),
    (50.0, 100.0, 50.25),  # hardly more than the serial part
]


def deadlines(seed: int) -> list[tuple[float, float, float]]:
    """The jobs above, and some that are drawn, in whole and half seconds: there, rounding can't make a difference."""
    draw = random.Random(seed)
    drawn = []
    for most in (9, 99, 9_999, 200_000):
        serial_s, share_s = draw.randint(1, 50) / 2, draw.randint(2, 20) / 2
        split_s = share_s * draw.randint(most // 2, most)
        drawn += [(serial_s, split_s, serial_s + share_s), (serial_s, split_s + 0.5, serial_s + share_s)]
    return DEADLINES + drawn


# 00.3: (ranks, pictures). With 3 ranks the last is on a machine of its own. In the third, one rank has no picture. In
# the last, more pictures are right than a byte can count.
TESTS = [(2, 11), (3, 7), (3, 2), (1, 700)]
ON_TWO_MACHINES = 3
FILE = "share.txt"


def pictures(seed: int, count: int) -> list[tuple[float, int, int]]:
    """Pictures, each a number that no other is, with their labels and what the model says of them. The share of right
    answers is another one in each rank's part, whether ranks deal or cut, and no part is all wrong: its rank's count
    wouldn't show whether the counts were added up."""
    draw = random.Random(seed)
    while True:
        rows = [(draw.random(), draw.randrange(10), draw.randrange(10)) for _ in range(count)]
        rows = [(picture, label, label if draw.random() < 0.5 else said) for picture, label, said in rows]
        right = [label == said for _, label, said in rows]
        if count > 100:  # for one rank
            return rows
        if count < 4 and right[0] != right[1]:
            return rows
        shares = [
            [sum(part) / max(len(part), 1) for part in parts]
            for n in (2, 3)
            for parts in ([right[r::n] for r in range(n)], _cut(right, n))
        ]
        share = sum(right) / count
        if count > 3 and all(
            abs(sum(each) / len(each) - share) > 1e-3 and share not in each and min(each) > 0 for each in shares
        ):
            return rows


def _cut(values: list[bool], parts: int) -> list[list[bool]]:
    """In consecutive pieces."""
    ends = [len(values) * r // parts for r in range(parts + 1)]
    return [values[start:end] for start, end in zip(ends, ends[1:], strict=False)]


# 00.4


class Clocked(NamedTuple):
    """Seconds of the work that's already in the device's queue, seconds of each call of `work`, and how many of these
    calls are warm-up."""

    before: float
    work: list[float]
    warm_up: int


# The second has an even number of calls: its median lies between two of them.
DEVICES = [
    Clocked(0.15, [0.1, 0.1, 0.1, 0.01, 0.04, 0.01, 0.35, 0.04], 3),
    Clocked(0.1, [0.08, 0.02, 0.2, 0.03], 0),
    Clocked(0.05, [0.04, 0.04, 0.04], 0),
    Clocked(0.05, [0.04], 0),
    Clocked(0.02, [0.01] * 9, 0),
]
