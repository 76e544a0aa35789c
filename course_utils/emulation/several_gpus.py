"""DDP with a module on several GPUs. Its C++ sees the CPU everywhere, and joins what lies on different ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from .clock import Queue
from .state import Block, Gpus, block


def install() -> None:
    """Let DDP send its weights by device at the start."""
    real: Any = dist._broadcast_coalesced

    def by_device(group: Any, tensors: list[torch.Tensor], *args: Any) -> None:
        lie = [b.device if (b := block(t)) is not None else None for t in tensors]
        for device in dict.fromkeys(lie):
            real(group, [t for t, at in zip(tensors, lie, strict=True) if at == device], *args)

    dist._broadcast_coalesced = by_device


def wait_for_buckets(gpus: Gpus, queue: Queue, blocks: Sequence[Block]) -> None:
    """A bucket's sum waits for the gradients that other GPUs put into it."""
    writers = {b.wrote[0] for b in blocks if b.kind == "buckets" and b.wrote is not None}
    for other in gpus.clock.queues:
        if other.key in writers and other.device != queue.device:
            gpus.clock.wait_on(queue, gpus.clock.mark(other))
