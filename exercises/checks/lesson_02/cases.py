"""Lesson 02: what a check asks of an answer. Judge and ranks both import it; each check draws some cases anew."""

import itertools
import random

# 02.1
FED_SAMPLES, FED_BATCH, FED_EPOCHS = 404, 8, 3  # more batches in an epoch than five workers have ahead, each 8
# Cores, and the device; GPUs are pretended. One that isn't the first shows who moves to "cuda", or compares with it.
FED_CASES = [(2, "cpu"), (6, "cpu"), (1, "cuda"), (3, "cuda:1")]
MOST_STEPS = 500


# 02.2: the lengths of a batch's samples; the tokens of each count up from 0
LENGTHS = [[3, 1, 2], [4, 4], [5], [2, 0, 6], [1, 1, 1, 9], [0, 0]]
Sentence = tuple[list[int], int]


def sentences(seed: int) -> list[list[Sentence]]:
    """Batches of (tokens, label): those above, with their labels counted up from 1, and some that are drawn."""
    draw = random.Random(seed)
    counted = [[(list(range(n)), i) for i, n in enumerate(lengths, 1)] for lengths in LENGTHS]
    drawn = []
    for longest in (6, 30, draw.randint(1_100, 1_300)):
        lengths = [draw.randint(0, longest) for _ in range(draw.randint(2, 7))] + [longest, longest]
        draw.shuffle(lengths)
        drawn.append(
            [
                ([draw.choice([0, 1, 2**40]) + draw.randint(0, 99) for _ in range(n)], draw.randint(0, 9))
                for n in lengths
            ]
        )
    # As many and as wide as before, for who keeps a buffer for each shape; but one of the longest is empty.
    again = [([token + 1 for token in tokens], label + 1) for tokens, label in drawn[0]]
    again[next(i for i, (tokens, _) in enumerate(again) if len(tokens) == 6)] = ([], 3)
    return [*counted, *drawn, again]


# 02.3: (samples, ranks, workers on each rank)
Workers = int | tuple[int, ...]  # of every rank, or of each
STREAM_CASES: list[tuple[int, int, Workers]] = [
    (12, 1, 0),
    (12, 1, 2),
    (12, 2, 0),
    (12, 2, 2),
    (10, 2, 3),
    (1, 2, 0),
    (9, 4, 0),  # in blocks of 3 the last rank would get none
    (11, 3, 2),
    (2, 1, 3),
    (12, 2, (0, 2)),
]
RANKS = 4


def workers_of(workers: Workers, rank: int) -> int:
    return workers if isinstance(workers, int) else workers[rank]


def passes(workers: Workers, rank: int) -> int:
    """How often a loader is iterated. Without workers it's the same stream each time."""
    return 2 if workers_of(workers, rank) else 4


def stream_cases(seed: int) -> list[tuple[int, int, Workers]]:
    """The cases above, and some that are drawn."""
    draw = random.Random(seed)
    return [*STREAM_CASES, (draw.randint(20, 60), 3, 0), (4 * draw.randint(5, 15) + 1, 4, 0)]


def sample_of(index: int) -> int:
    """What `read` returns for an index: another number, so that the check sees whether it was called. The first is
    0, which is a sample like any other."""
    return 10 * index


# 02.4
AUGMENTED = 24  # images
EPOCHS = 3
UNIT = 1e-5  # in which noise is told


def noises(seed: int) -> list[tuple[int, int, int]]:
    """(seed, epoch, index) whose noise must differ. Two sums are equal where an epoch or a seed counts as much as up to
    2,000 images, or as one of the usual numbers; or where an epoch counts as much as a usual number of seeds."""
    draw = random.Random(seed)
    indices = [*range(4), *(f + d for f in (10, 31, 64, 100, 128, 256, 7_919, 10_000, 10_007, 65_536) for d in (0, 1))]
    indices += [100_000, *(draw.randint(1_000, 100_000) for _ in range(5))]
    epochs = [0, 1, 2, 10, 31, 100, 1_000]
    first = [(0, 0, i) for i in range(2_001)]
    seeds = itertools.product((10, 31, 100, 1_000, 10_000), (0, 1), (0, 1))
    return list(dict.fromkeys([*first, *itertools.product((0, 1, 2), epochs, indices), *seeds]))
