"""Lesson 08, exercise 5: whether a trainer was converted to mixed precision, and nothing else about it changed."""

from __future__ import annotations

import random
from typing import Any

from ..judging import Answer, apart, differ
from .cases import ConvertCase, convert_cases
from .loops_judge import SAID, numbers_differ, windows_differ


def judge_convert(answer: Answer) -> list[str]:
    asked = convert_cases(random.Random())
    told = answer.on_ranks("convert.train", ranks=1, said=SAID, given=asked)[0]["cases"]
    for seen, case in zip(told, asked, strict=True):
        _case(seen, case)
    windows = [window for seen in told for window in seen["windows"]]
    off = max(w["off"][""] for w in windows if w["steps"])
    return [
        (
            f"{len(asked)} trainings in bfloat16 and float16: the layers give 16 bits, and {len(windows)} windows have"
            f" the gradient of a twin in float32, averaged and clipped (at most {off:.1%} off)"
        ),
        (
            f"{sum(not w['steps'] for w in windows)} skipped steps: weights, optimizer and schedule stand still, the"
            " scale falls"
        ),
        "the losses are those of the logits, in float32: not scaled, not divided",
    ]


def _case(seen: dict[str, Any], case: ConvertCase) -> None:
    dtype, n, window, scale, _, broken = case
    words = f"{n} micro-batches in windows of {window}, {dtype}"
    words += f", a scale of 2^{scale.hex().partition('p')[2].lstrip('+')}" * (dtype == "float16")
    words += f", a broken sample in micro-batch {broken[0] + 1}" if broken else ""
    windows_differ(seen["windows"], n, dtype, seen["scaled"], lambda i: f"window {i + 1}; {words}")
    _losses(seen, window, words)


def _losses(seen: dict[str, Any], window: int, words: str) -> None:
    got, right = seen["losses"], seen["right"]
    i = numbers_differ(got, right, 1e-4)
    if i < 0:
        return
    ratio = got[i] / right[i]
    size = min(window, len(got) - i // window * window)
    scale = seen["windows"][i // window]["scale"][0]
    symptom = "losses"
    if scale > 1 and min(abs(ratio / scale - 1), abs(ratio * size / scale - 1)) < 0.01:
        symptom = "scaled losses"
    elif size > 1 and abs(ratio * size - 1) < 0.01:
        symptom = "divided losses"
    elif abs(ratio - 1) < 0.01:
        symptom = "loss in 16 bits"
    wanted, has = apart(right[i], got[i])
    differ(symptom, [has], batch=i + 1, case=words, right=wanted)
