# symptom: padding
# says: 24 samples were averaged
import torch
import torch.distributed as dist


def global_accuracy(batches, n_samples):
    counts = torch.zeros(2, dtype=torch.int64)
    for predictions, labels in batches:
        real = dist.get_rank() + dist.get_world_size() * torch.arange(len(labels)) < n_samples
        counts += torch.stack([((predictions == labels) & real).sum(), real.sum()])
    dist.all_reduce(counts)
    return counts[0].item() / counts[1].item()
