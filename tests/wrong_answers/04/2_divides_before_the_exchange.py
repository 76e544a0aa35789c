# symptom: raised ZeroDivisionError
# says: Rank 1 stopped in your code, while measuring 1 sample
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

    weighted = torch.tensor([counts[0].item() / counts[1].item() * counts[1].item() / n_samples])
    dist.all_reduce(weighted)
    return weighted.item()
