"""A DataLoader's workers on the virtual clock: each has its own, and the rank waits for a batch until it's there.

A worker begins a batch when the rank has asked for it and the worker is free. On its clock only what `__getitem__` and
`collate_fn` sleep takes time. Starting workers, and moving a batch from one process to another, takes none.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, NamedTuple

from .host_clocks import HostClocks
from .imports import after_import
from .remarks import say
from .state import Gpus


class _Asked(NamedTuple):
    """What a worker is asked for, and when."""

    index: Any
    at: float


class _Made(NamedTuple):
    """What a worker made, and when it had it. The thread that pins memory looks into a tuple with names."""

    data: Any
    at: float


def install(gpus: Gpus, clocks: HostClocks) -> None:
    """Let batches carry their times, from this process to the workers that it forks and back."""
    after_import("torch.utils.data.dataloader", lambda: _carry_times(gpus, clocks))


def _carry_times(gpus: Gpus, clocks: HostClocks) -> None:
    loader: Any = sys.modules["torch.utils.data.dataloader"]
    worker: Any = sys.modules["torch.utils.data._utils.worker"]
    iterator, real_loop = loader._MultiProcessingDataLoaderIter, worker._worker_loop
    real_next, real_process = iterator._next_index, iterator._process_data

    @functools.wraps(real_next)
    def next_index(self: Any) -> Any:
        index = real_next(self)
        if getattr(self._workers[0]._popen, "method", "") == "fork":
            return _Asked(index, gpus.clock.host)
        say("loader", "a DataLoader's workers that aren't forked run in real time, which costs nothing here")
        return index

    @functools.wraps(real_process)
    def process(self: Any, data: Any, *worker: Any) -> Any:
        if isinstance(data, _Made):
            gpus.clock.wait_until(data.at)
            data = data.data
        return real_process(self, data, *worker)

    @functools.wraps(real_loop)
    def loop(*args: Any) -> None:
        _work_in_virtual_time(gpus, clocks)
        real_loop(*args)

    iterator._next_index, iterator._process_data = next_index, process
    worker._worker_loop = loop


def _work_in_virtual_time(gpus: Gpus, clocks: HostClocks) -> None:
    """In a worker: its clock goes on from when it was forked."""
    clocks.on = True
    fetchers: Any = sys.modules["torch.utils.data._utils.fetch"]

    def timed(real: Any) -> Any:
        @functools.wraps(real)
        def fetch(self: Any, asked: Any) -> Any:
            if not isinstance(asked, _Asked):  # a dataset may have a loader of its own
                return real(self, asked)
            gpus.clock.wait_until(asked.at)
            return _Made(real(self, asked.index), clocks.now())

        return fetch

    for fetcher in (fetchers._MapDatasetFetcher, fetchers._IterableDatasetFetcher):
        fetcher.fetch = timed(fetcher.fetch)
