"""Lesson 08: what its exercises ask for, and the symptom of each way in which an answer can fail that."""

from __future__ import annotations

import math
import random
from typing import Any

from ..judging import Answer, Difference, Exercise, apart_all, some
from .cases import DTYPES_TRIED, QUESTIONS, SCALER_CASES, frozen_cases, random_trainings
from .convert_judge import judge_convert
from .loops_judge import judge_clipped, judge_counter, judge_frozen, judge_skipped, judge_staircase

# --- 08.1 -------------------------------------------------------------------------------------------------------------

SMALLEST_WHOLE = 257
MANTISSA = {"bfloat16": 7, "float16": 10, "float32": 23}  # bits of it


def judge_formats(answer: Answer) -> list[str]:
    cases = frozen_cases(random.Random())
    told = answer.on_ranks("formats", ranks=1, given=cases)[0]
    for question in QUESTIONS:
        x, said = told["pairs"][question]
        _question(question, x, said, told["made"][question])
    for (step, dtype), weight in zip(cases, told["weights"], strict=True):
        _frozen(step, dtype, weight)
    return [
        "five numbers, each with what the other format makes of it",
        f"{len(cases)} steps in bfloat16, float16 and float32: from which weight on they do nothing",
    ]


def _question(question: str, x: float, said: float, made: dict[str, float]) -> None:
    keeper, other = ("fp16", "bf16") if question in ("digits", "whole") else ("bf16", "fp16")
    case = f'"{question}": {x:.9g}'
    if made["float32"] != x:
        raise Difference(
            "not float32",
            f"Float32 has no such number ({case}).",
            "a number of float32",
            [f"it makes {made['float32']:.9g} of it"],
        )
    if made[keeper] != x:
        raise Difference(
            "not kept", f"{keeper} makes {made[keeper]:.9g} of it ({case}).", f"a number that {keeper} keeps"
        )
    becomes = made[other]
    if becomes == x:
        raise Difference("kept by both", f"{other} keeps it, too ({case}).", f"a number that {other} doesn't keep")
    asked = {"large": "infinite", "small": "0", "few digits": "another number, neither 0 nor infinite"}
    is_so = {"large": math.isinf(becomes), "small": becomes == 0, "few digits": becomes != 0 and math.isfinite(becomes)}
    if not is_so.get(question, True):
        raise Difference(
            "another reason", f"{other} makes {becomes:.9g} of it ({case}).", f"a number that becomes {asked[question]}"
        )
    if question == "whole" and x != SMALLEST_WHOLE:
        what = "isn't whole" if x != int(x) else "isn't the smallest"
        raise Difference("not the smallest", f"It {what} ({case}).", "the smallest whole number that bf16 doesn't keep")
    if said != becomes:
        raise Difference("rounded", f"{other} makes another number of it ({case}).", f"{becomes:.9g}", [f"{said:.9g}"])


def _frozen(step: float, dtype: str, weight: float) -> None:
    half = 2.0 ** -MANTISSA[dtype] / 2  # half of the way from 1 to the next number
    right = 2.0 ** math.ceil(math.log2(step / half))
    if weight == right:
        return
    tie = step == half * right
    symptom, words = "frozen too late", "a smaller weight stays as it is, too"
    if weight <= 0 or math.log2(weight) % 1 or math.isinf(weight):
        symptom, words = "no power of two", "that's no power of two"
    elif weight < right:
        symptom, words = "still moves", "that weight does move"
    elif tie and weight == 2 * right:
        symptom, words = "tie", "for half of that weight the sum lies in the middle of two numbers"
    raise Difference(
        symptom,
        f"`frozen_from` gives another weight for {step:g} in {dtype}: {words}.",
        f"{right:.9g}",
        [f"{weight:.9g}"],
    )


# --- 08.2 -------------------------------------------------------------------------------------------------------------


def judge_scaler(answer: Answer) -> list[str]:
    cases = [*SCALER_CASES, *random_trainings(random.Random())]
    told = answer.on_ranks("scaler", ranks=1, given=cases)[0]["cases"]
    twins = answer.on_ranks("scaler_twin", ranks=1, given=cases)[0]["cases"]
    for steps, twin, (factors, settings) in zip(told, twins, cases, strict=True):
        for i, (seen, real) in enumerate(zip(steps, twin, strict=True)):
            _scaler_step(i, seen, real, factors, settings)
    return [
        (
            f"{sum(len(factors) for factors, _ in cases)} steps, compared with torch's GradScaler: the same weights"
            " and the same scale after each, bit for bit"
        ),
        "infinite and NaN gradients skip a step; a parameter without a gradient does no harm",
    ]


def _scaler_step(
    i: int, seen: dict[str, Any], real: dict[str, Any], factors: list[float], settings: dict[str, float]
) -> None:
    good = math.isfinite(factors[i])
    case = (
        f"step {i + 1}; the gradients of the steps:"
        f" {', '.join('finite' if math.isfinite(f) else str(f) for f in factors[: i + 1])};"
        f" {', '.join(f'{name} {value:g}' for name, value in settings.items())}"
    )
    if seen["dtype"] != "torch.float32":
        raise Difference("loss", f"`multiply` returns {seen['dtype']} ({case}).", "torch.float32, as the loss is")
    if good and seen["loss"] != real["loss"]:
        right, got = apart_all([real["loss"]], [seen["loss"]])
        raise Difference(
            "loss",
            f"`multiply` does not return the loss times the scale ({case}).",
            f"the loss times {real['before']:g}, {right[0]}",
            got,
        )
    if not seen["kept"]:
        raise Difference(
            "loss",
            f"`multiply` changes the loss that it is given ({case}).",
            "the caller's loss as it was, to be printed",
        )
    if not good and seen["moved"]:
        symptom = "steps on NaN" if math.isnan(factors[i]) else "steps on infinity"
        raise Difference(
            symptom,
            f"The optimizer took a step although a gradient is {factors[i]} ({case}).",
            "no weight changes in this step",
        )
    if good and not seen["moved"]:
        raise Difference("no step", f"The optimizer took no step although all gradients are finite ({case}).", "a step")
    gaps = [max(map(_apart, mine, theirs)) for mine, theirs in zip(seen["weights"], real["weights"], strict=True)]
    if max(gaps) != 0:
        far = max(gaps) > 5
        one = gaps[0] == 0  # the weights of the optimizer's first group
        symptom = "unused" if not any(gaps[:2]) else "groups" if one else "not divided" if far else "weights"
        said = {
            "unused": "A weight that took no part in the loss has changed",
            "groups": "Only the gradients of the optimizer's first group are divided by the scale",
            "not divided": "The gradients are not divided by the scale before the step",
            "weights": "The weights differ from those of torch's GradScaler",
        }[symptom]
        raise Difference(
            symptom,
            f"{said} ({case}).",
            "the weights of a training with torch.amp.GradScaler, bit for bit",
            [f"{max(gaps):.2g} apart"],
        )
    if good and seen["left"] != real["left"]:
        gone = all(not values or not any(values) for values in seen["left"])
        raise Difference(
            "gradients",
            f"After `step` the gradients are {'gone' if gone else 'others'} ({case}). Whoever called it may want to log"
            " them.",
            "the gradients, divided by the scale",
        )
    if seen["scale"] != real["scale"]:
        raised = real["scale"] > real["before"]
        symptom = "no back-off" if not good else "no growth" if raised else "grows early"
        said = {
            "no back-off": f"After a skipped step the scale is not multiplied by {settings.get('backoff', 0.5):g}",
            "no growth": f"The scale does not grow after {settings['interval']:g} good steps in a row",
            "grows early": "The scale changes when it should stay the same",
        }[symptom]
        raise Difference(
            symptom, f"{said} ({case}).", f"a scale of {real['scale']:g} after this step", [f"{seen['scale']:g}"]
        )
    if seen["went"] is not good:
        raise Difference(
            "returns",
            f"`step` does not say whether the optimizer took a step ({case}).",
            str(good),
            [str(seen["went"])],
        )


def _apart(a: float, b: float) -> float:
    gap = abs(a - b)
    return gap if gap == gap else math.inf


# --- 08.4 -------------------------------------------------------------------------------------------------------------


def judge_layers(answer: Answer) -> list[str]:
    told = answer.on_ranks("layers", ranks=1)[0]
    for seen, dtype in zip(told["cases"], DTYPES_TRIED, strict=True):
        _layers_case(seen, dtype)
    return [
        f"in {' and '.join(DTYPES_TRIED)}: `features` and `head` give 16 bits, `energy` gets and computes float32",
        "a finite float32 output, near the one without autocast; a gradient for every weight; weights still in float32",
    ]


def _layers_case(seen: dict[str, Any], dtype: str) -> None:
    case = f"dtype={dtype}"
    if seen["weights"] != ["float32"]:
        raise Difference(
            "weights", f"The weights of the model were changed ({case}).", "float32 weights", [some(seen["weights"])]
        )
    if not seen["modes"]:
        raise Difference(
            "mode",
            f"The model, or a part of it, is in another mode than before: train() or eval() ({case}).",
            "the mode that it was in",
        )
    if seen["cleared"]:
        raise Difference(
            "cleared", f"A gradient that was there before the call is gone ({case}).", "gradients as they were"
        )
    if seen["left_on"]:
        raise Difference("left on", f"Autocast is still on after the call ({case}).", "autocast as it was before")
    for part in ("features", "head"):
        if seen["outputs"][part] != [dtype]:
            raise Difference(
                f"{part} not lower",
                f"`{part}` does not run once in {dtype} ({case}).",
                f"one output in {dtype}",
                [some(seen["outputs"][part])],
            )
    if len(seen["energy"]) != 1:
        raise Difference("energy calls", f"`energy` runs {len(seen['energy'])} times ({case}).", "once")
    given, autocast_on, mixed = seen["energy"][0]
    if given != "float32":
        raise Difference("energy given 16 bits", f"`energy` is given {given} ({case}).", "float32")
    if not seen["handed_on"]:
        raise Difference(
            "other numbers",
            f"`energy` is given float32, but not the numbers that `features` returned ({case}).",
            "the output of `features`, each number as it is",
        )
    if autocast_on or mixed != "float32":
        raise Difference(
            "energy under autocast",
            f"`energy` is given float32, but computes under autocast, its layer in {mixed} ({case}).",
            "float32 throughout",
        )
    if seen["gives"] != "float32":
        raise Difference("output", f"The output is {seen['gives']} ({case}).", "float32")
    if not seen["finite"] or seen["gap"] > 0.2:
        raise Difference(
            "far",
            f"The output is far from that in float32 ({case}).",
            "a difference of at most 0.2",
            [f"{seen['gap']:.3g}"],
        )
    if not seen["gradients"]:
        raise Difference(
            "no gradient",
            f"Not every weight gets a finite gradient from the output ({case}).",
            "a gradient for every weight",
        )
    if seen["apart"] > 0.2:
        differs = f"The gradients of `features` differ from those in float32 ({case})."
        raise Difference("gradient lost", differs, "at most 20% of their norm", [f"{seen['apart']:.0%}"])


LOOPS = {
    "a": ("a loss like stairs", judge_staircase),
    "b": ("a norm of thousands", judge_clipped),
    "c": ("weights that don't move", judge_frozen),
    "d": ("always right", judge_counter),
    "e": ("a schedule ahead of its training", judge_skipped),
}
# The faulty loops as the notebook hands them out, and the trainer of 08.5; a test compares them with it.
HANDED_OUT = {"a": "f35b1bfb1ad8", "b": "0af0ccc888e7", "c": "237b03b3c202", "d": "f58cd7c0838c", "e": "71419b8ab7cc"}
SCRIPT = "2eef825ae7b3"

EXERCISES = {
    e.name: e
    for e in [
        Exercise("08.1", "two formats, five numbers", judge_formats, how=""),
        Exercise("08.2", "write a loss scaler", judge_scaler, how=""),
        *(Exercise(f"08.3{k}", f"mend: {title}", judge, HANDED_OUT[k], how="") for k, (title, judge) in LOOPS.items()),
        Exercise("08.4", "keep the right layers in float32", judge_layers, how=""),
        Exercise("08.5", "convert a trainer", judge_convert, SCRIPT, how=""),
    ]
}
