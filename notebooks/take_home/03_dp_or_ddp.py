"""The same training with DataParallel or with DistributedDataParallel, to find out which one suits you. Plain PyTorch.

    python 03_dp_or_ddp.py                                               # DataParallel, on all GPUs of this machine
    torchrun --standalone --nproc-per-node=auto 03_dp_or_ddp.py          # DDP, a process for each GPU

To make it yours, replace the data and the model. The model computes its own loss, as a sum and a count: so it doesn't
matter how many samples each GPU has, and nobody's learning rate is multiplied.
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

CLASSES = 10
WARM_UP = 10  # steps that aren't timed


def data(n):
    """Points around ten centres: a stand-in for your own data set."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(CLASSES, 32, generator=generator)
    labels = torch.randint(CLASSES, (n,), generator=generator)
    return centres[labels] + 2 * torch.randn(n, 32, generator=generator), labels


class WithLoss(nn.Module):
    """What a replica, or a rank, sends on: two numbers instead of all its outputs."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, CLASSES))

    def forward(self, x, y):
        total = cross_entropy(self.net(x), y, reduction="sum")
        return torch.stack([total, total.new_tensor(len(y))])[None]  # a row for each replica


def check_gradient(model, x, y):
    """Compare the gradient that the wrapper left with that of the bare model: a factor or a wrong mean shows here."""
    total, count = model(x, y).sum(0)
    right = torch.autograd.grad(total / count, list(model.parameters()))
    off = max((p.grad - g).abs().max().item() for p, g in zip(model.parameters(), right, strict=True))
    if off > 1e-4:
        raise SystemExit(f"the gradient isn't that of one device: it's off by {off:.1e}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=250, help="over all GPUs together")
    parser.add_argument("--out", default="03_dp_or_ddp.pt")
    args = parser.parse_args()
    if args.steps <= WARM_UP:
        parser.error(f"--steps must be more than the {WARM_UP} that warm up")

    rank, world_size, torchrun = 0, 1, "RANK" in os.environ
    enough = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if enough else torch.device("cpu")
    torch.manual_seed(0)
    model = WithLoss().to(device)
    if torchrun:
        if device.type == "cuda":
            torch.cuda.set_device(device)
        dist.init_process_group("nccl" if enough else "gloo", device_id=device if enough else None)
        rank, world_size = dist.get_rank(), dist.get_world_size()
        wrapped, way = DDP(model, device_ids=[device] if enough else None), f"DDP on {world_size} ranks"
    else:
        wrapped, way = nn.DataParallel(model), f"DataParallel on {torch.cuda.device_count()} GPUs"
        if torch.cuda.device_count() < 2:
            way = "the plain model, since DataParallel has nothing to split"
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1, momentum=0.9)

    x, y = data(args.batch_size * 20)
    for step in range(args.steps):
        if step == WARM_UP:  # the first steps start CUDA and connect the ranks
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
        rows = torch.arange(step * args.batch_size, (step + 1) * args.batch_size) % len(x)
        mine = rows.tensor_split(world_size)[rank]  # DataParallel cuts it up by itself
        total, count = wrapped(x[mine].to(device), y[mine].to(device)).sum(0)  # over the replicas, if any
        everyone = count.detach().clone()
        if torchrun:
            dist.all_reduce(everyone)
        loss = total / everyone * world_size  # DDP takes the mean over ranks, and we want the sum
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            check_gradient(model, x[rows].to(device), y[rows].to(device))
        optimizer.step()
    last = loss.detach() / world_size
    if torchrun:
        dist.all_reduce(last)
    last = last.item()  # waits for the GPU, so that the clock doesn't stop too early
    seconds = time.perf_counter() - began

    if rank == 0:
        rate = (args.steps - WARM_UP) * args.batch_size / seconds
        print(f"{way}: {rate:,.0f} samples a second, loss {last:.4f}", flush=True)
        torch.save(model.state_dict(), args.out)  # of the model itself: no name begins with `module.`
    if torchrun:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
