"""Lesson 09: what is asked of an answer, known to both sides of a check."""

from __future__ import annotations

from random import Random

# 09.1: steps of an epoch and of the whole training of trainer.py; and the shares of a checkpoint that a process writes
# before it is killed, of the first one and of a later one
EPOCH_STEPS, STEPS, KILLED_AT = 6, 24, [[0.5, 0.99], [0.0, 0.1, 0.9]]

# 09.2: numbers of ranks, samples of the data set, batch size, epochs; the last batch of a rank is smaller
RANKS, SAMPLES, BATCH, EPOCHS = (2, 3), 44, 4, 3

# 09.3: kept_bytes, input_bytes, forward_s, limit_bytes
CHOOSE_CASES: list[tuple[list[int], list[int], list[float], int]] = [
    ([90, 60, 30, 20], [10, 8, 6, 4], [5.0, 2.0, 1.0, 1.0], 180),
    ([70], [7], [1.0], 70),
    ([40, 40, 40, 40], [5, 5, 5, 5], [1.0, 1.0, 1.0, 1.0], 160),  # fits as it is
    (
        [40, 40, 40, 40],
        [5, 5, 5, 5],
        [1.0, 1.0, 1.0, 1.0],
        130,
    ),  # the block that backward is at counts too: recompute two, not one
    ([50, 50, 50], [30, 5, 5], [1.0, 2.0, 2.0], 120),  # the first frees little
    ([50, 50, 50], [5, 5, 5], [1.0, 1.0, 1.0], 60),  # nothing fits
    ([50, 50, 50], [5, 5, 5], [1.03, 1.01, 1.0], 110),  # any two fit, and they differ by little
    ([64, 48, 40, 32, 24, 20, 16, 12], [8, 6, 5, 4, 3, 2, 2, 1], [3.0, 1.2, 2.5, 0.9, 1.4, 0.5, 0.8, 0.7], 200),
    ([60, 45, 44, 10], [6, 4, 4, 1], [2.0, 1.3, 1.3, 0.4], 148),
    (
        [31, 17, 53, 29, 41, 13, 37, 23, 47, 19, 43, 11],
        [3, 2, 6, 3, 4, 1, 5, 2, 5, 2, 4, 1],
        [1.9, 0.7, 2.1, 1.1, 2.6, 0.6, 1.2, 1.3, 1.7, 0.5, 2.2, 0.4],
        250,
    ),
    ([60, 50, 40], [6, 5, 4], [1.0, 2.0, 3.0], 80),  # only all three recomputed fit
    (  # one byte too little to keep all
        [3_000_000_017, 2_000_000_011, 1_500_000_007],
        [30_000_001, 20_000_003, 10_000_019],
        [1.0, 2.0, 4.0],
        6_500_000_034,
    ),
]

# 09.4: (step, every), and (step_s, save_s, failure_s)
AGAIN_CASES: list[tuple[int, int]] = [(21, 5), (25, 5), (4, 5), (0, 5), (29, 10), (7, 1), (19_999, 20_000)]
EVERY_CASES: list[tuple[float, float, float]] = [
    (0.5, 10.0, 3600.0),
    (2.0, 60.0, 11_135.0),
    (53.0, 5.0, 600.0),  # of two whole numbers, the nearer one isn't always better
    (100.0, 1.0, 600.0),  # less than a step: 1
    (0.2, 0.05, 86_400.0),
    (26.0, 5.0, 600.0),
    (0.01, 30.0, 86_400.0),  # more than 200,000 steps
]


def random_blocks(rng: Random, n: int = 6) -> list[tuple[list[int], list[int], list[float], int]]:
    """More cases for 09.3: 3 to 12 blocks that take seconds or less than a millisecond, and limits between what all of
    them recomputed hold and what none holds. Then equal blocks of which half must go, that differ by 0.1 ms."""
    cases = []
    for i in range(n):
        kept = [rng.randint(10, 99) for _ in range(rng.randint(3, 9) if i < n // 2 else 10 + i % 3)]
        inputs = [rng.randint(1, k // 3) for k in kept]
        unit = 10.0 ** -(3 + i % 3 * 2)
        seconds = [round(rng.randint(1000, 4000) * unit, 9) for _ in kept]
        least, most = sum(inputs) + max(kept), max(sum(kept), sum(inputs) + 99)
        limit = rng.randint(least, most) if i < n // 2 else least + (most - least) * (1 + 3 * (i % 3)) // 8
        cases.append((kept, inputs, seconds, limit))
    for blocks in (5, 7, 11):
        seconds = [round(1 + k / 10_000, 4) for k in rng.sample(range(1, 25), blocks)]
        many = blocks // 2
        cases.append(([50] * blocks, [5] * blocks, seconds, 50 * (blocks - many) + 5 * many + 50))
    return cases


def random_jobs(rng: Random, n: int = 6) -> tuple[list[tuple[int, int]], list[tuple[float, float, float]]]:
    """More cases for 09.4, some of them of short steps, so that many lie between two saves."""
    kills = [(rng.randrange(10**6), rng.randint(2, 5000)) for _ in range(n)]
    jobs = [
        (rng.randint(1, 900) / 10 ** rng.randint(0, 4), rng.randint(1, 600) / 10, 36.0 * rng.randint(10, 9000))
        for _ in range(n)
    ]
    return kills, jobs


def random_kills(rng: Random) -> tuple[int, list[int]]:
    """For 09.1: after how many steps a run is killed, in the third epoch; and after how many of its own each start of
    another run is killed: in the first epoch, in the second, in the third."""
    moments = [k * EPOCH_STEPS + rng.randint(1, EPOCH_STEPS - 1) for k in (2, 0, 1, 1)]
    return moments[0], moments[1:]


# 09.5: a model is (rows of its batch, width of what blocks pass on, widths of the layers inside each block)
CurveModel = tuple[int, int, list[list[int]]]
PROGRAMS = PLAIN, EACH, SECOND, ONE = "plain", "each block", "every second block", "one around all"
ROWS = (1, 16, 256)  # of one model, so that one program makes the same shape in three sizes


def curve_models(draw: Random) -> list[CurveModel]:
    """Models for which some simple rule fails, of random sizes, and models as chance has them.

    What's inside a block of width 8 is at least 4 wide, and at most a hundred times as wide as the block.
    """

    def some(blocks: int, most: int = 20) -> list[list[int]]:
        return [[4 * draw.randint(1, most) for _ in range(draw.randint(1, 3))] for _ in range(blocks)]

    def large() -> list[int]:
        return [8 * draw.randint(80, 100)]

    n = draw.randint
    insides = [
        some(1) * n(4, 8),  # equal blocks: forward is a straight line, also where everything is kept
        [large() if i % 2 else [4 * n(1, 8)] for i in range(n(5, 9))],  # small and large ones in turn,
        [[4 * n(1, 8)] if i % 2 else large() for i in range(n(5, 9))],  # and the other way round
        some(2),
        some(3),
        [*some(2 * n(2, 3)), large()],  # an odd number, and the last one is the highest
        [large(), *some(n(3, 8), most=3)],  # the first one is nearly all there is
        sorted(some(n(4, 10)), key=sum),
        sorted(some(n(4, 10)), key=sum, reverse=True),
        some(12),
        *(some(n(4, 12)) for _ in range(3)),
    ]
    models: list[CurveModel] = [(draw.choice([2, 4, 8, 16, 32]), 8 * n(1, 4), inside) for inside in insides]
    # as far apart as the text allows: what a tolerance takes for equal
    models += [(2, 8, [*some(11), [800]]), (2, 8, [[4] if i % 2 else [800] for i in range(12)])]
    inside = [[4, 8], [32], [16], [8, 16], [24], [8]]
    draw.shuffle(inside)
    return [*models, *((rows, 8, inside) for rows in ROWS)]
