from itertools import islice

from torch.utils.data import IterableDataset, get_worker_info


class Stream(IterableDataset):
    def __init__(self, read, n_samples, rank, world_size):
        super().__init__()
        self.read = read
        self.mine = list(range(n_samples))[rank::world_size]

    def __iter__(self):
        info = get_worker_info()
        mine = self.mine if info is None else islice(self.mine, info.id, None, info.num_workers)
        return map(self.read, mine)
