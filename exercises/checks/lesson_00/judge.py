"""Lesson 00: what its exercises ask for, and the symptom of each way in which an answer can fail that."""

from __future__ import annotations

import math
import statistics
from fractions import Fraction
from typing import Any

from ..judging import Answer, Exercise, apart, differ, require
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
        got = [f"{name}, and {factor_text}"]
        if i > len(cases.PROFILES):  # drawn at random, so the learner can't look it up
            got.append(f"of {_profile(times)}, warm_up={warm_up}")
        share = typical[longest] / total
        facts = {
            "case": f"profile {i}", "name": repr(name), "parts": ", ".join(times), "share": share, "warm_up": warm_up,
            "longest": longest, "wanted": wanted_text, "total": _ms(total), "left": _ms(total - typical[longest]),
        }  # fmt: skip
        every = {part: statistics.median(seconds) for part, seconds in times.items()}
        mean = {part: statistics.fmean(seconds) for part, seconds in kept.items()}
        whole = {part: statistics.fmean(seconds) for part, seconds in times.items()}
        counts_it = warm_up and any(_fits(name, factor, summed) for summed in (every, whole))
        require(name in times, "no such part", got, **facts)
        require(not same(factor, share) and not same(factor, 100 * share), "share", got, **facts)
        require(not same(factor, 1 / share), "one over share", got, **facts)
        require(not counts_it, "warm-up", got, **facts)
        require(not _fits(name, factor, mean), "mean", got, **facts)
        require(name == longest, "other part", got, **facts)
        differ("wrong factor", got, **facts)
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
        got = [str(found)]
        facts: dict[str, Any] = {"serial": serial_s, "split": split_s, "deadline": deadline_s, "found": found}
        if wanted is None:
            differ("impossible", got, how="closer" if split_s else "alone", **facts)
        facts |= {"wanted": wanted, "takes": serial_s + split_s / wanted}
        if found is None:
            differ("possible" if wanted == 1 else "given up", got, **facts)
        require(found >= 1, "no rank", got, **facts)
        if not _fits_in(serial_s, split_s, deadline_s, found):
            all_divided = serial_s and found == math.ceil((serial_s + split_s) / deadline_s)
            took = apart(serial_s + split_s / found, deadline_s)[0]
            differ("all divided" if all_divided else "too few", got, took=took, **facts)
        differ("too many", got, **facts)
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
    repeats, warm_up, calls = case["repeats"], case["warm_up"], case["calls"]
    value, likely = case["value"], case["likely"]
    got, worked = [_ms(value)], calls.count("work")
    facts = {"repeats": repeats, "warm_up": warm_up, "worked": worked, "median": _ms(likely["median"])}
    require(worked == warm_up + repeats, "calls", got, **facts)
    at = [i for i, call in enumerate(calls) if call == "work"][warm_up:]
    require(all(calls[i + 1 : i + 2] == ["wait"] for i in at), "not after", got, **facts)
    require(all(i > 0 and calls[i - 1] == "wait" for i in at), "not before", got, **facts)
    typical = likely["median"]
    if abs(value / typical - 1) < 0.01:  # a clock of ours: what's left is what its ticks add
        return
    if repeats % 2 == 0:  # an earlier device has already told a mean from a median
        likely = {name: seconds for name, seconds in likely.items() if name != "mean"}
    nearest = min(likely, key=lambda name: abs(math.log(max(value, 1e-9) / likely[name])))
    early = value < 0.5 * min(likely["min"], likely["median"]) or nearest == "min" and value < 0.5 * likely["min"]
    require(not early, "stopped early", got, **facts)
    differ(SYMPTOMS.get(nearest, nearest), got, how=nearest, **facts)


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
