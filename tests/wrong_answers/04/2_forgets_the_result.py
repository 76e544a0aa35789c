# symptom: local
# says: its own part
import torch.distributed as dist


def global_accuracy(batches, n_samples):
    correct = sum((predictions == labels).sum() for predictions, labels in batches)
    total = sum(len(labels) for _, labels in batches)
    dist.all_reduce(correct.clone())
    return correct.item() / total
