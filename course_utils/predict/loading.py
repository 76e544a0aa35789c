"""Simulate a DataLoader and the training loop that it feeds, and predict what a copy to the device costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..results.spans import Span
from .validation import at_most, count, fraction, not_negative, positive


@dataclass(frozen=True)
class LoaderRun:
    """A predicted epoch. In `spans` row 0 is the loop, and row i + 1 is worker i."""

    total_s: float
    compute_s: float
    wait_s: float  # the loop had nothing to compute
    first_batch_s: float  # until the first batch arrived
    spans: tuple[Span, ...]

    @property
    def loading_s(self) -> float:
        """What loading costs: the time that isn't compute."""
        return self.total_s - self.compute_s


def loader_run(
    batches: int,
    load_s: float | Sequence[float],
    compute_s: float,
    *,
    workers: int = 0,
    prefetch: int = 2,
    startup_s: float = 0.0,
    cores: int | None = None,
) -> LoaderRun:
    """Simulate an epoch of `batches`. Each takes `load_s` to load (one number, or one for each batch) and `compute_s`
    to compute.

    Without workers the loop loads each batch itself. Workers are ready after `startup_s`. Batch i goes to worker i mod
    `workers`, which loads one batch at a time and at most `prefetch` ahead: taking a batch orders the next one. The
    loop takes batches in order, so one slow batch holds up those behind it. This is what torch.utils.data.DataLoader
    does with `prefetch_factor`. On fewer `cores` than workers, loading takes workers/cores times as long.

    Without workers the epoch takes batches * (load_s + compute_s). With workers, a step of a long epoch takes
    max(compute_s, load_s / workers).
    """
    count(batches=batches)
    at_most(1e6, "batches", batches)
    count(0, workers=workers)
    not_negative(compute_s=compute_s, startup_s=startup_s)
    each = [load_s] * batches if isinstance(load_s, (int, float)) else list(load_s)
    if len(each) != batches:
        raise ValueError(f"load_s needs one time for each batch; got {len(each)} for {batches} batches")
    not_negative(**{f"load_s of batch {i}": t for i, t in enumerate(each)})
    if cores is not None:
        count(cores=cores)
        each = [t * max(1.0, workers / cores) for t in each]

    spans: list[Span] = []
    now = wait_s = first_s = 0.0
    if workers:
        count(prefetch=prefetch)
    free = [startup_s] * workers
    taken: list[float] = []  # when the loop took each batch, which orders the one `prefetch * workers` further on
    ready = [0.0] * batches

    def load(i: int, ordered_s: float) -> None:
        worker = i % workers
        start = max(free[worker], ordered_s)
        free[worker] = ready[i] = start + each[i]
        spans.append((worker + 1, start, ready[i], "loading", str(i)))

    for i in range(min(batches, workers * prefetch)):
        load(i, 0.0)
    for i in range(batches):
        if workers:
            came = max(now, ready[i])
            if came > now:
                spans.append((0, now, came, "waiting", ""))
        else:
            came = now + each[i]
            spans.append((0, now, came, "loading", str(i)))
        wait_s += came - now
        first_s = came if i == 0 else first_s
        taken.append(came)
        if workers and i + workers * prefetch < batches:
            load(i + workers * prefetch, came)
        now = came + compute_s
        spans.append((0, came, now, "compute", str(i)))
    return LoaderRun(now, batches * compute_s, wait_s, first_s, tuple(spans))


def workers_needed(load_s: float, compute_s: float) -> int:
    """The fewest workers that hide loading behind compute in a long epoch: ceil(load_s / compute_s)."""
    positive(compute_s=compute_s)
    not_negative(load_s=load_s)
    return max(1, -int(-load_s // compute_s))


def copy_s(nbytes: float, link_Bps: float, share: float = 0.85) -> float:
    """Seconds to copy `nbytes` of page-locked memory to a device over a link of `link_Bps` (its specification, one
    direction).

    `share` is what a good copy reaches: 85 to 88% of PCIe 3 to 5 (nvbandwidth in stas00/ml-engineering
    network/README.md). Don't use this for pageable memory, which the CPU copies to a page-locked buffer first: measure
    its rate instead.
    """
    not_negative(nbytes=nbytes)
    positive(link_Bps=link_Bps)
    fraction(share=share)
    positive(share=share)
    return nbytes / (link_Bps * share)
