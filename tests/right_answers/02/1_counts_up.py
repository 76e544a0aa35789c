def choose_workers(load_s, compute_s, cores, batch_nbytes, shm_nbytes, prefetch_factor=2):
    def fits(n):
        return (n * prefetch_factor + 1) * batch_nbytes <= shm_nbytes and (n == 1 or n < cores)

    if not fits(1):
        return 0
    n = 1
    while load_s / n > compute_s and fits(n + 1):
        n += 1
    return n
