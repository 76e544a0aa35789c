"""A number among those that a format has: between its neighbours, and in the ranges of all formats."""

from __future__ import annotations

import math

from ..figures.canvas import BLUE, INK, RUST
from ..predict import FORMATS, Format
from .drawing import WIDTH, Drawing

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
