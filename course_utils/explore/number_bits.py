"""What a floating-point format makes of a number: its bits, its neighbours, and what other formats would keep."""

from __future__ import annotations

import math
from typing import Any

from ..figures.canvas import ORANGE, SKY
from ..predict import Format
from .bit_row import Number, part, stored
from .controls import Control
from .drawing import WIDTH, Drawing, View
from .explorer import Explorer, Found, Question, Values
from .number_line import STORED, neighbours, ranges, said

CONTROLS = (
    Control("format", "format", "bf16", "how many bits for exponent and mantissa", choices={n: n for n in STORED}),
    Number("number", "number", 1.003, "any number, such as 70000, 1e-8 or 2^-24", -3e38, 3e38, whole=False),
)
LEAVES_OUT = (
    "TF32, which is a way to multiply and no format to store: tensors stay fp32, and tensor cores round what they"
    " multiply to 10 bits of mantissa. Sums: tensor cores add up products of 16 bits in fp32, but torch lets libraries"
    " add the parts of a long sum in 16 bits. Scales: fp8 is used with a factor for each tensor or block. Rounding is"
    " to the nearest number, as torch does it; too large for fp8 e4m3, which has no infinity, is its largest number in"
    " torch 2.15 and NaN in older versions."
)
_FILLS = {"sign": "#DDDDDD", "exponent": ORANGE, "mantissa": SKY}


def render(values: Values, found: Found, answered: bool = True) -> View:
    """The bits of the number, what lies next to it, and what each format keeps of it."""
    held, number = STORED[values["format"]], values["number"]
    drawing = Drawing(392 if answered else 224)
    asked = held.value(stored(number, held)) if isinstance(number, str) else number
    if not answered:
        title = f"What does {held.name} make of {said(asked)}?"
        drawing.text(12, 24, title, 15, bold=True)
        ranges(drawing, 60, math.nan, False)
        return View.of(drawing, f"{title} The picture has the range of each format; the number shows after your guess.")
    pattern = stored(number, held)
    kept = held.value(pattern)
    title = _finding(held, asked, kept)
    drawing.text(12, 24, title, 15, bold=True)
    _bits(drawing, 40, pattern, held)
    near = neighbours(drawing, 122, pattern, held, asked)
    ranges(drawing, 232, asked, True)
    off = f", {100 * abs(kept / asked - 1):.2g}% off" if asked and 0 < abs(kept / asked - 1) < 1 else ""
    return View.of(drawing, f"{title}{off}. {near} {held.name} reaches from {held.smallest:.2g} to {held.max:.4g}.")


def _finding(held: Format, asked: float, kept: float) -> str:
    if math.isnan(kept):
        return f"These bits of {held.name} are NaN, not a number"
    if asked == kept:
        return f"{held.name} stores {said(asked)} exactly"
    if math.isinf(kept):
        return f"{held.name} makes {said(asked)} infinite"
    if math.isinf(asked) or abs(asked) > held.max * (1 + held.eps):
        return f"{held.name} makes {said(asked)} its largest number, {said(kept)}"
    if not kept:
        return f"{held.name} makes {said(asked)} zero"
    return f"{held.name} stores {said(asked)} as {said(kept)}"


def _bits(drawing: Drawing, y: float, pattern: int, held: Format) -> None:
    """A box for each bit, and how they make the number."""
    wide, x = min(26.0, (WIDTH - 24) / held.bits), 12.0
    starts: dict[str, float] = {}
    for place in reversed(range(held.bits)):
        what, bit = part(place, held), pattern >> place & 1
        starts.setdefault(what, x)
        drawing.bar(x, y, wide, 28, _FILLS[what], tip=f"{what}, bit {place}", edge_width=2)
        drawing.text(x + wide / 2, y + 19, str(bit), 14, "middle", bold=bool(bit))
        x += wide
    exponent, fraction = (pattern >> held.mantissa) % 2**held.exponent, pattern % 2**held.mantissa
    bias = 2 ** (held.exponent - 1) - 1
    lead, power = (1, exponent - bias) if exponent else (0, 1 - bias)
    sign = "−" if pattern >> (held.bits - 1) else "+"
    rest = pattern % 2 ** (held.bits - 1)
    if rest >= held.infinity:
        special = "infinity" if rest == held.infinity and not held.finite else "NaN"
        made = f"{special}: all bits of the exponent are 1" if not held.finite else "NaN: all bits are 1"
    else:
        made = f"{sign} {lead + fraction / 2**held.mantissa:.10g} × 2^{power}"
        made += "   (exponent 0: subnormal, no leading 1)" * (lead == 0 and fraction > 0)
    if held.bits > 8:
        for what, at in starts.items():
            drawing.text(at, y + 44, {"sign": "±"}.get(what, f"{what}, {getattr(held, what, 1)} bits"), 12)
    else:
        layout = f"sign, exponent of {held.exponent} bits, mantissa of {held.mantissa}"
        drawing.text(12, y + 44, layout, 12)
    drawing.text(12, y + 64, f"= {made}", 13)


def bits(**settings: Any) -> Explorer:
    """What a format makes of a number, bit by bit. `settings` are format and number."""
    choices = ("1.003, as asked", "1.0078125, the next one up", "1, as before")

    def judge(guess: str | None) -> str:
        kept = STORED["bf16"].value(STORED["bf16"].pattern(1.003))
        assert kept == 1.0
        first = "" if guess is None else "Yes. " if guess == choices[2] else "Not this time. "
        return (
            f"{first}It stays 1. The next number of bf16 is {STORED['bf16'].eps:g} away, and 0.003 is less than half of"
            " that. Adding it a thousand times changes nothing either. Find a format in which it does."
        )

    text = "A weight of 1 is stored in bf16. The optimizer adds 0.003. What is the weight then?"
    question = None if settings else Question(text, choices, judge)
    return Explorer(CONTROLS, render, given=settings, leaves_out=LEAVES_OUT, question=question)
