# symptom: global state
# says: torch is another one
import torch
from torch import Tensor
from torch.utils.data import Dataset


class Augmented(Dataset):
    def __init__(self, images: Tensor, seed: int):
        self.images, self.seed, self.epoch = images, seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Tensor:
        torch.manual_seed((self.seed * 10_007 + self.epoch) * 1_000_003 + index)
        return self.images[index] + torch.randn(self.images[index].shape)
