"""Marks on the timeline: the steps and phases that a program goes through, by the operators that it queues meanwhile.

The host runs ahead of its GPU, so a phase is no interval on the device's clock: it's the stretch of spans that were
queued while it lasted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .state import Gpus

# name, first span, one beyond the last span, host's time at the start and at the end
Mark = tuple[str, int, int, float, float]
BACKWARD = "backward"
MOST = 50_000


def install(gpus: Gpus) -> list[Mark]:
    """Mark what `torch.profiler.record_function` and NVTX name (an optimizer's step does it by itself), and backward
    passes. Returns the list that fills up."""
    clock = gpus.clock
    found: list[Mark] = []

    def begin() -> tuple[int, float]:
        return len(clock.spans), clock.host

    def end(name: str, begun: tuple[int, float]) -> None:
        if len(found) < MOST:
            found.append((name, begun[0], len(clock.spans), begun[1], clock.host))

    named = torch.autograd.profiler.record_function
    real_enter, real_exit = named.__enter__, named.__exit__

    def enter(self: Any) -> Any:
        self._course_begun = begin()
        return real_enter(self)

    def leave(self: Any, *error: Any) -> Any:
        end(self.name, self._course_begun)
        return real_exit(self, *error)

    def marked(real: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            begun = begin()
            try:
                return real(*args, **kwargs)
            finally:
                end(BACKWARD, begun)

        return run

    named.__enter__, named.__exit__ = enter, leave
    torch.autograd._engine_run_backward = marked(torch.autograd._engine_run_backward)
    torch.cuda.nvtx._nvtx = _Nvtx(begin, end)
    return found


class _Nvtx:
    """The NVTX library, with the names of its functions. Its ranges are marks."""

    def __init__(self, begin: Callable[[], tuple[int, float]], end: Callable[[str, tuple[int, float]], None]):
        self._begin, self._end = begin, end
        self._nested: list[tuple[str, tuple[int, float]]] = []
        self._others: dict[int, tuple[str, tuple[int, float]]] = {}

    def rangePushA(self, name: str) -> int:
        self._nested.append((name, self._begin()))
        return len(self._nested) - 1

    def rangePop(self) -> int:
        if self._nested:
            self._end(*self._nested.pop())
        return len(self._nested)

    def rangeStartA(self, name: str, *stream: int) -> int:
        number = 1 + max(self._others, default=0)
        self._others[number] = name, self._begin()
        return number

    def rangeEnd(self, number: int, *stream: int) -> None:
        if number in self._others:
            self._end(*self._others.pop(number))

    deviceRangeStart, deviceRangeEnd = rangeStartA, rangeEnd

    def markA(self, name: str) -> None:
        self._end(name, self._begin())
