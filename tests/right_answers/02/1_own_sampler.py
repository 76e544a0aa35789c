import torch
from torch.utils.data import DataLoader


class Epochs(torch.utils.data.Sampler):
    def __init__(self, n):
        self.n, self.generator = n, torch.Generator().manual_seed(3)

    def __iter__(self):
        return iter(torch.randperm(self.n, generator=self.generator).tolist())

    def __len__(self):
        return self.n


def main(dataset, step, epochs, cores, device):
    options = {"pin_memory": True} if device.type == "cuda" else {}
    workers = max(cores - 1, 1)
    loader = DataLoader(
        dataset, 8, sampler=Epochs(len(dataset)), num_workers=workers, persistent_workers=True, **options
    )
    for _ in range(epochs):
        for images, labels in loader:
            if device.type == "cuda":
                images, labels = images.cuda(device, non_blocking=True), labels.cuda(device, non_blocking=True)
            step(images, labels)
