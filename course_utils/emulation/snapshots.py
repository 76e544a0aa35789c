"""The history of a modelled GPU's memory, in the form that torch's own has: `torch.cuda.memory._snapshot()`, which
pytorch.org/memory_viz and `python -m torch.cuda._memory_viz` draw.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from typing import Any

from .allocator import Block
from .remarks import OURS

_DEEP = 60  # frames that are kept of a traceback


class History:
    """What came into one GPU's memory and went, since the program asked for it. `now` is the virtual time in seconds;
    `kept` events are kept at most, `all_events` says whether any are."""

    def __init__(
        self, device: int, memory: Any, now: Callable[[], float], kept: int, all_events: bool, stacks: bool
    ):  # fmt: skip
        self.device, self.memory, self.now = device, memory, now
        self.stacks, self.all_events = stacks, all_events
        self.events: deque[dict[str, Any]] = deque(maxlen=min(kept, sys.maxsize))
        self.takers: dict[Any, list[dict[str, Any]]] = {}  # chunk -> who took it, if anybody knows

    def came(self, chunk: Any) -> None:
        """A chunk was taken."""
        frames = self.takers[chunk] = _frames() if self.stacks else []
        self._event("alloc", chunk.block.address, chunk.nbytes, frames, chunk.block.segment.stream)

    def went(self, chunk: Any) -> None:
        """A chunk is given back."""
        self.takers.pop(chunk, None)
        frames = _frames() if self.stacks else []
        for action in ("free_requested", "free_completed"):
            self._event(action, chunk.block.address, chunk.nbytes, frames, chunk.block.segment.stream)

    def refused(self, nbytes: int, left: int) -> None:
        """It didn't fit."""
        self._event("oom", left, nbytes, _frames(), device_free=left)

    def segment(self, action: str, address: int, nbytes: int, stream: int) -> None:
        self._event(f"segment_{action}", address, nbytes, _frames() if self.stacks else [], stream)

    def _event(
        self, action: str, address: int, size: int, frames: list[dict[str, Any]], stream: int = 0, **more: int
    ) -> None:  # fmt: skip
        if self.all_events:
            self.events.append(
                {
                    "action": action, "addr": address, "size": size, "stream": stream, "frames": frames,
                    "pool_id": (0, 0), "time_us": int(self.now() * 1e6), "compile_context": "",
                    "user_metadata": "", **more,
                }
            )  # fmt: skip

    def segments(self) -> list[dict[str, Any]]:
        """What the allocator holds now, block by block."""
        chunks = {chunk.block: chunk for chunk in self.memory.chunks if chunk.block is not None}
        segments = [segment for _, segment in sorted(self.memory.allocator.segments.items())]
        return [self._told(part, chunks) for segment in segments for part in segment.ranges]

    def _told(self, part: list[Block], chunks: dict[Any, Any]) -> dict[str, Any]:
        blocks = []
        for block in part:
            chunk = chunks.get(block)
            blocks.append(
                {
                    "address": block.address, "size": block.size,
                    "requested_size": 0 if chunk is None else chunk.asked,
                    "state": "inactive" if block.free else "active_allocated", "frames": self.takers.get(chunk, []),
                    "user_metadata": "",
                }
            )  # fmt: skip
        taken = sum(block.size for block in part if not block.free)
        asked = sum(chunks[block].asked for block in part if block in chunks)
        return {
            "device": self.device, "address": part[0].address, "total_size": sum(block.size for block in part),
            "allocated_size": taken, "active_size": taken, "requested_size": asked,
            "stream": part[0].segment.stream, "segment_pool_id": (0, 0), "segment_type": part[0].segment.pool,
            "is_expandable": self.memory.allocator.expandable, "frames": [], "blocks": blocks,
        }  # fmt: skip


def _frames() -> list[dict[str, Any]]:
    """Where the program stands, the innermost first."""
    found: list[dict[str, Any]] = []
    frame = sys._getframe(2)
    while frame is not None and len(found) < _DEEP:
        code = frame.f_code
        if not code.co_filename.startswith(OURS):
            found.append({"filename": code.co_filename, "line": frame.f_lineno, "name": code.co_name})
        frame = frame.f_back  # type: ignore[assignment]
    return found


def install(gpus: Any) -> dict[str, Callable[..., Any]]:
    """What `torch._C` asks a driver of memory's history, for all GPUs of a rank."""

    def record(
        enabled: Any = "all", context: Any = "all", stacks: Any = "all", kept: int = sys.maxsize, *_: Any
    ) -> None:
        for index, memory in enumerate(gpus.memory):
            if enabled is None:
                memory.history, memory.allocator.tell = None, lambda *_: None
            elif memory.history is None:
                now, every = lambda: gpus.clock.host, enabled == "all"
                memory.history = History(index, memory, now, kept, every, context is not None)
                memory.allocator.tell = memory.history.segment

    def record_legacy(enabled: bool, context: bool = True, kept: int = 1, *_: Any) -> None:
        record("all" if enabled and kept > 1 else "state" if enabled else None, "all" if context else None, kept=kept)

    def snapshot(*_: Any) -> dict[str, Any]:
        histories = [
            memory.history or History(index, memory, lambda: 0.0, 0, False, False)
            for index, memory in enumerate(gpus.memory)
        ]
        return {
            "segments": [segment for history in histories for segment in history.segments()],
            "device_traces": [list(history.events) for history in histories],
            "allocator_settings": {"emulated": gpus.cluster.label},
            "external_annotations": [],
        }

    return {
        "_cuda_memoryStats": lambda device: gpus.memory[device].stats(),
        "_cuda_attach_out_of_memory_observer": gpus.on_oom.append,
        "_cuda_record_memory_history": record,
        "_cuda_record_memory_history_legacy": record_legacy,
        "_cuda_memorySnapshot": snapshot,
    }
