"""Two steps of a chain of equal blocks under fully_shard, and its fullest moments: what the button under
`explore.fsdp()` runs."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from course_utils.rank import device, report

WIDTH = 4096


def main(args: argparse.Namespace) -> None:
    dist.init_process_group()
    torch.cuda.set_device(device())
    with torch.device(device()):
        model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(args.blocks)))
        x = torch.randn(8, WIDTH)  # so few that activations don't count
    weights = sum(p.nbytes for p in model.parameters())
    for block in model:
        fully_shard(block, reshard_after_forward=not args.keep)
    fully_shard(model, reshard_after_forward=not args.keep)
    peaks = {}
    for _ in range(2):
        torch.cuda.reset_peak_memory_stats()
        loss = model(x).square().mean()
        peaks["forward"] = torch.cuda.max_memory_allocated() / weights
        torch.cuda.reset_peak_memory_stats()
        loss.backward()
        peaks["backward"] = torch.cuda.max_memory_allocated() / weights
        model.zero_grad()
    report(**peaks)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--blocks", type=int)
    parser.add_argument("--keep", action="store_true", help="gathered weights stay until backward")
    main(parser.parse_args())
