"""Train so that nothing gets lost: whole files, the last two of them, and a resume that's equal to the last bit. Plain
PyTorch.

    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1  # or restarted ranks may not find each other
    torchrun --standalone --nproc-per-node=8 --max-restarts=3 09_resume.py --epochs 5 --save-every 20

Start it again, and it goes on from the newest file. Create a file `stop` next to them, and it saves after the step
that it's at, and ends: let your scheduler do that before its time is up. On several nodes, `--folder` must be one that
all of them see. Its last line is a fingerprint of all it holds
at the end. With and without an interruption it's the same, on the same number of ranks of the same machines. Do that
test once with your own model, after you've replaced the data and the model here.
"""

import argparse
import hashlib
import os
import random
import re
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn  # before init_process_group: after it, it would keep the group, and gloo may abort at exit
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

CLASSES = 10


class Points(Dataset):
    """Points around ten centres, with new noise in each epoch: a stand-in for your data and its augmentation. A sample
    draws from a generator of its own, made of epoch and index, so it's the same whichever worker loads it."""

    epoch = 0

    def __init__(self, n):
        numbers = torch.Generator().manual_seed(0)
        self.labels = torch.randint(CLASSES, (n,), generator=numbers)
        centres = torch.randn(CLASSES, 32, generator=numbers)
        self.points = centres[self.labels] + 2 * torch.randn(n, 32, generator=numbers)

    def __len__(self):
        return len(self.points)

    def __getitem__(self, i):
        own = torch.Generator().manual_seed(1_000_003 * self.epoch + i)
        return self.points[i] + 0.3 * torch.randn(32, generator=own), self.labels[i]


class ResumableSampler(DistributedSampler):
    """Leaves out the first `done` samples of this rank's part, without loading them."""

    done = 0

    def __iter__(self):
        return islice(super().__iter__(), self.done, None)


def random_states(device):
    states = {"python": random.getstate(), "torch": torch.get_rng_state()}  # add NumPy's if you draw from it
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_random_states(states, device):
    random.setstate(states["python"])
    torch.set_rng_state(states["torch"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)


def all_states(parts, epoch, batches, device):
    """Everything that the run is made of. A collective: each rank brings its random states."""
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, random_states(device))
    states = {name: part.state_dict() for name, part in parts.items()}
    return states | {"random": everyone, "epoch": epoch, "batches": batches}  # what to do next, not what was done last


def files(folder):
    """The checkpoints that are there, the oldest first."""
    found = {int(m[1]): path for path in folder.glob("step-*.pt") if (m := re.fullmatch(r"step-(\d+)\.pt", path.name))}
    return [found[step] for step in sorted(found)]


def save(states, folder, step):
    """Rank 0 writes a new file under another name, and renames it; then all but the last two files go."""
    if dist.get_rank() == 0:
        path = folder / f"step-{step}.pt"
        partial = path.with_suffix(".partial")
        with open(partial, "wb") as file:
            torch.save(states, file)
            file.flush()
            os.fsync(file.fileno())  # the bytes are on the disk before the name is
        os.replace(partial, path)
        descriptor = os.open(folder, os.O_RDONLY)
        os.fsync(descriptor)  # and so is the name
        os.close(descriptor)
        for old in files(folder)[:-2]:
            old.unlink()
    dist.barrier()  # nobody ends, or asks to be started again, before the file is there


def load(folder):
    """The newest checkpoint that can be read, or None. All ranks take the same one: rank 0 says which."""
    choice = [None]
    if dist.get_rank() == 0:
        for path in reversed(files(folder)):
            try:
                torch.load(path, map_location="cpu")
                choice = [str(path)]
                break
            except Exception as error:  # a broken disk, a copy that was cut short: this is what the second file is for
                say(f"can't read {path}: {error}")
    dist.broadcast_object_list(choice)
    if choice[0] is None:
        return None
    saved = torch.load(choice[0], map_location="cpu")  # or eight ranks put eight copies on GPU 0
    if len(saved["random"]) != dist.get_world_size():
        ranks = len(saved["random"])
        raise SystemExit(
            f"{choice[0]} was saved by {ranks} ranks: start as many, or give another --folder to begin anew"
        )
    return saved


def asked_to_stop(file, device):
    """Whether some node's first rank has seen the file. All ranks get the same answer, so all stop after this step."""
    seen = torch.tensor(float(os.environ["LOCAL_RANK"] == "0" and os.path.exists(file)), device=device)
    dist.all_reduce(seen, op=dist.ReduceOp.MAX)
    return bool(seen.item())


def fingerprint(value):
    """A few letters that change with every bit of a state."""
    if isinstance(value, torch.Tensor):
        raw = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        return hashlib.sha256(raw).hexdigest()[:12]
    if isinstance(value, dict):
        text = str([(str(key), fingerprint(item)) for key, item in value.items()])
    elif isinstance(value, (list, tuple)):
        text = str([fingerprint(item) for item in value])
    else:
        text = repr(value)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def start():
    """Join the other ranks. Returns this rank's device."""
    gpu = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])  # one for each rank, or all on the CPU
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(device_id=device if gpu else None)  # NCCL between GPUs, gloo between CPUs
    return device


def new_run(args, device):
    """The data, its sampler and loader, the model in DDP, and all parts that have a state_dict."""
    torch.manual_seed(0)  # the same weights on all ranks
    model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, CLASSES)).to(device)
    ddp = DDP(model, device_ids=[device] if device.type == "cuda" else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    # DDP orders its buckets after its first backward. Do that before loading, or from three ranks on a resumed run adds
    # in another order, and its last bits differ.
    ddp(torch.zeros(1, 32, device=device)).sum().backward()
    optimizer.zero_grad()
    torch.manual_seed(dist.get_rank())  # from here on each rank draws numbers of its own
    random.seed(dist.get_rank())

    train_set, micro = Points(1280), args.batch_size // dist.get_world_size()
    sampler = ResumableSampler(train_set)
    loader = DataLoader(train_set, micro, sampler=sampler, num_workers=2, pin_memory=device.type == "cuda")
    steps = -(-len(sampler) // micro)  # of an epoch
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * steps)
    return train_set, loader, steps, ddp, {"model": model, "optimizer": optimizer, "schedule": schedule}


def train(args, device, saved):
    """From the beginning, or from what was saved, to the end. Returns the states at the end, or None if it was asked to
    stop."""
    train_set, loader, steps, ddp, parts = new_run(args, device)
    stop_file = os.environ.get("SAVE_FILE", args.folder / "stop")  # the batch file of lesson 09 sets SAVE_FILE
    rank, epoch, batches, loss = dist.get_rank(), 0, 0, None
    if saved:
        for name, part in parts.items():
            part.load_state_dict(saved[name])
        epoch, batches = saved["epoch"], saved["batches"]
        say(f"going on in epoch {epoch}, after {batches} batches of it")
    while epoch < args.epochs:
        loader.sampler.set_epoch(epoch)
        loader.sampler.done, train_set.epoch = batches * loader.batch_size, epoch
        batch = iter(loader)  # draws a number to seed its workers with,
        if saved:
            set_random_states(saved["random"][rank], device)  # so random states are set after it
            saved = None
        for x, y in batch:
            loss = cross_entropy(ddp(x.to(device)), y.to(device))
            parts["optimizer"].zero_grad()
            loss.backward()
            parts["optimizer"].step()
            parts["schedule"].step()
            batches += 1
            step, stop = epoch * steps + batches, asked_to_stop(stop_file, device)
            if stop or step % args.save_every == 0:
                save(all_states(parts, epoch, batches, device), args.folder, step)
            if stop:
                if rank == 0 and "SAVE_FILE" not in os.environ:
                    stop_file.unlink(missing_ok=True)  # all have seen it, and the next start goes on
                say(f"stopped after step {step}")
                return None
        if loss is not None:  # a run may go on after the last batch of an epoch
            say(f"epoch {epoch}: loss {loss.item():.4f}")
        epoch, batches = epoch + 1, 0
    if saved:  # it had been done before
        set_random_states(saved["random"][rank], device)
    end = all_states(parts, epoch, 0, device)
    save(end, args.folder, epoch * steps)  # so that starting it once more does nothing
    return end


def say(text):
    if dist.get_rank() == 0:
        print(text, flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64, help="of all ranks together")
    parser.add_argument("--save-every", type=int, default=20, help="steps")
    parser.add_argument("--folder", type=Path, default=Path("09_resume"))
    args = parser.parse_args()
    device = start()
    if args.batch_size % dist.get_world_size():
        raise SystemExit(f"--batch-size {args.batch_size} can't be shared by {dist.get_world_size()} ranks")
    if dist.get_rank() == 0:
        args.folder.mkdir(parents=True, exist_ok=True)
    dist.barrier()
    if not args.folder.is_dir():
        raise SystemExit(f"this node doesn't see rank 0's {args.folder}: take a folder that all nodes see")
    end = train(args, device, load(args.folder))
    if end and dist.get_rank() == 0:
        print(f"fingerprint {fingerprint(end)}", flush=True)
    if not end and dist.get_rank() == 0 and "REQUEUE_FILE" in os.environ:
        Path(os.environ["REQUEUE_FILE"]).touch()  # asks the batch file to queue the job again
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
