"""A training step of the course's image model under DDP, with and without the sum of its gradients, timed."""

import argparse

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP

from course_utils.rank import device, report, timer
from course_utils.workloads import PIXELS, default_size, image_model


def repeat(times, name, action, **where):
    for i in range(times + 2):
        dist.barrier()  # all ranks start together
        with timer() as t:
            action()
        if i >= 2:  # the first steps also allocate memory and build DDP's buckets
            report(**{name: t.seconds}, **where)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, nargs="+", required=True, help="images of each rank")
    parser.add_argument("--steps", type=int, default=4, help="how many to time")
    args = parser.parse_args()
    dist.init_process_group()
    if device().type == "cuda":
        torch.cuda.set_device(device())
    with device():  # its weights are made where they'll be used
        model = DDP(image_model(norm="group"))
    optimizer = torch.optim.AdamW(model.parameters())
    pixels = PIXELS[default_size()]
    for batch_size in args.batch_size:
        x = torch.randn(batch_size, 3, pixels, pixels, device=device())
        y = torch.randint(100, (batch_size,), device=device())

        def step(x=x, y=y):
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()

        repeat(args.steps, "step_s", step, batch_size=batch_size)
        with model.no_sync():  # the same step, and no gradient leaves the rank
            repeat(args.steps, "compute_s", step, batch_size=batch_size)
    report(nbytes=sum(p.nbytes for p in model.parameters()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
