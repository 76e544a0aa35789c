"""How many times as fast functions became, and after how many calls compiling is paid back, drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from course_utils import Samples
from course_utils.figures import canvas
from course_utils.for_lessons import (
    GUESS,
    KINDS,
    Figure,
    made_guesses,
    middle,
    number,
    readable,
    readable_unit,
    sentence,
    spread,
)
from course_utils.predict import BreakEven, crossing

Points = Sequence[tuple[float, float]]  # calls, and the seconds that they took
Ratio = Samples | float


def about(count: float) -> str:
    """A number that extended lines can't give more exactly: two digits of it, such as 1,800."""
    return f"{float(f'{count:.2g}'):,.0f}" if math.isfinite(count) else "no number"


def break_even(
    before: Points,
    after: Sequence[Points],
    predicted: BreakEven | None = None,
    guess: Any = None,
    labels: tuple[str, str] = ("eager", "compiled"),
    title: str | None = None,
    reach: float = 0,
    unit_name: str = "calls",
) -> Figure:
    """Cumulated seconds over calls, as it was and with something spent once (one curve for each repeat of `after`).
    Marks where they meet, and where the model and a guess have it.

    Points are (calls, seconds since the first call began). `reach` draws the model's lines on to so many calls; then
    the mark is where the model has it, if the measured curves don't get there. `guess` is a number of calls; `...`
    draws nothing, and the text says so; None asks for none. Raises ValueError for an empty curve, TypeError for a guess
    that is no number.
    """
    if not after:
        raise ValueError("break_even() needs at least one curve to compare with")
    guesses, open_guess = made_guesses(None if guess is None else {"calls": guess}, ["calls"])
    found = [crossing(before, curve) for curve in after]
    met = Samples(found).median
    drawn_on = reach > 0 and predicted is not None and not math.isfinite(met)
    if drawn_on and predicted is not None:
        met = predicted.calls
    most = max(reach, *(curve[-1][0] for curve in (before, *after)))
    seconds = max(curve[-1][1] for curve in (before, *after))
    if reach and predicted is not None:
        seconds = max(seconds, predicted.before(most), predicted.after(most))
    factor, unit = readable_unit("s", seconds)

    mpl, (ax,) = canvas.new_axes()
    plain = KINDS["measured"].style() | {"marker": "o", "markersize": 5}
    ax.plot(
        [0, *(c for c, _ in before)],
        [0, *(s * factor for _, s in before)],
        label=f"measured: {labels[0]}",
        **_sparse(plain, len(before)),
    )
    for i, curve in enumerate(after):
        style = KINDS["measured"].style(1) | {"marker": "s", "markersize": 5, "linewidth": 1.6}
        told = f"measured: {labels[1]}" + (f", {len(after)} repeats" if len(after) > 1 else "")
        ax.plot(
            [c for c, _ in curve],
            [s * factor for _, s in curve],
            label=told if i == 0 else None,
            **_sparse(style, len(curve)),
        )
    if predicted is not None:
        dashed = KINDS["predicted"].style()
        told = "extended" if reach else "predicted"
        ax.plot([0, most], [0, predicted.before(most) * factor], label=told, **dashed)
        ax.plot([0, most], [predicted.once_s * factor, predicted.after(most) * factor], **dashed)
        for label, end_s in zip(labels, (predicted.before(most), predicted.after(most)), strict=True) if reach else ():
            above = end_s >= max(predicted.before(most), predicted.after(most))
            near: dict[str, Any] = {"textcoords": "offset points", "ha": "right", "fontsize": 10, "color": canvas.INK}
            ax.annotate(label, (most, end_s * factor), (-10, 0 if above else -24), **near)
        seconds = max(seconds, predicted.before(most), predicted.after(most))
    top = seconds * factor * 1.08
    if math.isfinite(met):
        ax.axvline(met, color=canvas.INK, linewidth=1, linestyle=":")
        right = met < 0.6 * most
        place: dict[str, Any] = {
            "textcoords": "offset points",
            "ha": "left" if right else "right",
            "fontsize": 10.5,
            "fontweight": "bold",
        }
        where = f"about {about(met)}" if drawn_on else f"{met:,.0f}"
        ax.annotate(f"{where} {unit_name}", (met, top * 0.04), (5 if right else -5, 0), color=canvas.BLUE, **place)
    drawn = [calls for calls in guesses.values() if calls <= 1.5 * most]
    for calls in drawn:
        ax.plot([calls], [_line(before, calls) * factor], label="your guess", **GUESS)
        top = max(top, _line(before, calls) * factor * 1.08)
    if len(drawn) < len(guesses):  # far out, where drawing it would squeeze all else together
        beyond: dict[str, Any] = {
            "ha": "right",
            "va": "center",
            "fontsize": 10.5,
            "fontweight": "bold",
            "color": canvas.INK,
        }
        ax.annotate(f"your guess: {number(guesses['calls'])} →", (0.99, 0.5), xycoords="axes fraction", **beyond)
    ax.set(xlabel=unit_name, ylabel=f"time since the first of them began ({unit})")
    ax.set_xlim(0, max([most, *drawn]) * 1.02)
    ax.set_ylim(0, top)
    ax.grid(color="#E6E6E6", linewidth=0.8)
    canvas.legend_above(ax, columns=2)
    canvas.title(mpl, title or _paid_back(met, most, predicted, labels))

    parts = [f"{labels[0]}: {before[-1][0]:g} {unit_name} took {readable('s', before[-1][1])}"]
    parts += [
        f"{labels[1]}: the first of them took {readable('s', curve[0][1])}, {curve[-1][0]:g} {unit_name}"
        f" {readable('s', curve[-1][1])}"
        for curve in after[:1]
    ]
    parts += [
        f"paid back after {listed} {unit_name}"
        for listed in [canvas.listing([number(f) for f in found])]
        if all(map(math.isfinite, found))
    ]
    said = "extended, the lines meet after" if reach else "predicted"
    if predicted is not None:
        told = f"about {about(predicted.calls)}" if reach else number(predicted.calls)
        said += f" {told}" if math.isfinite(predicted.calls) else " that it never is"
        parts.append(said)
    parts += [f"guessed {number(calls)}" for calls in guesses.values()]
    return Figure(mpl, sentence("; ".join(parts)) + " No guess was made." * open_guess)


def _sparse(style: dict[str, Any], points: int) -> dict[str, Any]:
    return style | {"markevery": max(1, points // 12)}


def _line(curve: Points, calls: float) -> float:
    """The curve's seconds at a number of calls, extended at its mean rate beyond its end."""
    return calls * curve[-1][1] / curve[-1][0]


def _paid_back(met: float, most: float, predicted: BreakEven | None, labels: tuple[str, str]) -> str:
    if not math.isfinite(met):
        return f"Within {most:.0f} calls {labels[1]} has not caught up with {labels[0]}"
    told = f"; the model said {predicted.calls:.0f}" if predicted is not None and math.isfinite(predicted.calls) else ""
    return f"{labels[1]} has caught up with {labels[0]} after {met:.0f} calls{told}"


def ratios(
    values: Mapping[str, Mapping[str, Ratio]],
    guess: Mapping[str, Any] | None = None,
    xlabel: str = "times as fast as eager",
    title: str | None = None,
) -> Figure:
    """One row a case, with a bar for each series from 1 to its ratio on a logarithmic axis: to the right what became
    faster, to the left what became slower.

    `values` maps a case to its ratios by series, `{"dead code": {"script": Samples([...])}}`; a series may be missing
    in a case. A guess is about the first series of a case. Raises ValueError without values or for a ratio that is not
    above zero, KeyError for a guess about an unknown case.
    """
    series = list(dict.fromkeys(name for row in values.values() for name in row))
    if not series:
        raise ValueError("ratios() needs at least one case with a ratio")
    low_high = [end for row in values.values() for ratio in row.values() for end in spread(ratio)]
    if min(low_high) <= 0:
        raise ValueError("a ratio is above zero: the time before over the time after")
    guesses, open_guess = made_guesses(guess, list(values))
    mpl, (ax,) = canvas.new_axes(size=(canvas.SIZE[0], 1.5 + 0.36 * len(values) * (0.55 + 0.45 * len(series))))
    high = 0.72 / len(series)
    shades = KINDS["measured"].shades
    named: set[str] = set()
    for row, ratios_ in enumerate(values.values()):
        for name, ratio in ratios_.items():
            y = row + (series.index(name) - (len(series) - 1) / 2) * high
            color, (low, top), at = shades[series.index(name) % len(shades)], spread(ratio), middle(ratio)
            ax.barh(y, at - 1, height=high * 0.86, left=1, color=color, alpha=0.25, edgecolor="none")
            told = "measured (median, 25% to 75%)" if len(series) == 1 else f"measured: {name}"
            marker = "os^v"[series.index(name) % 4]
            style: dict[str, Any] = {
                "marker": marker,
                "markersize": 6,
                "color": color,
                "capsize": 3,
                "elinewidth": 1.4,
                "linestyle": "none",
            }
            ax.errorbar([at], [y], xerr=[[at - low], [top - at]], label=None if told in named else told, **style)
            named.add(told)
            right = at >= 1
            place: dict[str, Any] = {
                "textcoords": "offset points",
                "va": "center",
                "ha": "left" if right else "right",
                "fontsize": 9.5,
            }
            ax.annotate(number(at), (top if right else low, y), (7 if right else -7, 0), color=canvas.INK, **place)
    if guesses:
        ax.plot(list(guesses.values()), [list(values).index(case) for case in guesses], label="your guess", **GUESS)
    canvas.ratio_axes(ax, list(values), [*low_high, *guesses.values(), 1.0], 1.9)
    ax.set_xlabel(f"slower  ←  {xlabel}  →  faster")
    canvas.title(mpl, title or _counted(values, series[0]))

    parts = []
    for case, measured in values.items():
        told = ", ".join(f"{name} {number(middle(ratio))}" for name, ratio in measured.items())
        parts.append(f"{case}: {told}" + (f", guessed {number(guesses[case])}" if case in guesses else ""))
    return Figure(mpl, sentence(f"{xlabel}, measured: {'; '.join(parts)}") + " No guess was made." * open_guess)


def _counted(values: Mapping[str, Mapping[str, Ratio]], first: str) -> str:
    """How many cases the first series made clearly faster and clearly slower, by its quartiles."""
    found = [spread(row[first]) for row in values.values() if first in row]
    faster, slower = sum(low > 1 for low, _ in found), sum(high < 1 for _, high in found)
    return f"{first}: {faster} of {len(found)} became faster, {slower} slower"
