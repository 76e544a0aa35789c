from collections.abc import Callable

import torch
from torch.utils.data import DataLoader, Dataset, Sampler


class Shuffled(Sampler):
    """The batches of one epoch; each time it's walked through, in a new order."""

    def __init__(self, n: int, size: int) -> None:
        self.n, self.size = n, size
        self.generator = torch.Generator()
        self.generator.seed()

    def __iter__(self):
        order = torch.randperm(self.n, generator=self.generator)
        yield from (part.tolist() for part in order.split(self.size))

    def __len__(self) -> int:
        return -(-self.n // self.size)


def collate(samples):
    images, labels = zip(*samples)
    return torch.stack(images), torch.tensor(labels)


def main(dataset: Dataset, step: Callable, epochs: int, cores: int, device: torch.device) -> None:
    gpu = device.type != "cpu"
    workers = cores - 1 if cores > 1 else 1
    loader = DataLoader(dataset, batch_sampler=Shuffled(len(dataset), 8), collate_fn=collate, num_workers=workers,
                        persistent_workers=True, prefetch_factor=4, pin_memory=gpu)
    for _ in range(epochs):
        for batch in loader:
            images, labels = (part.to(device=device, non_blocking=gpu) for part in batch)
            step(images, labels)
