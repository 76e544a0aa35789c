"""Lesson 00: what its exercises ask for, and how an answer shows that it does not keep to it."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

from . import hints_00
from .base import Difference, Exercise, on_ranks
from .cases_00 import DEADLINES, DEVICES, PROFILES, TWO_RUNS

ADAPTER = Path(__file__).resolve().parent / "ranks_00.py"


def same(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9)


# --- 00.1 -------------------------------------------------------------------------------------------------------------------


def judge_profile(answer: Path) -> list[str]:
    told = on_ranks(ADAPTER, "profile", answer, ranks=1)[0]
    for i, ((times, warm_up), (name, factor)) in enumerate(zip(PROFILES, told["found"], strict=True), 1):
        kept = {part: seconds[warm_up:] for part, seconds in times.items()}
        typical = {part: statistics.median(seconds) for part, seconds in kept.items()}
        longest = max(typical, key=lambda part: typical[part])
        total = sum(typical.values())
        wanted = total / (total - typical[longest])
        if name == longest and same(factor, wanted):
            continue
        expected = f"{longest}, and {wanted:.4f} times as fast: {_ms(total)} a step, {_ms(total - typical[longest])} without it"
        got = [f"{name}, and {factor:.4f}"]
        case = f"profile {i}"
        if name not in times:
            raise Difference("no such part", f"There is no part {name!r} ({case}); there are {', '.join(times)}.", expected, got)
        share = typical[longest] / total
        if same(factor, share) or same(factor, 100 * share):
            raise Difference("share", f"The second number is the part's share of a step, {share:.0%} ({case}).", expected, got)
        if same(factor, 1 / share):
            raise Difference("one over share", f"The second number is the step over the part: that many such parts would fill a step ({case}).", expected, got)
        every = {part: statistics.median(seconds) for part, seconds in times.items()}
        mean = {part: statistics.fmean(seconds) for part, seconds in kept.items()}
        whole = {part: statistics.fmean(seconds) for part, seconds in times.items()}
        if warm_up and any(_fits(name, factor, summed) for summed in (every, whole)):
            raise Difference("warm-up", f"The first {warm_up} steps of warm-up are counted ({case}).", expected, got)
        if _fits(name, factor, mean):
            raise Difference("mean", f"One step that was disturbed moves your result: it is that of the mean ({case}).", expected, got)
        if name != longest:
            raise Difference("other part", f"Another part takes longer ({case}).", expected, got)
        raise Difference("wrong factor", f"The part is right, what would be won is not ({case}).", expected, got)
    if told["touched"]:
        raise Difference("changed", "After `read_profile` the lists that it was given have changed.", "a profile that can be read again")
    return [
        f"{len(PROFILES)} profiles of 2 to 5 parts: the part that takes longest, and what would be won without it",
        "neither the warm-up nor one disturbed step moves the result",
    ]


def _fits(name: str, factor: float, summed: dict[str, float]) -> bool:
    """Whether this is what comes out when these are taken for the parts' typical times."""
    longest = max(summed, key=lambda part: summed[part])
    total = sum(summed.values())
    return name == longest and any(same(factor, value) for value in (total / (total - summed[longest]), summed[longest] / total, total / summed[longest]))


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


# --- 00.2 -------------------------------------------------------------------------------------------------------------------


def judge_deadline(answer: Path) -> list[str]:
    told = on_ranks(ADAPTER, "deadline", answer, ranks=1)[0]
    for (serial_s, split_s, deadline_s, wanted), found in zip(DEADLINES, told["found"], strict=True):
        if found == wanted:
            continue
        case = f"{serial_s:g} s serial, {split_s:g} s split, within {deadline_s:g} s"
        got = [str(found)]
        if wanted is None:
            expected = f"None: the serial part alone takes {serial_s:g} s" + (", and more ranks only come closer to it" if split_s else "")
            raise Difference("impossible", f"No number of ranks is enough, and you gave one ({case}).", expected, got)
        expected = f"{wanted}: {serial_s:g} + {split_s:g} / {wanted} = {serial_s + split_s / wanted:.4g} s"
        if found is None:
            symptom = "possible" if wanted == 1 else "given up"
            raise Difference(symptom, f"It can be done, and you say that it cannot ({case}).", expected, got)
        if found < 1:
            raise Difference("no rank", f"You asked for {found} ranks ({case}).", expected, got)
        if serial_s and found == math.ceil((serial_s + split_s) / deadline_s):
            raise Difference("all divided", f"The serial part was divided as well ({case}).", expected, got)
        took = serial_s + split_s / found
        if took > deadline_s:
            raise Difference("too few", f"On {found} ranks it takes {took:.4g} s, too long ({case}).", expected, got)
        raise Difference("too many", f"Fewer ranks are enough ({case}).", expected, got)
    return [f"{len(DEADLINES)} jobs and deadlines: the fewest ranks that are enough, and None where no number is"]


# --- 00.3 -------------------------------------------------------------------------------------------------------------------


def judge_two_runs(answer: Path) -> list[str]:
    told = on_ranks(ADAPTER, "two runs", answer, ranks=1)[0]
    for ((n1, t1, n2, t2), (serial_s, split_s)), (a, b) in zip(TWO_RUNS, told["found"], strict=True):
        if same(a, serial_s) and same(b, split_s):
            continue
        case = f"{t1:g} s on {n1}, {t2:g} s on {n2} rank{'s' * (n2 > 1)}"
        expected = f"({serial_s:g}, {split_s:g}): {serial_s:g} + {split_s:g} / {n1} = {serial_s + split_s / n1:g} s"
        got = [f"({a:g}, {b:g}): {a:g} + {b:g} / {n1} = {a + b / n1:g} s, {a:g} + {b:g} / {n2} = {a + b / n2:g} s"]
        if min(a, b) < -1e-9:
            raise Difference("below zero", f"A part of a time is below zero ({case}).", expected, got)
        if same(a, split_s) and same(b, serial_s):
            raise Difference("swapped", f"The two parts are in the wrong order ({case}).", expected, got)
        total = serial_s + split_s
        if same(a, serial_s / total) and same(b, split_s / total):
            raise Difference("fractions", f"These are fractions of the time on one rank, not seconds ({case}).", expected, got)
        if min(n1, n2) > 1 and _as_if_one(n1, t1, n2, t2, a, b):
            raise Difference("first on one", f"You took the run on {min(n1, n2)} ranks for one on a single rank ({case}).", expected, got)
        if min(serial_s, split_s) == 0 and (t2 - t1) * (n2 - n1) >= 0 or serial_s == 0:
            run = f"the run on {n1} rank{'s' * (n1 > 1)}"
            raise Difference("limit", f"Where a part would come out below zero, the other one must still explain {run} ({case}).", expected, got)
        raise Difference("wrong parts", f"The two parts do not explain the two runs ({case}).", expected, got)
    return [
        f"{len(TWO_RUNS)} pairs of runs on 1 to 16 ranks: both parts in seconds, and never below zero",
        "also when neither run was on one rank, and when more ranks were slower",
    ]


def _as_if_one(n1: int, t1: float, n2: int, t2: float, a: float, b: float) -> bool:
    (few, slow), (many, fast) = sorted([(n1, t1), (n2, t2)])
    speedup = slow / fast
    fractions = [(1 / speedup - 1 / m) / (1 - 1 / m) for m in (many, many / few)]  # Karp and Flatt's number, read as if `slow` was the time on one
    return any(same(a, f * slow) and same(b, (1 - f) * slow) for f in fractions)


# --- 00.4 -------------------------------------------------------------------------------------------------------------------


def judge_clock(answer: Path) -> list[str]:
    told = on_ranks(ADAPTER, "clock", answer, ranks=1)[0]
    for case in told["cases"]:
        _clocked(case)
    return [
        f"{len(DEVICES)} devices with work left in their queues: every timed call begins with an empty queue, and ends with one",
        "the warm-up is called and not counted; one disturbed call does not move the result",
    ]


def _clocked(case: dict[str, Any]) -> None:
    repeats, warm_up, calls, value, likely = case["repeats"], case["warm_up"], case["calls"], case["value"], case["likely"]
    words = f"repeats={repeats}, warm_up={warm_up}"
    expected = f"{_ms(likely['median'])}, the median of {repeats} calls of `work`, each waited for" if calls.count("work") else f"{warm_up + repeats} calls"
    got = [f"{_ms(value)}"]
    if calls.count("work") != warm_up + repeats:
        raise Difference(
            "calls", f"`work` was called {calls.count('work')} times ({words}).", f"{warm_up} calls that are not counted, then {repeats} that are", got
        )
    at = [i for i, call in enumerate(calls) if call == "work"][warm_up:]
    if any(i + 1 == len(calls) or calls[i + 1] != "wait" for i in at):
        raise Difference("not after", f"The clock was stopped while the device still worked: no `wait` after a timed call ({words}).", expected, got)
    if any(i == 0 or calls[i - 1] != "wait" for i in at):
        raise Difference("not before", f"The clock was started while the device still worked: no `wait` before a timed call ({words}).", expected, got)
    typical = likely["median"]
    nearest = min(likely, key=lambda name: abs(math.log(max(value, 1e-9) / likely[name])))
    # A busy machine wakes the waiting rank late; where all calls were alike, every mean of them is the same.
    if typical / 1.35 < value < 1.35 * typical or value > typical / 1.35 and likely[nearest] < 1.1 * typical:
        return
    if value < 0.5 * min(likely["min"], likely["median"]) or nearest == "min" and value < 0.5 * likely["min"]:
        raise Difference("stopped early", f"Waited for, and yet not in the result: the wait lies outside your clock ({words}).", expected, got)
    told = {
        "mean": "It is the mean: one disturbed call moves it", "min": "It is the shortest call, not a typical one", "max": "It is the longest call",
        "sum": "It is the time of all calls together", "median of all": "The warm-up is counted",
    }  # fmt: skip
    raise Difference({"median of all": "warm-up"}.get(nearest, nearest), f"{told.get(nearest, 'It is not the median')} ({words}).", expected, got)


EXERCISES = {
    e.name: e
    for e in [
        Exercise("00.1", "read a profile", judge_profile, hints_00.PROFILE, how=""),
        Exercise("00.2", "how many ranks for a deadline?", judge_deadline, hints_00.DEADLINE, how=""),
        Exercise("00.3", "the serial part from two runs", judge_two_runs, hints_00.TWO_RUNS, how=""),
        Exercise("00.4", "a clock that waits", judge_clock, hints_00.CLOCK, how=""),
    ]
}
