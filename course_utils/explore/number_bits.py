"""What a floating-point format makes of a number: its bits, its neighbours, and what other formats would keep."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from ..figures.canvas import BLUE, INK, ORANGE, RUST, SKY
from ..predict import FORMATS, Format
from ..show.units import is_number
from .controls import Control
from .drawing import WIDTH, Drawing, View
from .explorer import Explorer, Found, Question, Values, opening

# The number of `explore.bits()`: typed, or set by flipping the bits that store it.

LONGEST = max(f.bits for f in FORMATS.values())
_POWER = re.compile(r"\s*([+-]?)(\d+)\s*(?:\^|\*\*)\s*([+-]?\d{1,3})\s*")


class Number(Control):
    """A number of any size: `70000`, `1e-8`, `2^-24`, `inf`; or the bits themselves (`0b…`), which stay as they
    are when the format changes. NaN has many: a flipped one is kept as bits."""

    def checked(self, value: Any) -> float | str:
        if isinstance(value, str):
            words = value.strip().replace(",", "")
            if re.fullmatch(r"0b[01]{8,32}", words):
                return words
            try:
                power = _POWER.fullmatch(words)
                if power:
                    return (-1 if power[1] == "-" else 1) * float(power[2]) ** int(power[3])
                return float(words)
            except (ValueError, OverflowError, ZeroDivisionError):
                raise ValueError(f"{self.name} is something like 70000, 1e-8 or 2^-24; got {value!r}") from None
        if not is_number(value):
            raise ValueError(f"{self.name} is something like 70000, 1e-8 or 2^-24; got {value!r}")
        return float(value)

    def said(self, value: Any) -> str:
        return f"{self.label} {value}"

    def bits(self, values: Mapping[str, Any]) -> list[tuple[bool, str]]:
        """The bits that store the number, the sign first: whether each is 1, and what it belongs to."""
        held = FORMATS[values["format"]]
        pattern = stored(values[self.name], held)
        return [(bool(pattern >> place & 1), part(place, held)) for place in reversed(range(held.bits))]

    def flipped(self, values: Mapping[str, Any], index: int) -> float | str:
        """The number that has one of these bits turned over."""
        words = "".join(str(int(on != (i == index))) for i, (on, _) in enumerate(self.bits(values)))
        number = FORMATS[values["format"]].value(int(words, 2))
        return f"0b{words}" if math.isnan(number) else number

    def widgets(
        self, value: Any, changed: Callable[[str, Any], None], say: Callable[[str], None] | None = None
    ) -> tuple[Any, list[Any]]:
        import ipywidgets as w

        row = _Row(w, self, changed)
        return row.box, [row.text, *row.bits]

    def follow(self, shown: Any, values: Mapping[str, Any]) -> None:
        shown.row.show(values)


class _Row:
    """A box to type in, and a button for each bit."""

    def __init__(self, w: Any, control: Number, changed: Callable[[str, Any], None]):
        self.control, self.changed, self.quiet = control, changed, False
        self.text = w.Text(
            description=control.label, continuous_update=False, layout={"width": "342px"},
            style={"description_width": "140px"},
        )  # fmt: skip
        self.bits = [
            w.ToggleButton(description="0", layout={"width": "19px", "padding": "0", "margin": "0 1px 0 0"})
            for _ in range(LONGEST)
        ]
        self.text.observe(self._typed, "value")
        for bit in self.bits:
            bit.observe(self._flipped, "value")
        words = w.HTML("<span style='font-size:13px'>flip a bit:&nbsp;</span>")
        flex = {"flex_flow": "row wrap", "align_items": "center"}
        self.box = w.VBox([self.text, w.HBox([words, *self.bits], layout=flex)])
        self.box.row = self

    def show(self, values: Mapping[str, Any]) -> None:
        """Bring the buttons to the bits that store the number."""
        self.values, bits = values, self.control.bits(values)
        self.quiet = True
        self.text.value = str(values[self.control.name])
        for i, bit in enumerate(self.bits):
            bit.layout.display = "" if i < len(bits) else "none"
            if i < len(bits):
                bit.value, what = bits[i]
                bit.description = str(int(bit.value))
                bit.button_style = {"sign": "", "exponent": "warning", "mantissa": "info"}[what]
                bit.tooltip = f"{what}, bit {len(bits) - 1 - i}: {int(bit.value)}"
        self.quiet = False

    def _typed(self, change: Mapping[str, Any]) -> None:
        if not self.quiet:
            self.changed(self.control.name, change["new"])

    def _flipped(self, change: Mapping[str, Any]) -> None:
        if not self.quiet:
            index = self.bits.index(change["owner"])
            self.changed(self.control.name, self.control.flipped(self.values, index))


def stored(number: float | str, held: Format) -> int:
    """The bits that store a number in this format. Those of another format are taken for NaN."""
    if isinstance(number, str):
        return int(number, 2) if len(number) == 2 + held.bits else held.pattern(math.nan)
    return held.pattern(number)


def part(place: int, held: Format) -> str:
    """What the bit at this place, counted from the last one, belongs to."""
    return "mantissa" if place < held.mantissa else "exponent" if place < held.bits - 1 else "sign"


# A number among those that a format has: between its neighbours, and in the ranges of all formats.

STORED = {name: held for name, held in FORMATS.items() if name != "TF32"}  # TF32 is no way to store a number
LOW, HIGH = -46.0, 40.0  # of the axis, in powers of ten


def said(number: float) -> str:
    if math.isnan(number):
        return "NaN"
    return ("−" if number < 0 else "") + ("infinity" if math.isinf(number) else f"{abs(number):.9g}")


def neighbours(drawing: Drawing, y: float, pattern: int, held: Format, asked: float) -> str:
    """The stored number between the next ones on a line; returns what they are, in a sentence or two."""
    rest, kept = pattern % 2 ** (held.bits - 1), held.value(pattern)
    if rest >= held.infinity:
        drawing.text(
            12, y + 40, "Nothing lies next to it." if math.isinf(kept) else "NaN equals nothing, itself too.", 13
        )
        return "Nothing can be added to it." if math.isinf(kept) else "Whatever is computed with it is NaN again."
    size, side = abs(kept), -1 if math.copysign(1, kept) < 0 else 1  # negative numbers grow to the left
    below = held.value(rest - 1) if rest else -held.smallest
    above = held.value(rest + 1) if rest + 1 < held.infinity else math.nan
    step = (size - below) if math.isnan(above) else above - size
    widest = max(size - below, step)
    middle, line = WIDTH / 2, y + 44
    drawing.line([(40, line), (WIDTH - 40, line)], "#888888", 1)
    drawing.text(12, y + 12, "the numbers next to it", 12)
    for value in (below, size, above):
        if math.isnan(value):
            drawing.text(middle + side * 260, line + 24, "nothing more" if held.finite else "infinity", 12, "middle")
            continue
        x = middle + side * 215 * (value - size) / widest
        drawing.line([(x, line - 8), (x, line + 8)], BLUE if value == size else INK, 4 if value == size else 2)
        drawing.text(
            x, line + 24, said(side * value), 12, "middle", bold=value == size, color=BLUE if value == size else INK
        )
    off = abs(asked) - size if math.isfinite(asked) else 0.0
    if off and abs(off) <= widest:
        x = middle + side * 215 * off / widest
        drawing.line([(x - 5, line - 5), (x + 5, line + 5)], RUST, 2.4)
        drawing.line([(x - 5, line + 5), (x + 5, line - 5)], RUST, 2.4)
        drawing.text(WIDTH - 12, y + 12, "× what you asked for", 12, "end", color=RUST)
    drawing.text(middle, y + 90, f"step {step:.6g}", 12, "middle")
    return f"The next number is {step:.6g} away: add less than half of that, and nothing changes."


def ranges(drawing: Drawing, y: float, number: float, kept: bool) -> None:
    """A row for each format: its range, from subnormal (thin) to the largest, and what it keeps of the number."""
    left, right = 84.0, 500.0

    def at(value: float) -> float:
        return left + (right - left) * (min(max(math.log10(value), LOW), HIGH) - LOW) / (HIGH - LOW)

    drawing.text(12, y, "what each can hold (thin: with fewer digits)", 12)
    if kept:
        drawing.text(right + 14, y, "and makes of it", 12)
    for row, (name, held) in enumerate(STORED.items()):
        up = y + 14 + 24 * row
        drawing.text(left - 8, up + 12, name, 12, "end")
        drawing.line([(at(held.smallest), up + 8), (at(held.smallest_normal), up + 8)], BLUE, 2, "2 2")
        drawing.bar(at(held.smallest_normal), up + 2, at(held.max) - at(held.smallest_normal), 12, BLUE)
        if kept:
            signed = held.value(held.pattern(number))
            drawing.text(right + 14, up + 12, said(signed), 12, color=INK if signed == number else RUST)
    low = y + 14 + 24 * len(STORED)
    if kept and 0 < abs(number) < math.inf:
        drawing.line([(at(abs(number)), y + 10), (at(abs(number)), low)], RUST, 2)
    for power in range(-40, 41, 10):
        drawing.line([(at(10.0**power), low), (at(10.0**power), low + 4)], "#888888", 1)
        drawing.text(at(10.0**power), low + 17, f"1e{power}" if power else "1", 11, "middle")


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
        first = opening(guess, choices[2])
        return (
            f"{first}It stays 1. The next number of bf16 is {STORED['bf16'].eps:g} away, and 0.003 is less than half of"
            " that. Adding it a thousand times changes nothing either. Find a format in which it does."
        )

    text = "A weight of 1 is stored in bf16. The optimizer adds 0.003. What is the weight then?"
    question = Question(text, choices, judge)
    return Explorer("bits", CONTROLS, render, given=settings, leaves_out=LEAVES_OUT, question=question)
