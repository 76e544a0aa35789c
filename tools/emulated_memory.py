"""One rank of `tools/bench_emulation.py memory`: training steps whose peak of memory is known from elsewhere.

`counted` is the same program without any GPU, by fake tensors and torch's own MemTracker. `by_hand` adds up weights,
gradients, the optimizer's state and what the layers keep, by formula.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
import torchvision
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """A transformer's layer as Korthikanti et al. count it (arXiv 2205.05198): attention written out, with dropout."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    @staticmethod
    def dropout(x: torch.Tensor) -> torch.Tensor:
        """CUDA's own, whose mask has a byte an element: fake tensors of the CPU would take another."""
        return torch.native_dropout(x, 0.1, True)[0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, h = x.shape
        q, k, v = (t.view(b, s, self.heads, -1).transpose(1, 2) for t in self.qkv(self.first(x)).chunk(3, -1))
        shares = self.dropout(((q @ k.transpose(2, 3)) * (h / self.heads) ** -0.5).softmax(-1))
        x = x + self.dropout(self.out((shares @ v).transpose(1, 2).reshape(b, s, h)))
        return x + self.dropout(self.down(F.gelu(self.up(self.second(x)))))


Step = Callable[[], None]


def step_of(case: str, device: Any) -> tuple[Step, nn.Module]:
    """A training step and its model: resnet50, resnet18, gpt or gpt-small."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16 if case in GPT else torch.float32)
    with torch.device(device):
        if case in GPT:
            width, depth, heads, length, batch = GPT[case]
            model: nn.Module = nn.Sequential(*[Block(width, heads) for _ in range(depth)])
            optimizer: Any = torch.optim.Adam(model.parameters())
            x, y = torch.randn(batch, length, width), None
        else:
            batch, pixels = (64, 224) if case == "resnet50" else (16, 112)
            model = getattr(torchvision.models, case)()
            optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
            x, y = torch.randn(batch, 3, pixels, pixels), torch.zeros(batch, dtype=torch.long)
    torch.set_default_dtype(before)

    def loss() -> torch.Tensor:
        return model(x).sum() if y is None else F.cross_entropy(model(x), y)

    def step() -> None:
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, model


# width, depth, heads, length, batch
GPT = {"gpt": (2048, 24, 16, 1024, 4), "gpt-small": (256, 4, 4, 128, 8)}


def counted(case: str) -> float:
    """The peak by torch's own MemTracker on fake tensors, with nothing of ours. They're the CPU's: autograd would ask
    a driver about those of a GPU."""
    from torch._subclasses import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    with FakeTensorMode():
        tracker = MemTracker()
        with tracker:
            step, model = step_of(case, "cpu")
            step()
            tracker.reset_mod_stats()
            step()
    (found,) = (kinds["Total"] for kinds in tracker.get_tracker_snapshot("peak").values())
    return float(found)


def by_hand(case: str) -> float:
    """Of a GPT in bfloat16 at the end of forward: 2 bytes for each weight, 4 for Adam, and what the layers keep. There
    are no gradients yet, since zero_grad drops them."""
    from course_utils.predict import transformer_activation_bytes

    width, depth, heads, length, batch = GPT[case]
    parameters = depth * (12 * width**2 + 13 * width)
    return 6 * parameters + depth * transformer_activation_bytes(batch=batch, seq=length, hidden=width, heads=heads)


def main() -> None:
    import torch.distributed as dist

    from course_utils.rank import device, report

    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="+")
    dist.init_process_group()
    torch.cuda.set_device(device())
    for case in parser.parse_args().cases:
        torch.cuda.reset_peak_memory_stats()
        step, model = step_of(case, device())
        step()
        torch.cuda.reset_peak_memory_stats()
        step()
        del step, model
        report(case=case, peak_bytes=torch.cuda.max_memory_allocated())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
