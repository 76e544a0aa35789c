"""A run with all that a real one has, saved in the middle of an epoch; then resumed with everything, and with one part
after the other left out. Compares what the runs end with, bit by bit."""

import io
import random
from itertools import islice

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from course_utils.rank import device, report

EPOCHS, BATCH, BATCHES, SAVE_AT = 3, 32, 12, 18  # saved after 18 of 36 steps: six batches into the second epoch
PARTS = ("model", "optimizer", "schedule", "scaler", "random", "position")


class ResumableSampler(DistributedSampler):
    """Leaves out the first `done` samples of this rank's part, without loading them."""

    done = 0

    def __iter__(self):
        return islice(super().__iter__(), self.done, None)


def random_states():
    """What this rank draws from, in plain numbers and tensors."""
    name, keys, *rest = np.random.get_state()
    states = {"python": random.getstate(), "numpy": (name, keys.tolist(), *rest), "torch": torch.get_rng_state()}
    if device().type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device())
    return states


def set_random_states(states):
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    if "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device())


def of_all_ranks(mine):
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return everyone


def differing(a, b, name=""):
    """The names of all that isn't equal to the last bit."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return [] if torch.equal(a.cpu(), b.cpu()) else [name]
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return [n for key in a for n in differing(a[key], b[key], f"{name}.{key}")]
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)) and len(a) == len(b):
        return [n for i, pair in enumerate(zip(a, b, strict=True)) for n in differing(*pair, f"{name}.{i}")]
    return [] if type(a) is type(b) and a == b else [name]


def data(n):
    """Points around eight centres, the same on all ranks."""
    numbers = torch.Generator().manual_seed(0)
    y = torch.randint(8, (n,), generator=numbers)
    centres = torch.randn(8, 32, generator=numbers)
    return TensorDataset(torch.arange(n), centres[y] + 1.2 * torch.randn(n, 32, generator=numbers), y)


def make_run(rank):
    """The model in DDP, its sampler and loader, and all parts that have a state_dict."""
    torch.manual_seed(0)  # the same weights on all ranks
    model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Dropout(0.3), nn.Linear(256, 8)).to(device())
    ddp, optimizer = DDP(model), torch.optim.AdamW(model.parameters(), lr=3e-3)
    ddp(torch.zeros(1, 32, device=device())).sum().backward()  # DDP orders its buckets after the first backward
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(rank)  # and dropout of its own on each
    points = data(BATCHES * BATCH * dist.get_world_size())
    sampler = ResumableSampler(points)
    loader = DataLoader(points, BATCH, sampler=sampler)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * BATCHES)
    scaler = torch.amp.GradScaler(device().type, growth_interval=6)
    return ddp, sampler, loader, {"model": model, "optimizer": optimizer, "schedule": schedule, "scaler": scaler}


def training_step(ddp, parts, x, y):
    scaler = parts["scaler"]
    x = x + 0.1 * random.random() + 0.1 * float(np.random.rand())  # augmentation, of a kind
    with torch.autocast(device().type, torch.float16):
        loss = cross_entropy(ddp(x.to(device())), y.to(device()))
    parts["optimizer"].zero_grad()
    scaler.scale(loss).backward()
    scale = scaler.get_scale()
    scaler.step(parts["optimizer"])
    scaler.update()
    if scaler.get_scale() >= scale:  # otherwise this step was skipped
        parts["schedule"].step()
    return loss.item()


def train(start=None, forget=""):
    """Train to the end, from the beginning or from a checkpoint. Returns all states at SAVE_AT and at the end, and what
    was seen: the last loss, and this rank's samples of the second epoch."""
    rank, losses, seen, middle = dist.get_rank(), [], [], None
    ddp, sampler, loader, parts = make_run(rank)

    def all_states(epoch, batches):
        states = {name: part.state_dict() for name, part in parts.items()}
        return states | {"random": of_all_ranks(random_states()), "position": (epoch, batches)}

    epoch, done = 0, 0
    if start:
        for name in parts.keys() - {forget}:
            parts[name].load_state_dict(start[name])
        epoch, done = start["position"]
        if forget == "position":
            done = 0
    while epoch < EPOCHS:
        sampler.set_epoch(epoch)
        sampler.done = done * BATCH
        batches = iter(loader)  # draws a seed for its workers, so random states are set after it
        if start and forget != "random":
            set_random_states(start["random"][rank])
        start = None
        for indices, x, y in batches:
            losses.append(training_step(ddp, parts, x, y))
            done += 1
            if epoch == 1:
                seen += indices.tolist()
            if epoch * BATCHES + done == SAVE_AT and not forget:
                file = io.BytesIO()
                torch.save(all_states(epoch, done), file)
                middle = file.getvalue()
        epoch, done = epoch + 1, 0
    return middle, all_states(epoch, done), losses[-1], seen


def main():
    dist.init_process_group()
    if device().type == "cuda":
        torch.cuda.set_device(device())
    middle, whole, _, seen = train()
    report(whole=seen)
    for forget in ("", *PARTS):
        start = torch.load(io.BytesIO(middle), map_location="cpu")
        try:
            _, end, loss, seen = train(start, forget)
        except Exception as error:
            report(left_out=forget, error=f"{type(error).__name__}: {error}")
            continue
        gap = max((end["model"][name] - w).abs().max().item() for name, w in whole["model"].items())
        report(left_out=forget, error="", different=len(differing(whole, end)), gap=gap, loss=loss, seen=seen)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
