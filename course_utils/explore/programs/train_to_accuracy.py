"""Trains lesson 04's classifier, at half its width and on 20 of its classes, until it gets a share of the test images
right: what `tools/record_explorers.py` records for `explore.time_to_accuracy()`, and what the button there runs."""

import argparse

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP

from course_utils.rank import device, report
from course_utils.workloads import image_model, image_set
from course_utils.workloads.images import normalize

CLASSES = 20


def pictures(split: str) -> tuple[torch.Tensor, torch.Tensor]:
    data = image_set(split=split, pixels=32, in_memory=True)
    assert data.images is not None
    chosen = data.labels < CLASSES
    return normalize(data.images[chosen]).to(device()), data.labels[chosen].to(device())


def main(args: argparse.Namespace) -> None:
    dist.init_process_group()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if device().type == "cuda":
        torch.cuda.set_device(device())
    (x, y), (test_x, test_y) = pictures("train"), pictures("test")
    torch.manual_seed(args.seed)
    shuffling = torch.Generator().manual_seed(args.seed)  # the same on all ranks: each takes its part of a batch
    model = DDP(image_model("cpu", CLASSES, norm="group", width=0.5).to(device()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    order, steps, seen, tested = torch.empty(0, dtype=torch.long), 0, 0, 0
    while seen < args.most_images:
        while len(order) < args.batch_size:
            order = torch.cat([order, torch.randperm(len(x), generator=shuffling)])
        batch, order = order[: args.batch_size], order[args.batch_size :]
        mine = batch[rank::ranks].to(device())
        optimizer.zero_grad()
        cross_entropy(model(x[mine]), y[mine]).backward()
        optimizer.step()
        steps, seen = steps + 1, seen + args.batch_size
        if seen - tested < args.every:
            continue
        tested = seen
        with torch.no_grad():
            accuracy = (model.module(test_x).argmax(1) == test_y).double().mean()
        dist.broadcast(accuracy, 0)  # so that all ranks end together
        report(steps=steps, images=seen, accuracy=accuracy.item(), progress=(seen, args.most_images))
        if accuracy >= args.accuracy:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, help="images of a step, over all ranks")
    parser.add_argument("--lr", type=float)
    parser.add_argument("--accuracy", type=float, default=0.6)
    parser.add_argument("--most-images", type=int, default=10_000)
    parser.add_argument("--every", type=int, default=500, help="images between two tests")
    parser.add_argument("--seed", type=int, default=0)
    main(parser.parse_args())
