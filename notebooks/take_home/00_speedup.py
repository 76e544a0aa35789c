"""How fast would my training be on n GPUs? Time it on one, and ask Amdahl. Plain PyTorch.

    torchrun --standalone --nproc-per-node=1 00_speedup.py      # says what to expect of n GPUs
    torchrun --standalone --nproc-per-node=8 00_speedup.py      # measures it on eight

Replace `new_model`, `new_batch`, `train_step` and `serial_work` by your own. `serial_work` is whatever only rank 0 does
while the others wait: a test, a checkpoint, a log. The ranks share each batch, so a run on n ranks is the same work.
Loading isn't timed: one batch is used again and again.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.distributed.nn  # before init_process_group: after it, it would keep the group, and gloo may abort at exit
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP


def new_model():
    return nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))


def new_batch(n, device):
    """n inputs and their labels."""
    return torch.randn(n, 256, device=device), torch.randint(10, (n,), device=device)


def train_step(model, optimizer, x, y):
    cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()


@torch.no_grad()
def serial_work(model, x):
    for _ in range(4):
        model(x)


def seconds(action, device):
    """How long it takes, with a wait on both sides: a GPU's call returns before its work is done."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    action()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=512, help="of all ranks together")
    args = parser.parse_args()

    gpu = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])  # one for each rank, or all on the CPU
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)  # one core plays one device, on one rank too
    dist.init_process_group("nccl" if gpu else "gloo", device_id=device if gpu else None)
    rank, n = dist.get_rank(), dist.get_world_size()
    if args.batch_size % n:
        raise SystemExit(f"--batch-size {args.batch_size} can't be shared by {n} ranks")

    model = DDP(new_model().to(device), device_ids=[device] if gpu else None)
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = new_batch(args.batch_size // n, device)
    unseen, _ = new_batch(args.batch_size, device)
    ready = torch.zeros(1, device=device)

    def train():
        for _ in range(args.steps):
            train_step(model, optimizer, x, y)

    def serial():
        if rank == 0:
            serial_work(model.module, unseen)
        dist.all_reduce(ready)  # the others wait here

    train()  # the first steps also allocate memory and connect the ranks
    serial()
    train_s, serial_s = seconds(train, device), seconds(serial, device)
    if rank == 0:
        total_s = train_s + serial_s
        print(
            f"{n} rank{'s' * (n > 1)}: {train_s:.3f} s of training and {serial_s:.3f} s serial, {total_s:.3f} s in all"
        )
        if n == 1:
            s = serial_s / total_s
            for k in (2, 4, 8, 64):
                print(f"Amdahl expects {1 / (s + (1 - s) / k):.1f} times the speed on {k} ranks")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
