"""The loss scale over the gradients that a training really had: which share a 16-bit format makes zero or infinite."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

from ..figures.canvas import BLUE, GREY, INK, SKY, VERMILION
from ..predict import FORMATS, Format
from ..results.recorded import sweeps
from .controls import Control
from .drawing import Drawing, View
from .explorer import Explorer, Found, Question, Values, opening
from .parts import LEFT, WIDE
from .recorded_grid import source

# The gradients that a training really had, and which share of them a format makes zero or infinite: what
# `explore.loss_scale()` draws.

MOST = 40  # the largest scale, as a power of two


@cache
def counts() -> tuple[Mapping[tuple[int, str], Mapping[int, int]], str]:
    """Numbers by exponent for each (steps, of), and where and when they were recorded."""
    ((run,),) = sweeps("08_gradients")[0].runs
    found: dict[tuple[int, str], dict[int, int]] = {}
    for record in run.ranks[0].records:
        if "exponent" in record:
            found.setdefault((record["step"], record["what"]), {})[record["exponent"]] = record["count"]
    return found, source(run.provenance)


def shares(row: Mapping[int, int], scale: int, held: Format) -> tuple[float, float, float]:
    """The shares that become zero, that keep fewer digits than the format has, and that become infinite. From 2^e to
    2^(e+1) all have one fate: below half of the smallest number, a power of two, they round to zero."""
    total = sum(row.values())
    zero = sum(n for e, n in row.items() if 2.0 ** (e + scale) < held.smallest / 2)
    fewer = sum(n for e, n in row.items() if held.smallest / 2 <= 2.0 ** (e + scale) < held.smallest_normal)
    return zero / total, fewer / total, sum(n for e, n in row.items() if 2.0 ** (e + scale) > held.max) / total


def good(row: Mapping[int, int], held: Format) -> list[int]:
    """The scales that make nothing infinite, and as little zero as any of them."""
    safe = [s for s in range(MOST + 1) if not shares(row, s, held)[2]]
    least = min(shares(row, s, held)[0] for s in safe)
    return [s for s in safe if shares(row, s, held)[0] <= max(least, 0.0005)]


HELD = {"fp16": "fp16", "bf16": "bf16", "fp8 e5m2": "fp8 e5m2"}
OF = {"activations": "activations", "weights": "weights"}
STEPS = (0, 30, 120, 480)
CONTROLS = (
    Control("scale", "loss scale 2^", 0, "the power of two that multiplies the loss, and so every gradient", 0, MOST),
    Control("steps", "training steps", 480, "how long the model had trained", choices={str(n): n for n in STEPS}),
    Control("of", "gradients of", "activations", "activations, as backward passes them on, or weights", choices=OF),
    Control("format", "format", "fp16", "what the gradients are stored in", choices=HELD, more=True),
)
LEAVES_OUT = (
    "other models: larger ones, and a mean over more samples, have smaller gradients. Sums inside a product, which can"
    " overflow where no gradient does. GradScaler, which moves the scale for you: down by half when something is"
    " infinite, up after 2000 good steps. A power of two holds all gradients from there to the next one."
)
FIRST, LAST = -56, 34  # powers of two on the axis


def render(values: Values, found: Found, answered: bool = True) -> View:
    """The histogram of the gradients times the scale, over what the format can hold; below, what every scale does."""
    recorded, where = counts()
    row, held, scale = recorded[values["steps"], values["of"]], FORMATS[values["format"]], values["scale"]
    zero, fewer, over = shares(row, scale, held)
    drawing = Drawing(400 if answered else 236)
    title = f"Times 2^{scale}: {held.name} makes {_percent(zero)} of them zero, {_percent(over)} infinite"
    if not answered:
        title = "How many of these gradients does fp16 make zero?"
    drawing.text(12, 24, title, 15, bold=True)
    low, tall = 180.0, 120.0
    unit = WIDE / (LAST - FIRST)

    def at(power: float) -> float:
        return LEFT + unit * (min(max(power, FIRST), LAST) - FIRST)

    most = max(row.values())
    ends = [(FIRST, math.log2(held.smallest / 2), "zero"), (math.log2(held.max * (1 + held.eps)), LAST, "infinite")]
    for start, end, words in ends if answered else []:
        if end > start and at(end) > at(start):
            drawing.bar(at(start), low - tall, at(end) - at(start), tall, "#E4E4E4")
            drawing.text((at(start) + at(end)) / 2, low - tall - 4, words, 12, "middle")
    for exponent, count in row.items():
        power = exponent + scale
        lost = answered and (2.0**power < held.smallest / 2 or 2.0**power > held.max)
        few = answered and not lost and 2.0**power < held.smallest_normal
        color, hatch = (VERMILION, "///") if lost else (SKY, "...") if few else (BLUE, "")
        height = max(tall * count / most, 1.0)
        if FIRST <= power < LAST:
            drawing.bar(
                at(power), low - height, unit, height, color, hatch, f"2^{power}: {count:,} gradients", edge_width=0.4
            )
    drawing.line([(LEFT, low), (LEFT + WIDE, low)], "#888888", 1)
    for power in range(-50, LAST, 10):
        drawing.line([(at(power), low), (at(power), low + 4)], "#888888", 1)
        drawing.text(at(power), low + 17, f"2^{power}" if power else "1", 11, "middle")
    drawing.text(12, 52, "how many", 12)
    drawing.text(LEFT + WIDE, low + 34, f"size times the scale ({where})", 11, "end")
    if answered:
        drawing.text(LEFT + WIDE, low + 50, "pale: fewer digits; hatched: lost", 11, "end")
    if not answered:
        return View.of(
            drawing, f"The gradients by their size, {where}. What {held.name} makes of them shows after your guess."
        )
    best = good(row, held)
    _curve(drawing, 240, row, held, scale, best)
    window = f"From 2^{best[0]} to 2^{best[-1]}" if len(best) > 1 else f"At 2^{best[0]}"
    said = f"Times 2^{scale}, {_percent(zero)} become zero, {_percent(fewer)} lose digits, {_percent(over)} become"
    said += " infinite, and one is enough to skip the step." if over else " infinite."
    return View.of(
        drawing, f"{said} {window} nothing is infinite, and next to nothing is lost. ({where[0].upper()}{where[1:]}.)"
    )


def _curve(drawing: Drawing, y: float, row: Mapping[int, int], held: Format, scale: int, best: list[int]) -> None:
    """The shares that become zero and infinite, for every scale."""
    low, tall = y + 112, 84.0

    def at(power: float, share: float) -> tuple[float, float]:
        return LEFT + WIDE * power / MOST, low - tall * share

    left, right = at(best[0], 0)[0], at(best[-1], 0)[0]
    drawing.bar(left - 3, low - tall, right - left + 6, tall, "#DDF0E9", tip="nothing infinite, next to nothing zero")
    drawing.text(12, y + 14, "share lost, by scale", 12)
    drawing.text(LEFT + WIDE, y + 14, "— zero   - - infinite   green: a good scale", 12, "end")
    drawing.line([(LEFT, low - tall), (LEFT, low), (LEFT + WIDE, low)], "#888888", 1)
    for share in (0, 0.5, 1):
        drawing.text(LEFT - 8, low - tall * share + 4, f"{share:.0%}", 11, "end")
    every = [shares(row, power, held) for power in range(MOST + 1)]
    drawing.line([at(power, found[0]) for power, found in enumerate(every)], INK, 2.2)
    drawing.line([at(power, found[2]) for power, found in enumerate(every)], VERMILION, 2.2, "6 4")
    for power in range(0, MOST + 1, 8):
        drawing.text(at(power, 0)[0], low + 17, f"2^{power}", 11, "middle")
    drawing.line([at(scale, 0), at(scale, 1)], GREY, 1.4, "2 3")
    for share, color in ((every[scale][0], INK), (every[scale][2], VERMILION)):
        drawing.dot(*at(scale, share), color)


def _percent(share: float) -> str:
    return (
        "0%"
        if not share
        else "under 0.01%"
        if share < 1e-4
        else f"{100 * share:.2g}%"
        if share < 0.1
        else f"{share:.0%}"
    )


def loss_scale(**settings: Any) -> Explorer:
    """What a loss scale does to recorded gradients. `settings` are scale, steps, of and format."""
    fp16, choices = FORMATS["fp16"], ("more of them early", "as many early as late", "more of them late")

    def judge(guess: str | None) -> str:
        lost = [shares(counts()[0][steps, "activations"], 0, fp16)[0] for steps in STEPS]
        right = choices[2] if lost[-1] > 2 * lost[0] else choices[0] if lost[0] > 2 * lost[-1] else choices[1]
        first = opening(guess, right)
        told = ", ".join(f"{_percent(share)} after {steps} steps" for share, steps in zip(lost, STEPS, strict=True))
        return (
            f"{first}There are {right}. fp16 makes {told} zero. As the loss falls, so do the gradients. Now find a"
            " scale that saves nearly all."
        )

    text = (
        "Without a loss scale, fp16 makes some gradients of this small transformer zero. When are there more of them:"
        " early in training, or late?"
    )
    question = Question(text, choices, judge)
    return Explorer("loss_scale", CONTROLS, render, given=settings, leaves_out=LEAVES_OUT, question=question)
