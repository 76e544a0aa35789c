"""Lesson 05, exercise 1: how a training on ranks differs from the same one in one process with everybody's samples."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

from ..judging import Answer, by_rank, differ, gap, require
from .cases import SAMPLES, ConvertCase, convert_cases, left_out

ROUNDING = 1e-9  # in double precision right answers differ by 1e-16, and every mistake here by more than 1e-5
# Known mistakes, by the names that their twins have, and their symptoms.
KNOWN = {"sum": "sum", "last window": "last window divided", "old gradients": "old gradients"}


def judge_convert(answer: Answer) -> list[str]:
    asked = convert_cases(random.Random())
    ranks = max(case[0] for case in asked)
    told = answer.on_ranks("convert.train", ranks=ranks, given=asked)
    given = {"cases": asked, "seeds": [t["seed"] for t in told]}
    twins = answer.on_ranks("convert.twins", ranks=1, given=given)[0]["cases"]
    worst = 0.0
    for i, (case, twin) in enumerate(zip(asked, twins, strict=True)):
        seen = [t["cases"][i] for t in told[: case[0]]]
        _case(seen, twin, case)
        worst = max(worst, *(gap(s["weights"], twin[""]) for s in seen))
    broken = sum(bool(case[3]) for case in asked)
    return [
        (
            f"{len(asked)} trainings on 2 and 3 ranks that start from different weights: after every step those of one"
            f" process (largest gap {worst:.0e})"
        ),
        f"{broken} of them with broken samples on one rank: all ranks leave out the same windows, and go on",
        "one sum of the gradients per window, the last one included",
    ]


def _words(case: ConvertCase) -> str:
    ranks, micro, window, broken = case
    where = ", ".join(f"in micro-batch {k} of rank {rank}" for rank, k in broken)
    return f"{micro} micro-batches in windows of {window} on {ranks} ranks" + (
        f", with a broken sample {where}" if where else ""
    )


def _case(seen: list[dict[str, Any]], twin: dict[str, list[list[float]]], case: ConvertCase) -> None:
    """`twin` has the weights after each step as they should be, under "", and as each known mistake makes them."""
    _, micro, window, broken = case
    windows, words = math.ceil(micro / window), _words(case)
    facts: dict[str, Any] = {"case": words, "windows": windows}
    rows = max(s["rows"] for s in seen)
    require(rows <= SAMPLES, "one large batch", rows=rows, samples=SAMPLES, **facts)
    reduces = [s["reduces"] for s in seen]
    sent = by_rank([f"{count} sums of gradients for {windows} windows" for count in reduces])
    require(max(reduces) > 0, "no exchange", sent, **facts)
    _steps(seen, windows, case)
    after = list(zip(*(s["weights"] for s in seen), strict=True))
    for step, weights in enumerate(after, 1):
        _agree(weights, [s["start"] for s in seen], step, words)
    for step, (weights, right) in enumerate(zip(after, twin[""], strict=True), 1):
        if (off := gap(weights[0], right)) > ROUNDING:
            for how, symptom in KNOWN.items():
                require(gap(seen[0]["weights"], twin[how]) >= ROUNDING, symptom, **facts)
            differ("not the mean", step=step, off=off, **facts)
    changed = any(gap(s["end"], s["weights"][-1]) > ROUNDING for s in seen if s["weights"])
    require(not changed, "another model", **facts)
    require(max(reduces) <= windows, "too many", sent, reduces=max(reduces), **facts)
    small, times = max(s["small"] for s in seen), max(s["broadcasts"] for s in seen)
    require(small <= windows, "too many messages", small=small, **facts)
    require(times <= 1.5, "weights again", times=times, **facts)
    require(not any(s["mode"] for s in seen), "mode", **facts)
    alike = not seen[0]["again"] or max(gap(seen[0]["again"], s["again"]) for s in seen) <= ROUNDING
    require(alike, "different start", how="again")
    said, right_count = [s["left_out"] for s in seen], len(left_out(case))
    wrong = next((count for count in said if count != right_count), right_count)
    require(wrong == right_count, "count", by_rank(said), wrong=wrong, right=right_count, **facts)


def _steps(seen: list[dict[str, Any]], windows: int, case: ConvertCase) -> None:
    _, micro, window, _ = case
    wanted, words = windows - len(left_out(case)), _words(case)
    steps = [len(s["weights"]) for s in seen]
    if set(steps) == {wanted}:
        return
    got = by_rank([f"{count} optimizer steps" for count in steps])
    lost = steps[0] == wanted - 1 and micro % window and windows - 1 not in left_out(case)
    facts: dict[str, Any] = {"case": words, "wanted": wanted, "steps": steps[0], "last": micro % window}
    require(len(set(steps)) == 1, "each decides alone", got, how="steps", **facts)
    require(set(steps) != {windows}, "not left out", got, **facts)
    differ("last window lost" if lost else "steps", got, **facts)


def _agree(weights: Sequence[list[float]], starts: Sequence[list[float]], step: int, words: str) -> None:
    """All ranks hold the same weights after a step."""
    apart = max(gap(weights[0], other) for other in weights[1:])
    if apart <= ROUNDING:
        return
    got = by_rank(["NaN" if any(w != w for w in own) else "numbers" for own in weights])
    require(not math.isinf(apart), "each decides alone", got, how="nan", step=step, case=words)
    moved = [[w - s for w, s in zip(own, start, strict=True)] for own, start in zip(weights, starts, strict=True)]
    alike = step == 1 and max(gap(moved[0], other) for other in moved[1:]) < ROUNDING
    require(not alike, "different start", how="first", case=words)
    differ("drift", step=step, apart=apart, case=words)
