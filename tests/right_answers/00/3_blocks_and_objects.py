import os
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist


def main(predict: Callable[[float], int], pictures: list[tuple[float, int]], path: Path) -> float:
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    start, end = (len(pictures) * r // world_size for r in (rank, rank + 1))
    mine = [predict(picture) == label for picture, label in pictures[start:end]]
    found: list[list[bool]] = [[]] * world_size
    dist.all_gather_object(found, mine)
    share = sum(map(sum, found)) / len(pictures)
    if rank == world_size - 1:
        with path.open("w") as file:
            print(share, file=file)
    dist.destroy_process_group()
    return share
