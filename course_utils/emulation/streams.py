"""Streams and events of modelled GPUs, with the methods and errors of `torch.cuda.Stream` and `torch.cuda.Event`."""

from __future__ import annotations

from typing import Any

import torch

from .clock import Mark, Queue
from .state import Gpus

_gpus: Gpus  # of this rank; `install` sets it
ASKED_S = 1e-6  # a question to the driver, so that a loop which asks until something is done comes to an end


def install(gpus: Gpus) -> None:
    global _gpus
    _gpus = gpus
    for module in (torch.cuda, torch.cuda.streams):
        for name, own in (("Stream", Stream), ("Event", Event), ("ExternalStream", ExternalStream)):
            setattr(module, name, own)
    torch.cuda.StreamContext = StreamContext
    torch.cuda.stream = StreamContext
    torch.Stream, torch.Event = Stream, AnyEvent


class Stream:
    device_type = 1  # CUDA, as torch counts

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any):
        self.device = torch.device("cuda", _gpus.index(kwargs.get("device_index", device)))
        self.priority = priority
        self._queue = _gpus.clock.queue(self.device.index)
        self._entered: list[StreamContext] = []

    @classmethod
    def of(cls, queue: Queue) -> Stream:
        """The stream of a queue that's there already."""
        found = cls.__new__(cls)
        found.device, found.priority, found._queue = torch.device("cuda", queue.device), 0, queue
        found._entered = []
        return found

    @property
    def stream_id(self) -> int:
        return self._queue.number

    cuda_stream = native_handle = stream_id

    @property
    def device_index(self) -> int:
        return int(self.device.index)

    def synchronize(self) -> None:
        _gpus.clock.wait_for(_gpus.clock.mark(self._queue))

    def query(self) -> bool:
        _gpus.clock.host += ASKED_S
        if self._queue.free > _gpus.clock.host:
            return False
        self.synchronize()
        return True

    def is_capturing(self) -> bool:
        return False

    def wait_stream(self, stream: Stream) -> None:
        _gpus.clock.wait_on(self._queue, _gpus.clock.mark(stream._queue))

    def wait_event(self, event: AnyEvent) -> None:
        event.wait(self)

    def record_event(self, event: AnyEvent | None = None) -> AnyEvent:
        event = event or Event()
        event.record(self)
        return event

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The least and the greatest priority, as torch limits it (c10/cuda/CUDAStream.h). Here they change nothing."""
        return 0, -3

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other._queue is self._queue

    def __hash__(self) -> int:
        return hash(self._queue.key)

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.stream_id:#x}>"

    def __enter__(self) -> Stream:
        self._entered.append(StreamContext(self))
        self._entered[-1].__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._entered.pop().__exit__(*error)


class ExternalStream(Stream):
    """A stream that another library made, and that nobody can look at here."""


class AnyEvent:
    """`torch.Event`, which takes a device; `torch.cuda.Event` doesn't."""

    def __init__(
        self, device: Any = None, *, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ):
        self._timing = enable_timing
        self._mark: Mark | None = None
        self.device = torch.device("cuda", _gpus.index(device))

    def record(self, stream: Stream | None = None) -> AnyEvent:
        self._mark = _gpus.clock.mark(stream._queue if stream is not None else _gpus.queue())
        return self

    def wait(self, stream: Stream | None = None) -> None:
        if self._mark is not None:
            _gpus.clock.wait_on(stream._queue if stream is not None else _gpus.queue(), self._mark)

    def synchronize(self) -> None:
        if self._mark is not None:
            _gpus.clock.wait_for(self._mark)

    def query(self) -> bool:
        _gpus.clock.host += ASKED_S
        if self._mark is not None and self._mark.at > _gpus.clock.host:
            return False
        self.synchronize()
        return True

    def elapsed_time(self, end_event: AnyEvent) -> float:
        """Milliseconds from this event to another. Raises ValueError or RuntimeError as torch does."""
        if not (self._timing and end_event._timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._mark is None or end_event._mark is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        if max(self._mark.at, end_event._mark.at) > _gpus.clock.host:
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        return (end_event._mark.at - self._mark.at) * 1e3

    def __repr__(self) -> str:
        return f"<torch.cuda.Event {'uninitialized' if self._mark is None else hex(id(self))}>"


class Event(AnyEvent):
    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False
    ):
        super().__init__(enable_timing=enable_timing)


class StreamContext:
    """The current stream of its device for a block, and its device the current one."""

    def __init__(self, stream: Stream | None):
        if stream is not None and not isinstance(stream, Stream):
            raise TypeError(f"torch.cuda.stream takes a stream, got {type(stream).__name__}")
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            index = self.stream.device_index
            self._before = _gpus.current, index, _gpus.queues.get(index)
            _gpus.current = index
            _gpus.queues[index] = self.stream._queue

    def __exit__(self, *error: Any) -> None:
        if self.stream is not None:
            _gpus.current, index, queue = self._before
            if queue is None:
                _gpus.queues.pop(index, None)
            else:
                _gpus.queues[index] = queue
