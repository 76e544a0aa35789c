"""Seconds over calls, as it was and with something spent once, and the number of calls at which that is paid back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..predict import BreakEven, crossing
from ..run import Samples
from ..units import number, readable, readable_unit
from . import look
from .look import KINDS, Figure, sentence

Points = Sequence[tuple[float, float]]


def break_even(
    before: Points,
    after: Sequence[Points],
    predicted: BreakEven | None = None,
    guess: Any = None,
    labels: tuple[str, str] = ("eager", "compiled"),
    title: str | None = None,
) -> Figure:
    """Cumulated seconds over calls of both ways, one curve for each repeat of `after`; marks where they meet, and where the model and a guess have it.

    Points are (calls, seconds since the first call began). `guess` is a number of calls; `...` draws nothing, and the text says so; None asks for none.
    Raises ValueError for an empty curve, TypeError for a guess that is no number.
    """
    if not after:
        raise ValueError("break_even() needs at least one curve to compare with")
    guesses, open_guess = look.made_guesses(None if guess is None else {"calls": guess}, ["calls"])
    found = [crossing(before, curve) for curve in after]
    met = Samples(found).median
    most = max(curve[-1][0] for curve in (before, *after))
    seconds = max(curve[-1][1] for curve in (before, *after))
    factor, unit = readable_unit("s", seconds)

    mpl, (ax,) = look.new_axes()
    plain = KINDS["measured"].style() | {"marker": "o", "markersize": 5}
    ax.plot([0, *(c for c, _ in before)], [0, *(s * factor for _, s in before)], label=f"measured: {labels[0]}", **_sparse(plain, len(before)))
    for i, curve in enumerate(after):
        style = KINDS["measured"].style(1) | {"marker": "s", "markersize": 5, "linewidth": 1.6}
        told = f"measured: {labels[1]}" + (f", {len(after)} repeats" if len(after) > 1 else "")
        ax.plot([c for c, _ in curve], [s * factor for _, s in curve], label=told if i == 0 else None, **_sparse(style, len(curve)))
    if predicted is not None:
        dashed = KINDS["predicted"].style()
        ax.plot([0, most], [0, predicted.before(most) * factor], label="predicted", **dashed)
        ax.plot([0, most], [predicted.once_s * factor, predicted.after(most) * factor], **dashed)
        seconds = max(seconds, predicted.before(most), predicted.after(most))
    top = seconds * factor * 1.08
    if math.isfinite(met):
        ax.axvline(met, color=look.INK, linewidth=1, linestyle=":")
        right = met < 0.6 * most
        place: dict[str, Any] = {"textcoords": "offset points", "ha": "left" if right else "right", "fontsize": 10.5, "fontweight": "bold"}
        ax.annotate(f"{met:.0f} calls", (met, top * 0.04), (5 if right else -5, 0), color=look.BLUE, **place)
    drawn = [calls for calls in guesses.values() if calls <= 1.5 * most]
    for calls in drawn:
        cross = KINDS["guess"].style() | {"markersize": 10, "markeredgewidth": 2.4, "zorder": 5}
        ax.plot([calls], [_line(before, calls) * factor], label="your guess", **cross)
        top = max(top, _line(before, calls) * factor * 1.08)
    if len(drawn) < len(guesses):  # far out, where drawing it would squeeze all else together
        beyond: dict[str, Any] = {"ha": "right", "va": "center", "fontsize": 10.5, "fontweight": "bold", "color": look.INK}
        ax.annotate(f"your guess: {number(guesses['calls'])} →", (0.99, 0.5), xycoords="axes fraction", **beyond)
    ax.set(xlabel="calls", ylabel=f"time since the first call began ({unit})")
    ax.set_xlim(0, max([most, *drawn]) * 1.02)
    ax.set_ylim(0, top)
    ax.grid(color="#E6E6E6", linewidth=0.8)
    look.legend_above(ax, columns=2)
    look.title(mpl, title or _finding(met, most, predicted, labels))

    parts = [f"{labels[0]}: {before[-1][0]:g} calls took {readable('s', before[-1][1])}"]
    parts += [f"{labels[1]}: the first call took {readable('s', curve[0][1])}, {curve[-1][0]:g} calls {readable('s', curve[-1][1])}" for curve in after[:1]]
    parts += [f"paid back after {listed} calls" for listed in [look.listing([number(f) for f in found])] if math.isfinite(met)]
    parts += [f"predicted {number(predicted.calls)}"] if predicted is not None else []
    parts += [f"guessed {number(calls)}" for calls in guesses.values()]
    return Figure(mpl, sentence("; ".join(parts)) + " No guess was made." * open_guess)


def _sparse(style: dict[str, Any], points: int) -> dict[str, Any]:
    return style | {"markevery": max(1, points // 12)}


def _line(curve: Points, calls: float) -> float:
    """The curve's seconds at a number of calls, drawn on at its mean rate beyond its end."""
    return calls * curve[-1][1] / curve[-1][0]


def _finding(met: float, most: float, predicted: BreakEven | None, labels: tuple[str, str]) -> str:
    if not math.isfinite(met):
        return f"Within {most:.0f} calls {labels[1]} has not caught up with {labels[0]}"
    told = f"; the model said {predicted.calls:.0f}" if predicted is not None and math.isfinite(predicted.calls) else ""
    return f"{labels[1]} has caught up with {labels[0]} after {met:.0f} calls{told}"
