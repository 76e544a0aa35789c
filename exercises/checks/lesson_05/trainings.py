"""Lesson 05, exercises 2 and 4: how a training on several ranks differs from the same one in one process."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

from course_utils.predict import buckets

from ..judging import Answer, Difference, by_rank, gap, some
from .cases import BUCKET_BYTES, DDP_RANKS, DDP_STEPS, KNOWN_MISTAKES, SAMPLES, windows

ROUNDING = 1e-9  # in double precision right answers differ by 1e-16, and every mistake here by more than 1e-5


def _apart(weights: Sequence[Any]) -> float:
    """The largest gap between the first of these and the others."""
    return max(gap(weights[0], other) for other in weights[1:])


# --- 05.2 -------------------------------------------------------------------------------------------------------------


def judge_ddp(answer: Answer) -> list[str]:
    said = {r"cannot register a hook on a tensor that doesn't require gradient": "frozen"}
    told = answer.on_ranks("ddp", ranks=max(DDP_RANKS), said=said)
    found = [[t["found"][i] for t in told[:ranks]] for i, ranks in enumerate(DDP_RANKS)]
    seeds = [[s["seed"] for s in seen] for seen in found]
    twins = answer.on_ranks("twins.ddp", ranks=1, given=seeds)[0]["cases"]
    for seen, twin in zip(found, twins, strict=True):
        _ddp(seen, twin, f" ({len(seen)} ranks)" if len(seen) != DDP_RANKS[0] else "")
    wanted = len(buckets(twins[0]["nbytes"], BUCKET_BYTES, BUCKET_BYTES))
    early = [count or 0 for s in found[0] for count in s["early"]]
    worst = max(gap(s["weights"], twin["mean"]) for seen, twin in zip(found, twins, strict=True) for s in seen)
    return [
        (
            f"{DDP_STEPS} steps on 2 and on 3 ranks that started from different weights: all hold those of one process"
            f" (largest gap {worst:.0e})"
        ),
        (
            f"{wanted} all-reduces a step, one for each bucket; {min(early)} of them begin before the last gradient is"
            " there"
        ),
        "no wait in backward; frozen parameters, a shared weight and a buffer are handled as they should be",
    ]


def _ddp(seen: list[dict[str, Any]], twin: dict[str, Any], where: str) -> None:
    expected = (
        "after `finish` every gradient is the mean over the ranks, so that all hold the weights of one process with"
        " the samples of all"
    )
    full = [sum(twin["nbytes"][i] for i in bucket) for bucket in buckets(twin["nbytes"], BUCKET_BYTES, BUCKET_BYTES)]
    wanted = len(full)
    _start([s["start"] for s in seen], twin["start"], where)
    reduces = [s["reduces"] for s in seen]
    if any(s["unawaited"] for s in seen):
        raise Difference(
            "not awaited",
            f"`finish` returns, and nobody has waited for some of the all-reduces{where}: if the gradients are there,"
            " that's luck.",
            "`finish` waits for every all-reduce that has begun",
            by_rank([f"{s['unawaited']} of {sum(s['reduces'])} not waited for" for s in seen]),
        )
    for step in range(DDP_STEPS):
        both = [rank[step] for rank in reduces]
        if max(both) == 0:
            symptom, when = (
                ("no exchange", "in step 1")
                if step == 0
                else ("once only", f"in step {step + 1}, though there was in step 1")
            )
            raise Difference(symptom, f"Not one gradient is exchanged {when}{where}.", expected)
        weights = [s["weights"][step] for s in seen]
        if gap(weights, [twin["mean"][step]] * len(seen)) > ROUNDING:
            _wrong_gradient(weights, {how: twin[how][step] for how in ("mean", "sum")}, step, where, expected)
    odd = next((count for rank in reduces for count in rank if count != wanted), None)
    if odd is not None:
        raise Difference(
            "number of collectives",
            f"A step has {odd} all-reduces{where}.",
            f"{wanted}: one per bucket, and a bucket is full when it holds bucket_bytes or more",
            by_rank([f"all-reduces in each step: {some(rank)}" for rank in reduces]),
        )
    other = next((sizes for s in seen for sizes in s["nbytes"] if sizes and sorted(sizes) != sorted(full)), None)
    if other:
        raise Difference(
            "other buckets",
            f"The all-reduces of a step have {some(other)} bytes{where}.",
            f"{some(full)} bytes: filled from the last parameter to the first, and closed at {BUCKET_BYTES} or more",
        )
    early = [count or 0 for s in seen for count in s["early"]]
    if min(early) == 0:
        raise Difference(
            "no overlap",
            "No all-reduce has begun when the gradient of the first layer, the last one to arrive, is ready.",
            f"all buckets but the last are under way: {wanted - 1}",
            by_rank([f"begun by then, in each step: {some(s['early'])}" for s in seen]),
        )
    if waits := max(s["waits"] for s in seen):
        raise Difference(
            "waits in backward",
            f"backward waits for a collective {waits} times, so nothing is hidden behind it.",
            "no waiting before `finish`",
            by_rank([f"{s['waits']} waits in {DDP_STEPS} backward passes" for s in seen]),
        )
    if any(s["stale"] for s in seen):
        raise Difference(
            "never cleared",
            f"`finish` waits again for all-reduces of earlier steps{where}: your list of them grows with each step.",
            "each step waits for its own all-reduces",
            by_rank([f"{s['stale']} waits for an earlier step" for s in seen]),
        )


def _start(starts: list[dict[str, Any]], right: dict[str, Any], where: str) -> None:
    """Every rank begins with the parameters and buffers that rank 0 had before it was wrapped."""
    apart = {name: _apart([start[name] for start in starts]) for name in right}
    off = {name: max(gap(start[name], values) for start in starts) for name, values in right.items()}
    for gaps, what in ((apart, "hold different"), (off, "agree, but not on rank 0's")):
        if max(gaps.values()) > 0:
            names = some([f"{name} (by {by:.2g})" for name, by in gaps.items() if by > 0], 3)
            raise Difference(
                "different start",
                f"After wrapping, the ranks {what} {names}{where}.",
                "the parameters and buffers of rank 0 on every rank",
            )


def _wrong_gradient(
    weights: list[list[float]], right: dict[str, list[float]], step: int, where: str, expected: str
) -> None:
    if (apart := _apart(weights)) > ROUNDING:
        raise Difference(
            "drift",
            f"After step {step + 1} the ranks hold different weights{where}: they differ by {apart:.2g}.",
            expected,
        )
    if gap(weights[0], right["sum"]) < ROUNDING:
        raise Difference(
            "sum",
            f"After step {step + 1} the ranks agree{where}, and have taken a step {len(weights)} times as long.",
            expected,
        )
    raise Difference(
        "wrong gradient",
        f"After step {step + 1} the ranks agree{where}, and are off by {gap(weights[0], right['mean']):.2g} from one"
        " process.",
        expected,
    )


# --- 05.4 -------------------------------------------------------------------------------------------------------------


def judge_accumulation(answer: Answer) -> list[str]:
    asked = windows(random.Random())
    told = answer.on_ranks("accumulate", ranks=2, given=asked)
    given = {"cases": asked, "seeds": [t["seed"] for t in told]}
    twins = answer.on_ranks("twins.accumulate", ranks=1, given=given)[0]["cases"]
    worst = 0.0
    for i, ((micro, window), twin) in enumerate(zip(asked, twins, strict=True)):
        for again in range(2):
            case = f"{micro} micro-batches in windows of {window}" + ", called a second time" * again
            seen = [t["cases"][i][again] for t in told]
            _windows(seen, {how: weights[again] for how, weights in twin.items()}, micro, window, case)
            worst = max(worst, *(gap(s["weights"], twin[""][again]) for s in seen))
    return [
        (
            f"{2 * len(asked)} trainings on 2 ranks, with whole and partial windows: after every step the weights of"
            f" one process (largest gap {worst:.0e})"
        ),
        "one all-reduce per window, the last one included",
        "both ranks hold the same weights after every step",
    ]


def _windows(
    seen: list[dict[str, Any]], twin: dict[str, list[list[float]]], micro: int, window: int, case: str
) -> None:
    """`twin` has the weights after each step as they should be, under "", and as each known mistake makes them."""
    wanted, rows = math.ceil(micro / window), max(s["rows"] for s in seen)
    steps, reduces = [len(s["weights"]) for s in seen], [s["reduces"] for s in seen]
    if rows > SAMPLES:
        raise Difference(
            "one large batch",
            f"The model gets {rows} samples at once ({case}): that takes the memory that micro-batches save.",
            f"{SAMPLES} samples in each forward: one micro-batch",
        )
    expected = "after each window the weights of one process that has all samples of the window, of both ranks"
    got_steps = by_rank([f"{count} optimizer steps" for count in steps])
    if set(steps) != {wanted}:
        if set(steps) == {micro // window} and micro % window:
            raise Difference(
                "last window lost",
                f"The last {micro % window} micro-batches never lead to a step ({case}).",
                f"{wanted} steps",
                got_steps,
            )
        raise Difference(
            "steps",
            f"The training has {max(steps)} optimizer steps ({case}).",
            f"{wanted}: one for each window",
            got_steps,
        )
    got = by_rank([f"{count} all-reduces for {wanted} windows" for count in reduces])
    if max(reduces) == 0:
        raise Difference(
            "no exchange", f"Not one gradient is exchanged ({case}).", f"{wanted} all-reduces, one per window", got
        )
    after = list(zip(*(s["weights"] for s in seen), strict=True))
    for step, weights in enumerate(after, 1):
        if (apart := _apart(weights)) > ROUNDING:
            last = step == wanted and micro % window != 0 and step > 1
            symptom = "last window not exchanged" if last and min(reduces) < wanted else "drift"
            raise Difference(
                symptom,
                f"After step {step} the two ranks hold different weights: they differ by {apart:.2g} ({case}).",
                expected,
                got,
            )
    for step, (weights, right) in enumerate(zip(after, twin[""], strict=True), 1):
        if (off := gap(weights[0], right)) > ROUNDING:
            for how in KNOWN_MISTAKES:
                if gap(seen[0]["weights"], twin[how]) < ROUNDING:
                    _known_mistake(how, step, window, case, expected)
            raise Difference(
                "not the mean", f"After step {step} both ranks agree, and are off by {off:.2g} ({case}).", expected
            )
    if max(reduces) > wanted:
        raise Difference(
            "too many",
            f"{max(reduces)} all-reduces for {wanted} windows ({case}): the result is right, but nothing is saved.",
            f"{wanted}, one per window",
            got,
        )


def _known_mistake(how: str, step: int, window: int, case: str, expected: str) -> None:
    told = {
        "sum": ("sum", f"The gradients of a window are added up, not averaged ({case})."),
        "last window": (
            "last window divided",
            f"After step {step}, the last, the weights are off: you divided the partial window by {window} ({case}).",
        ),
        "left over": ("old gradients", f"The first step still counts the gradients of an earlier training ({case})."),
        "old gradients": (
            "old gradients",
            f"From step {step} on, the gradients of earlier windows count again ({case}).",
        ),
    }
    symptom, differs = told[how]
    raise Difference(symptom, differs, expected)
