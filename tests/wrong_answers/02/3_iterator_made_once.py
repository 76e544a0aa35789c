# symptom: second epoch
# says: not like the first
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info


class Stream(IterableDataset):
    def __init__(self, read: Callable[[int], Any], n_samples: int, rank: int, world_size: int):
        self.read, self.n_samples, self.rank, self.world_size = read, n_samples, rank, world_size
        self.indices = iter(range(rank, n_samples, world_size))

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker, num_workers = (info.id, info.num_workers) if info else (0, 1)
        for k, i in enumerate(self.indices):
            if k % num_workers == worker:
                yield self.read(i)
