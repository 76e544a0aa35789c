"""What a call of a collective returns on modelled GPUs: its end on the virtual clock, and what waiting for it does."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future
from torch.utils._python_dispatch import _disable_current_modes

from .state import Gpus, MemoryBlock, block
from .streams import ASKED_S


class EmulatedWork(dist.Work):
    """A collective in flight. `wait` lets the current stream wait for its end, as NCCL's does; the host runs on.

    `device` is None for tensors of the CPU, for which the host waits. As NCCL's, it keeps its result until it's gone
    itself, and what it's made from, `held`, until somebody waits.
    """

    def __init__(
        self, gpus: Gpus, result: Any, end: float, blocks: Sequence[MemoryBlock], device: int | None,
        held: Sequence[torch.Tensor] = (),
    ):  # fmt: skip
        super().__init__()
        self.held = held
        self.gpus, self.result_, self.end, self.blocks, self.device = gpus, result, end, blocks, device
        # What comes before its end, of each queue: all that was asked of its own stream, and of those that waited.
        self._waited = dict(gpus.clock.mark(gpus.queue(device)).done) if device is not None else {}

    def wait(self, timeout: timedelta | None = None) -> bool:
        self.held = ()
        if self.device is None:
            self.gpus.clock.wait_until(self.end)
        else:
            queue = self.gpus.queue(self.device)
            queue.free = max(queue.free, self.end)
            queue.join(self._waited)
        for b in self.blocks:
            if b.arrives is not None:
                b.arrives = None
                self._waited.update([b.wrote] if b.wrote else [])
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        self.gpus.clock.host += ASKED_S
        if self.end > self.gpus.clock.host:
            return False
        self.wait()  # nobody need wait for it again; only now a message that's received knows its end
        return self.end <= self.gpus.clock.host

    def is_success(self) -> bool:
        return True

    def result(self) -> Any:
        return self.result_

    def get_future(self) -> Future[Any]:
        _at_the_end_of_backward(self.wait)
        return _Future(self.gpus, self.device, self.wait, self.result_)


def _at_the_end_of_backward(wait: Callable[[], Any]) -> None:
    """DDP waits there for the futures that it got."""
    if torch._C._current_graph_task_id() != -1:
        torch.autograd.Variable._execution_engine.queue_callback(wait)


class _Future(Future):
    """Its value is there; who waits for it lets the current stream `join` what makes it. What comes `then` runs on a
    stream of its own, as after NCCL's."""

    def __init__(self, gpus: Gpus, device: int | None, join: Callable[[], Any], value: Any):
        super().__init__()
        self.gpus, self.device, self.join = gpus, device, join
        self.set_result(value)

    def wait(self) -> Any:
        self.join()
        return super().wait()

    def then(self, callback: Callable[[Any], Any]) -> Future[Any]:
        gpus, device = self.gpus, self.device
        if device is None:
            self.join()
            return _Future(gpus, None, self.join, callback(self))
        before, own = gpus.queues.get(device), gpus.clock.queue(device)
        gpus.queues[device] = own
        try:
            self.join()
            value = callback(self)
        finally:
            gpus.queues.pop(device)
            if before is not None:
                gpus.queues[device] = before
        mark = gpus.clock.mark(own)

        def join() -> None:
            gpus.clock.wait_on(gpus.queue(device), mark)

        _at_the_end_of_backward(join)
        return _Future(gpus, device, join, value)


class Message(EmulatedWork):
    """A message between two ranks. The receiver knows at `wait` when it was sent. A sender never waits for its
    receiver, as if NCCL's buffers had no end.

    As NCCL's, this object keeps its tensor until it's gone itself, and one of a `batch` keeps none. What else NCCL does
    for the tensor, `record_stream`, isn't counted in `memory_allocated` either.
    """

    def __init__(
        self, gpus: Gpus, tensor: torch.Tensor, device: int | None, *, ready: float, took: float, batch: bool,
        take: Callable[[], tuple[float, bool]] | None = None,
    ):  # fmt: skip
        super().__init__(gpus, [] if batch else [tensor], ready + took, [], device)
        self.ready, self.took = ready, took
        self.take = take  # of a receiver, which learns by it when the message was sent and whether its values are there
        self.fills = None if (found := block(tensor)) is None else weakref.ref(found)
        self.whole = found is not None and tensor.numel() * tensor.element_size() == found.nbytes

    def wait(self, timeout: timedelta | None = None) -> bool:
        if self.take is not None:
            with _disable_current_modes():
                sent, known = self.take()
            self.take = None
            found = None if self.fills is None else self.fills()
            if found is not None:
                found.computed = known and (found.computed or self.whole)
            start = max(self.ready, sent)
            self.end = start + self.took
            if self.device is not None:
                if start > self.ready:
                    self.gpus.clock.spans.append(("waiting", "recv", self.ready, start, self.device))
                self.gpus.clock.spans.append(("communication", "recv", start, self.end, self.device))
        return super().wait(timeout)


class Batch(dist.Work):
    """Several calls as one."""

    def __init__(self, works: Sequence[Any]):
        super().__init__()
        self.works = works

    def wait(self, timeout: timedelta | None = None) -> bool:
        for work in self.works:
            work.wait()
        return True

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self.works)
