"""A training step with DataParallel (one rank that has all GPUs) or with DDP (a rank for each), timed."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP

from course_utils.rank import device, devices, report, timer
from course_utils.workloads import PIXELS, default_size, image_model


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("how", choices=["dp", "ddp"])
    parser.add_argument("--images", type=int, default=64, help="in a step, for each GPU")
    args = parser.parse_args()
    model, images = image_model().to(device()), args.images
    if args.how == "ddp":
        if device().type == "cuda":
            torch.cuda.set_device(device())
        dist.init_process_group()
        model = DDP(model)
    else:
        model, images = nn.DataParallel(model), images * len(devices())
    pixels = PIXELS[default_size()]
    x = torch.randn(images, 3, pixels, pixels, device=device())
    y = torch.randint(100, (images,), device=device())
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(15):
        with timer() as t:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
        if step >= 5:
            report(step_s=t.seconds)
    if device().type == "cuda":
        report(peak_bytes=[torch.cuda.max_memory_allocated(d) for d in devices()])
    if args.how == "ddp":
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
