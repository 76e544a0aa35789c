"""The virtual clock of a rank: one time for the host, one for each stream of its GPUs. Seconds since the program began.

It also keeps who has waited for whom, so that `state` can tell a race: two streams that use one storage in no order.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

_keys = itertools.count(1)


class Mark(NamedTuple):
    """A moment on a stream: `at`, when it's reached, and what will have been done by then, as work of each queue."""

    at: float
    done: dict[int, int]


class Queue:
    """What a stream has been given to do: `free` is when it will have done all of it.

    `given` counts its work. `after` says of each queue up to which of its work this one has waited for. The default
    stream of a device has the number 0.
    """

    def __init__(self, device: int, number: int | None = None):
        self.key = next(_keys)
        self.device = device
        self.number = self.key if number is None else number
        self.free = 0.0
        self.given = 0
        self.after: dict[int, int] = {}
        self._host = 0  # what the host had waited for when it last gave this queue something

    def join(self, done: dict[int, int]) -> None:
        """From here on all work comes after what is `done`."""
        for key, work in done.items():
            if self.after.get(key, 0) < work:
                self.after[key] = work

    def comes_after(self, key: int, work: int) -> bool:
        return key == self.key or self.after.get(key, 0) >= work


class Clock:
    """The host's time, and the queues of its GPUs' streams. The host runs ahead of its queues until it waits for one.

    `spans` are (kind, name, start, end, device) of what the GPUs did, for the timeline.
    """

    def __init__(self) -> None:
        self.host = 0.0
        self.slept = 0.0  # how much of that the program has slept
        self.queues: list[Queue] = []
        self.spans: list[tuple[str, str, float, float, int]] = []
        self.waited: dict[int, int] = {}  # of each queue, the work that the host has waited for
        self._waits = 0

    def queue(self, device: int, number: int | None = None) -> Queue:
        found = Queue(device, number)
        self.queues.append(found)
        return found

    def ask(self, queue: Queue) -> None:
        """The host will give a queue work, which comes after all that the host has waited for."""
        if queue._host != self._waits:
            queue.join(self.waited)
            queue._host = self._waits

    def enqueue(self, queue: Queue, seconds: float, kind: str, name: str) -> float:
        """Put work of `seconds` on a queue; it starts when the host has asked for it and the queue is free. Returns its
        end."""
        self.ask(queue)
        queue.given += 1
        start = max(self.host, queue.free)
        queue.free = start + seconds
        if seconds:
            self.spans.append((kind, name, start, queue.free, queue.device))
        return queue.free

    def mark(self, queue: Queue) -> Mark:
        """Where a queue will be when it has done all that it was given so far."""
        self.ask(queue)
        return Mark(max(queue.free, self.host), {**queue.after, queue.key: queue.given})

    def wait_on(self, queue: Queue, mark: Mark) -> None:
        """All further work of a queue waits for a mark; the host doesn't."""
        queue.free = max(queue.free, mark.at)
        queue.join(mark.done)

    def sleep(self, seconds: float) -> None:
        """The host sleeps."""
        self.host += seconds
        self.slept += seconds

    def wait_until(self, when: float) -> None:
        """The host waits."""
        self.host = max(self.host, when)

    def wait_for(self, mark: Mark) -> None:
        """The host waits for a mark."""
        self.wait_until(mark.at)
        for key, work in mark.done.items():
            if self.waited.get(key, 0) < work:
                self.waited[key] = work
        self._waits += 1

    def synchronize(self, device: int | None = None) -> None:
        """The host waits for all queues of a device, or of all."""
        for queue in self.queues:
            if device is None or queue.device == device:
                self.wait_for(Mark(queue.free, {**queue.after, queue.key: queue.given}))
