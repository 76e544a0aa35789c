"""The virtual clock of a rank: one time for the host, one for each stream of its GPUs. Seconds since the program began.

It also keeps who has waited for whom, so that `state` can tell a race: two streams that use one storage in no order.
"""

from __future__ import annotations

import itertools
import threading
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
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


class Units:
    """When the arithmetic units of a GPU are busy. Products of matrices fill them, so those of several streams take
    turns; what only moves bytes runs next to them."""

    KEPT = 4096  # stretches

    def __init__(self) -> None:
        self.starts: list[float] = []
        self.ends: list[float] = []

    def place(self, ready: float, seconds: float) -> float:
        """When work begins that's ready at a time: in the first gap that it fits into."""
        starts, ends = self.starts, self.ends
        at, start = bisect_right(ends, ready), ready
        while at < len(starts) and starts[at] < start + seconds:
            start, at = max(start, ends[at]), at + 1
        if at and ends[at - 1] == start:
            ends[at - 1] = start + seconds
        else:
            starts.insert(at, start)
            ends.insert(at, start + seconds)
            if len(starts) > self.KEPT:
                del starts[0], ends[0]
        return start


class HostThread:
    """A thread of the host that has a time of its own: `at`, how far it has come. What it spends on an operator takes
    `times` as long, since other threads want Python's lock as well."""

    __slots__ = ("at", "times")

    def __init__(self, at: float = 0.0, times: float = 1.0):
        self.at, self.times = at, times


class _Here(threading.local):
    """Whose time counts in this thread, if it isn't the main one's; and in a backward pass, the thread that autograd
    has for each device."""

    host: HostThread | None = None
    engine: dict[int, HostThread] | None = None
    began = 0.0  # the backward pass


class Clock:
    """The host's time, and the queues of its GPUs' streams. The host runs ahead of its queues until it waits for one.

    `spans` are (kind, name, start, end, device) of what the GPUs did, for the timeline.
    """

    def __init__(self) -> None:
        self._main, self._here = HostThread(), _Here()
        self.slept = 0.0  # how much of that the program has slept
        self.queues: list[Queue] = []
        self.units: defaultdict[int, Units] = defaultdict(Units)  # of each device
        self.spans: list[tuple[str, str, float, float, int]] = []
        self.waited: dict[int, int] = {}  # of each queue, the work that the host has waited for
        self._waits = 0

    @property
    def host(self) -> float:
        return (self._here.host or self._main).at

    @host.setter
    def host(self, when: float) -> None:
        (self._here.host or self._main).at = when

    def spend(self, seconds: float) -> None:
        """The host works on an operator."""
        thread = self._here.host or self._main
        thread.at += seconds * thread.times

    @contextmanager
    def as_thread(self, thread: HostThread) -> Iterator[None]:
        """What this thread does takes the time of `thread`."""
        before, self._here.host = self._here.host, thread
        try:
            yield
        finally:
            self._here.host = before

    @contextmanager
    def backward(self) -> Iterator[None]:
        """Autograd has a thread for each device, in C++, where Python's lock holds nobody up. Who called it goes on
        when all have come to their ends."""
        here = self._here
        if here.engine is not None:  # a backward pass in a backward pass
            yield
            return
        caller, here.engine, here.began = here.host, {}, self.host
        try:
            yield
        finally:
            ends, here.engine, here.host = [thread.at for thread in here.engine.values()], None, caller
            self.wait_until(max(ends, default=0.0))

    def turn_to(self, device: int) -> None:
        """The next operator is one of `device`: in a backward pass, its thread's."""
        engine = self._here.engine
        if engine is None:
            return
        if device not in engine:
            engine[device] = HostThread(self._here.began if engine else self.host)
        self._here.host = engine[device]

    def meet(self, devices: Iterable[int]) -> None:
        """In a backward pass, the threads of these devices wait for each other."""
        if (engine := self._here.engine) is not None:
            for device in devices:
                self.turn_to(device)
            latest = max(engine[device].at for device in devices)
            for device in devices:
                engine[device].at = latest

    def queue(self, device: int, number: int | None = None) -> Queue:
        found = Queue(device, number)
        self.queues.append(found)
        return found

    def ask(self, queue: Queue) -> None:
        """The host will give a queue work, which comes after all that the host has waited for."""
        if queue._host != self._waits:
            queue.join(self.waited)
            queue._host = self._waits

    def enqueue(self, queue: Queue, seconds: float, kind: str, name: str, arithmetic: bool = False) -> float:
        """Put work of `seconds` on a queue; it starts when the host has asked for it and the queue is free, and the
        device's units, if it's `arithmetic`. Returns its end."""
        self.ask(queue)
        queue.given += 1
        start = max(self.host, queue.free)
        if arithmetic:
            start = self.units[queue.device].place(start, seconds)
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
