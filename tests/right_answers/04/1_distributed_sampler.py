from torch.utils.data import DistributedSampler


def shard(n_samples, rank, world_size, epoch, seed=0, shuffle=True, drop_last=False):
    sampler = DistributedSampler(range(n_samples), world_size, rank, shuffle, seed, drop_last)
    sampler.set_epoch(epoch)
    return list(sampler)
