"""Lesson 08: what its exercises ask for, and the symptom of each way in which an answer can fail that."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

from ..judging import Answer, Difference, Exercise, apart_all, some
from .cases import (
    DTYPES_TRIED,
    GRADIENT_CASES,
    INFINITE_FROM,
    LARGEST,
    SCALE_CASES,
    SCALER_CASES,
    SPEED_CASES,
    random_gradients,
    random_steps,
    random_trainings,
)

HALF_OF_SMALLEST = 2.0**-25  # from here on fp16 rounds up to its smallest number
SMALLEST_NORMAL = 2.0**-14


def _close(a: Sequence[float], b: Sequence[float], within: float = 1e-6) -> bool:
    return all(abs(x - y) <= within * max(1.0, abs(y)) for x, y in zip(a, b, strict=True))


# --- 08.1 -------------------------------------------------------------------------------------------------------------


def _share_facts(rows: list[list[float]], scale: float) -> dict[str, tuple[float, float]]:
    """The shares that become zero and infinite, and what known mistakes make of them."""

    def lost(numbers: list[float], times: float = scale, below: float = HALF_OF_SMALLEST) -> int:
        return sum(0 < abs(v) * times <= below for v in numbers)

    def over(numbers: list[float], times: float = scale) -> int:
        return sum(abs(v) * times >= INFINITE_FROM for v in numbers)

    everything = [v for row in rows for v in row]
    n = sum(v != 0 for v in everything)
    by_row = [(lost(row), over(row), max(1, sum(v != 0 for v in row))) for row in rows]
    early = sum(0 < abs(v) <= HALF_OF_SMALLEST for v in everything)
    above_largest = sum(abs(v) * scale > LARGEST for v in everything)
    below_normal = sum(0 < abs(v) * scale < SMALLEST_NORMAL for v in everything)
    return {
        "": (lost(everything) / n, over(everything) / n),
        "zeros counted": ((lost(everything) + len(everything) - n) / n, over(everything) / n),
        "zeros counted, of all": (
            (lost(everything) + len(everything) - n) / len(everything),
            over(everything) / len(everything),
        ),
        "of all": (lost(everything) / len(everything), over(everything) / len(everything)),
        "mean of means": (sum(a / c for a, _, c in by_row) / len(rows), sum(b / c for _, b, c in by_row) / len(rows)),
        "one tensor": (by_row[0][0] / by_row[0][2], by_row[0][1] / by_row[0][2]),
        "no scale": (lost(everything, 1.0) / n, over(everything, 1.0) / n),
        "scaled after the cast": (early / n, over(everything) / n),
        "divided": (lost(everything, 1 / scale) / n, over(everything, 1 / scale) / n),
        "subnormal": (below_normal / n, over(everything) / n),
        "subnormal, above the largest": (below_normal / n, above_largest / n),
        "above the largest": (lost(everything) / n, above_largest / n),
        "counts": (lost(everything), over(everything)),
        "bf16": (0.0, 0.0),
        "swapped": (over(everything) / n, lost(everything) / n),
    }


SHARES_SAID = {
    "zeros counted": "Gradients that were zero already are counted as lost.",
    "zeros counted, of all": "Gradients that were zero already are counted as lost.",
    "of all": "The shares are of all numbers, including those that were zero already.",
    "mean of means": "The shares are means over the tensors, which differ in size.",
    "one tensor": "Only the first tensor counts.",
    "no scale": "The scale changes nothing.",
    "scaled after the cast": "The numbers are multiplied after they became fp16, and by then the small ones are zero.",
    "divided": "The gradients are divided by the scale.",
    "subnormal": "Numbers between 6e-8 and 6.1e-5 are counted as lost.",
    "subnormal, above the largest": "Numbers between 6e-8 and 6.1e-5 are counted as lost.",
    "above the largest": "Numbers just above 65,504 are counted as infinite.",
    "counts": "These are counts, not shares.",
    "bf16": "Nothing is lost, as in bf16.",
    "swapped": "The two shares are swapped.",
}


def _largest_scale(top: float) -> float:
    """The largest power of two with which `top` stays finite in fp16."""
    scale: float = 2.0 ** math.floor(math.log2(INFINITE_FROM / top))
    return scale if scale * top < INFINITE_FROM else scale / 2


def judge_underflow(answer: Answer) -> list[str]:
    shares, scales = random_gradients(random.Random())
    shares, scales = [*GRADIENT_CASES, *shares], [*SCALE_CASES, *scales]
    told = answer.on_ranks("underflow", ranks=1, given={"shares": shares, "scales": scales})[0]
    facts = [_share_facts(*case) for case in shares]
    fixed = list(zip(told["pairs"], facts, strict=True))[: len(GRADIENT_CASES)]  # in which known mistakes all differ
    for value, fact, (rows, scale) in zip(told["pairs"], facts, shares, strict=True):
        if not _close(value, fact[""]):
            known = [k for k in SHARES_SAID if all(_close(v, f[k]) for v, f in fixed)]
            case = f"gradients {some(rows, 4)}, scale {scale:g}"
            said = SHARES_SAID[known[0]] if known else "The shares are wrong"
            wanted, got = apart_all(fact[""], value)
            expected = f"{wanted[0]} become zero and {wanted[1]} infinite"
            symptom = known[0].partition(",")[0] if known else "shares"
            raise Difference(symptom, f"{said.rstrip('.')} ({case}).", expected, [f"{got[0]} and {got[1]}"])
    for scale, rows in zip(told["scales"], scales, strict=True):
        top = max(abs(v) for row in rows for v in row)
        right = _largest_scale(top)
        if scale != right:
            power = scale > 0 and math.log2(scale) == int(math.log2(scale))
            symptom = "no power of two" if not power else "too large" if scale > right else "too small"
            said = {
                "no power of two": "The scale isn't a power of two, so it would round each gradient.",
                "too large": "With this scale a gradient becomes infinite.",
                "too small": "A larger scale is safe too.",
            }[symptom]
            raise Difference(
                symptom,
                f"{said.rstrip('.')} (gradients {some(rows, 4)}).",
                f"{right:g}, which is 2^{math.log2(right):g}",
                [f"{scale:g}"],
            )
    return [
        (f"{len(shares)} sets of gradients: the shares that become zero and infinite, of those that were neither"),
        f"{len(scales)} times the largest power of two without an overflow",
    ]


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


# --- 08.3 -------------------------------------------------------------------------------------------------------------


def _speed_facts(
    products: float, rest: float, weights: float, ratio: float, rate: float
) -> dict[str, tuple[float, float]]:
    """Both ends of the bracket, and what known mistakes make of them."""
    casts = 12 * weights / rate

    def ends(fast: float, slow: float = 2.0, rest_s: float = rest, casts_s: float = casts) -> tuple[float, float]:
        before = products + rest
        low, high = sorted(before / (products / r + rest_s + casts_s) for r in (fast, slow))
        return low, high

    right = ends(ratio)
    first, second = ((products + rest) / (products / r + rest + casts) for r in (2.0, ratio))
    return {
        "": right,
        "no casts": ends(ratio, casts_s=0.0),
        "forward only": ends(ratio, casts_s=casts / 2),
        "casts gain": ends(ratio, casts_s=casts / 3),
        "rest gains": ends(ratio, rest_s=rest / 2),
        "no rest": (
            products / (products / sorted((2.0, ratio))[0] + casts),
            products / (products / sorted((2.0, ratio))[1] + casts),
        ),
        "low end is 1": ends(ratio, slow=1.0),
        "inverted": (1 / right[1], 1 / right[0]),
        "inverted, unsorted": (1 / right[0], 1 / right[1]),
        "swapped": (right[1], right[0]),
        "order": (first, second),
    }


SPEED_SAID = {
    "no casts": "The casts of the weights and of their gradients cost nothing.",
    "forward only": "Half of the casts are left out.",
    "casts gain": "The casts move 4 bytes for each weight.",
    "rest gains": "The rest becomes twice as fast too.",
    "no rest": "The rest of the step is left out.",
    "low end is 1": "At the low end, the products gain nothing.",
    "inverted": "The time after is divided by the time before.",
    "inverted, unsorted": "The time after is divided by the time before.",
    "swapped": "The high end comes first.",
    "order": "The first number is larger than the second on a device that computes slowly in 16 bits.",
}


def judge_speed(answer: Answer) -> list[str]:
    cases = SPEED_CASES | random_steps(random.Random())
    told = answer.on_ranks("speed", ranks=1, given=cases)[0]
    facts = [_speed_facts(*case) for case in cases.values()]
    fixed = list(zip(told["pairs"], facts, strict=True))[: len(SPEED_CASES)]  # in which known mistakes all differ
    for value, fact, name in zip(told["pairs"], facts, cases, strict=True):
        if not _close(value, fact[""]):
            known = [k for k in SPEED_SAID if all(_close(v, f[k]) for v, f in fixed)]
            said = SPEED_SAID[known[0]] if known else "The bracket is wrong"
            symptom = known[0].partition(",")[0] if known else "bracket"
            right, got = apart_all(fact[""], value)
            raise Difference(symptom, f"{said.rstrip('.')} ({name}).", " to ".join(right), [" to ".join(got)])
    three = [
        f"{name} {fact[''][0]:.1f} to {fact[''][1]:.1f}"
        for name, fact in zip(list(SPEED_CASES)[:3], facts, strict=False)
    ]
    return [
        (
            f"{len(cases)} steps, on devices that compute quickly, slowly or not at all in 16 bits: both ends,"
            " casts included"
        ),
        f"times as fast: {', '.join(three)}",
    ]


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


EXERCISES = {
    e.name: e
    for e in [
        Exercise("08.1", "find the underflow", judge_underflow, how=""),
        Exercise("08.2", "write a loss scaler", judge_scaler, how=""),
        Exercise("08.3", "predict the speed-up of three models", judge_speed, how=""),
        Exercise("08.4", "keep the right layers in float32", judge_layers, how=""),
    ]
}
