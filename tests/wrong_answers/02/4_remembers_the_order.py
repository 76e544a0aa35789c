# symptom: workers matter
# says: other noise than with none
import torch
from torch import Tensor
from torch.utils.data import Dataset


class Augmented(Dataset):
    def __init__(self, images: Tensor, seed: int):
        self.images, self.seed, self.epoch = images, seed, 0
        self.generators = {}

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Tensor:
        worker = torch.utils.data.get_worker_info()
        key = (self.epoch, worker.id if worker else 0)
        if key not in self.generators:
            self.generators[key] = torch.Generator().manual_seed(self.seed * 1_000_003 + key[0] * 1009 + key[1])
        return self.images[index] + torch.randn(self.images[index].shape, generator=self.generators[key])
