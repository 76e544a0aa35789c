"""The real nn.DataParallel over all GPUs of this rank: its chunks, its gradient, and what a replica forgets."""

import copy

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from course_utils.rank import device, devices, report


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 5))
        self.calls, self.seen = 0, []

    def forward(self, x):
        self.calls += 1
        self.seen.append(len(x))
        return self.layers(x)


class Scaled(nn.Module):
    """Returns its loss, and takes a scale for all samples."""

    def __init__(self):
        super().__init__()
        self.layer, self.trained_on = nn.Linear(8, 1), []

    def forward(self, x, scale):
        self.trained_on.append(len(x))
        return self.layer(x * scale).square().mean().reshape(1)


def gradients(model, forward, x, y):
    model.zero_grad()
    cross_entropy(forward(x), y).backward()
    return [p.grad.clone() for p in model.parameters()]


def main():
    n = len(devices())
    model = Model().double().to(device())
    x, y = torch.randn(3 * n - 1, 8, dtype=torch.float64, device=device()), torch.randint(5, (3 * n - 1,)).to(device())
    plain = gradients(model, model, x, y)
    model.calls, model.seen[:] = 0, []
    split = gradients(model, nn.DataParallel(model), x, y)
    report(gap=max((a - b).abs().max().item() for a, b in zip(plain, split, strict=True)))
    report(devices=n, calls=model.calls, chunks=sorted(model.seen))

    norm = nn.BatchNorm1d(8).double().to(device())
    first = copy.deepcopy(norm)
    nn.DataParallel(norm)(x)
    first(x.chunk(n)[0])
    report(norm_gap=(norm.running_mean - first.running_mean).abs().max().item())

    scaled = Scaled().double().to(device())
    nn.DataParallel(scaled)(x, torch.ones(1, 8, dtype=torch.float64, device=device())).mean().backward()
    report(trained_on=sum(scaled.trained_on), samples=len(x))

    partly = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8).to(device())).double()
    try:
        nn.DataParallel(partly)(x)
        report(refused=False)
    except RuntimeError as error:
        report(refused="module must have its parameters" in str(error))


if __name__ == "__main__":
    main()
