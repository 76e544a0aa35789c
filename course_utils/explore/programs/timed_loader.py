"""A real DataLoader whose batches cost real work, and a loop that waits as for an accelerator: what the button under
`explore.loader()` runs."""

import argparse
import time

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from course_utils.rank import report


class Batches(Dataset[torch.Tensor]):
    """Each item is a whole batch that takes `load_s` of a core: who made it (0: the loop), from when to when."""

    def __init__(self, load_s: float):
        self.load_s = load_s

    def __getitem__(self, index: int) -> torch.Tensor:
        began, used = time.time(), time.process_time()
        x = torch.rand(64, 64)
        while index >= 0 and time.process_time() - used < self.load_s:  # of the core: two on one take twice as long
            x = torch.tanh(x @ x)
        worker = get_worker_info()
        return torch.tensor([worker.id + 1 if worker else 0, began, time.time()], dtype=torch.float64)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name, kind in {"batches": int, "workers": int, "load-s": float, "step-s": float}.items():
        parser.add_argument(f"--{name}", type=kind)
    args = parser.parse_args()
    torch.set_num_threads(1)
    order = [-1] * max(1, args.workers)  # a list is a sampler; first a batch without work for each worker
    loader = DataLoader(
        Batches(args.load_s), None, sampler=order, num_workers=args.workers, persistent_workers=args.workers > 0
    )
    for _ in loader:  # starts the workers, which stay
        pass
    order[:] = range(args.batches)
    start = asked = time.time()
    for number, (worker, began, ended) in enumerate(loader):
        came = time.time()
        time.sleep(args.step_s)  # an accelerator computes, and leaves the cores alone
        done = time.time()
        times = [float(t) - start for t in (began, ended, asked, came, done)]
        report(worker=int(worker), times=times, progress=(number + 1, args.batches))
        asked = done
    report(total_s=done - start)
