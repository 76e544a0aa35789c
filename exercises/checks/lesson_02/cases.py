"""Lesson 02: what a check asks of an answer. Judge and ranks both import it; each check draws some cases anew."""

import itertools
import random

# 02.1
FED_SAMPLES, FED_BATCH, FED_EPOCHS = 244, 8, 3  # more batches in an epoch than three workers have ahead, each 8
# Cores, and the device; GPUs are pretended. One that isn't the first shows who moves to "cuda", or compares with it.
FED_CASES = [(2, "cpu"), (4, "cpu"), (1, "cuda"), (3, "cuda:1")]
MOST_STEPS = 500


# 02.2: the lengths of a batch's samples; the tokens of each count up from 0
LENGTHS = [[3, 1, 2], [4, 4], [5], [2, 0, 6], [1, 1, 1, 9], [0, 0]]
Sentence = tuple[list[int], int]


def sentences(seed: int) -> list[list[Sentence]]:
    """Batches of (tokens, label): those above, with their labels counted up from 1, and some that are drawn."""
    draw = random.Random(seed)
    counted = [[(list(range(n)), i) for i, n in enumerate(lengths, 1)] for lengths in LENGTHS]
    drawn = []
    for longest in (6, 30, 100):
        lengths = [draw.randint(0, longest) for _ in range(draw.randint(2, 7))] + [longest, longest]
        draw.shuffle(lengths)
        drawn.append(
            [
                ([draw.choice([0, 1, 2**40]) + draw.randint(0, 99) for _ in range(n)], draw.randint(0, 9))
                for n in lengths
            ]
        )
    return counted + drawn


# 02.3: (samples, ranks, workers on each rank)
STREAM_CASES = [
    (12, 1, 0),
    (12, 1, 2),
    (12, 2, 0),
    (12, 2, 2),
    (10, 2, 3),
    (1, 2, 0),
    (9, 4, 0),  # in blocks of 3 the last rank would get none
    (11, 3, 2),
]
RANKS = 4


def stream_cases(seed: int) -> list[tuple[int, int, int]]:
    """The cases above, and some that are drawn."""
    draw = random.Random(seed)
    return [*STREAM_CASES, (draw.randint(20, 60), 3, 0), (4 * draw.randint(5, 15) + 1, 4, 0)]


def sample_of(index: int) -> int:
    """What `read` returns for an index: another number, so that the check sees whether it was called."""
    return 10 * index + 7


# 02.4
AUGMENTED = 24  # images
EPOCHS = 3
UNIT = 1e-5  # in which noise is told


def noises(seed: int) -> list[tuple[int, int, int]]:
    """(seed, epoch, index) whose noise must differ. Where an epoch or a seed counts as much as up to 2,000 images, or
    as one of the usual numbers above, two of their sums are equal."""
    draw = random.Random(seed)
    indices = [*range(4), *(f + d for f in (10, 31, 64, 100, 128, 256, 7_919, 10_000, 10_007, 65_536) for d in (0, 1))]
    indices += [100_000, *(draw.randint(1_000, 100_000) for _ in range(5))]
    epochs = [0, 1, 2, 10, 31, 100, 1_000]
    first = [(0, 0, i) for i in range(2_001)]
    return list(dict.fromkeys([*first, *itertools.product((0, 1, 2), epochs, indices)]))
