"""Copies between the host and a GPU, and between GPUs."""

from __future__ import annotations

from typing import Any

import torch

from . import links
from .clock import Mark
from .plans import SMALL
from .state import Gpus, Host, block

aten = torch.ops.aten
CPU = -1  # where a tensor lies that is on no GPU
PAGEABLE = 2  # times as long, since the driver copies it into pinned memory first


class Copies:
    def __init__(self, gpus: Gpus):
        self.gpus = gpus

    def crossing(self, func: Any, args: Any, kwargs: Any, target: int | str | None) -> tuple[int, int] | None:
        """From where to where a copy goes; None if it stays on its device."""
        source = args[1] if func is aten.copy_.default else args[0]
        of = CPU if (found := block(source)) is None else found.device
        if func is aten.copy_.default:
            to = CPU if (found := block(args[0])) is None else found.device
        elif target is None:
            return None
        else:
            to = target if isinstance(target, int) else CPU
        return None if to == of else (of, to)

    def copy(self, way: tuple[int, int], func: Any, args: Any, kwargs: Any, known: bool) -> Any:
        """Copy by `copy_` or `_to_copy`. A tensor of floats that is large isn't copied, it only takes its time."""
        gpus, to = self.gpus, way[1]
        in_place = func is aten.copy_.default
        source: Any = args[1] if in_place else args[0]
        target: Any = args[0] if in_place else None
        non_blocking = bool(kwargs.get("non_blocking") or (in_place and len(args) > 2 and args[2]))
        end = self._travel(way, source, target, non_blocking)
        large = source.numel() > SMALL and source.dtype.is_floating_point
        if in_place:
            if not large:
                func(*args, **kwargs)
            out: Any = target
            if (found := block(target)) is not None:
                whole = target.numel() * target.element_size() == found.nbytes
                found.computed = (known and not large) and (found.computed or whole)
        elif large:
            dtype = kwargs.get("dtype") or source.dtype
            memory_format = kwargs.get("memory_format") or torch.preserve_format
            out = torch.empty_like(source, dtype=dtype, memory_format=memory_format)
        else:
            out = func(*args, **kwargs)
        if to != CPU:
            if not in_place:
                gpus.tag(out, to, known and not large)
            return out
        if end is not None or large or not known:
            out.untyped_storage()._course_host = Host(known and not large, end)
        return out

    def _travel(self, way: tuple[int, int], source: Any, target: Any, non_blocking: bool) -> Mark | None:
        """Let the copy take its time. Returns when it's there, if nobody waits for it."""
        gpus, (of, to) = self.gpus, way
        nbytes = source.numel() * source.element_size()
        if of != CPU and to != CPU:  # both streams wait for each other, as in torch
            gpus.clock.meet((of, to))
            queue, other = gpus.queue(of), gpus.queue(to)
            gpus.clock.wait_on(queue, gpus.clock.mark(other))
            self._use(queue, source, target)
            gpus.clock.enqueue(queue, links.message_s(gpus.cluster, of, to, nbytes), "copy", "copy")
            gpus.clock.wait_on(other, gpus.clock.mark(queue))
            return None
        queue = gpus.queue(max(of, to))
        # `.to("cpu", non_blocking=True)` makes its own pinned memory
        host_side = source if of == CPU else target
        pinned = pinned_memory(host_side) if host_side is not None else non_blocking
        self._use(queue, source, target)
        took = nbytes / gpus.device.copy_Bps * (1 if pinned or of != CPU else PAGEABLE)
        gpus.clock.enqueue(queue, max(took, gpus.device.launch_s), "copy", "copy")
        mark = gpus.clock.mark(queue)
        if not non_blocking or not pinned:
            gpus.clock.wait_for(mark)
            return None
        return mark if to == CPU else None

    def _use(self, queue: Any, source: Any, target: Any) -> None:
        read = [b] if (b := block(source)) is not None else []
        written = [b] if target is not None and (b := block(target)) is not None else []
        self.gpus.use(queue, "copy", read, written)


def pinned_memory(tensor: torch.Tensor) -> bool:
    return getattr(tensor.untyped_storage(), "_course_pinned", False)
