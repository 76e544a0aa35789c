# symptom: reads too much
# says: thrown away
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info


class Stream(IterableDataset):
    def __init__(self, read: Callable[[int], Any], n_samples: int, rank: int, world_size: int):
        self.read, self.n_samples, self.rank, self.world_size = read, n_samples, rank, world_size

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker, num_workers = (info.id, info.num_workers) if info else (0, 1)
        chosen = range(self.rank, self.n_samples, self.world_size)[worker::num_workers]
        for i in range(self.n_samples):
            sample = self.read(i)
            if i in chosen:
                yield sample
