"""Steps of a transformer that keeps its activations, and then recomputes them segment by segment: what the button under
`explore.recompute()` runs."""

import argparse

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from course_utils.rank import device, report, timer
from course_utils.workloads.models import Transformer

WIDTH, HEADS, LENGTH, ROWS = 1024, 16, 1024, 2


class Recomputed(nn.Module):
    """Some blocks, of which only the first one's input is kept."""

    def __init__(self, blocks: list[nn.Module]):
        super().__init__()
        self.blocks = nn.Sequential(*blocks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.blocks, x, use_reentrant=False)


def measure(model: nn.Module, x: torch.Tensor, y: torch.Tensor, what: str) -> None:
    """Report the bytes that a step holds beyond weights and gradients, at most, and its seconds."""
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    for _ in range(2):
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        with timer() as t:
            cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
    report(what=what, held_bytes=torch.cuda.max_memory_allocated() - before, step_s=t.seconds)


def main(args: argparse.Namespace) -> None:
    torch.cuda.set_device(device())
    model = Transformer(WIDTH, args.layers, HEADS, LENGTH).to(device())
    x, y = torch.randint(256, (2, ROWS, LENGTH), device=device())
    measure(model, x, y, "kept")
    blocks, base, more = list(model.blocks), args.layers // args.segments, args.layers % args.segments
    ends = [0]
    for i in range(args.segments):  # the longer ones last
        ends.append(ends[-1] + base + (i >= args.segments - more))
    model.blocks = nn.ModuleList(Recomputed(blocks[a:b]) for a, b in zip(ends, ends[1:], strict=False))
    measure(model, x, y, "recomputed")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int)
    parser.add_argument("--segments", type=int)
    main(parser.parse_args())
