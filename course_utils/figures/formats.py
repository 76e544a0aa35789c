"""Floating-point formats: the bits of each, and the numbers that it reaches, on one axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..predict.number_formats import FORMATS, Format
from . import look
from .look import BLUE, GREY, INK, ORANGE, SKY, Figure, listing, sentence


def formats(chosen: Sequence[Format] = (), marks: Mapping[str, float] | None = None, title: str | None = None) -> Figure:
    """One row a format: left its bits for sign, exponent and mantissa, right what it reaches on a logarithmic axis.

    The range is drawn in two strengths: numbers with the full precision, and below them the subnormal ones, which lose it bit by bit. `marks` are numbers
    to be shown as vertical lines, by label. By default fp32, TF32, bf16, fp16 and two of fp8. Raises ValueError for a mark that is not above zero.
    """
    rows = list(chosen) or list(FORMATS.values())
    marks = dict(marks or {})
    for label, value in marks.items():
        if not value > 0:
            raise ValueError(f"a mark lies on a logarithmic axis, so it is above zero; {label!r} is {value!r}")
    mpl, (left, right) = look.new_axes(1, 2, size=(look.SIZE[0] + 1.2, 1.5 + 0.42 * len(rows)), sharey=True, gridspec_kw={"width_ratios": [1, 1.35]})
    for y, f in enumerate(rows):
        at = 0
        for width, color in ((1, GREY), (f.exponent, ORANGE), (f.mantissa, SKY)):
            left.barh(y, width, left=at, height=0.62, color=color, edgecolor="white", linewidth=1)
            if width > 1:
                left.text(at + width / 2, y, str(width), ha="center", va="center", fontsize=9.5, color=INK)
            at += width
        right.plot([f.smallest, f.smallest_normal], [y, y], color=BLUE, linewidth=2.2, linestyle=":")
        right.plot([f.smallest_normal, f.max], [y, y], color=BLUE, linewidth=7, solid_capstyle="butt")
    for value in marks.values():
        right.axvline(value, color=INK, linewidth=1, linestyle="-.", zorder=1)
    for i, (label, value) in enumerate(marks.items()):
        right.annotate(label, (value, -0.62), (0, 2 + 11 * (i % 2)), textcoords="offset points", ha="center", va="bottom", fontsize=8.5, color=INK)
    for label, color in (("sign", GREY), ("exponent: the range", ORANGE), ("mantissa: the precision", SKY)):
        left.barh(-9, 1, color=color, label=label)
    left.set_yticks(range(len(rows)), [f.name for f in rows], fontsize=10)
    left.set_ylim(len(rows) - 0.45, -0.62)
    left.set_xlim(0, max(f.bits for f in rows))
    left.set_xlabel("bits")
    right.set_xscale("log")
    right.set_xlabel("numbers above zero (dotted: subnormal)")
    right.grid(axis="x", color="#E6E6E6", linewidth=0.8)
    look.legend(left, loc="lower right", fontsize=8.5, handlelength=1.2)
    widest, finest = max(rows, key=lambda f: f.max / f.smallest_normal), max(rows, key=lambda f: f.mantissa)
    look.title(mpl, title or f"{widest.name} reaches furthest, {finest.name} is the most precise")
    told = [f"{f.name}: {f.exponent} exponent and {f.mantissa} mantissa bits, from {f.smallest:.1g} to {f.max:.3g}" for f in rows]
    shown = f" Marked: {listing([f'{label} at {value:.1g}' for label, value in marks.items()])}." if marks else ""
    return Figure(mpl, sentence("number formats; " + "; ".join(told)) + shown)
