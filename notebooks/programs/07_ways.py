"""One network, trained in one process, in two that don't wait (Hogwild), and in two that do: loss over seconds."""

import argparse
import time

import torch
import torch.multiprocessing as mp
from torch import nn
from torch.nn.functional import cross_entropy

from course_utils.rank import report
from course_utils.workloads import image_set

WAYS = {"one process": 1, "Hogwild": 2, "in step": 2}  # and how many processes
PART = 60  # batches whose mean loss is reported


def network(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 64), nn.ReLU(), nn.Linear(64, 100))


def pictures():
    data = image_set(split="train", train_per_class=60, pixels=32)
    return torch.stack([image for image, _ in data]).share_memory_(), torch.tensor([label for _, label in data])


def train(worker, way, batches, args, model, version, sent, x, y, barrier, results):
    torch.set_num_threads(1)
    random, weights = torch.Generator().manual_seed(100 * args.seed + worker), list(model.parameters())
    steps, ages = [], 0
    barrier.wait()  # all are there
    begin = time.perf_counter()
    for _ in range(batches):
        rows, read = torch.randint(len(x), (32,), generator=random), version.item()
        loss = cross_entropy(model(x[rows]), y[rows])
        gradients = torch.autograd.grad(loss, weights)
        if way == "in step":
            for mine, gradient in zip(sent[worker], gradients, strict=True):
                mine.copy_(gradient)
            barrier.wait()  # both have written theirs
            gradients = [(a + b) / 2 for a, b in zip(*sent, strict=True)] if worker == 0 else []
        if gradients:  # in step, worker 0 updates for both
            ages += version.item() - read
            with torch.no_grad():
                for weight, gradient in zip(weights, gradients, strict=True):
                    weight -= args.lr * gradient  # in place, where all see it
            version += 1
        if way == "in step":
            barrier.wait()  # the weights are new
        steps.append((time.perf_counter(), loss.item()))
    results.put((begin, steps, ages))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, default=1000, help="of each process; Hogwild's make three quarters")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.05)
    args = parser.parse_args()
    x, y = pictures()
    for seed in range(args.rounds):
        args.seed = seed
        for way, workers in WAYS.items():  # in turn: what slows the machine hits all of them
            batches = args.batches * 3 // 4 if way == "Hogwild" else args.batches  # in all it makes more updates, still
            model, version = network(seed).share_memory(), torch.zeros(1, dtype=torch.int64).share_memory_()
            sent = [[torch.zeros_like(p).share_memory_() for p in model.parameters()] for _ in range(2)]
            barrier, results = mp.Barrier(workers), mp.Queue()
            shared = (way, batches, args, model, version, sent, x, y, barrier, results)
            processes = [mp.Process(target=train, args=(i, *shared)) for i in range(workers)]
            for p in processes:
                p.start()
            found = [results.get() for _ in processes]
            for p in processes:
                p.join()
            begins, steps, ages = zip(*found, strict=True)
            steps = sorted(sum(steps, []))
            parts = [zip(*steps[i : i + PART], strict=True) for i in range(0, len(steps) - PART + 1, PART)]
            points = [(times[-1] - min(begins), sum(losses) / PART) for times, losses in parts]
            updates = batches * (2 if way == "Hogwild" else 1)
            report(way=way, points=points, updates=updates, age=sum(ages) / updates)


if __name__ == "__main__":
    main()
