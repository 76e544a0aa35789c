"""Feed each GPU in time, and say whether it had to wait. Plain PyTorch, on any number of GPUs or of CPU cores.

    torchrun --standalone --nproc-per-node=8 02_loading.py --epochs 3

To make it yours, replace the data and the model. It prints what share of the time goes to loading, and how fast the
training would be with a loader that costs nothing. `--nproc-per-node=1` runs it on one.
"""

import argparse
import copy
import os
import time
import zlib

import torch
import torch.distributed as dist
import torch.distributed.nn  # before init_process_group: after it, it would keep the group, and gloo may abort at exit
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

CLASSES, PIXELS = 10, 64


class Photos(Dataset):
    """Compressed pictures, unpacked and flipped anew each time: a stand-in for your JPEGs."""

    def __init__(self, n):
        generator = torch.Generator().manual_seed(0)
        self.labels = torch.randint(CLASSES, (n,), generator=generator).tolist()
        patterns = torch.randint(256, (CLASSES, 3, PIXELS, PIXELS), dtype=torch.uint8, generator=generator)
        self.packed = [zlib.compress(pattern.numpy().tobytes()) for pattern in patterns]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        raw = bytearray(zlib.decompress(self.packed[self.labels[index]]))
        image = torch.frombuffer(raw, dtype=torch.uint8).view(3, PIXELS, PIXELS)
        if torch.rand(()) < 0.5:  # the loader seeds torch in each worker; a generator made in __init__ would repeat
            image = image.flip(-1)
        return image, self.labels[index]  # bytes travel, a quarter of what floats take


def new_model():
    side = (PIXELS - 5) // 4 + 1
    convolution = nn.Conv2d(3, 16, kernel_size=5, stride=4)
    return nn.Sequential(convolution, nn.ReLU(), nn.Flatten(), nn.Linear(16 * side * side, CLASSES))


def workers_for_this_rank():
    """The cores that this rank may use, less one for the loop."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, cores // int(os.environ["LOCAL_WORLD_SIZE"]) - 1)  # torchrun sets it: ranks on this machine


def on_device(loader, device):
    """The batches of a loader on the device. A GPU fetches each from pinned memory, on a stream of its own, and still
    computes with the one before, as long as your loop doesn't wait for it: no `.item()` in each step."""
    if device.type == "cpu":
        yield from loader
        return
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    for batch in loader:
        with torch.cuda.stream(side):
            batch = [tensor.to(device, non_blocking=True) for tensor in batch]
        main.wait_stream(side)  # nobody computes before it's there
        for tensor in batch:
            tensor.record_stream(main)  # its memory isn't used again before the computing is done
        yield batch


def train(model, optimizer, batches):
    """One pass over the batches. Returns the last loss, and images per second."""
    images_seen, began = 0, time.perf_counter()
    for images, labels in batches:
        loss = cross_entropy(model(images.float() / 128 - 1), labels)  # the device makes floats of the bytes
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        images_seen += len(labels)
    last = loss.item()  # a GPU is done only now
    return last, images_seen / (time.perf_counter() - began)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32, help="of each rank")
    parser.add_argument("--workers", type=int, help="of each rank; by default its cores less one")
    parser.add_argument("--samples", type=int, default=2048)
    args = parser.parse_args()

    gpu = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpu else "gloo", device_id=device if gpu else None)
    rank = dist.get_rank()
    torch.manual_seed(rank)  # each rank's workers draw other flips

    workers = workers_for_this_rank() if args.workers is None else args.workers
    data = Photos(args.samples)
    sampler = DistributedSampler(data)
    loader = DataLoader(
        data, args.batch_size, sampler=sampler, drop_last=True,
        num_workers=workers, persistent_workers=workers > 0, pin_memory=gpu,
    )  # fmt: skip

    def wrapped(net):
        model = DDP(net.to(device), device_ids=[device] if gpu else None)
        return model, torch.optim.SGD(model.parameters(), lr=0.01)

    # How fast would it be with a perfect loader? One batch again and again, on a copy of the model that's then dropped.
    net = new_model()
    batch = next(iter(on_device(loader, device)))
    for steps in (5, len(loader)):  # the first ones are slow
        _, perfect = train(*wrapped(copy.deepcopy(net)), [batch] * steps)

    model, optimizer = wrapped(net)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        loss, rate = train(model, optimizer, on_device(loader, device))
        if rank == 0:
            print(
                f"epoch {epoch}: loss {loss:.2f}, {rate:.0f} images/s on each rank with num_workers={workers},"
                f" {perfect:.0f} on one batch; loading costs {max(0.0, 1 - rate / perfect):.0%} of the time",
                flush=True,
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
