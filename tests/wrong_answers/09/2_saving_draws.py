# symptom: changed
# says: changes
import random
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler


def save_run(parts: dict[str, Any], epoch: int, batches: int) -> dict[str, Any]:
    """All that is needed to go on: a dict that torch.load reads with its default, weights_only=True.

    parts    model, optimizer, schedule ...: objects with state_dict() and load_state_dict()
    epoch    the epoch that the run is in, and
    batches  how many batches of it are done

    Called on every rank, in a process group. What rank 0 returns is written to a file, and after the interruption read by all ranks. The run
    draws from the random numbers of Python, NumPy and torch, which are different on each rank.
    """
    name, keys, *rest = np.random.get_state()
    mine = {"python": random.getstate(), "numpy": (name, keys.tolist(), *rest), "torch": torch.get_rng_state()}
    torch.manual_seed(epoch)
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    states = {name: part.state_dict() for name, part in parts.items()}
    return {"parts": states, "random": everyone, "epoch": epoch, "batches": batches}


def load_run(parts: dict[str, Any], saved: dict[str, Any]) -> tuple[int, int]:
    """Put everything back, on this rank, and return (epoch, batches). `parts` are new objects under the same names."""
    for name, part in parts.items():
        part.load_state_dict(saved["parts"][name])
    mine = saved["random"][dist.get_rank()]
    random.setstate(mine["python"])
    np.random.set_state(mine["numpy"])
    torch.set_rng_state(mine["torch"])
    return saved["epoch"], saved["batches"]


def rest_of_epoch(sampler: DistributedSampler, epoch: int, batches: int, batch_size: int) -> list[list[int]]:
    """The batches of indices that this rank has still to do in `epoch`, of which `batches` are done. The last one may be smaller."""
    sampler.set_epoch(epoch)
    indices = list(sampler)[batches * batch_size :]
    return [indices[i : i + batch_size] for i in range(0, len(indices), batch_size)]
