"""What ranks did when, as plain tuples: the form that predictions, traces and the timeline share."""

from __future__ import annotations

from collections.abc import Iterable

# (rank, start_s, end_s, what, label); `what` is compute, communication, waiting or loading
Span = tuple[int, float, float, str, str]
Interval = tuple[float, float]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same time as sorted intervals that neither touch nor overlap."""
    joined: list[Interval] = []
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def covered(intervals: Iterable[Interval]) -> float:
    """Seconds during which at least one of the intervals runs."""
    return sum(end - start for start, end in union(intervals))


def intersection(first: Iterable[Interval], second: Iterable[Interval]) -> list[Interval]:
    """The time during which an interval of `first` and one of `second` run."""
    a, b = union(first), union(second)
    shared: list[Interval] = []
    i = j = 0
    while i < len(a) and j < len(b):
        start, end = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if end > start:
            shared.append((start, end))
        if a[i][1] <= b[j][1]:
            i += 1
        else:
            j += 1
    return shared


def difference(first: Iterable[Interval], second: Iterable[Interval]) -> list[Interval]:
    """The time of `first` during which nothing in `second` runs."""
    left: list[Interval] = []
    cuts = union(second)
    at = 0
    for start, end in union(first):
        while at and cuts[at - 1][1] > start:
            at -= 1
        while at < len(cuts) and cuts[at][1] <= start:
            at += 1
        while at < len(cuts) and cuts[at][0] < end:
            if cuts[at][0] > start:
                left.append((start, cuts[at][0]))
            start = cuts[at][1]
            at += 1
        if start < end:
            left.append((start, end))
    return left


def intervals(spans: Iterable[Span], rank: int, *whats: str) -> list[Interval]:
    """The intervals of one rank's spans of these kinds, or of all kinds if you name none."""
    return [(start, end) for r, start, end, what, _ in spans if r == rank and (not whats or what in whats)]
