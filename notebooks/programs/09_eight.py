"""One step of a stack of transformer blocks under DDP, in bf16, with activations kept or computed again."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

from course_utils.rank import device, report, timer
from course_utils.workloads.models import Block

WIDTH, DEPTH, HEADS, LENGTH = 2048, 24, 16, 2048  # as in the cells of the lesson


class Blocks(nn.Module):
    def __init__(self, again):
        super().__init__()
        self.again = again
        self.blocks = nn.ModuleList([Block(WIDTH, HEADS) for _ in range(DEPTH)])

    def forward(self, h):
        for block in self.blocks:
            h = checkpoint(block, h, use_reentrant=False) if self.again else block(h)
        return h


def main():
    batch, again = int(sys.argv[1]), sys.argv[2] == "again"
    dist.init_process_group()
    with device():
        model = DDP(Blocks(again), gradient_as_bucket_view=True)
        x = torch.randn(batch, LENGTH, WIDTH)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):  # DDP settles its buckets in the second
        with timer() as t:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                h = model(x)
            h.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        report(step_s=t.seconds)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
