"""Lesson 08, exercises 3 and 5: how a training loop in mixed precision differs from what it should do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..judging import Answer, apart, differ, require, some
from .cases import CLIPPED, FREEZE_LR, FREEZE_STEPS, SKIP_CASES, STAIRCASE, STREAMS

# Right answers are at most 0.02 away from the twin in float32, relative to its size, and mistakes at least 0.1.
NEAR = 0.06
TINY = 0.02  # of the twin's gradient: it was clipped while it was still scaled, or divided by a scale that it never had
SAFE_SCALE = 2.0**12  # with which no gradient of ours becomes infinite
# What's said of the twin whose gradient was expected.
PLAIN, EXPECTED, TWINS = ", within the tolerance of 16 bits", ", clipped, within the tolerance of 16 bits", ""
# What torch's scaler says when its calls come in another order than unscale_, step, update, or aren't one of each.
SAID = {
    r"since the last update|called after step\(\)|No inf checks were recorded": "order",
    r"_scale is None": "no scaler",
    r"unscale FP16 gradients": "weights",
}
# Mistakes whose gradients have twins: the names are symptoms.
GRADIENTS = ("unclipped", "sum", "last window", "last micro-batch", "old gradients")


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
    require(ran == count, "forwards", how="batches", ran=ran, count=count)
    for i, window in enumerate(windows):
        _types(window, dtype, where(i))
        require(dtype != "float16" or scaled, "no scaler", case=where(i))
        _stepped(window, where(i))
        if window["steps"] and window["off"][""] > NEAR:
            _gradient(window, where(i), expected)
        _schedule(window, where(i))


def _types(window: dict[str, Any], dtype: str, case: str) -> None:
    require(window["weights"] == ["float32"], "weights", weights=some(window["weights"]), case=case)
    symptom = "no autocast" if "float32" in window["layers"] else "another type"
    layers = some(window["layers"])
    require(window["layers"] == [dtype], symptom, how="layers", layers=layers, dtype=dtype, case=case)
    require(window["steps"] <= 1, "steps", steps=window["steps"], case=case)
    how, off = "earlier" if window["first"] > 0 else "other", window["fresh"]
    require(off <= NEAR, "stale", [f"{off:.0%} off"], how=how, near=NEAR, case=case)


def _stepped(window: dict[str, Any], case: str) -> None:
    steps, fell = window["steps"], window["scale"][1] < window["scale"][0]
    require(not steps or not window["broken"] and window["finite"], "not skipped", case=case)
    if steps:
        return
    skips = window["broken"] or fell and window["scale"][0] > SAFE_SCALE
    require(skips, "no step", case=case)
    how = "weights" if window["moved"] else "optimizer"
    require(not window["moved"] and window["held"], "moves", how=how, case=case)
    require(fell, "no update", scale=window["scale"][0], case=case)


def _gradient(window: dict[str, Any], case: str, expected: str) -> None:
    got = [f"{window['off']['']:.0%} off, {window['ratio']:.2g} times as long"]
    require(window["ratio"] >= TINY, "clipped too early", got, case=case, twin=expected)
    symptom = next((how for how in GRADIENTS if window["off"][how] < NEAR), "gradient")
    differ(symptom, got, case=case, twin=expected)


def _schedule(window: dict[str, Any], case: str) -> None:
    moved = window["schedule"][1] - window["schedule"][0]
    if moved == window["steps"] or not window["scheduled"]:
        return
    require(window["steps"], "schedule moves", how="skipped", case=case)
    grew = window["scale"][1] > window["scale"][0]
    differ("schedule moves" if moved else "schedule stands", how="grew" if grew else "step", moved=moved, case=case)


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
        differ("losses", [got], where=where(i), right=right)


def judge_clipped(answer: Answer) -> list[str]:
    for case in answer.on_ranks("mend.clipped", ranks=1, said=SAID)[0]["cases"]:
        windows_differ(case["windows"], case["count"], "float16", case["scaled"], _batch)
        for i, (norm, window) in enumerate(zip(case["norms"], case["windows"], strict=True)):
            if not window["broken"] and abs(norm - window["norm"]) > NEAR * window["norm"]:
                right, got = apart(window["norm"], norm)
                after = abs(norm - window["norm"] * window["scale"][0]) < NEAR * norm
                differ("norm", [got], how="scaled" if after else "other", batch=i + 1, right=right)
    return [
        f"{sum(n for n, *_ in CLIPPED)} batches in float16: each step has the gradient of a twin in float32, clipped",
        "the norms are those of the gradients, before the clip",
    ]


def judge_frozen(answer: Answer) -> list[str]:
    told = answer.on_ranks("mend.frozen", ranks=1)[0]
    require(told["unmoved"] <= 0.01, "frozen", steps=FREEZE_STEPS, lr=FREEZE_LR, unmoved=told["unmoved"])
    windows_differ(told["windows"], FREEZE_STEPS, "bfloat16", 0, _batch, PLAIN)
    require(told["apart"] <= 0.2, "other way", far=told["far"], apart=told["apart"])
    return [
        f"{FREEZE_STEPS} steps of AdamW with a learning rate of {FREEZE_LR:g}: no weight is where it began",
        f"the layers give bfloat16, and the weights go the way of a twin in float32 ({told['apart']:.0%} apart)",
    ]


def judge_counter(answer: Answer) -> list[str]:
    for case in answer.on_ranks("mend.counter", ranks=1)[0]["cases"]:
        n = case["n"]
        require(case["forwards"] == n, "forwards", how="samples", ran=case["forwards"], count=n)
        words = f"{n} samples"
        require(case["layers"] == ["bfloat16"], "no autocast", how="model", layers=some(case["layers"]), case=words)
        right, got = apart(case["right"], case["value"])
        require(abs(case["value"] - case["right"]) <= 1e-6, "count", [got], case=words, right=right)
    return [f"streams of {some([n for n, _ in STREAMS])} samples: the accuracy is exact, with the model in bfloat16"]


def judge_skipped(answer: Answer) -> list[str]:
    skips = 0
    for case in answer.on_ranks("mend.skipped", ranks=1, said=SAID)[0]["cases"]:
        windows_differ(case["windows"], case["count"], "float16", case["scaled"], _batch, TWINS)
        skips += sum(not window["steps"] for window in case["windows"])
    return [
        (
            f"{sum(n for n, *_ in SKIP_CASES)} batches, {skips} of them skipped: weights, optimizer and schedule stand"
            " still"
        ),
        "after every other step the schedule moves once, also where the scale grows",
    ]
