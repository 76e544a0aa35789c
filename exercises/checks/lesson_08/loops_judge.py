"""Lesson 08, exercises 3 and 5: how a training loop in mixed precision differs from what it should do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..judging import Answer, Difference, apart, some
from .cases import CLIPPED, FREEZE_LR, FREEZE_STEPS, SKIP_CASES, STAIRCASE, STREAMS

# Right answers are at most 0.02 away from the twin in float32, relative to its size, and mistakes at least 0.1.
NEAR = 0.06
TINY = 0.02  # of the twin's gradient: it was clipped while it was still scaled, or divided by a scale that it never had
SAFE_SCALE = 2.0**12  # with which no gradient of ours becomes infinite
PLAIN = "the gradient of a twin in float32, within the tolerance of 16 bits"
EXPECTED = "the gradient of a twin in float32, clipped, within the tolerance of 16 bits"
# What torch's scaler says when its calls come in another order than unscale_, step, update, or aren't one of each.
SAID = {
    r"since the last update|called after step\(\)|No inf checks were recorded": "order",
    r"_scale is None": "no scaler",
    r"unscale FP16 gradients": "weights",
}
GRADIENTS = {
    "unclipped": "The gradient of this step isn't clipped",
    "sum": "The gradients of the micro-batches are added up, not averaged",
    "last window": "The partial window is divided by the size of a whole one",
    "last micro-batch": "Only the last micro-batch of the window counts",
    "old gradients": "The gradient of an earlier step counts again",
}


def windows_differ(
    windows: list[dict[str, Any]],
    count: int,
    dtype: str,
    scaled: int,
    where: Callable[[int], str],
    expected: str = EXPECTED,
) -> None:
    """Raise the first `Difference` of a training, in the order of time. `scaled` counts losses that were scaled."""
    ran = windows[0]["forwards"] if windows else 0
    if ran != count:
        raise Difference(
            "forwards", f"The model runs {ran} times for {count} batches.", "one forward for each batch, or micro-batch"
        )
    for i, window in enumerate(windows):
        _types(window, dtype, where(i))
        if dtype == "float16" and not scaled:
            raise Difference(
                "no scaler",
                f"In fp16 no loss goes through the scaler ({where(i)}).",
                "each loss is scaled before backward",
            )
        _stepped(window, where(i))
        if window["steps"] and window["off"][""] > NEAR:
            _gradient(window, where(i), expected)
        _schedule(window, where(i))


def _types(window: dict[str, Any], dtype: str, case: str) -> None:
    if window["weights"] != ["float32"]:
        raise Difference(
            "weights",
            f"The model's weights are {some(window['weights'])} ({case}).",
            "weights in float32, all the time",
        )
    if window["layers"] != [dtype]:
        symptom = "no autocast" if "float32" in window["layers"] else "another type"
        raise Difference(
            symptom, f"The linear layers give {some(window['layers'])} ({case}).", f"{dtype}, under autocast"
        )
    if window["steps"] > 1:
        raise Difference("steps", f"The optimizer makes {window['steps']} steps ({case}).", "one step")
    if window["fresh"] > NEAR:
        words = "with the weights of an earlier step" if window["first"] > 0 else "with other weights"
        raise Difference(
            "stale",
            f"The logits aren't those of the model's weights ({case}): the layers computed {words}.",
            f"logits as in float32, within {NEAR:.0%}",
            [f"{window['fresh']:.0%} off"],
        )


def _stepped(window: dict[str, Any], case: str) -> None:
    steps, fell = window["steps"], window["scale"][1] < window["scale"][0]
    if steps and (window["broken"] or not window["finite"]):
        raise Difference(
            "not skipped",
            f"The optimizer makes a step, and the gradients hold numbers that aren't finite ({case}).",
            "no step: weights, optimizer and schedule stay as they are",
        )
    if steps:
        return
    if not window["broken"] and (not fell or window["scale"][0] <= SAFE_SCALE):
        raise Difference("no step", f"The optimizer makes no step ({case}).", "a step: all gradients are finite")
    if window["moved"] or not window["held"]:
        what = "the weights" if window["moved"] else "what the optimizer remembers"
        raise Difference("moves", f"The step is skipped, and {what} changed all the same ({case}).", "nothing changes")
    if not fell:
        raise Difference(
            "no update",
            f"The step is skipped, and the scale stays at {window['scale'][0]:g} ({case}).",
            "half of it: the scaler chooses a new scale after each step",
        )


def _gradient(window: dict[str, Any], case: str, expected: str) -> None:
    got = [f"{window['off']['']:.0%} off, {window['ratio']:.2g} times as long"]
    if window["ratio"] < TINY:
        raise Difference(
            "clipped too early",
            f"Next to nothing is left of the gradient when the optimizer gets it ({case}).",
            expected,
            got,
        )
    for how, words in GRADIENTS.items():
        if window["off"][how] < NEAR:
            raise Difference(how, f"{words} ({case}).", expected, got)
    raise Difference("gradient", f"The gradient of this step is another one ({case}).", expected, got)


def _schedule(window: dict[str, Any], case: str) -> None:
    moved = window["schedule"][1] - window["schedule"][0]
    if moved == window["steps"] or not window["scheduled"]:
        return
    if not window["steps"]:
        raise Difference(
            "schedule moves",
            f"The step is skipped, and the schedule moves on ({case}).",
            "a schedule that stands still with the weights",
        )
    grew = window["scale"][1] > window["scale"][0]
    raise Difference(
        "schedule stands" if not moved else "schedule moves",
        f"The optimizer makes a step, and the schedule moves {moved} times ({case})"
        + ", in a step after which the scale has grown." * grew
        + "." * (not grew),
        "once for each step that was taken",
    )


# --- 08.3 -------------------------------------------------------------------------------------------------------------


def _batch(i: int) -> str:
    return f"batch {i + 1}"


def numbers_differ(got: Sequence[float], right: Sequence[float], within: float) -> int:
    """The place of the first number that's off by more than a share of the right one; -1 if there is none."""
    for i, (a, b) in enumerate(zip(got, right, strict=True)):
        if abs(a - b) > within * max(abs(b), 1e-6):
            return i
    return -1


def judge_staircase(answer: Answer) -> list[str]:
    told = answer.on_ranks("mend.staircase", ranks=1)[0]
    n, epochs = STAIRCASE
    windows_differ(
        told["windows"], n * epochs, "bfloat16", 0, lambda i: f"epoch {i // n + 1}, batch {i % n + 1}", PLAIN
    )
    _losses(told, _batch)
    return [
        f"{n * epochs} batches in {epochs} epochs: each is computed in bfloat16, with the weights of that moment",
        "a step for each, with the gradient of a twin in float32",
    ]


def _losses(told: dict[str, Any], where: Callable[[int], str]) -> None:
    if (i := numbers_differ(told["losses"], told["right"], 1e-4)) >= 0:
        right, got = apart(told["right"][i], told["losses"][i])
        raise Difference("losses", f"The list has another loss for {where(i)}.", right, [got])


def judge_clipped(answer: Answer) -> list[str]:
    for case in answer.on_ranks("mend.clipped", ranks=1, said=SAID)[0]["cases"]:
        windows_differ(case["windows"], case["count"], "float16", case["scaled"], _batch)
        for i, (norm, window) in enumerate(zip(case["norms"], case["windows"], strict=True)):
            if not window["broken"] and abs(norm - window["norm"]) > NEAR * window["norm"]:
                right, got = apart(window["norm"], norm)
                after = abs(norm - window["norm"] * window["scale"][0]) < NEAR * norm
                raise Difference(
                    "norm",
                    f"The list has another norm for batch {i + 1}"
                    + (", that of the scaled gradient." if after else "."),
                    f"{right}, the norm of the gradient before the clip",
                    [got],
                )
    return [
        f"{sum(n for n, *_ in CLIPPED)} batches in float16: each step has the gradient of a twin in float32, clipped",
        "the norms are those of the gradients, before the clip",
    ]


def judge_frozen(answer: Answer) -> list[str]:
    told = answer.on_ranks("mend.frozen", ranks=1)[0]
    if told["unmoved"] > 0.01:
        raise Difference(
            "frozen",
            f"After {FREEZE_STEPS} steps with a learning rate of {FREEZE_LR:g}, {told['unmoved']:.0%} of the weights"
            " are exactly where they began.",
            "each weight moves, by about the learning rate in a step",
        )
    windows_differ(told["windows"], FREEZE_STEPS, "bfloat16", 0, _batch, PLAIN)
    if told["apart"] > 0.2:
        raise Difference(
            "other way",
            f"The weights go another way than those of a twin in float32: {told['far']:.2g} times as far, and"
            f" {told['apart']:.0%} apart.",
            "at most 20% apart",
        )
    return [
        f"{FREEZE_STEPS} steps of AdamW with a learning rate of {FREEZE_LR:g}: no weight is where it began",
        f"the layers give bfloat16, and the weights go the way of a twin in float32 ({told['apart']:.0%} apart)",
    ]


def judge_counter(answer: Answer) -> list[str]:
    for case in answer.on_ranks("mend.counter", ranks=1)[0]["cases"]:
        words = f"{case['n']} samples"
        if case["forwards"] != case["n"]:
            raise Difference(
                "forwards", f"The model runs {case['forwards']} times for {words}.", "once for each sample"
            )
        if case["layers"] != ["bfloat16"]:
            raise Difference("no autocast", f"The model gives {some(case['layers'])} ({words}).", "bfloat16")
        if abs(case["value"] - case["right"]) > 1e-6:
            right, got = apart(case["right"], case["value"])
            raise Difference("count", f"The accuracy is wrong ({words}).", right, [got])
    return [f"streams of {some([n for n, _ in STREAMS])} samples: the accuracy is exact, with the model in bfloat16"]


def judge_skipped(answer: Answer) -> list[str]:
    skips = 0
    for case in answer.on_ranks("mend.skipped", ranks=1, said=SAID)[0]["cases"]:
        windows_differ(
            case["windows"], case["count"], "float16", case["scaled"], _batch, "the gradient of a twin in float32"
        )
        skips += sum(not window["steps"] for window in case["windows"])
    return [
        (
            f"{sum(n for n, *_ in SKIP_CASES)} batches, {skips} of them skipped: weights, optimizer and schedule stand"
            " still"
        ),
        "after every other step the schedule moves once, also where the scale grows",
    ]
