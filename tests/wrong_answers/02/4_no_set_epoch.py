# symptom: missing
# says: set_epoch
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset


class Augmented(Dataset):
    def __init__(self, images: Tensor, seed: int):
        self.images, self.seed, self.epoch = images, seed, 0

    def at_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Tensor:
        rng = np.random.default_rng([self.seed, self.epoch, index])
        noise = torch.from_numpy(rng.standard_normal(self.images[index].shape)).float()
        return self.images[index] + noise
