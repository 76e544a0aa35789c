"""Speed-ups and the brackets that were predicted for them, a row each, on a logarithmic axis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..predict import Bracket
from ..run import Samples
from ..units import number
from . import look
from .look import KINDS, Figure, kind_of, made_guesses, middle, provenance_words, sentence, spread
from .ratios import TICKS


def brackets(
    predicted: Mapping[str, Bracket], measured: Mapping[str, Samples | float], guess: Mapping[str, Any] | None = None, title: str | None = None
) -> Figure:
    """One row a case: the predicted bracket as a dashed frame from its low to its high end, what was measured as a point, a guess as a cross.

    The look of a point is that of its provenance (measured here, recorded, published). Raises ValueError without a case, KeyError for a case that was
    predicted and not measured.
    """
    if not predicted:
        raise ValueError("brackets() needs at least one prediction")
    rows = list(predicted)
    guesses, open_guess = made_guesses(guess, rows)
    mpl, (ax,) = look.new_axes(size=(look.SIZE[0], 1.6 + 0.5 * len(rows)))
    ends = [1.0, *guesses.values(), *(e for b in predicted.values() for e in (b.low, b.high)), *(e for r in rows for e in spread(measured[r]))]
    named: set[str] = set()
    orange, parts, inside = KINDS["predicted"].color, [], 0
    for y, row in enumerate(rows):
        bracket, value = predicted[row], measured[row]
        told = "" if "bracket" in named else "predicted bracket"
        frame: dict[str, Any] = {"facecolor": orange + "33", "edgecolor": orange, "linestyle": "--", "linewidth": 1.6, "label": told or None}
        # A bracket of one point still shows as a line.
        ax.barh(y, max(bracket.high - bracket.low, 0.004 * bracket.high), left=bracket.low, height=0.5, **frame)
        named.add("bracket")
        words, kind, at = provenance_words(value), kind_of(value), middle(value)
        low, high = spread(value)
        style = {**KINDS[kind].style(), "linestyle": "none", "capsize": 4, "elinewidth": 1.4}
        ax.errorbar([at], [y], xerr=[[at - low], [high - at]], label=None if words in named else words, **style)
        named.add(words)
        ax.annotate(number(at), (at, y), (0, -15), textcoords="offset points", ha="center", fontsize=9)
        inside += bracket.outside(at) == 0
        guessed = f", guessed {number(guesses[row])}" if row in guesses else ""
        parts.append(f"{row}: {number(at)}, predicted {number(bracket.low)} to {number(bracket.high)}{guessed}")
    if guesses:
        cross = {**KINDS["guess"].style(), "markersize": 9, "markeredgewidth": 2.2, "zorder": 5}
        ax.plot(list(guesses.values()), [rows.index(row) for row in guesses], label="your guess", **cross)
    ax.axvline(1, color=look.INK, linewidth=1)
    ax.set_xscale("log")
    ax.set_xlim(min(ends) / 1.3, max(ends) * 1.3)
    ticks = [t for t in (*TICKS, 3, 4, 8, 16) if min(ends) / 1.3 <= t <= max(ends) * 1.3]
    ax.set_xticks(ticks, [f"{t:g}" for t in ticks])
    ax.minorticks_off()
    ax.set_yticks(range(len(rows)), rows, fontsize=10)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set_xlabel("times as fast as in float32")
    ax.grid(axis="x", color="#E6E6E6", linewidth=0.8)
    look.legend_above(ax)
    look.title(mpl, title or f"{inside} of {len(rows)} speed-ups lie in their bracket")
    sources = [f"{row}: {v.provenance.machine}" for row, v in measured.items() if isinstance(v, Samples) and v.provenance.kind == "published"]
    return Figure(mpl, sentence("times as fast as in float32; " + "; ".join(parts)) + " No guess was made." * open_guess, sources)
