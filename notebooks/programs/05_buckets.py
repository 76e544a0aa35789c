"""A training step under DDP with buckets of several sizes, timed one after the other; and its parts, each alone."""

import argparse
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP

from course_utils.rank import device, report, timer
from course_utils.workloads import batch, deep_mlp, default_size

EVERYTHING = 1000  # MiB: one bucket for all gradients


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bucket-mb", type=float, nargs="+", required=True, help="MiB, as in bucket_cap_mb")
    parser.add_argument(
        "--parts", action="store_true", help="also computing alone, filling buckets, and the sums alone"
    )
    parser.add_argument("--steps", type=int, default=12, help="how many to time")
    args = parser.parse_args()
    dist.init_process_group()
    if device().type == "cuda":
        torch.cuda.set_device(device())
    width, depth = (256, 48) if default_size() == "cpu" else (1024, 64)
    x, y = (t.to(device()) for t in batch(width=width))

    def new_model(bucket_mb):
        with device():  # weights are made where they'll be used
            return DDP(deep_mlp(width, depth), bucket_cap_mb=bucket_mb)

    models = {f"{mb:g}": new_model(mb) for mb in args.bucket_mb}
    if args.parts:
        models["computing"], models["filling"] = new_model(EVERYTHING), new_model(args.bucket_mb[0])
        models["filling"].register_comm_hook(None, noop_hook)  # a bucket is filled and emptied, and not sent
    optimizers = {name: torch.optim.SGD(model.parameters(), lr=0.01) for name, model in models.items()}
    nbytes = sum(p.nbytes for p in next(iter(models.values())).parameters())
    layer, cap = nbytes / (depth + 1), args.bucket_mb[0] * 2**20
    buckets = max(1, round(nbytes / (layer * max(1, -(-cap // layer)))))
    pieces = [torch.zeros(round(nbytes / buckets / 4), device=device()) for _ in range(buckets)]

    def step(name):
        model = models[name]
        with model.no_sync() if name == "computing" else nullcontext():
            cross_entropy(model(x), y).backward()
        optimizers[name].step()
        optimizers[name].zero_grad()

    for i in range(args.steps + 3):
        for name in models:  # in turn: what slows the machine hits all of them alike
            dist.barrier()
            with timer() as t:
                step(name)
            if i >= 3:  # DDP settles its buckets in the second step
                report(name=name, step_s=t.seconds)
        if args.parts:
            dist.barrier()
            with timer() as t:
                for piece in pieces:
                    dist.all_reduce(piece)
            if i >= 3:
                report(name="sums alone", step_s=t.seconds)
    report(nbytes=nbytes)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
