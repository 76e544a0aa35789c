# symptom: signature
# says: shard(n_samples, world_size, rank, epoch)
def shard(n_samples, world_size, rank, epoch):
    return list(range(rank, n_samples, world_size))
