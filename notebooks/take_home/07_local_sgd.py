"""Train alone for some steps, then agree: local SGD, with DiLoCo's outer step. Plain PyTorch.

    torchrun --standalone --nproc-per-node=8 07_local_sgd.py --every 50

To make it yours, replace the data and the model. Each rank takes `--every` steps with its own optimizer, and sends
nothing. Then all average how far they've come, and a second optimizer takes a step in that direction. With
`--outer-lr 1 --outer-momentum 0` that step goes exactly to the average: plain local SGD.
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.distributed.nn  # keep it, though nobody calls it here: imported after init_process_group, gloo may abort
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

CLASSES = 10


def data(n, seed):
    """Points around ten centres: a stand-in for your own data set. Ranks draw the same ones."""
    centres = torch.randn(CLASSES, 32, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (n,), generator=generator)
    return TensorDataset(centres[labels] + 2 * torch.randn(n, 32, generator=generator), labels)


def new_model():
    return nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, CLASSES))


class Meeting:
    """What all ranks agreed on last, and how they agree again."""

    def __init__(self, model, lr, momentum):
        self.weights = list(model.parameters())
        self.agreed = [p.detach().clone() for p in self.weights]
        for p in self.agreed:
            dist.broadcast(p, src=0)  # all begin with rank 0's
        self.optimizer = torch.optim.SGD(self.agreed, lr=lr, momentum=momentum, nesterov=momentum > 0)
        self.sent_bytes = 0
        self._take()

    @torch.no_grad()
    def agree(self):
        """Returns how far this rank had gone from the average, relative to the length of the average way."""
        drift, way = 0.0, 0.0
        for p, agreed in zip(self.weights, self.agreed, strict=True):
            mine = agreed - p  # like a gradient: the way back
            agreed.grad = mine.clone()
            dist.all_reduce(agreed.grad)
            agreed.grad /= dist.get_world_size()
            self.sent_bytes += mine.nbytes
            drift += (mine - agreed.grad).square().sum().item()
            way += agreed.grad.square().sum().item()
        self.optimizer.step()
        self._take()
        return (drift / max(way, 1e-30)) ** 0.5

    @torch.no_grad()
    def _take(self):
        for p, agreed in zip(self.weights, self.agreed, strict=True):
            p.copy_(agreed)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=64, help="of all ranks together")
    parser.add_argument("--every", type=int, default=20, help="steps that each rank takes alone; DiLoCo takes 500")
    parser.add_argument("--inner", choices=("adamw", "sgd"), default="adamw")
    parser.add_argument("--lr", type=float, default=1e-3, help="of the inner optimizer")
    parser.add_argument("--outer-lr", type=float, default=0.7)
    parser.add_argument("--outer-momentum", type=float, default=0.9)
    args = parser.parse_args()

    gpu = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])  # one for each rank, or all on the CPU
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(device_id=device if gpu else None)  # NCCL between GPUs, gloo between CPUs
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if args.batch_size % world_size:
        raise SystemExit(f"--batch-size {args.batch_size} can't be shared by {world_size} ranks")

    train_set, test_set = data(4096, seed=1), data(1024, seed=2)
    sampler = DistributedSampler(train_set)  # equally many batches on all ranks, or one would wait forever
    loader = DataLoader(train_set, args.batch_size // world_size, sampler=sampler, pin_memory=gpu)
    torch.manual_seed(0)
    model = new_model().to(device)
    # The inner optimizer's state stays on its rank; nobody averages it.
    inner = torch.optim.AdamW if args.inner == "adamw" else torch.optim.SGD
    optimizer = inner(model.parameters(), lr=args.lr)
    meeting = Meeting(model, args.outer_lr, args.outer_momentum)
    steps, since, drift = 0, 0, None
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(1, device=device)
        for x, y in loader:
            loss = cross_entropy(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
            steps, since = steps + 1, since + 1
            if since == args.every:
                drift = meeting.agree()
                since = 0
        dist.all_reduce(total)
        if rank == 0:
            met = "not met yet" if drift is None else f"drift {drift:.2f}"
            print(f"epoch {epoch}: loss {total.item() / len(loader) / world_size:.4f}, {met}", flush=True)
    if since:
        drift = meeting.agree()  # nobody ends with weights of its own
    for b in model.buffers():  # BatchNorm's running means, which no gradient moves
        if b.is_floating_point():
            dist.all_reduce(b)
            b /= world_size
    if rank == 0:
        print(f"drift {drift or 0:.2f} when the ranks met last")
        as_ddp = steps * sum(p.nbytes for p in model.parameters())
        print(f"{meeting.sent_bytes / 1e6:.1f} MB averaged, where DDP averages {as_ddp / 1e6:.1f} MB")
        x, y = (t.to(device) for t in test_set.tensors)
        with torch.no_grad():
            print(f"test accuracy {(model(x).argmax(1) == y).double().mean().item():.3f}")
        torch.save(model.state_dict(), "07_local_sgd.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
