"""A training step with DataParallel (one rank that has all GPUs), with DDP (a rank for each), or on one GPU, timed."""

import argparse

import torch
import torch.distributed as dist
import torchvision
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.profiler import record_function

from course_utils.rank import device, devices, report, timer
from course_utils.workloads import PIXELS, default_size, image_model


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("how", choices=["one", "dp", "ddp"])
    parser.add_argument("--resnet50", action="store_true", help="with images of 224 x 224, in place of small ones")
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--images", type=int, default=64, help="in a step, for each GPU")
    args = parser.parse_args()
    with device():  # made there
        model, images = torchvision.models.resnet50() if args.resnet50 else image_model(), args.images
    if args.how == "ddp":
        if device().type == "cuda":
            torch.cuda.set_device(device())
        dist.init_process_group()
        model = DDP(model)
    elif args.how == "dp":
        model, images = nn.DataParallel(model), images * len(devices())
    pixels = 224 if args.resnet50 else PIXELS[default_size()]
    x = torch.randn(images, 3, pixels, pixels, device=device())
    y = torch.randint(100, (images,), device=device())
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(args.steps):
        with timer() as t, record_function("step"):
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
        if step >= args.steps // 3:
            report(step_s=t.seconds)
    if device().type == "cuda":
        report(peak_bytes=[torch.cuda.max_memory_allocated(d) for d in devices()])
    if args.how == "ddp":
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
