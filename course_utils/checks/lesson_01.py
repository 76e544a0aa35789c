"""Lesson 01: what its exercises ask for, and how an answer shows that it does not keep to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from . import hints_01
from .base import Difference, Exercise, on_ranks
from .cases_01 import CLIP_SCALES, MEANS_CASES, PAID_CASES, WINNERS

HERE = Path(__file__).resolve().parent
ADAPTER = HERE / "ranks_01.py"


def _told(task: str, answer: Path) -> dict[str, Any]:
    return on_ranks(ADAPTER, task, answer, ranks=1)[0]


# --- 01.1 -------------------------------------------------------------------------------------------------------------------


def judge_winners(answer: Path) -> list[str]:
    """The truth is fixed: the margins are factors of several, and their cause is counted. What was timed here is told beside it."""
    told = _told("winners", answer)
    for name, (winner, symptom) in WINNERS.items():
        said = told["said"][name]
        if said != winner:
            raise Difference(symptom, f"Function {name}: you predict {said!r}, and it is another.", "", [_seen(name, told["evidence"][name])])
    return [f"{name}: {winner}. {_seen(name, told['evidence'][name])}" for name, (winner, _) in WINNERS.items()]


def _seen(name: str, seen: dict[str, Any]) -> str:
    counted = "" if name in "ce" else f" {seen['eager']} tensor operations in eager mode, {seen['graph']} in the optimised graph."
    return f"measured here: scripted {seen['ratio']:.2f} times as fast.{counted}"


# --- 01.2 -------------------------------------------------------------------------------------------------------------------


def judge_means(answer: Path) -> list[str]:
    told = _told("means", answer)
    for result in told["results"]:
        if not result["right"]:
            (means, short), (wanted, wanted_short) = result["got"], result["wanted"]
            differs = "number of short windows" if short != wanted_short else "means"
            symptom = "short" if short != wanted_short else "zero" if "scale 0.0" in result["case"] else "wrong value"
            got = short if short != wanted_short else _numbers(means)
            raise Difference(symptom, f"The {differs} is another than before ({result['case']}).".replace("means is", "means are"),
                             f"{wanted_short if short != wanted_short else _numbers(wanted)}", [f"{got}"])  # fmt: skip
    return [
        f"{len(MEANS_CASES)} cases, called by Python and scripted: the values of the function as it was",
        f"all of the work is in the graph ({told['operations']} operations), which can be saved",
    ]


def _numbers(values: list[float]) -> str:
    return ", ".join(f"{v:.4f}" for v in values[:5]) + (", ..." if len(values) > 5 else "")


# --- 01.3 -------------------------------------------------------------------------------------------------------------------


def judge_breaks(answer: Path) -> list[str]:
    told = _told("breaks", answer)
    for scale, (y, norm, wanted_y, wanted_norm, right) in zip(CLIP_SCALES, told["values"], strict=True):
        if right:
            continue
        small = wanted_norm <= 2.0
        got = [f"y of norm {y:.4f}, and {norm:.4f}"]
        expected = f"y of norm {wanted_y:.4f}, and {wanted_norm:.4f}, the norm before clipping"
        if abs(norm - wanted_norm) > 1e-5:
            raise Difference("norm", "The norm that is returned is not that of y before clipping.", expected, got)
        if small:
            raise Difference("small", f"A y whose norm is at most LIMIT is changed (input scaled by {scale}).", expected, got)
        raise Difference("wrong value", f"y is another than before (input scaled by {scale}).", expected, got)
    if told["compilations"] == 0:
        raise Difference("no graph", "Nothing of it is compiled: the function is left to Python.", "one graph that holds all of it")
    if told["reasons"]:
        got = [f"line {line + 1} of the cell: {why}" if line else why for line, why in told["reasons"]]
        raise Difference("graph break", f"It becomes {told['graphs']} graphs.", "one graph, no break", got)
    if told["compilations"] != 1 or not all(told["fits"]):
        raise Difference(
            "compiled again", f"For inputs of one shape it was compiled {told['compilations']} times.", "once: nothing in the graph depends on the values"
        )
    return [f"one graph without a break, compiled once for {len(CLIP_SCALES)} inputs", "eager and compiled: the values of the function as it was"]


# --- 01.4 -------------------------------------------------------------------------------------------------------------------


def first_paid(first_us: int, eager_us: int, compiled_us: int) -> int | None:
    """The truth, counted call by call as far as that is short, and by the last step's size beyond."""
    if first_us <= eager_us:
        return 1
    if compiled_us >= eager_us:
        return None
    return 1 + -(-(first_us - eager_us) // (eager_us - compiled_us))


def judge_paid(answer: Path) -> list[str]:
    got = _told("paid", answer)["got"]
    for case, value in zip(PAID_CASES, got, strict=True):
        first, eager, compiled = case
        wanted = first_paid(*case)
        if value == wanted:
            continue
        where = f"first call {first} µs, eager {eager} µs, compiled {compiled} µs"
        expected = "never: None" if wanted is None else f"{wanted} call{'s' * (wanted > 1)}"
        told = ["None" if value is None else f"{value} calls"]
        if wanted is None:
            raise Difference("never", f"It is never paid back ({where}).", expected, told)
        if wanted == 1:
            raise Difference("at once", f"Already the first call is not slower ({where}).", expected, told)
        if value is None:
            raise Difference("wrong count", f"It is paid back at some time ({where}).", expected, told)
        after = {n: (n * eager, first + (n - 1) * compiled) for n in (wanted - 1, wanted)}
        told += [f"after {n} calls: eager {e} µs, compiled {c} µs" for n, (e, c) in after.items()]
        symptom = "off by one" if abs(value - wanted) <= 1 else "wrong count"
        raise Difference(symptom, f"The number of calls is not the smallest that is enough ({where}).", expected, told)
    return [f"{len(PAID_CASES)} cases: the smallest number of calls, and None where there is none"]


HANDED_OUT = {"2": "766f2a3e68f3", "3": "d432fb1e02db"}

EXERCISES = {
    e.name: e
    for e in [
        Exercise("01.1", "predict the winners", judge_winners, hints_01.WINNERS, how=""),
        Exercise("01.2", "make a function scriptable", judge_means, hints_01.MEANS, HANDED_OUT["2"], how=""),
        Exercise("01.3", "find the graph breaks", judge_breaks, hints_01.BREAKS, HANDED_OUT["3"], how=""),
        Exercise("01.4", "when is it paid back?", judge_paid, hints_01.PAID, how=""),
    ]
}
