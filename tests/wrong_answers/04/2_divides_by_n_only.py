# symptom: wrong value
# says: not that of one process
import torch.distributed as dist


def global_accuracy(batches, n_samples):
    correct = sum((predictions == labels).sum() for predictions, labels in batches)
    dist.all_reduce(correct)
    return correct.item() / n_samples
