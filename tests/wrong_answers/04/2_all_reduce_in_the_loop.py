# symptom: collectives
# says: 13 batches a rank took 13 collectives
import torch
import torch.distributed as dist


def global_accuracy(batches, n_samples):
    total = torch.zeros(2, dtype=torch.int64)
    position = dist.get_rank()
    for predictions, labels in batches:
        real = position + dist.get_world_size() * torch.arange(len(labels)) < n_samples
        counts = torch.stack([((predictions == labels) & real).sum(), real.sum()])
        dist.all_reduce(counts)
        total += counts
        position += dist.get_world_size() * len(labels)
    return total[0].item() / total[1].item()
