"""Train a model on any number of GPUs, or of CPU cores, with DistributedDataParallel. Plain PyTorch.

    torchrun --standalone --nproc-per-node=8 04_ddp.py --epochs 5

To make it yours, replace the data and the model. `--batch-size` is for all ranks together and has to be a multiple of
their number. The learning rate may then stay as it is. It's the same training on any number of them, but for the few
samples that DistributedSampler hands out twice where their number doesn't divide. `--resume` goes on from `--out`.
"""

import argparse
import math
import os

import torch
import torch.distributed as dist
import torch.distributed.nn  # before init_process_group: after it, it would keep the group, and gloo may abort at exit
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

CLASSES = 10


def data(n, seed):
    """Points around ten centres: a stand-in for your own data set. Ranks draw the same ones: no global random state."""
    centres = torch.randn(CLASSES, 32, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (n,), generator=generator)
    return TensorDataset(centres[labels] + 2 * torch.randn(n, 32, generator=generator), labels)


def new_model():
    return nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, CLASSES))


@torch.no_grad()
def accuracy(model, dataset, device):
    """On all ranks: each tests its part, and counts are added up. A mean of the ranks' means would be wrong."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mine = Subset(dataset, range(rank, len(dataset), world_size))  # no sample twice
    correct = torch.zeros((), dtype=torch.int64, device=device)
    for buffer in model.buffers():  # BatchNorm's running means: every rank has its own, and the file gets rank 0's
        dist.broadcast(buffer, src=0)
    model.eval()
    for x, y in DataLoader(mine, 256):
        correct += (model(x.to(device)).argmax(1) == y.to(device)).sum()
    model.train()
    dist.all_reduce(correct)
    return correct.item() / len(dataset)


def in_step(model):
    """Whether all ranks hold the same weights, judged by their sum."""
    total = sum(p.detach().double().sum() for p in model.parameters())
    low, high = total.clone(), total.clone()
    dist.all_reduce(low, dist.ReduceOp.MIN)
    dist.all_reduce(high, dist.ReduceOp.MAX)
    return bool(low == high)


def save(model, optimizer, epoch, path):
    """Written by one rank, to another name first: a reader finds the old file or the new one, never half of one."""
    if dist.get_rank() == 0:
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
        torch.save(state, f"{path}.partial")
        os.replace(f"{path}.partial", path)
    dist.barrier()  # nobody goes on to read it before it's there


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64, help="of all ranks together")
    parser.add_argument("--out", default="04_ddp.pt")
    parser.add_argument("--resume", action="store_true", help="go on after the epoch that --out was saved in")
    args = parser.parse_args()

    gpu = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])  # one for each rank, or all on the CPU
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(device_id=device if gpu else None)  # NCCL between GPUs, gloo between CPUs
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if args.batch_size % world_size:
        raise SystemExit(f"--batch-size {args.batch_size} can't be shared by {world_size} ranks")

    train_set, test_set = data(4096, seed=1), data(1000, seed=2)  # the same on all ranks
    torch.manual_seed(rank)  # from here on ranks draw other dropout masks; DDP starts them all from rank 0's weights
    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, args.batch_size // world_size, sampler=sampler, pin_memory=gpu)
    model = DDP(new_model().to(device), device_ids=[device] if gpu else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    done = 0
    if args.resume:
        state = torch.load(args.out, map_location=device)  # on every rank
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["epoch"] + 1
    for epoch in range(done, args.epochs):
        sampler.set_epoch(epoch)
        seen = torch.zeros(2, dtype=torch.float64, device=device)  # the sum of the losses, and of how many samples
        for x, y in loader:
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            loss = cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += torch.stack([loss.detach().double() * len(x), torch.tensor(len(x), device=device)])
        dist.all_reduce(seen)  # of all ranks, not of rank 0 alone
        mean = (seen[0] / seen[1]).item()
        right = accuracy(model.module, test_set, device)
        if math.isnan(mean):
            raise SystemExit(f"the loss isn't a number any more, in epoch {epoch}: try a smaller learning rate")
        if not in_step(model):
            raise SystemExit("the ranks hold different weights: has one of them changed a weight on its own?")
        if rank == 0:
            print(f"epoch {epoch}: loss {mean:.3f}, {right:.1%} of the test set right, {world_size} ranks", flush=True)
        save(model, optimizer, epoch, args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
