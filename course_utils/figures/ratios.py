"""How many times as fast something became, case by case, on a logarithmic axis: twice as fast and half as fast lie equally far from 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..run import Samples
from ..units import number
from . import look
from .look import KINDS, Figure, made_guesses, middle, sentence, spread

TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
Ratio = Samples | float


def ratios(
    values: Mapping[str, Mapping[str, Ratio]], guess: Mapping[str, Any] | None = None, xlabel: str = "times as fast as eager", title: str | None = None
) -> Figure:
    """One row a case, with a bar for each series from 1 to its ratio: to the right what became faster, to the left what became slower.

    `values` maps a case to its ratios by series, `{"dead code": {"script": Samples([...])}}`; a series may be missing in a case. A guess is about the
    first series of a case. Raises ValueError without values or for a ratio that is not above zero, KeyError for a guess about an unknown case.
    """
    series = list(dict.fromkeys(name for row in values.values() for name in row))
    if not series:
        raise ValueError("ratios() needs at least one case with a ratio")
    low_high = [end for row in values.values() for ratio in row.values() for end in spread(ratio)]
    if min(low_high) <= 0:
        raise ValueError("a ratio is above zero: the time before over the time after")
    guesses, open_guess = made_guesses(guess, list(values))
    mpl, (ax,) = look.new_axes(size=(look.SIZE[0], 1.5 + 0.36 * len(values) * (0.55 + 0.45 * len(series))))
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
            style: dict[str, Any] = {"marker": marker, "markersize": 6, "color": color, "capsize": 3, "elinewidth": 1.4, "linestyle": "none"}
            ax.errorbar([at], [y], xerr=[[at - low], [top - at]], label=None if told in named else told, **style)
            named.add(told)
            right = at >= 1
            place: dict[str, Any] = {"textcoords": "offset points", "va": "center", "ha": "left" if right else "right", "fontsize": 9.5}
            ax.annotate(number(at), (top if right else low, y), (7 if right else -7, 0), color=look.INK, **place)
    if guesses:
        cross = {**KINDS["guess"].style(), "markersize": 9, "markeredgewidth": 2.2, "zorder": 5}
        ax.plot(list(guesses.values()), [list(values).index(case) for case in guesses], label="your guess", **cross)
    ax.axvline(1, color=look.INK, linewidth=1)
    ax.set_xscale("log")
    ends = [*low_high, *guesses.values(), 1.0]
    ax.set_xlim(min(ends) / 1.9, max(ends) * 1.9)
    ticks = [t for t in TICKS if min(ends) / 1.9 <= t <= max(ends) * 1.9]
    ax.set_xticks(ticks, [f"{t:g}" for t in ticks])
    ax.minorticks_off()
    ax.set_yticks(range(len(values)), list(values), fontsize=10)
    ax.set_ylim(len(values) - 0.45, -0.55)
    ax.set_xlabel(f"slower  ←  {xlabel}  →  faster")
    ax.grid(axis="x", color="#E6E6E6", linewidth=0.8)
    look.legend_above(ax)
    look.title(mpl, title or _finding(values, series[0]))

    parts = []
    for case, measured in values.items():
        told = ", ".join(f"{name} {number(middle(ratio))}" for name, ratio in measured.items())
        parts.append(f"{case}: {told}" + (f", guessed {number(guesses[case])}" if case in guesses else ""))
    return Figure(mpl, sentence(f"{xlabel}, measured: {'; '.join(parts)}") + " No guess was made." * open_guess)


def _finding(values: Mapping[str, Mapping[str, Ratio]], first: str) -> str:
    """How many cases the first series made clearly faster and clearly slower, by its quartiles."""
    found = [spread(row[first]) for row in values.values() if first in row]
    faster, slower = sum(low > 1 for low, _ in found), sum(high < 1 for _, high in found)
    return f"{first}: {faster} of {len(found)} became faster, {slower} slower"
