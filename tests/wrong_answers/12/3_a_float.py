# symptom: not whole
# says: whole numbers
def lightning_batch(global_batch: int, nodes: int, devices: int, fits: int) -> tuple[int, int]:
    """(batch_size of the DataLoader, accumulate_grad_batches) for steps of exactly `global_batch` images.

    nodes, devices  machines, and devices on each of them; one process a device
    fits            the most images that a device holds at once

    As little accumulation as possible. Raises ValueError where no setting gives exactly `global_batch`.
    """
    ranks = nodes * devices
    if global_batch % ranks:
        raise ValueError(f"{global_batch} images do not divide by {ranks} ranks")
    share = global_batch // ranks
    parts = next(k for k in range(1, share + 1) if share % k == 0 and share // k <= fits)
    return share / parts, parts


def tensorflow_batch(global_batch: int, workers: int, replicas: int) -> tuple[int, int]:
    """(what goes into `Dataset.batch`, images of one replica) for a strategy with `replicas` devices on each of `workers` processes.

    Raises ValueError where the replicas cannot have equally many.
    """
    if global_batch % (workers * replicas):
        raise ValueError(f"{global_batch} images do not divide by {workers * replicas} replicas")
    return global_batch, global_batch // (workers * replicas)
