import random
from itertools import islice
from typing import Any

import numpy as np
import torch
import torch.distributed as dist


def save_run(parts: dict[str, Any], epoch: int, batches: int) -> dict[str, Any]:
    kind, keys, position, has_gauss, gauss = np.random.get_state()
    mine = [random.getstate(), [kind, torch.from_numpy(keys.astype(np.int64)), position, has_gauss, gauss], torch.get_rng_state()]
    everyone = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(mine, everyone, dst=0)
    if dist.get_rank() != 0:
        return {}
    return {f"part {name}": part.state_dict() for name, part in parts.items()} | {f"rank {r}": s for r, s in enumerate(everyone)} | {"at": (epoch, batches)}


def load_run(parts: dict[str, Any], saved: dict[str, Any]) -> tuple[int, int]:
    for name in parts:
        parts[name].load_state_dict(saved[f"part {name}"])
    python, (kind, keys, position, has_gauss, gauss), numbers = saved[f"rank {dist.get_rank()}"]
    random.setstate(python)
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, gauss))
    torch.random.set_rng_state(numbers)
    return saved["at"]


def rest_of_epoch(sampler: Any, epoch: int, batches: int, batch_size: int) -> list[list[int]]:
    sampler.set_epoch(epoch)
    left = iter(sampler)
    for _ in range(batches * batch_size):
        next(left)
    found = []
    while batch := list(islice(left, batch_size)):
        found.append(batch)
    return found
