# symptom: one core
# says: still gains by one worker
import math


def choose_workers(load_s: float, compute_s: float, cores: int, batch_nbytes: int, shm_nbytes: int, prefetch_factor: int = 2) -> int:
    needed = max(1, math.ceil(load_s / compute_s))
    by_cores = max(1, cores - 1)
    by_memory = max(0, (shm_nbytes // batch_nbytes - 1) // prefetch_factor)
    return 2 if cores == 1 else min(needed, by_cores, by_memory)
