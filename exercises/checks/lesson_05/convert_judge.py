"""Lesson 05, exercise 1: how a training on ranks differs from the same one in one process with everybody's samples."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

from ..judging import Answer, Difference, by_rank, gap
from .cases import SAMPLES, ConvertCase, convert_cases, left_out

ROUNDING = 1e-9  # in double precision right answers differ by 1e-16, and every mistake here by more than 1e-5
EXPECTED = "after each window the weights of one process that has the samples of all ranks"
KNOWN = {
    "sum": ("sum", "The gradients of a window are added up, not averaged"),
    "last window": ("last window divided", "The partial window is divided by the size of a whole one"),
    "old gradients": ("old gradients", "Gradients of earlier windows count again"),
}


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
    if (rows := max(s["rows"] for s in seen)) > SAMPLES:
        raise Difference(
            "one large batch",
            f"The model gets {rows} samples at once ({words}): that takes the memory that micro-batches save.",
            f"{SAMPLES} samples in each forward: one micro-batch",
        )
    reduces = [s["reduces"] for s in seen]
    sent = by_rank([f"{count} sums of gradients for {windows} windows" for count in reduces])
    if max(reduces) == 0:
        raise Difference("no exchange", f"Not one gradient is exchanged ({words}).", f"{windows}: one per window", sent)
    _steps(seen, windows, case)
    after = list(zip(*(s["weights"] for s in seen), strict=True))
    for step, weights in enumerate(after, 1):
        _agree(weights, [s["start"] for s in seen], step, words)
    for step, (weights, right) in enumerate(zip(after, twin[""], strict=True), 1):
        if (off := gap(weights[0], right)) > ROUNDING:
            for how, (symptom, what) in KNOWN.items():
                if gap(seen[0]["weights"], twin[how]) < ROUNDING:
                    raise Difference(symptom, f"{what} ({words}).", EXPECTED)
            raise Difference(
                "not the mean", f"After step {step} the ranks agree, and are off by {off:.2g} ({words}).", EXPECTED
            )
    if any(gap(s["end"], s["weights"][-1]) > ROUNDING for s in seen if s["weights"]):
        raise Difference("another model", f"After the last step the model's weights change again ({words}).", EXPECTED)
    if max(reduces) > windows:
        raise Difference(
            "too many",
            f"{max(reduces)} sums of gradients for {windows} windows ({words}): the result is right, but nothing is"
            " saved.",
            f"{windows}: one per window",
            sent,
        )
    if max(s["small"] for s in seen) > windows:
        raise Difference(
            "too many messages",
            f"Besides the gradients there are {max(s['small'] for s in seen)} small sums ({words}).",
            f"at most one for each of {windows} windows",
        )
    if (times := max(s["broadcasts"] for s in seen)) > 1.5:
        raise Difference(
            "weights again",
            f"The weights are sent {times:.0f} times ({words}).",
            "once, at the start: is the model wrapped anew in each window?",
        )
    if any(s["mode"] for s in seen):
        raise Difference(
            "mode",
            f"After `train` the model is in training mode, and it was in eval mode before ({words}).",
            "the mode in which it came, as the loop for one device leaves it",
        )
    if seen[0]["again"] and max(gap(seen[0]["again"], s["again"]) for s in seen) > ROUNDING:
        raise Difference(
            "different start",
            "In a second call with the same model, whose weights somebody has changed, the ranks hold different ones.",
            "all ranks begin with the weights of rank 0, in each call",
        )
    wrong = [s["left_out"] for s in seen if s["left_out"] != len(left_out(case))]
    if wrong:
        raise Difference(
            "count",
            f"`train` returns {wrong[0]} ({words}).",
            f"{len(left_out(case))}: how many windows were left out",
            by_rank([s["left_out"] for s in seen]),
        )


def _steps(seen: list[dict[str, Any]], windows: int, case: ConvertCase) -> None:
    _, micro, window, _ = case
    wanted, words = windows - len(left_out(case)), _words(case)
    steps = [len(s["weights"]) for s in seen]
    if set(steps) == {wanted}:
        return
    got, expected = by_rank([f"{count} optimizer steps" for count in steps]), f"{wanted} steps on every rank"
    if len(set(steps)) > 1:
        raise Difference("each decides alone", f"The ranks leave out different windows ({words}).", expected, got)
    if set(steps) == {windows}:
        raise Difference("not left out", f"A window with a broken sample makes a step, too ({words}).", expected, got)
    if steps[0] == wanted - 1 and micro % window and windows - 1 not in left_out(case):
        raise Difference(
            "last window lost",
            f"The last {micro % window} micro-batches never lead to a step ({words}).",
            expected,
            got,
        )
    raise Difference("steps", f"The training has {steps[0]} optimizer steps ({words}).", expected, got)


def _agree(weights: Sequence[list[float]], starts: Sequence[list[float]], step: int, words: str) -> None:
    """All ranks hold the same weights after a step."""
    apart = max(gap(weights[0], other) for other in weights[1:])
    if apart <= ROUNDING:
        return
    if math.isinf(apart):
        raise Difference(
            "each decides alone",
            f"After step {step} the weights of some rank are NaN: it made a step that another one left out ({words}).",
            "all ranks leave out the same windows",
            by_rank(["NaN" if any(w != w for w in own) else "numbers" for own in weights]),
        )
    moved = [[w - s for w, s in zip(own, start, strict=True)] for own, start in zip(weights, starts, strict=True)]
    if step == 1 and max(gap(moved[0], other) for other in moved[1:]) < ROUNDING:
        raise Difference(
            "different start",
            f"In step 1 all ranks change their weights alike, and they have begun with different ones ({words}).",
            "all ranks begin with the weights of rank 0",
        )
    raise Difference(
        "drift", f"After step {step} the ranks hold different weights: they differ by {apart:.2g} ({words}).", EXPECTED
    )
