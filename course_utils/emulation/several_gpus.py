"""One process with several GPUs: DDP and optimizers with a module on more than one, whose C++ sees the CPU everywhere,
and joins what lies on different ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from .clock import Queue
from .state import Gpus, MemoryBlock, block


def install() -> None:
    """Let DDP send its weights by device at the start, and let optimizers and `clip_grad_norm_` group theirs so."""
    real: Any = dist._broadcast_coalesced

    def by_device(group: Any, tensors: list[torch.Tensor], *args: Any) -> None:
        lie = [_lies(t) for t in tensors]
        for device in dict.fromkeys(lie):
            real(group, [t for t, at in zip(tensors, lie, strict=True) if at == device], *args)

    dist._broadcast_coalesced = by_device

    grouped: Any = torch._C._group_tensors_by_device_and_dtype

    def group(lists: list[list[Any]], with_indices: bool = False) -> dict[Any, tuple[list[list[Any]], list[int]]]:
        """As torch's: by the device and the type of the tensors in the first list."""
        found: dict[Any, tuple[list[list[Any]], list[int]]] = {}
        for (device, dtype), (parts, indices) in grouped(lists, with_indices).items():
            lie = [_lies(t) for t in parts[0]]
            for index in dict.fromkeys(lie):
                at = [i for i, other in enumerate(lie) if other == index]
                key = (device if index is None else torch.device("cuda", index), dtype)
                found[key] = (
                    [[part[i] for i in at] if part else [] for part in parts],
                    [indices[i] for i in at] if indices else [],
                )
        return found

    torch._C._group_tensors_by_device_and_dtype = group


def _lies(tensor: torch.Tensor) -> int | None:
    """The GPU that holds a tensor, and None for the CPU."""
    found = block(tensor)
    return None if found is None else found.device


def wait_for_buckets(gpus: Gpus, queue: Queue, blocks: Sequence[MemoryBlock]) -> None:
    """A bucket's sum waits for the gradients that other GPUs put into it."""
    writers = {b.wrote[0] for b in blocks if b.kind == "buckets" and b.wrote is not None}
    for other in gpus.clock.queues:
        if other.key in writers and other.device != queue.device:
            gpus.clock.wait_on(queue, gpus.clock.mark(other))
