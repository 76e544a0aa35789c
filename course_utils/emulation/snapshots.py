"""The history of a modelled GPU's memory, in the form that torch's own has: `torch.cuda.memory._snapshot()`, which
pytorch.org/memory_viz and `python -m torch.cuda._memory_viz` draw.

Nobody models where torch's allocator would put a tensor, so each lies in a segment of its own, at an address that
another of its size may get later.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from typing import Any

from .remarks import OURS

_FIRST = 0x7F00_0000_0000
_DEEP = 60  # frames that are kept of a traceback


class History:
    """What came into one GPU's memory and went, since the program asked for it. `now` is the virtual time in seconds;
    `kept` events are kept at most, `all_events` says whether any are."""

    def __init__(self, device: int, now: Callable[[], float], kept: int, all_events: bool, stacks: bool):
        self.device, self.now, self.stacks, self.all_events = device, now, stacks, all_events
        self.events: deque[dict[str, Any]] = deque(maxlen=min(kept, sys.maxsize))
        self.lies: dict[Any, tuple[int, list[dict[str, Any]]]] = {}  # chunk -> its address, and who took it
        self._next, self._free = _FIRST, dict[int, list[int]]()

    def came(self, chunk: Any, known: bool = True) -> None:
        """A chunk was taken. Of those that were there before, nobody knows who took them."""
        same = self._free.get(chunk.nbytes)
        address = same.pop() if same else self._next
        if address == self._next:
            self._next += max(chunk.nbytes, 512)
        frames = _frames() if known and self.stacks else []
        self.lies[chunk] = (address, frames)
        if known:
            self._event("segment_alloc", address, chunk.nbytes, frames)
            self._event("alloc", address, chunk.nbytes, frames)

    def went(self, chunk: Any) -> None:
        """A chunk was given back."""
        address, _ = self.lies.pop(chunk, (0, []))
        if address:
            frames = _frames() if self.stacks else []
            for action in ("free_requested", "free_completed", "segment_free"):
                self._event(action, address, chunk.nbytes, frames)
            self._free.setdefault(chunk.nbytes, []).append(address)

    def refused(self, nbytes: int, left: int) -> None:
        """It didn't fit."""
        self._event("oom", left, nbytes, _frames(), device_free=left)

    def _event(self, action: str, address: int, size: int, frames: list[dict[str, Any]], **more: int) -> None:
        if self.all_events:
            self.events.append(
                {
                    "action": action, "addr": address, "size": size, "stream": 0, "frames": frames, "pool_id": (0, 0),
                    "time_us": int(self.now() * 1e6), "compile_context": "", "user_metadata": "", **more,
                }
            )  # fmt: skip

    def segments(self) -> list[dict[str, Any]]:
        """What's there now."""
        found = []
        for chunk, (address, frames) in sorted(self.lies.items(), key=lambda item: item[1][0]):
            size = chunk.nbytes
            block = {
                "address": address, "size": size, "requested_size": chunk.asked, "state": "active_allocated",
                "frames": frames, "user_metadata": "",
            }  # fmt: skip
            found.append(
                {
                    "device": self.device, "address": address, "total_size": size, "allocated_size": size,
                    "active_size": size, "requested_size": chunk.asked, "stream": 0, "segment_pool_id": (0, 0),
                    "segment_type": chunk.pool, "is_expandable": False, "frames": frames, "blocks": [block],
                }
            )  # fmt: skip
        return found


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
            before, memory.history = memory.history, None
            if enabled is not None:
                history = History(index, lambda: gpus.clock.host, kept, enabled == "all", context is not None)
                for chunk in memory.chunks:
                    history.came(chunk, known=False)
                memory.history = before or history

    def record_legacy(enabled: bool, context: bool = True, kept: int = 1, *_: Any) -> None:
        record("all" if enabled and kept > 1 else "state" if enabled else None, "all" if context else None, kept=kept)

    def snapshot(*_: Any) -> dict[str, Any]:
        histories = [memory.history or _of_now(index, memory, gpus.clock) for index, memory in enumerate(gpus.memory)]
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


def _of_now(index: int, memory: Any, clock: Any) -> History:
    """What's there, for a program that asked for no history."""
    history = History(index, lambda: clock.host, 0, False, False)
    for chunk in memory.chunks:
        history.came(chunk, known=False)
    return history
