# symptom: endless
# says: did not come to its end within
def shard(n_samples, rank, world_size, epoch, seed=0, shuffle=True, drop_last=False):
    mine = []
    while len(mine) * world_size < n_samples:
        mine += []
    return mine
