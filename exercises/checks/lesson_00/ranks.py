"""Lesson 00 on one rank: runs the student's functions on the cases, and reports what they returned."""

from __future__ import annotations

import copy
import datetime
import statistics
import time
import timeit
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from .. import rank_side
from . import cases


def number(value: Any, what: str) -> float:
    """A plain number, even if it came as NumPy's or as a tensor with one element."""
    try:
        if isinstance(value, (str, bool)) or value is None:
            raise TypeError
        return float(value)
    except (TypeError, ValueError):
        rank_side.problem(
            (
                f"{what} is a {type(value).__name__}; it must be a number."
                if value is not None
                else f"{what} is None; it must be a number."
            ),
            "type",
        )


def pair(value: Any, function: str, wanted: str) -> tuple[Any, Any]:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        got = (
            "None"
            if value is None
            else f"a {type(value).__name__}" + (f" of {len(value)}" if isinstance(value, (tuple, list)) else "")
        )
        rank_side.problem(f"`{function}` returned {got}; it must return the two things {wanted}.", "type")
    return value[0], value[1]


# --- 00.1 -------------------------------------------------------------------------------------------------------------


def profile(answer: ModuleType) -> None:
    function = rank_side.function(answer, "read_profile", "times", "warm_up")
    found = []
    for times, warm_up in cases.profiles(rank_side.draw_seed()):
        name, factor = pair(
            function(copy.deepcopy(times), warm_up, doing=f"reading a profile of {len(times)} parts"),
            "read_profile",
            "(part, times as fast)",
        )
        if not isinstance(name, str):
            rank_side.problem(
                f"The first thing that `read_profile` returned is a {type(name).__name__}; it must be the name of a"
                " part.",
                "type",
            )
        found.append([name, number(factor, "The second thing that `read_profile` returned")])
    rank_side.tell(found=found)


# --- 00.2 -------------------------------------------------------------------------------------------------------------


def deadline(answer: ModuleType) -> None:
    function = rank_side.function(answer, "ranks_needed", "serial_s", "split_s", "deadline_s")
    found: list[int | None] = []
    for serial_s, split_s, deadline_s in cases.deadlines(rank_side.draw_seed()):
        value = function(
            serial_s,
            split_s,
            deadline_s,
            doing=f"asking for {serial_s:g} s + {split_s:g} s / n within {deadline_s:g} s",
        )
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            rank_side.problem(
                f"`ranks_needed` returned {value!r}, a {type(value).__name__}; it must return an int, or None.", "type"
            )
        found.append(value)
    rank_side.tell(found=found)


# --- 00.4 -------------------------------------------------------------------------------------------------------------


class Device:
    """Plays a GPU: `work` puts something into its queue and returns, `wait` returns when nothing is left. All of it
    happens on a clock of its own (`virtual`), so that a busy machine changes nothing.

    `calls` lists what was called in which order, `took` the seconds of each piece of work.
    """

    def __init__(self, clock: VirtualClock, before_s: float, work_s: list[float]):
        self.calls: list[str] = []
        self.took: list[float] = []
        self._left = iter(work_s)
        self._clock, self._idle_at = clock, clock.now + before_s

    def work(self) -> None:
        self.calls.append("work")
        self.took.append(next(self._left, 0.01))
        self._idle_at = max(self._clock.now, self._idle_at) + self.took[-1]

    def wait(self) -> None:
        self.calls.append("wait")
        self._clock.now = max(self._clock.now, self._idle_at)


class VirtualClock:
    """Seconds that pass only when somebody waits, and a nanosecond whenever somebody asks."""

    def __init__(self) -> None:
        self.now = 1000.0

    def seconds(self) -> float:
        self.now += 1e-9
        return self.now

    def nanoseconds(self) -> int:
        return round(1e9 * self.seconds())

    def sleep(self, seconds: float) -> None:
        self.now += max(0.0, seconds)


@contextmanager
def virtual() -> Iterator[VirtualClock]:
    """Python's clocks as one that we move, for a file that's loaded inside."""
    clock = VirtualClock()

    class Datetime(datetime.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return cls.fromtimestamp(clock.seconds(), tz)

        @classmethod
        def utcnow(cls) -> Any:
            return cls.fromtimestamp(clock.seconds(), datetime.UTC).replace(tzinfo=None)

    replaced: list[tuple[Any, str, Any]] = [
        *((time, name, clock.seconds) for name in ("time", "perf_counter", "monotonic")),
        *((time, name, clock.nanoseconds) for name in ("time_ns", "perf_counter_ns", "monotonic_ns")),
        (time, "sleep", clock.sleep),
        (timeit, "default_timer", clock.seconds),
        (datetime, "datetime", Datetime),
    ]
    kept = [(module, name, getattr(module, name)) for module, name, _ in replaced]
    for module, name, value in replaced:
        setattr(module, name, value)
    try:
        yield clock
    finally:
        for module, name, value in kept:
            setattr(module, name, value)


def clock(load: Callable[[], ModuleType]) -> None:
    with virtual() as now:
        told = _timed(load(), now)
    rank_side.tell(cases=told)


def _timed(answer: ModuleType, now: VirtualClock) -> list[dict[str, Any]]:
    function = rank_side.function(answer, "typical_seconds", "work", "wait", "repeats", "warm_up")
    told = []
    for case in cases.DEVICES:
        device = Device(now, case.before, case.work)
        warm_up, repeats = case.warm_up, len(case.work) - case.warm_up
        value = function(device.work, device.wait, repeats, warm_up, doing=f"timing {repeats} calls after {warm_up}")
        value = number(value, "What `typical_seconds` returned")
        calls = list(device.calls)
        timed = device.took[warm_up:] or [float("nan")]
        likely = {
            "median": statistics.median(timed),
            "mean": statistics.fmean(timed),
            "min": min(timed),
            "max": max(timed),
            "sum": sum(timed),
        }
        if len(timed) % 2 == 0:
            middle = sorted(timed)[len(timed) // 2 - 1 : len(timed) // 2 + 1]
            likely |= dict(zip(("lower", "upper"), middle, strict=True))
        if len(timed) > 2:
            likely["without the longest"] = statistics.fmean(sorted(timed)[:-1])
        likely["median of all"] = statistics.median(device.took or [float("nan")])
        told.append({"value": value, "calls": calls, "repeats": repeats, "warm_up": warm_up, "likely": likely})
    return told
