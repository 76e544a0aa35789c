def lightning_batch(global_batch: int, nodes: int, devices: int, fits: int) -> tuple[int, int]:
    share, rest = divmod(global_batch, nodes * devices)
    if rest or not share:
        raise ValueError("does not divide")
    size = max(b for b in range(1, min(fits, share) + 1) if share % b == 0)
    return size, share // size


def tensorflow_batch(global_batch: int, workers: int, replicas: int) -> tuple[int, int]:
    local, rest = divmod(global_batch, workers * replicas)
    if rest:
        raise ValueError("does not divide")
    return global_batch, local
