# symptom: mean of means
# says: last batch is shorter
import torch
import torch.distributed as dist


def global_accuracy(batches, n_samples):
    means = [(predictions == labels).float().mean() for predictions, labels in batches]
    mean = torch.stack(means).mean()
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()
