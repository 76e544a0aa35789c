"""Hogwild as in lesson 07: processes that train one model in shared memory, without a lock and without waiting. What
`tools/record_explorers.py` records for `explore.staleness()`, and what the button there runs."""

import argparse
import math
from typing import Any

import torch
import torch.multiprocessing as mp
from torch import nn
from torch.nn.functional import cross_entropy

from course_utils.rank import report
from course_utils.workloads import image_set
from course_utils.workloads.images import normalize

PARTS = 20  # of a training: the loss is reported for each


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 64), nn.ReLU(), nn.Linear(64, 100))


def pictures(split: str) -> tuple[torch.Tensor, torch.Tensor]:
    data = image_set(split=split, pixels=32, in_memory=True)
    assert data.images is not None
    return normalize(data.images).share_memory_(), data.labels


def train(trainer: int, args: Any, model: nn.Module, version: Any, x: Any, y: Any, barrier: Any, results: Any) -> None:
    torch.set_num_threads(1)
    random, losses, stale = torch.Generator().manual_seed(100 * args.seed + trainer), [], []
    barrier.wait()  # all are there
    for _ in range(args.updates // args.trainers):
        rows, read = torch.randint(len(x), (32,), generator=random), version.item()
        loss = cross_entropy(model(x[rows]), y[rows])
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        stale.append(version.item() - read)  # updates by others since the weights were read
        with torch.no_grad():
            for weight, gradient in zip(model.parameters(), gradients, strict=True):
                weight -= args.lr * gradient  # in place, where all see it
        version += 1
        losses.append(loss.item())
        if not math.isfinite(losses[-1]):
            break
    results.put((trainer, losses, stale))


def main(args: argparse.Namespace) -> None:
    x, y = pictures("train")
    test_x, test_y = pictures("test")
    model, version = network(args.seed).share_memory(), torch.zeros(1, dtype=torch.int64).share_memory_()
    barrier, results = mp.Barrier(args.trainers), mp.Queue()
    shared = (args, model, version, x, y, barrier, results)
    trainers = [mp.Process(target=train, args=(i, *shared)) for i in range(args.trainers)]
    for trainer in trainers:
        trainer.start()
    _, losses, stale = zip(*(results.get() for _ in trainers), strict=True)
    for trainer in trainers:
        trainer.join()
    each = max(1, args.updates // args.trainers // PARTS)
    for part in range(0, max(map(len, losses)), each):
        found = [loss for of in losses for loss in of[part : part + each]]
        mean = math.fsum(found) / len(found) if all(map(math.isfinite, found)) else None
        report(updates=part * args.trainers, loss=mean)  # None: no number any more
    ages = sorted(age for of in stale for age in of)
    accuracy = (model(test_x).argmax(1) == test_y).double().mean().item()
    report(accuracy=accuracy, stale=sum(ages) / len(ages), stale_99=ages[int(0.99 * len(ages))])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--trainers", type=int)
    parser.add_argument("--lr", type=float)
    parser.add_argument("--updates", type=int, default=2000, help="by all trainers together")
    parser.add_argument("--seed", type=int, default=0)
    main(parser.parse_args())
