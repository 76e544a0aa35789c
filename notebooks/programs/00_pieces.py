"""The pieces of a training step, each timed alone: computing, updating, and summing the gradients."""

import argparse

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from course_utils.rank import device, report, timer
from course_utils.workloads import PIXELS, default_size, resnet


def repeat(name, action):
    """Six times, of which the first two don't count."""
    for i in range(6):
        dist.barrier()  # all ranks start together
        with timer() as t:
            action()
        if i >= 2:
            report(**{name: t.seconds})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, help="images of each rank")
    batch_size = parser.parse_args().batch_size
    dist.init_process_group()
    if device().type == "cuda":
        torch.cuda.set_device(device())
    model = resnet().to(device())
    optimizer = torch.optim.AdamW(model.parameters())
    side = PIXELS[default_size()]
    images = torch.randn(batch_size, 3, side, side, device=device())
    labels = torch.randint(100, (batch_size,), device=device())
    repeat("compute_s", lambda: cross_entropy(model(images), labels).backward())
    repeat("update_s", optimizer.step)
    gradients = torch.cat([p.grad.flatten() for p in model.parameters()])
    repeat("exchange_s", lambda: dist.all_reduce(gradients))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
