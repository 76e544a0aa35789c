"""Train for some steps, then test: rank 0 alone while the others wait, or with --share-test all together. Random
pixels will do, since only time counts."""

import argparse

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP

from course_utils.rank import device, report, timer
from course_utils.workloads import PIXELS, default_size, resnet

GPU = device().type == "cuda"
BATCH, TEST = (128, 50) if GPU else (32, 10)  # images of all ranks in a training step; of one rank in a test step


def pictures(count):
    side = PIXELS[default_size()]
    return torch.randn(count, 3, side, side, device=device()), torch.randint(100, (count,), device=device())


def train(model, optimizer, images, labels, steps):
    for _ in range(steps):
        cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()


@torch.no_grad()
def test(model, images, labels, batches):
    """Random pixels again and again: each batch counts as another one, and takes as long."""
    right = torch.zeros((), device=device())
    for _ in batches:
        right += (model(images).argmax(1) == labels).sum()
    return right


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=8, help="of training; the test takes twice as many")
    parser.add_argument("--share-test", action="store_true")
    args = parser.parse_args()
    dist.init_process_group()
    if GPU:
        torch.cuda.set_device(device())
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = DDP(resnet().to(device()))
    optimizer = torch.optim.AdamW(model.parameters())
    batch, unseen = pictures(BATCH // world_size), pictures(TEST)
    train(model, optimizer, *batch, 2)  # the first steps also allocate memory
    dist.barrier()  # everybody starts together
    with timer() as training:
        train(model, optimizer, *batch, args.steps)
    tests = 2 * args.steps
    mine = range(0)
    model.eval()
    with timer() as testing:
        if args.share_test:
            mine = range(rank, tests, world_size)
        elif rank == 0:
            mine = range(tests)
        right = test(model.module, *unseen, mine)
        dist.all_reduce(right)  # the others wait here
    report(batch=BATCH, steps=args.steps, tested=len(mine))
    report(train_s=training.seconds, test_s=testing.seconds, job_s=training.seconds + testing.seconds)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
