"""Lesson 04: what is asked of an answer, known to both sides of a check."""

# 04.1: (samples, ranks, shuffle, drop_last): divisible and not, fewer samples than ranks, one rank
SHARD_CASES = [
    (12, 3, False, False),
    (10, 4, False, False),
    (3, 4, False, False),
    (10, 4, False, True),
    (12, 2, True, False),
    (1000, 4, True, False),
    (21, 4, True, False),
    (1, 3, True, False),
    (23, 4, True, True),
    (3, 4, True, True),
    (60, 1, True, False),
]
SHARD_CALLS = [(0, 0), (1, 0), (2, 0), (0, 7), (0, 0)]  # (epoch, seed); the first is asked again at the end

# 04.2: (samples, ranks, batch size); the last has a rank that holds nothing but padding
ACCURACY_CASES = [(24, 4, 6), (21, 4, 4), (40, 3, 5), (101, 2, 4), (97, 4, 3), (1, 2, 4)]

# 04.3: 8 samples a step, shared by two ranks
N_TRAIN = 40
PER_STEP = 8
EPOCHS = 2
LR = 0.1
SHARES = (6, 2)  # in 04.3d
