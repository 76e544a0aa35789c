"""Counts the gradients of lesson 08's small transformer by their power of two, as it trains: what
`tools/record_explorers.py` records for `explore.loss_scale()`."""

import argparse

import torch
from torch.nn.functional import cross_entropy

from course_utils.rank import device, report
from course_utils.workloads.models import Transformer


def sequences(random: torch.Generator, n: int = 16, length: int = 33) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens that count upwards, each row in steps of its own, and the tokens that follow them."""
    start, stride = torch.randint(64, (n, 1), generator=random), torch.randint(1, 5, (n, 1), generator=random)
    tokens = ((start + stride * torch.arange(length)) % 64).to(device())
    return tokens[:, :-1], tokens[:, 1:].flatten()


def counted(tensors: list[torch.Tensor]) -> tuple[list[int], list[int]]:
    """Exponents, and how many numbers lie from that power of two to the next."""
    numbers = torch.cat([t.flatten() for t in tensors])
    exponents, counts = torch.frexp(numbers[numbers != 0])[1].sub(1).unique(return_counts=True)
    return exponents.tolist(), counts.tolist()


def main(args: argparse.Namespace) -> None:
    torch.manual_seed(0)
    model = Transformer(width=64, depth=2, heads=4, length=32).to(device())
    random = torch.Generator().manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    passing: list[torch.Tensor] = []
    for layer in model.modules():
        if isinstance(layer, torch.nn.Linear):
            layer.register_full_backward_hook(lambda layer, gives, given: passing.append(given[0]))
    for step in range(max(args.steps) + 1):
        x, y = sequences(random)
        passing.clear()
        optimizer.zero_grad()
        loss = cross_entropy(model(x).flatten(0, 1), y)
        loss.backward()
        if step in args.steps:
            for what, tensors in (("activations", passing), ("weights", [p.grad for p in model.parameters()])):
                for exponent, count in zip(*counted(tensors), strict=True):
                    report(step=step, what=what, exponent=exponent, count=count)
            report(step=step, loss=loss.item())
        optimizer.step()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, nargs="+", help="after how many steps to count")
    main(parser.parse_args())
