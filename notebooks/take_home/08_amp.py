"""Train in mixed precision: bf16 where the GPU has it, otherwise fp16 with a loss scale. Plain PyTorch.

    torchrun --standalone --nproc-per-node=8 08_amp.py --accumulate 4

To make it yours, replace the data and the model. Weights, gradients and the optimizer stay in float32. Accumulation,
clipping and a schedule have their places around the scaler, which is switched off in bf16. `--resume` goes on from the
last epoch, also in the other 16-bit type; on several machines it wants a disk that all of them see. `--dtype float32`
switches all of it off, for comparison.
"""

import argparse
import os
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn  # before init_process_group: after it, it would keep the group, and gloo may abort at exit
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

CLASSES = 10
CHECKPOINT = Path("08_amp.pt")


def data(n):
    """Points around ten centres: a stand-in for your own data set. Ranks draw the same ones."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(CLASSES, 32, generator=generator)
    labels = torch.randint(CLASSES, (n,), generator=generator)
    return TensorDataset(centres[labels] + 2 * torch.randn(n, 32, generator=generator), labels)


def new_model():
    return nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, CLASSES))


def best_dtype(gpu):
    """bf16 on a CPU, and on GPUs that have it. (`torch.cuda.is_bf16_supported()` is also true for those that imitate
    it.)"""
    bf16 = not gpu or torch.version.hip or torch.cuda.get_device_capability() >= (8, 0)
    return torch.bfloat16 if bf16 else torch.float16


def train_epoch(model, optimizer, scaler, schedule, loader, device, dtype, accumulate):
    """Returns the mean loss of this rank's micro-batches, and how many steps the scaler skipped."""
    total, skipped, count = 0.0, 0, len(loader)
    for i, (x, y) in enumerate(loader):
        start = i - i % accumulate  # of this window
        size = min(accumulate, count - start)  # the last one may be short
        last = i == start + size - 1
        with nullcontext() if last else model.no_sync():
            # One block for each forward pass: it keeps its 16-bit copies of the weights until it ends.
            with torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32):
                loss = cross_entropy(model(x.to(device)), y.to(device)) / size
            scaler.scale(loss).backward()
        total += loss.detach() * size
        if last:
            scaler.unscale_(optimizer)  # first: a clip has to see the true gradients
            nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
            before = scaler.get_scale()
            scaler.step(optimizer)  # leaves a step out if a gradient isn't finite; under DDP all ranks do
            scaler.update()
            optimizer.zero_grad()
            if scaler.get_scale() < before:
                skipped += 1
            else:
                schedule.step()  # only after a step that was taken
    return total / count, skipped


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=32, help="a micro-batch of all ranks together")
    parser.add_argument("--accumulate", type=int, default=2, help="micro-batches to a step")
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), help="default: what this device has")
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()

    gpu = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])  # one for each rank, or all on the CPU
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(device_id=device if gpu else None)  # NCCL between GPUs, gloo between CPUs
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if args.accumulate < 1:
        raise SystemExit("--accumulate takes 1 or more")
    if args.batch % world_size:
        raise SystemExit(f"--batch {args.batch} can't be shared by {world_size} ranks")
    dtype = getattr(torch, args.dtype) if args.dtype else best_dtype(gpu)

    train_set = data(1312)  # 41 micro-batches of 32: the last window of two has one
    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, args.batch // world_size, sampler=sampler, pin_memory=gpu)
    torch.manual_seed(0)
    model = DDP(new_model().to(device), device_ids=[device] if gpu else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)
    steps = args.epochs * -(-len(loader) // args.accumulate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=steps)
    parts = {"model": model.module, "optimizer": optimizer, "scaler": scaler, "schedule": schedule}
    first = 0
    if args.resume and CHECKPOINT.exists():
        saved = torch.load(CHECKPOINT, map_location="cpu")  # AdamW counts its steps there
        first = saved["epoch"] + 1
        for name, part in parts.items():
            if saved[name]:  # a scaler that was off has no state
                part.load_state_dict(saved[name])
    alike = torch.tensor([first, -first], device=device)
    dist.all_reduce(alike, dist.ReduceOp.MAX)
    if alike[0] != -alike[1]:
        raise SystemExit(f"{CHECKPOINT} isn't the same on all machines: they'd train two models")

    for epoch in range(first, args.epochs):
        sampler.set_epoch(epoch)
        loss, skipped = train_epoch(model, optimizer, scaler, schedule, loader, device, dtype, args.accumulate)
        dist.all_reduce(loss)
        if rank == 0:
            scale = f", loss scale {scaler.get_scale():g}, {skipped} steps skipped" if scaler.is_enabled() else ""
            print(f"epoch {epoch}: loss {loss.item() / world_size:.4f} in {dtype}{scale}", flush=True)
            torch.save({"epoch": epoch} | {name: part.state_dict() for name, part in parts.items()}, CHECKPOINT)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
