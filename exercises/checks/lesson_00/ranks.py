"""Lesson 00 on one rank: runs the student's functions on the cases, and reports what they returned."""

from __future__ import annotations

import copy
import queue
import statistics
import threading
import time
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
    """Plays a GPU: `work` puts something into its queue and returns, a thread does it later, and `wait` returns when
    nothing is left.

    `calls` lists what was called in which order, `took` the seconds that each piece of work really took.
    """

    def __init__(self, before_s: float, work_s: list[float]):
        self.calls: list[str] = []
        self.took: list[float] = []
        self._left = iter(work_s)
        self._queue: queue.Queue[tuple[float, bool]] = queue.Queue()
        threading.Thread(target=self._run, daemon=True).start()
        self._queue.put((before_s, False))

    def _run(self) -> None:
        while True:
            seconds, counts = self._queue.get()
            start = time.perf_counter()
            time.sleep(seconds)
            if counts:
                self.took.append(time.perf_counter() - start)
            self._queue.task_done()

    def work(self) -> None:
        self.calls.append("work")
        self._queue.put((next(self._left, 0.01), True))

    def wait(self) -> None:
        self.calls.append("wait")
        self._queue.join()


def clock(answer: ModuleType) -> None:
    function = rank_side.function(answer, "typical_seconds", "work", "wait", "repeats", "warm_up")
    told = []
    for case in cases.DEVICES:
        device = Device(case.before, case.work)
        warm_up, repeats = case.warm_up, len(case.work) - case.warm_up
        value = function(device.work, device.wait, repeats, warm_up, doing=f"timing {repeats} calls after {warm_up}")
        value = number(value, "What `typical_seconds` returned")
        calls = list(device.calls)
        device.wait()
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
    rank_side.tell(cases=told)
