"""Train with DDP in micro-batches: send once a window, and leave out a broken one on all ranks. Plain PyTorch.

    torchrun --standalone --nproc-per-node=8 05_accumulate.py --accumulate 4 --bf16

To make it yours, replace the data and the model. A window is `--accumulate` micro-batches, whose mean gradient makes
one step of the optimizer; the last window of an epoch may have fewer. `--bf16` sends half the bytes.
"""

import argparse
import os
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.distributed.nn  # before init_process_group: after it, it would keep the group, and gloo may abort at exit
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

CLASSES = 10


def data(n):
    """Points around ten centres: a stand-in for your own data set. Ranks draw the same ones."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(CLASSES, 32, generator=generator)
    labels = torch.randint(CLASSES, (n,), generator=generator)
    return TensorDataset(centres[labels] + 2 * torch.randn(n, 32, generator=generator), labels)


def new_model():
    return nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, CLASSES))


def train_epoch(model, optimizer, loader, device, accumulate):
    """Returns the mean loss of this rank's micro-batches, and how many windows were left out of it and of training."""
    seen, losses, left_out, steps = [], [], 0, len(loader)
    for i, (x, y) in enumerate(loader):
        start = i - i % accumulate  # of this window
        size = min(accumulate, steps - start)  # the last one may be short
        last = i == start + size - 1
        # The switch is read in forward, so forward belongs inside, too.
        with nullcontext() if last else model.no_sync():
            loss = cross_entropy(model(x.to(device)), y.to(device)) / size
            loss.backward()
        losses.append(loss.item() * size)
        if last:
            # After the sum all ranks hold the same gradients. If one rank brought a NaN, all of them have it, and
            # leave out the same window, without another message. Never skip a backward: the others would wait for it.
            norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
            if norm.isfinite():
                optimizer.step()
                seen += losses
            else:
                left_out += 1
            losses = []
            optimizer.zero_grad()
    return sum(seen) / max(len(seen), 1), left_out


def micro_batch_s(model, x, y, send, rounds=10):
    """Seconds of a forward and a backward pass, with and without sending, the median of some."""
    times = []
    for _ in range(rounds):
        dist.barrier()
        if x.is_cuda:
            torch.cuda.synchronize()
        start = time.perf_counter()
        with nullcontext() if send else model.no_sync():
            cross_entropy(model(x), y).backward()
        if x.is_cuda:
            torch.cuda.synchronize()  # without it you'd time how fast Python asks
        times.append(time.perf_counter() - start)
        model.zero_grad()
    return sorted(times)[rounds // 2]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--micro-batch", type=int, default=32, help="of all ranks together")
    parser.add_argument("--accumulate", type=int, default=4, help="micro-batches in a window")
    parser.add_argument("--bf16", action="store_true", help="send gradients in bfloat16")
    args = parser.parse_args()

    gpu = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])  # one for each rank, or all on the CPU
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(device_id=device if gpu else None)  # NCCL between GPUs, gloo between CPUs
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if args.micro_batch % world_size:
        raise SystemExit(f"--micro-batch {args.micro_batch} can't be shared by {world_size} ranks")

    train_set = data(1344)  # 42 micro-batches of 32: the last window has two
    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, args.micro_batch // world_size, sampler=sampler, pin_memory=gpu)
    torch.manual_seed(0)
    model = DDP(new_model().to(device), device_ids=[device] if gpu else None)
    if args.bf16:
        model.register_comm_hook(None, bf16_compress_hook)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        mean, left_out = train_epoch(model, optimizer, loader, device, args.accumulate)
        mean = torch.tensor(mean, device=device)
        dist.all_reduce(mean)
        if rank == 0:
            print(f"epoch {epoch}: loss {mean.item() / world_size:.4f}, windows left out: {left_out}", flush=True)

    x, y = (t.to(device) for t in next(iter(loader)))
    alone, sent = (micro_batch_s(model, x, y, send) for send in (False, True))
    if rank == 0:
        print(f"a micro-batch takes {alone * 1e3:.2f} ms, and {sent * 1e3:.2f} ms with sending")
        torch.save(model.module.state_dict(), "05_accumulate.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
