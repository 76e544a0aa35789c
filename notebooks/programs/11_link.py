"""Sums of several sizes over whatever joins the ranks, and a DDP step with and without its sum: what a prediction of
the step needs, and the step itself."""

import argparse
import os
import socket

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP

from course_utils.rank import device, report, timer
from course_utils.workloads import batch, deep_mlp, default_size


def repeat(times, name, action, **where):
    for i in range(times + 2):
        dist.barrier()
        with timer() as t:
            action()
        if i >= 2:  # the first two build DDP's buckets
            report(**{name: t.seconds}, **where)


def make_step(batch_size):
    """A DDP model, and a function that does one step with it."""
    model = DDP(deep_mlp().to(device()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = (t.to(device()) for t in batch(batch_size))

    def step():
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()

    return model, step


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sums", action="store_true", help="time sums of four sizes")
    parser.add_argument("--alone", type=int, nargs="*", default=[], help="samples of each rank, in steps without a sum")
    parser.add_argument("--together", type=int, nargs="*", default=[], help="the same, with the sum")
    args = parser.parse_args()
    dist.init_process_group()
    if device().type == "cuda":
        torch.cuda.set_device(device())
    if args.sums:
        for kib in (256, 1024, 4096, 16384):
            nbytes = kib * 1024 * (1 if default_size() == "cpu" else 64)
            x = torch.zeros(nbytes // 4, device=device())
            repeat(3, "sum_s", lambda x=x: dist.all_reduce(x), nbytes=nbytes)
    for batch_size in dict.fromkeys([*args.alone, *args.together]):
        model, step = make_step(batch_size)
        if batch_size in args.alone:
            with model.no_sync():
                repeat(5, "compute_s", step, batch_size=batch_size)
        if batch_size in args.together:
            repeat(4, "step_s", step, batch_size=batch_size)
    layers = [m for m in deep_mlp().modules() if isinstance(m, torch.nn.Linear)]
    node = os.environ.get("SLURMD_NODENAME", socket.gethostname())
    report(layer_bytes=[sum(p.nbytes for p in m.parameters()) for m in layers], on_node=node)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
