from collections.abc import Callable

import torch
from torch.utils.data import DataLoader, Dataset


def main(dataset: Dataset, step: Callable, epochs: int, cores: int, device: torch.device) -> None:
    """Call `step(images, labels)` for each batch; `dataset[i]` is (image, label), and takes its time."""
    loader = DataLoader(
        dataset,
        batch_size=8,
        shuffle=True,
        num_workers=max(1, cores - 1),
        persistent_workers=True,
        pin_memory=torch.cuda.is_available() and device.type == "cuda",
    )
    for _epoch in range(epochs):
        for images, labels in loader:
            step(images.to(device, non_blocking=True), labels.to(device, non_blocking=True))
