"""Lesson 00 on one rank: runs the student's functions on the cases, and tells what they gave."""

from __future__ import annotations

import copy
import queue
import statistics
import sys
import threading
import time
from types import ModuleType
from typing import Any

from course_utils.checks import inside
from course_utils.checks.cases_00 import DEADLINES, DEVICES, PROFILES, TWO_RUNS


def number(value: Any, what: str) -> float:
    """A plain number, also where it came as numpy's or as a tensor with one element."""
    try:
        if isinstance(value, (str, bool)) or value is None:
            raise TypeError
        return float(value)
    except (TypeError, ValueError):
        inside.problem(f"{what} is a {type(value).__name__}; it must be a number." if value is not None else f"{what} is None; it must be a number.", "type")


def pair(value: Any, function: str, wanted: str) -> tuple[Any, Any]:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        got = "None" if value is None else f"a {type(value).__name__}" + (f" of {len(value)}" if isinstance(value, (tuple, list)) else "")
        inside.problem(f"`{function}` returned {got}; it must return the two things {wanted}.", "type")
    return value[0], value[1]


# --- 00.1 -------------------------------------------------------------------------------------------------------------------


def profile(answer: ModuleType) -> None:
    function = inside.function(answer, "read_profile", "times", "warm_up")
    found, touched = [], []
    for times, warm_up in PROFILES:
        given = copy.deepcopy(times)
        name, factor = pair(function(given, warm_up, doing=f"reading a profile of {len(times)} parts"), "read_profile", "(part, times as fast)")
        if not isinstance(name, str):
            inside.problem(f"The first thing that `read_profile` returned is a {type(name).__name__}; it must be the name of a part.", "type")
        found.append([name, number(factor, "The second thing that `read_profile` returned")])
        touched.append(given != times)
    inside.tell(found=found, touched=any(touched))


# --- 00.2 -------------------------------------------------------------------------------------------------------------------


def deadline(answer: ModuleType) -> None:
    function = inside.function(answer, "ranks_needed", "serial_s", "split_s", "deadline_s")
    found: list[int | None] = []
    for serial_s, split_s, deadline_s, _ in DEADLINES:
        value = function(serial_s, split_s, deadline_s, doing=f"asking for {serial_s:g} s + {split_s:g} s / n within {deadline_s:g} s")
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            inside.problem(f"`ranks_needed` returned {value!r}, a {type(value).__name__}; it must return an int, or None.", "type")
        found.append(value)
    inside.tell(found=found)


# --- 00.3 -------------------------------------------------------------------------------------------------------------------


def two_runs(answer: ModuleType) -> None:
    function = inside.function(answer, "serial_and_split", "n1", "t1", "n2", "t2")
    found = []
    for case, _ in TWO_RUNS:
        value = function(*case, doing=f"taking {case[1]:g} s on {case[0]} and {case[3]:g} s on {case[2]} ranks apart")
        found.append([number(v, "What `serial_and_split` returned") for v in pair(value, "serial_and_split", "(serial_s, split_s)")])
    inside.tell(found=found)


# --- 00.4 -------------------------------------------------------------------------------------------------------------------


class Device:
    """Stands for a GPU: `work` puts something into its queue and returns, a thread works it off, `wait` returns when nothing is left.

    `calls` lists what was called in which order, `took` the seconds that each piece of work really had.
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
    function = inside.function(answer, "typical_seconds", "work", "wait", "repeats", "warm_up")
    told = []
    for case in DEVICES:
        device = Device(case.before, case.work)
        warm_up, repeats = case.warm_up, len(case.work) - case.warm_up
        value = function(device.work, device.wait, repeats, warm_up, doing=f"timing {repeats} calls after {warm_up}")
        value = number(value, "What `typical_seconds` returned")
        calls = list(device.calls)
        device.wait()
        timed = device.took[warm_up:] or [float("nan")]
        likely = {"median": statistics.median(timed), "mean": statistics.fmean(timed), "min": min(timed), "max": max(timed), "sum": sum(timed)}
        likely["median of all"] = statistics.median(device.took or [float("nan")])
        told.append({"value": value, "calls": calls, "repeats": repeats, "warm_up": warm_up, "likely": likely})
    inside.tell(cases=told)


if __name__ == "__main__":
    {"profile": profile, "deadline": deadline, "two runs": two_runs, "clock": clock}[sys.argv[1]](inside.load(sys.argv[2]))
