"""Lesson 08: what its exercises ask for, and the symptom of each way in which an answer can fail that."""

from __future__ import annotations

import math
import random
from typing import Any

from ..judging import Answer, Exercise, apart_all, differ, require, some
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
    becomes = made[other]
    facts: dict[str, Any] = {"case": case, "keeper": keeper, "other": other, "kept": made[keeper], "becomes": becomes}
    require(made["float32"] == x, "not float32", [f"it makes {made['float32']:.9g} of it"], **facts)
    require(made[keeper] == x, "not kept", **facts)
    require(becomes != x, "kept by both", **facts)
    is_so = {"large": math.isinf(becomes), "small": becomes == 0, "few digits": becomes != 0 and math.isfinite(becomes)}
    require(is_so.get(question, True), "another reason", how=question, **facts)
    if question == "whole" and x != SMALLEST_WHOLE:
        differ("not the smallest", how="broken" if x != int(x) else "larger", **facts)
    require(said == becomes, "rounded", [f"{said:.9g}"], **facts)


def _frozen(step: float, dtype: str, weight: float) -> None:
    half = 2.0 ** -MANTISSA[dtype] / 2  # half of the way from 1 to the next number
    right = 2.0 ** math.ceil(math.log2(step / half))
    if weight == right:
        return
    tie = step == half * right
    symptom = "frozen too late"
    if weight <= 0 or math.log2(weight) % 1 or math.isinf(weight):
        symptom = "no power of two"
    elif weight < right:
        symptom = "still moves"
    elif tie and weight == 2 * right:
        symptom = "tie"
    differ(symptom, [f"{weight:.9g}"], step=step, dtype=dtype, right=right)


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
    facts: dict[str, Any] = {
        "case": case, "dtype": seen["dtype"], "before": real["before"], "gradient": factors[i], "scale": real["scale"],
        "backoff": settings.get("backoff", 0.5), "interval": settings["interval"], "good": good,
    }  # fmt: skip
    require(seen["dtype"] == "torch.float32", "loss", how="type", **facts)
    if good and seen["loss"] != real["loss"]:
        right, got = apart_all([real["loss"]], [seen["loss"]])
        differ("loss", got, how="times", right=right[0], **facts)
    require(seen["kept"], "loss", how="changed", **facts)
    require(good or not seen["moved"], "steps on NaN" if math.isnan(factors[i]) else "steps on infinity", **facts)
    require(not good or seen["moved"], "no step", **facts)
    gaps = [max(map(_apart, mine, theirs)) for mine, theirs in zip(seen["weights"], real["weights"], strict=True)]
    if max(gaps) != 0:
        far, one = max(gaps) > 5, gaps[0] == 0  # the weights of the optimizer's first group
        symptom = "unused" if not any(gaps[:2]) else "groups" if one else "not divided" if far else "weights"
        differ(symptom, [f"{max(gaps):.2g} apart"], **facts)
    gone = all(not values or not any(values) for values in seen["left"])
    require(not good or seen["left"] == real["left"], "gradients", how="gone" if gone else "others", **facts)
    if seen["scale"] != real["scale"]:
        raised = real["scale"] > real["before"]
        symptom = "no back-off" if not good else "no growth" if raised else "grows early"
        differ(symptom, [f"{seen['scale']:g}"], **facts)
    require(seen["went"] is good, "returns", [str(seen["went"])], **facts)


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
    require(seen["weights"] == ["float32"], "weights", [some(seen["weights"])], case=case)
    require(seen["modes"], "mode", case=case)
    require(not seen["cleared"], "cleared", case=case)
    require(not seen["left_on"], "left on", case=case)
    for part in ("features", "head"):
        outputs = seen["outputs"][part]
        require(outputs == [dtype], f"{part} not lower", [some(outputs)], part=part, dtype=dtype, case=case)
    require(len(seen["energy"]) == 1, "energy calls", calls=len(seen["energy"]), case=case)
    given, autocast_on, mixed = seen["energy"][0]
    require(given == "float32", "energy given 16 bits", given=given, case=case)
    require(seen["handed_on"], "other numbers", case=case)
    require(not autocast_on and mixed == "float32", "energy under autocast", mixed=mixed, case=case)
    require(seen["gives"] == "float32", "output", gives=seen["gives"], case=case)
    require(seen["finite"] and seen["gap"] <= 0.2, "far", [f"{seen['gap']:.3g}"], case=case)
    require(seen["gradients"], "no gradient", case=case)
    require(seen["apart"] <= 0.2, "gradient lost", [f"{seen['apart']:.0%}"], case=case)


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
