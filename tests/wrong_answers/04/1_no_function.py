# symptom: missing
# says: defines no function `shard`
def share(n_samples, rank, world_size, epoch, seed=0, shuffle=True, drop_last=False):
    return list(range(rank, n_samples, world_size))
