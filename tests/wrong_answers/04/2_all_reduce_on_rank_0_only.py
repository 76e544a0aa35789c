# symptom: hang
# says: rank 0 waited at
import torch
import torch.distributed as dist


def global_accuracy(batches, n_samples):
    counts = torch.zeros(2, dtype=torch.int64)
    position = dist.get_rank()
    for predictions, labels in batches:
        positions = position + dist.get_world_size() * torch.arange(len(labels))
        real = positions < n_samples
        counts[0] += ((predictions == labels) & real).sum()
        counts[1] += real.sum()
        position += dist.get_world_size() * len(labels)

    if dist.get_rank() == 0:
        dist.all_reduce(counts)
    return counts[0].item() / max(1, counts[1].item())
