# symptom: too many
# says: would hide loading too


def choose_workers(load_s: float, compute_s: float, cores: int, batch_nbytes: int, shm_nbytes: int, prefetch_factor: int = 2) -> int:
    needed = cores
    by_cores = max(1, cores - 1)
    by_memory = max(0, (shm_nbytes // batch_nbytes - 1) // prefetch_factor)
    return min(needed, by_cores, by_memory)
