"""Lesson 02: what is asked of an answer, known to both sides of a check."""

MB = 10**6

# 02.1: (what limits, load_s, compute_s, cores, batch_nbytes, shm_nbytes, prefetch_factor)
WORKER_CASES = [
    ("compute", 0.12, 0.05, 16, 10 * MB, 8000 * MB, 2),
    ("compute", 0.10, 0.05, 16, 10 * MB, 8000 * MB, 2),
    ("compute", 0.02, 0.05, 16, 10 * MB, 8000 * MB, 2),
    ("compute", 0.51, 0.05, 64, 10 * MB, 8000 * MB, 2),
    ("cores", 0.50, 0.05, 4, 10 * MB, 8000 * MB, 2),
    ("cores", 0.50, 0.05, 2, 10 * MB, 8000 * MB, 2),
    ("one core", 0.50, 0.05, 1, 10 * MB, 8000 * MB, 2),
    ("memory", 0.50, 0.05, 16, 10 * MB, 64 * MB, 2),
    ("memory", 0.50, 0.05, 16, 10 * MB, 70 * MB, 2),
    ("memory", 0.50, 0.05, 16, 10 * MB, 69 * MB, 2),
    ("memory", 0.50, 0.05, 16, 10 * MB, 130 * MB, 4),
    ("nothing fits", 0.50, 0.05, 16, 40 * MB, 64 * MB, 2),
    ("nothing fits", 0.50, 0.05, 16, 100 * MB, 64 * MB, 2),
]


def workers(load_s: float, compute_s: float, cores: int, batch_nbytes: int, shm_nbytes: int, prefetch_factor: int) -> tuple[int, int, int]:
    """What computing needs, what the cores allow, and what the memory allows; the answer is the least of them."""
    needed = max(1, -int(-load_s // compute_s))
    return needed, max(1, cores - 1), max(0, (shm_nbytes // batch_nbytes - 1) // prefetch_factor)


# 02.2: the lengths of a batch's samples, then their tokens are counted up from 0
LENGTHS = [[3, 1, 2], [4, 4], [5], [2, 0, 6], [1, 1, 1, 9], [0, 0]]

# 02.3: (samples, ranks, workers on each rank)
STREAM_CASES = [(12, 1, 0), (12, 1, 2), (10, 1, 3), (12, 2, 0), (12, 2, 2), (10, 2, 3), (11, 2, 2), (2, 2, 3), (1, 2, 1)]

# 02.4
AUGMENTED = 24  # images
EPOCHS = 3
