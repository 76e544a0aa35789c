"""Lesson 00: what its exercises ask for, and the symptom of each way in which an answer can fail that."""

from __future__ import annotations

import math
import statistics
from fractions import Fraction
from typing import Any

from course_utils.show.units import counted

from ..judging import Answer, Difference, Exercise, apart
from . import cases
from .convert_judge import judge_convert


def same(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9)


# --- 00.1 -------------------------------------------------------------------------------------------------------------


def judge_profile(answer: Answer) -> list[str]:
    told = answer.on_ranks("profile", ranks=1)[0]
    profiles = cases.profiles(told["seed"])
    for i, ((times, warm_up), (name, factor)) in enumerate(zip(profiles, told["found"], strict=True), 1):
        kept = {part: seconds[warm_up:] for part, seconds in times.items()}
        typical = {part: statistics.median(seconds) for part, seconds in kept.items()}
        longest = max(typical, key=lambda part: typical[part])
        total = sum(typical.values())
        wanted = total / (total - typical[longest])
        if name == longest and same(factor, wanted):
            continue
        wanted_text, factor_text = apart(wanted, factor)
        expected = (
            f"{longest}, and {wanted_text} times as fast: {_ms(total)} a step, {_ms(total - typical[longest])}"
            " without it"
        )
        got = [f"{name}, and {factor_text}"]
        case = f"profile {i}"
        if i > len(cases.PROFILES):  # drawn at random, so the learner can't look it up
            got.append(f"of {_profile(times)}, warm_up={warm_up}")
        if name not in times:
            raise Difference(
                "no such part", f"There is no part {name!r} ({case}); there are {', '.join(times)}.", expected, got
            )
        share = typical[longest] / total
        if same(factor, share) or same(factor, 100 * share):
            raise Difference(
                "share", f"The second number is the part's share of a step, {share:.0%} ({case}).", expected, got
            )
        if same(factor, 1 / share):
            raise Difference(
                "one over share",
                f"The second number is the step divided by the part: so many of these parts would fill a step"
                f" ({case}).",
                expected,
                got,
            )
        every = {part: statistics.median(seconds) for part, seconds in times.items()}
        mean = {part: statistics.fmean(seconds) for part, seconds in kept.items()}
        whole = {part: statistics.fmean(seconds) for part, seconds in times.items()}
        if warm_up and any(_fits(name, factor, summed) for summed in (every, whole)):
            raise Difference(
                "warm-up", f"You counted the warm-up, the first {counted(warm_up, 'step')} ({case}).", expected, got
            )
        if _fits(name, factor, mean):
            raise Difference(
                "mean", f"One disturbed step moves your result: this is what the mean gives ({case}).", expected, got
            )
        if name != longest:
            raise Difference("other part", f"Another part takes longer ({case}).", expected, got)
        raise Difference("wrong factor", f"The part is right, but not how much you'd win ({case}).", expected, got)
    return [
        f"{len(profiles)} profiles of 2 to 6 parts: the part that takes longest, and how much you'd win without it",
        "neither the warm-up nor one disturbed step moves the result",
    ]


def _fits(name: str, factor: float, summed: dict[str, float]) -> bool:
    """Whether the answer is what you get with `summed` as the parts' typical times."""
    longest = max(summed, key=lambda part: summed[part])
    total = sum(summed.values())
    return name == longest and any(
        same(factor, value)
        for value in (total / (total - summed[longest]), summed[longest] / total, total / summed[longest])
    )


def _profile(times: dict[str, list[float]]) -> str:
    return "{" + ", ".join(f"{part!r}: [{', '.join(f'{s:.4g}' for s in times[part])}]" for part in times) + "}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


# --- 00.2 -------------------------------------------------------------------------------------------------------------


def fewest(serial_s: float, split_s: float, deadline_s: float) -> int | None:
    """The right answer, computed in fractions: the smallest number of ranks, or None if no number is enough."""
    left = Fraction(str(deadline_s)) - Fraction(str(serial_s))
    if left < 0 or not left and split_s:
        return None
    return max(1, math.ceil(Fraction(str(split_s)) / left)) if left else 1


def _fits_in(serial_s: float, split_s: float, deadline_s: float, ranks: int) -> bool:
    return Fraction(str(serial_s)) + Fraction(str(split_s)) / ranks <= Fraction(str(deadline_s))


def judge_deadline(answer: Answer) -> list[str]:
    told = answer.on_ranks("deadline", ranks=1)[0]
    jobs = cases.deadlines(told["seed"])
    for (serial_s, split_s, deadline_s), found in zip(jobs, told["found"], strict=True):
        wanted = fewest(serial_s, split_s, deadline_s)
        if found == wanted:
            continue
        case = f"{serial_s:g} s serial, {split_s:g} s split, within {deadline_s:g} s"
        got = [str(found)]
        if wanted is None:
            expected = f"None: the serial part alone takes {serial_s:g} s" + (
                ", and more ranks only come closer to it" if split_s else ""
            )
            raise Difference("impossible", f"No number of ranks is enough, but you gave one ({case}).", expected, got)
        expected = f"{wanted}: {serial_s:g} + {split_s:g} / {wanted} = {serial_s + split_s / wanted:.4g} s"
        if found is None:
            symptom = "possible" if wanted == 1 else "given up"
            raise Difference(symptom, f"It can be done, but you say it can't ({case}).", expected, got)
        if found < 1:
            raise Difference("no rank", f"You asked for {counted(found, 'rank')} ({case}).", expected, got)
        if (
            serial_s
            and not _fits_in(serial_s, split_s, deadline_s, found)
            and found == math.ceil((serial_s + split_s) / deadline_s)
        ):
            raise Difference("all divided", f"You divided the serial part as well ({case}).", expected, got)
        if not _fits_in(serial_s, split_s, deadline_s, found):
            took, _ = apart(serial_s + split_s / found, deadline_s)
            raise Difference(
                "too few", f"On {counted(found, 'rank')} it takes {took} s, too long ({case}).", expected, got
            )
        raise Difference("too many", f"Fewer ranks are enough ({case}).", expected, got)
    return [f"{len(jobs)} jobs and deadlines: the fewest ranks that are enough, and None if no number is"]


# --- 00.4 -------------------------------------------------------------------------------------------------------------


def judge_clock(answer: Answer) -> list[str]:
    told = answer.on_ranks("clock", ranks=1)[0]
    for case in told["cases"]:
        _clocked(case)
    return [
        (
            f"{len(cases.DEVICES)} devices with work left in their queues: every timed call begins with an empty queue,"
            " and ends with one"
        ),
        "the warm-up is called and not counted; one disturbed call does not move the result",
    ]


# The symptom for what the result is nearest to, if it has another name.
SYMPTOMS = {
    "median of all": "warm-up",
    "lower": "even",
    "upper": "even",
    "median": "no median",
    "without the longest": "no median",
}


def _clocked(case: dict[str, Any]) -> None:
    repeats, warm_up, calls, value, likely = (
        case["repeats"],
        case["warm_up"],
        case["calls"],
        case["value"],
        case["likely"],
    )
    words = f"repeats={repeats}, warm_up={warm_up}"
    expected = (
        f"{_ms(likely['median'])}, the median of {repeats} calls of `work`, each waited for"
        if calls.count("work")
        else f"{warm_up + repeats} calls"
    )
    got = [f"{_ms(value)}"]
    if calls.count("work") != warm_up + repeats:
        raise Difference(
            "calls",
            f"`work` was called {calls.count('work')} times ({words}).",
            f"{warm_up} calls that are not counted, then {repeats} that are",
            got,
        )
    at = [i for i, call in enumerate(calls) if call == "work"][warm_up:]
    if any(i + 1 == len(calls) or calls[i + 1] != "wait" for i in at):
        raise Difference(
            "not after",
            f"You stopped the clock while the device was still working: no `wait` after a timed call ({words}).",
            expected,
            got,
        )
    if any(i == 0 or calls[i - 1] != "wait" for i in at):
        raise Difference(
            "not before",
            f"You started the clock while the device was still working: no `wait` before a timed call ({words}).",
            expected,
            got,
        )
    typical = likely["median"]
    if abs(value / typical - 1) < 0.01:  # a clock of ours: what's left is what its ticks add
        return
    if repeats % 2 == 0:  # an earlier device has already told a mean from a median
        likely = {name: seconds for name, seconds in likely.items() if name != "mean"}
    nearest = min(likely, key=lambda name: abs(math.log(max(value, 1e-9) / likely[name])))
    if value < 0.5 * min(likely["min"], likely["median"]) or nearest == "min" and value < 0.5 * likely["min"]:
        raise Difference(
            "stopped early",
            f"You did wait, but that time isn't in your result: the wait is outside your clock ({words}).",
            expected,
            got,
        )
    told = {
        "mean": "Your result is the mean: one disturbed call moves it",
        "min": "Your result is the shortest call, not a typical one",
        "max": "Your result is the longest call",
        "sum": "Your result is the time of all calls together",
        "median of all": "Your result counts the warm-up too",
        "lower": "Two calls are in the middle, and your result is the shorter of them",
        "upper": "Two calls are in the middle, and your result is the longer of them",
    }
    raise Difference(
        SYMPTOMS.get(nearest, nearest),
        f"{told.get(nearest, 'Your result is not the median')} ({words}).",
        expected,
        got,
    )


SCRIPT = "5aea80c424d0"  # of 00.3, which is for one process

EXERCISES = {
    e.name: e
    for e in [
        Exercise("00.1", "read a profile", judge_profile, how=""),
        Exercise("00.2", "how many ranks for a deadline?", judge_deadline, how=""),
        Exercise("00.3", "convert a script", judge_convert, SCRIPT),
        Exercise("00.4", "a clock that waits", judge_clock, how=""),
    ]
}
