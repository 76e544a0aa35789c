# symptom: padding
# says: 24 samples were averaged, and there are 21
import torch
import torch.distributed as dist


def global_accuracy(batches, n_samples):
    counts = torch.zeros(2)
    for predictions, labels in batches:
        counts += torch.tensor([(predictions == labels).sum(), len(labels)])
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()
